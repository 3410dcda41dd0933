"""The trained draft models of tiny-hybrid draft as recorded: DFlash in the loop of another implementation, the
prediction block in the loop of the script that trained it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import recorded
from lucebox import _engine, _kernels

DFLASH = recorded.load("tiny_hybrid.json")["speculation"]["tiny-hybrid-dflash"]["prompts"]["cases"]
MTP = recorded.load("tiny_hybrid_mtp.json")
DRAFT_FILE = Path(__file__).parents[2] / "models" / "tiny-hybrid" / "lucebox_tiny" / "tiny-hybrid-dflash.BF16.gguf"


def open_engine(target: Path, draft: Path) -> _engine.Engine:
    return _engine.Engine.open(str(target), draft_model=str(draft), activations="f32", kv="f32", context=256, threads=1)


def accepted(engine: _engine.Engine, prompt: Sequence[int], text: Sequence[int], depth: int, n_text: int) -> list[int]:
    """Tokens that each verify accepts until n_text tokens are there; text is what the target writes."""
    drafting = _kernels.Drafting(engine)
    ids, n, counts = [*prompt, *text], len(prompt), []
    while n < len(prompt) + n_text - 1:
        rows = np.array(ids[drafting.n_tokens : n], np.int32)
        positions = np.ascontiguousarray(np.stack([np.arange(drafting.n_tokens, n)] * 3), np.int32)
        drafting.append(rows, positions, np.zeros(0, np.int32), np.zeros(0, np.uint64))
        drafting.commit(list(range(len(rows))))
        drafted = drafting.propose(ids[n], depth)[0][:, 0].tolist()
        right = [a == b for a, b in zip(drafted, ids[n + 1 :], strict=False)]
        counts.append(right.index(False) if False in right else len(right))
        n += counts[-1] + 1
    return counts


@pytest.mark.first_case
@pytest.mark.parametrize("case", DFLASH, ids=lambda case: repr(case["prompt"][:20]))
def test_dflash(checkpoint: Path, case: dict) -> None:
    engine = open_engine(checkpoint, DRAFT_FILE)
    text = case["greedy_ids"]
    counts = accepted(engine, case["prompt_ids"], text, depth=7, n_text=len(text))
    assert counts[:-1] == case["accepted"][:-1]  # the last one of the record reaches beyond the text


def greedy(engine: _engine.Engine, prompt: Sequence[int], n: int) -> list[int]:
    session, sampler = _engine.Session(engine), _engine.Sampler(engine.info["vocab"])
    ids = list(prompt)
    for _ in range(n):
        session.sync(np.array(ids, np.int32))
        ids.append(session.sample(sampler))
    return ids[len(prompt) :]


@pytest.mark.slow  # 6 s each: test_speculation.py drafts by MTP every day
@pytest.mark.parametrize("depth", [1, 4])
def test_mtp(checkpoint: Path, mtp_head: Path, depth: int) -> None:
    engine, n = open_engine(checkpoint, mtp_head), MTP["n_tokens"]
    counts = []
    for prompt in MTP["prompts"]:
        counts += accepted(engine, prompt, greedy(engine, prompt, n + depth), depth, n)
    assert round(1 + float(np.mean(counts)), 3) == MTP["tokens_per_verify"][str(depth)]
