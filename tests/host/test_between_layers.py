"""Sessions that compute between the layers of another one's prompt: all bits are those without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_pairs import FIRST, TARGET
from drafts import VOCAB
from engines import open_engine, random_ids
from lucebox import _engine
from lucebox.errors import InvalidRequestError
from reference import draft_files
from reference.gguf_files import write_model

LONG = 700  # tokens: a chunk of 600 and one of 100, which fits between the layers of another
OPTIONS = {"context": 800, "prefill_chunk": 600, "kv": "q8_0/wht4", "activations": "int8"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("between_layers")
    write_model(made / "target.gguf", TARGET)
    draft_files.write_gguf(made / "draft.gguf", FIRST)
    return made


def decoded(session: _engine.Session, ids: list[int], n: int) -> list[np.ndarray]:
    """Logits before each of n greedy tokens, which ids gets."""
    logits = []
    for _ in range(n):
        _engine.sync_together([session], [np.array(ids, np.int32)])
        logits.append(session.logits())
        ids.append(int(logits[-1].argmax()))
    return logits


@pytest.mark.parametrize("draft", ["none", "suffix", "mtp", "dflash"])
def test_no_bit_changes(folder: Path, draft: str) -> None:
    """One that decodes, one whose prompt begins there, and a prefix that is read and assembled there."""
    named = str(folder / "draft.gguf") if draft == "dflash" else draft
    engine = open_engine(folder / "target.gguf", draft=named, **OPTIONS)
    long = random_ids(LONG, VOCAB)
    starts = [random_ids(n, VOCAB, n).tolist() for n in (130, 256)]
    prompt, plain, answers = _engine.Session(engine), [], []
    prompt.sync(long)
    want = prompt.logits()
    for start in starts:
        ids = list(start)
        plain.append(decoded(_engine.Session(engine), ids, 12))
    prompt.reset()
    others = [(_engine.Session(engine), list(start)) for start in starts]
    decoded(*others[0], 1)
    answers = [plain[0][:1], []]
    copy, n_called = _engine.Session(engine), 0

    def between() -> None:
        nonlocal n_called
        n_called += 1
        session, ids = others[n_called % 2]
        if len(answers[n_called % 2]) < 12:
            answers[n_called % 2] += decoded(session, ids, 2)
        session = others[0][0]
        first = np.array(session.tokens[:64], np.int32)
        zeros = np.zeros(copy.recurrent_bytes + copy.window_bytes, np.uint8)
        state, window = zeros[: copy.recurrent_bytes], zeros[: copy.window_bytes // 2]  # one page of a window's two
        copy.assemble(first, [64], 0, [session.read_pages(0, 1)], state, window)

    prompt.sync(long, between_layers=between)
    assert n_called == TARGET.n_layers  # of the chunk of 600; the one of 100 has the others' buffers
    assert np.array_equal(prompt.logits(), want)
    for (session, ids), reached, expected in zip(others, answers, plain, strict=True):
        reached += decoded(session, ids, len(expected) - len(reached))
        assert all(np.array_equal(a, b) for a, b in zip(reached, expected, strict=True))


def test_misuse_and_errors(folder: Path) -> None:
    engine = open_engine(folder / "target.gguf", **OPTIONS)
    session, other, long = _engine.Session(engine), _engine.Session(engine), random_ids(LONG, VOCAB)
    assert (session.step_rows, session.prefill_chunk) == (256, 600)
    session.sync(long)
    want = session.logits()
    session.reset()
    uses: dict[str, Any] = {
        "sync": lambda: session.sync(long[:9]),
        "sync_together": lambda: _engine.sync_together([session], [long[:9]]),
        "reset": session.reset,
        "read_recurrent": session.read_recurrent,
        "append": lambda: session.append(long[:3]),
        "save": session.save,
        "an append of 600": lambda: other.sync(long),
    }

    def misuse() -> None:
        for name, use in uses.items():
            with pytest.raises(InvalidRequestError, match=r"between (its|the) layers"):
                use()
                pytest.fail(name)
        other.sync(long[:256])

    session.sync(long, between_layers=misuse)
    assert np.array_equal(session.logits(), want)

    class Enough(Exception):
        pass

    def stop() -> None:
        raise Enough

    session.reset()
    with pytest.raises(Enough):
        session.sync(long, between_layers=stop)
    assert session.n_tokens == 0
    session.sync(long)
    assert np.array_equal(session.logits(), want)
    short = _engine.Session(engine)
    short.sync(long[:256], between_layers=stop)  # nothing may come between the layers of a short append
    assert short.n_tokens == 256
