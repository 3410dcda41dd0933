"""SmolLM2-135M-Instruct Q4_1, fetched by the catalog, against llama.cpp runs (tests/data/golden/smollm2.json).

`f32` there is the strict reference: the same weights expanded, fp32 activations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import recorded
from lucebox import LLM, Sampling, Scorer
from tolerances import tolerance

CASES = recorded.load("smollm2.json")["cases"]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case["name"] == "raw-text" else pytest.mark.slow) for case in CASES],  # 6 s each
    ids=lambda case: case["name"],
)
def test_exact_mode(smollm2: Path, case: dict) -> None:
    session = recorded.session(smollm2, activations="f32", kv="f32")
    want = case["f32"]
    logprobs = recorded.step_logprobs(session, case["prompt_ids"], want["output_ids"])
    recorded.check_steps(logprobs, want["top5"], want["output_ids"])
    assert logprobs.argmax(-1).tolist() == want["output_ids"]


@pytest.mark.slow  # 4 s; every day, test_tiny_hybrid.py compares these activations
def test_int8_mode(smollm2: Path) -> None:
    """Rounding noise is chaotic: another order of fp32 sums moves one prompt by 0.03. So prompts are pooled."""
    exact, fast = (recorded.session(smollm2, activations=mode) for mode in ("f32", "int8"))
    nll = np.zeros(2)
    for case in CASES:
        tokens = recorded.ids([*case["prompt_ids"], *case["f32"]["output_ids"]])
        p, q = (recorded.log_softmax(session.append(tokens)[0]) for session in (exact, fast))
        kl = (np.exp(p) * (p - q)).sum(-1).mean()
        assert kl <= tolerance("int8", "mean_kl"), case["name"]
        nll -= [np.sum(session.score(recorded.ids(case["prompt_ids"]))) for session in (exact, fast)]
    n_scored = sum(len(case["prompt_ids"]) - 1 for case in CASES)
    assert abs(nll[0] - nll[1]) / n_scored <= tolerance("int8", "prompt_nll")


def test_tokenizer_and_template(smollm2: Path) -> None:
    """The recorded prompts were tokenized by llama.cpp; the chat prompts carry the model's own template."""
    with LLM(smollm2, context=256, threads=1) as llm:
        for case in CASES:
            assert llm.tokenize(case["prompt"]) == case["prompt_ids"], case["name"]
        assert llm.tokenize(llm.render([{"role": "user", "content": "x"}]))[0] == llm.tokenize("<|im_start|>")[0]


def test_the_catalog_names_layers_that_score(smollm2: Path) -> None:
    lines = [f"value_{i} = read(file_{i}, {i * 7919 % 1000})\n" for i in range(16)]
    lines[8] = "Bodrin has moved to Kyoto.\n"
    with Scorer("smollm2-135m", context=512, threads=1) as scorer:
        assert scorer.layers == (2, 17, 22)
        scored = scorer.score("".join(lines), "Where does Bodrin live?")
    line_of = np.searchsorted(np.cumsum([len(line) for line in lines]), scored.starts, side="right")
    means = [scored.scores[line_of == i].mean() for i in range(len(lines))]
    assert 1 + int(np.argmax(means[1:])) == 8  # the first line is an attention sink


@pytest.mark.slow  # 3 s; every day, test_exact_mode has the weights and the test above the template
def test_answers_a_question(smollm2: Path) -> None:
    question = {"role": "user", "content": "What is the capital of France?"}
    with LLM(smollm2, context=512, activations="f32", threads=1) as llm:
        answer = llm.chat([question], Sampling(max_tokens=32))
    assert "Paris" in answer.text
    assert answer.finish_reason == "stop"


@pytest.mark.slow  # 9 s: 512 tokens of a 135M model
def test_the_catalog_limits_answers(smollm2: Path) -> None:
    """The model may repeat itself without end."""
    ask = [{"role": "user", "content": "Count."}]
    endless = Sampling(temperature=0, ignore_eos=True)
    with LLM("smollm2-135m", context=1024, offline=True) as llm:
        assert llm.chat(ask, endless).usage.completion_tokens == 512
