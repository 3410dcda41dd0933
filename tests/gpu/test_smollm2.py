"""SmolLM2-135M-Instruct Q4_1, fetched by the catalog, decoded both ways, against llama.cpp's strict runs
(tests/data/golden/smollm2.json)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import recorded
from engines import Decoder, logits_of, mean_kl, open_engine
from lucebox import _engine
from tolerances import tolerance

CASES = recorded.load("smollm2.json")["cases"]
pytestmark = pytest.mark.slow  # 31 s: 135M parameters on the simulator
N_CASES, N_STEPS = {"sim": 1}, {"sim": 4}  # elsewhere all


@pytest.fixture
def cases(pack: _engine.gpu.Pack) -> list[dict]:
    return CASES[: N_CASES.get(pack.target)]


def test_exact_products(pack: _engine.gpu.Pack, smollm2: Path, cases: list[dict]) -> None:
    """Each token is chosen on the device, after the recorded ones before it; where two are alike, by nobody."""
    engine = open_engine(smollm2, pack=pack, decode_path="graph", kv="f16")
    for case in cases:
        decoder, want = Decoder(engine, case["prompt_ids"]), case["f32"]
        for token, top in list(zip(want["output_ids"], want["top5"], strict=True))[: N_STEPS.get(pack.target)]:
            if top[0][1] - top[1][1] > tolerance("golden_device", "margin"):
                assert decoder.choose() == token, f"{case['name']}, after {len(decoder.ids)} tokens"
            decoder.ids.append(token)
            decoder.sync()


@pytest.mark.parametrize("way", ["graph", "megakernel"])
def test_rounded_products(pack: _engine.gpu.Pack, smollm2: Path, cases: list[dict], way: str) -> None:
    """Rounding x to 8 bits moves a logit by some tenths, and which token is chosen with it: the distributions stay."""
    exact = open_engine(smollm2)
    rounded = open_engine(smollm2, pack=pack, decode_path=way, kv="f16", activations="int8")
    for case in cases:
        ids, rows = case["prompt_ids"], []
        decoder = Decoder(rounded, ids)
        for token in case["f32"]["output_ids"][: N_STEPS.get(pack.target)]:
            rows.append(decoder.session.logits())
            decoder.choose()
            decoder.ids.append(token)
            decoder.sync()
        assert decoder.session.decode_path.startswith(way)
        want = logits_of(exact, decoder.ids[:-1])[len(ids) - 1 :]
        assert mean_kl(want, np.stack(rows)) <= tolerance("int8", "mean_kl"), case["name"]


@pytest.mark.parametrize(("activations", "most"), [("f32", "golden_device.nll"), ("int8", "int8.prompt_nll")])
def test_likelihood_of_prompts(
    pack: _engine.gpu.Pack, smollm2: Path, cases: list[dict], activations: str, most: str
) -> None:
    """A token's, over all of them: what rounding does to one prompt is chance."""
    exact = _engine.Session(open_engine(smollm2))
    on_device = _engine.Session(open_engine(smollm2, pack=pack, kv="f16", activations=activations))
    prompts = [recorded.ids(case["prompt_ids"]) for case in cases]
    nll = [-sum(sum(session.score(prompt)) for prompt in prompts) for session in (exact, on_device)]
    assert abs(nll[0] - nll[1]) / sum(len(prompt) - 1 for prompt in prompts) <= tolerance(*most.split("."))
