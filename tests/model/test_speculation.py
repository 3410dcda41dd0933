"""Sessions that draft by themselves: the text of plain decoding, and as many tokens per verify as another
implementation accepts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded
from engines import STEP_COSTS
from lucebox import _engine
from lucebox.models.drafters import Drafters
from lucebox.options import engine_fields

RECORDED = recorded.load("tiny_hybrid.json")["speculation"]
CASES = RECORDED["tiny-hybrid-dflash"]["prompts"]["cases"]
SMOLLM2_CASES = RECORDED["smollm2-135m-dflash"]["cases"]
TINY = Path(__file__).parents[2] / "models" / "tiny-hybrid" / "lucebox_tiny"
SMOLLM2_DFLASH = TINY.parents[1] / "smollm2-135m-dflash" / "smollm2-135m-dflash.Q8_0.gguf"
DFLASH = TINY / "tiny-hybrid-dflash.BF16.gguf"
BY_TREE = {8: 3.195, 16: 3.456, 22: 3.495}  # nodes below the root: tokens per verify of the recorded trees
SMOLLM2_BY_TREE = {8: 2.356, 16: 2.505, 22: 2.656}
SAMPLED = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 11}


def open_engine(target: Path, draft: str, **options: Any) -> _engine.Engine:
    exact = {"activations": "f32", "kv": "f32", "context": 512, "threads": 1}
    engine = _engine.Engine.open(str(target), **engine_fields(Drafters.parse(draft)), **(exact | options))
    engine.step_costs = STEP_COSTS
    return engine


def write(session: _engine.Session, prompt: Sequence[int], n: int, vocab: int = 8192, **sampling: Any) -> list[int]:
    sampler = _engine.Sampler(vocab, **sampling)
    sampler.set_prompt(np.array(prompt, np.int32))
    ids = list(prompt)
    for _ in range(n):
        session.sync(np.array(ids, np.int32))
        ids.append(session.sample(sampler))
    return ids[len(prompt) :]


def check_acceptance(engine: _engine.Engine, cases: Sequence[dict[str, Any]], expected: float) -> None:
    """The recorded text, with at least 97 % of the expected tokens per verify."""
    n_tokens = verified = 0
    for case in cases:
        session = _engine.Session(engine)
        text = write(session, case["prompt_ids"], len(case["greedy_ids"]), vocab=engine.info["vocab"])
        assert text == case["greedy_ids"]
        n_tokens += len(case["greedy_ids"])
        verified += session.draft_counts["verified"]
    assert n_tokens / verified > 0.97 * expected


@pytest.mark.first_case
@pytest.mark.parametrize("budget", BY_TREE)
def test_trees_accept_as_recorded(checkpoint: Path, budget: int) -> None:
    check_acceptance(open_engine(checkpoint, str(DFLASH), draft_budget=budget), CASES, BY_TREE[budget])


@pytest.mark.slow  # 14 s each: 240 tokens of a 135M model in f32
@pytest.mark.parametrize("budget", SMOLLM2_BY_TREE)
def test_the_quantised_drafter_accepts_as_recorded(smollm2: Path, budget: int) -> None:
    """The catalog's drafter of SmolLM2, Q8_0."""
    engine = open_engine(smollm2, str(SMOLLM2_DFLASH), draft_budget=budget)
    check_acceptance(engine, SMOLLM2_CASES, SMOLLM2_BY_TREE[budget])


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("draft", "is_sampled"),
    [
        pytest.param(draft, is_sampled, marks=[] if i % 2 == is_sampled else pytest.mark.slow)  # 1 s each
        for i, draft in enumerate(("suffix", "mtp", "mtp+suffix", str(DFLASH), f"{DFLASH}+suffix"))
        for is_sampled in (False, True)
    ],
)
def test_drafts_change_no_token(draft: str, is_sampled: bool) -> None:
    sampling = SAMPLED if is_sampled else {}
    engine = open_engine(TINY / "tiny-hybrid.Q8_0.gguf", draft)
    prompt = CASES[0]["prompt_ids"]
    plain, drafting = _engine.Session(engine), _engine.Session(engine)
    plain.set_drafting(False)
    assert write(drafting, prompt, 200, **sampling) == write(plain, prompt, 200, **sampling)
    assert plain.draft_counts["verified"] == 0
    assert drafting.draft_counts["accepted"] > 5


def test_chunks_of_a_prompt_change_no_bit() -> None:
    prompt = np.array((CASES[0]["prompt_ids"] + CASES[1]["prompt_ids"]) * 20, np.int32)[:150]
    rounded = {"activations": "int8", "kv": "f16"}
    logits = []
    for chunk in (512, 100, 7, 1):
        session = _engine.Session(open_engine(TINY / "tiny-hybrid.Q8_0.gguf", "none", prefill_chunk=chunk, **rounded))
        session.sync(prompt)
        logits.append(np.array(session.logits()))
    assert all(np.array_equal(logits[0], other) for other in logits[1:])


def check_every_width(drafts: Sequence[str], budgets: Sequence[int], n: int) -> None:
    """8-bit activations: greedy text of sessions that verify trees of every width, beside plain decoding."""
    for draft in drafts:
        for i, budget in enumerate(budgets):
            options = {"draft_budget": budget, "activations": "int8", "kv": "f16", "kv_tokens": 1024}
            engine = open_engine(TINY / "tiny-hybrid.Q8_0.gguf", draft, **options)
            prompt = CASES[i % len(CASES)]["prompt_ids"]
            plain, drafting = _engine.Session(engine), _engine.Session(engine)
            plain.set_drafting(False)
            assert write(drafting, prompt, n) == write(plain, prompt, n), f"{draft}, {budget} tokens"
            assert drafting.draft_counts["accepted"] > 0


@pytest.mark.slow  # 3 s
def test_greedy_text_of_rounded_activations() -> None:
    check_every_width(["mtp", f"{DFLASH}+suffix"], [1, 7, 63], 100)


@pytest.mark.slow  # 11,000 tokens
def test_greedy_text_of_rounded_activations_at_every_width() -> None:
    check_every_width(["suffix", "mtp", str(DFLASH), f"{DFLASH}+suffix"], [1, 2, 3, 4, 5, 7, 11, 15, 22, 40, 63], 250)


def test_a_reused_prefix_drafts_as_a_fresh_one(checkpoint: Path) -> None:
    engine = open_engine(checkpoint, str(DFLASH), draft_budget=8)
    prompt = CASES[0]["prompt_ids"] + CASES[1]["prompt_ids"]
    fresh, reused = _engine.Session(engine), _engine.Session(engine)
    text = write(fresh, prompt, 60)
    write(reused, prompt, 30)
    reused.sync(np.array([*prompt[:-1], 7], np.int32))  # another prompt with the same start
    before = reused.draft_counts["verified"]
    assert write(reused, prompt, 60) == text
    assert reused.draft_counts["verified"] - before == pytest.approx(fresh.draft_counts["verified"], abs=3)
