"""The ends of processes with an `LLM`: a fork, and a script that ends while a thread generates."""

from __future__ import annotations

import subprocess
import sys

import pytest

FORKED = """
import os
from lucebox import LLM, InvalidRequestError
llm = LLM("tiny-hybrid", context=128, threads=2)
want = llm.generate("x = 1", max_tokens=3).ids
child = os.fork()
if child == 0:
    for call in (lambda: llm.generate("x", max_tokens=1), lambda: llm.score("x = 1"), llm.reset, llm.snapshot,
                 lambda: next(llm.chat([{"role": "user", "content": "x"}], max_tokens=1, stream=True))):
        try:
            call()
        except InvalidRequestError as error:
            assert "fork" in str(error), error
        else:
            raise SystemExit("no error")
    llm.close()
    raise SystemExit(0)  # and the destructors of the model hang on no thread
assert os.waitpid(child, 0)[1] == 0
assert llm.generate("x = 1", max_tokens=3).ids == want
print("ok")
"""

ENDS = """
import threading, time
from lucebox import LLM
llm = LLM("tiny-hybrid", context=8192, threads=2)
for prompt in ("x = 1", [5] * 4000):  # one decodes, one prefills
    options = dict(max_tokens=9000, ignore_eos=True)
    threading.Thread(target=llm.generate, args=(prompt,), kwargs=options, daemon=True).start()
time.sleep(0.3)
print("ok")
"""


@pytest.mark.slow  # 2 s each
@pytest.mark.parametrize("script", [FORKED, ENDS], ids=["fork", "a thread generates"])
def test_a_process_ends_quietly(script: str) -> None:
    # Python 3.12 and newer warn about a fork in a multi-threaded process.
    python = [sys.executable, "-W", "ignore::DeprecationWarning"]
    done = subprocess.run([*python, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")
