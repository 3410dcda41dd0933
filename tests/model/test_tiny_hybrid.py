"""tiny-hybrid, real Qwen3.5-architecture weights, against transformers in fp32 (tests/data/golden/tiny_hybrid.json)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import recorded
from lucebox import _engine
from lucebox.models import catalog
from tolerances import tolerance

GOLDEN = recorded.load("tiny_hybrid.json")["tiny_hybrid"]
# The readable bodies are slow; test_tiny_models.py runs them. The other sets than the best one take 1 to 3 s.
BEST, *OTHERS = reversed([isa for isa in _engine.available_isas() if isa != "scalar"])
SETS = pytest.mark.parametrize("isa", [BEST, *(pytest.param(isa, marks=pytest.mark.slow) for isa in OTHERS)])


@pytest.mark.parametrize("case", GOLDEN["completions"], ids=lambda case: repr(case["prompt"][:20]))
def test_completion(checkpoint: Path, case: dict) -> None:
    session = recorded.session(checkpoint, activations="f32", kv="f32")
    logprobs = recorded.step_logprobs(session, case["prompt_ids"], case["output_ids"])
    recorded.check_steps(logprobs, case["top5"], case["output_ids"])


@SETS
@pytest.mark.parametrize("case", GOLDEN["perplexity"], ids=lambda case: case["file"])
def test_perplexity(checkpoint: Path, case: dict, isa: str) -> None:
    session = recorded.session(checkpoint, activations="f32", kv="f32", isa=isa)
    nll = -np.mean(session.score(recorded.ids(case["ids"])))
    assert abs(nll - case["hf_fp32"]) < tolerance("golden", "nll")


@SETS
def test_shipped_file_scores_as_recorded(isa: str) -> None:
    """The Q8_0 file of the demo wheel, weights expanded exactly."""
    session = recorded.session(catalog.fetch("tiny-hybrid"), activations="f32", kv="f32", isa=isa)
    for case in GOLDEN["perplexity"]:
        nll = -np.mean(session.score(recorded.ids(case["ids"])))
        assert abs(nll - case["Q8_0"]) < tolerance("golden", "nll"), case["file"]


def test_int8_activations_stay_near_exact_ones() -> None:
    path = catalog.fetch("tiny-hybrid")
    exact, fast = (recorded.session(path, activations=mode) for mode in ("f32", "int8"))
    for case in GOLDEN["perplexity"]:
        tokens = recorded.ids(case["ids"])
        nll = [-np.mean(session.score(tokens)) for session in (exact, fast)]
        assert abs(nll[0] - nll[1]) < tolerance("int8", "prompt_nll"), case["file"]
