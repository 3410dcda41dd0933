# `make demo` and `make test` work on a machine that has python3 (3.10 or newer), g++, make and git; everything else
# comes from PyPI into .venv. The work is in ci/*.py; CONTRIBUTING.md says how to call the parts.
PYTHON ?= python3
RUN := .venv/bin/python
# files are UTF-8, whatever a library that tests load does to the locale
export PYTHONUTF8 := 1
# Python keeps its compiled modules, also where the environment forbids it: the tests start some hundred interpreters.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all check packs release-dry-run format generate bench clean

demo: .venv/tiny  # real weights: a code completion and a chat answer
	$(RUN) ci/demo.py

test: .venv/build  # the everyday tests: 12 minutes on two cores from a fresh clone
	$(RUN) ci/test.py

test-all: .venv/build  # every test and build check: for releases, and changes of kernels, parsers or the build
	$(RUN) ci/test.py --all

check: .venv/build  # the fast part: build, gates, tests
	$(RUN) ci/test.py wheel gates tests

packs: .venv/ready  # the kernel pack of every GPU family, verified, in build/packs, and an index of them in build/index
	$(RUN) ci/test.py wheel
	$(RUN) ci/test_packs.py

release-dry-run: .venv/tiny  # a release without its uploads: this version and the next, installed, upgraded, removed
	$(RUN) ci/test.py wheel release-dry-run

format: .venv/ready
	$(RUN) ci/run_gates.py --fix

generate: .venv/ready  # checked-in generated files, after a change to bindings, options, command line or targets/
	$(RUN) ci/generate_options.py
	$(RUN) ci/test.py wheel
	$(RUN) ci/check_generated.py --write

bench: .venv/tiny  # speed on this machine
	$(RUN) ci/test.py wheel
	.venv/bin/lucebox bench tiny-hybrid

clean:
	rm -rf build dist .venv

.venv/build: ci/requirements-build.txt  # ci/test.py makes .venv/tiny while it compiles
	$(PYTHON) ci/make_venv.py .venv
	@touch $@

.venv/ready: .venv/build ci/requirements.txt
	.venv/bin/pip install -qq --no-compile -r ci/requirements.txt
	@touch $@

.venv/tiny: .venv/ready $(wildcard models/tiny-hybrid/* models/tiny-hybrid/lucebox_tiny/*)
	.venv/bin/pip install -qq --no-deps --no-build-isolation --force-reinstall ./models/tiny-hybrid
	@touch $@
