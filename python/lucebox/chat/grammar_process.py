"""The sandbox process that compiles untrusted grammars before the server does: a resource-limited script that imports
only llguidance.

It reads questions from stdin, JSON objects, and answers each on stdout: 4 bytes with the length, then a JSON list: the
error, empty without one, and the warnings or the translated grammar. Its first answer, an empty list, says that it is
ready. A stack overflow, the memory limit or a kill ends this process, not the server (grammar_check.py).
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules must not shadow others

import ctypes
import json
import os
import resource
import struct
import threading
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

MEMORY = 512 << 20
"""Bytes of address space beyond those of the started process."""
STACK = 2 << 20
"""Bytes: a quarter of a server thread's stack, so that the server has room for every grammar that compiles here."""
NOT_BEGUN = "messages: the last one does not begin an answer in the requested format"
LENGTH = struct.Struct("<I")


class _Bytes:
    """A vocabulary of the 256 bytes and an end token."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([i]) for i in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())


def limits() -> LLParserLimits:
    """Limits of a grammar, here and in the server. A quarter of the library's own: a mask that constructs more
    expressions takes seconds."""
    return LLParserLimits(initial_lexer_fuel=250_000)


def report_of(table: LLTokenizer, grammar: str, begun: str) -> list[str]:
    """Compiles a grammar, consumes the beginning of an answer and computes the mask; returns the error and the
    warnings, each truncated."""
    matcher = LLMatcher(table, grammar, log_level=0, limits=limits())
    mask = bytearray((257 + 31) // 32 * 4)
    if not matcher.is_error() and begun and not matcher.consume_tokens(list(begun.encode())):
        return [NOT_BEGUN]
    if not matcher.is_error():
        matcher.unsafe_compute_mask_ptr(ctypes.addressof(ctypes.c_char.from_buffer(mask)), len(mask))
    return [str(text)[:8000] for text in (matcher.get_error(), *matcher.get_grammar_warnings()[:16])]


def lark_of(gbnf: str) -> list[str]:
    try:
        return ["", any_to_lark(gbnf)]
    except Exception as error:  # the translator raises plain exceptions
        return [str(error)[:8000] or type(error).__name__, ""]


def _answer_all() -> None:
    table = LLTokenizer(TokenizerWrapper(_Bytes()), 257, [256])
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(5)  # lower priority than the engine's threads
    _write([])
    read = sys.stdin.buffer.read
    while head := read(LENGTH.size):
        question = json.loads(read(*LENGTH.unpack(head)))
        _write(lark_of(question["gbnf"]) if "gbnf" in question else report_of(table, **question))


def _write(answer: list[str]) -> None:
    data = json.dumps(answer).encode()
    sys.stdout.buffer.write(LENGTH.pack(len(data)) + data)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    threading.stack_size(STACK)
    thread = threading.Thread(target=_answer_all)
    thread.start()
    thread.join()
