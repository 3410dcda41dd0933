# `make demo` and `make test` work on a machine that has python3 (3.10 or newer), g++, make and git;
# everything else comes from PyPI into .venv. The work is in ci/*.py; CONTRIBUTING.md says how to call the parts.
PYTHON ?= python3
RUN := .venv/bin/python

.PHONY: demo test check format generate bench clean

demo: .venv/ready  ## real weights: a code completion and a chat answer
	$(RUN) ci/demo.py

test: .venv/ready  ## everything CI runs
	$(RUN) ci/test.py

check: .venv/ready  ## the fast part: build, gates, host tests
	$(RUN) ci/test.py wheel gates tests

format: .venv/ready
	$(RUN) ci/run_gates.py --fix

generate: .venv/ready  ## stubs and docs/reference, after a change to the bindings or the options
	$(RUN) ci/test.py wheel
	$(RUN) ci/check_generated.py --write

bench: .venv/ready  ## speed on this machine
	$(RUN) ci/test.py wheel
	.venv/bin/lucebox bench tiny-hybrid

clean:
	rm -rf build dist .venv

.venv/ready: ci/requirements.txt ci/requirements-build.txt
	$(PYTHON) ci/make_venv.py .venv
	@touch $@
