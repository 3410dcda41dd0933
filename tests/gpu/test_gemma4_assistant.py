"""The assistant of Gemma 4 on a device: drafts of transformers, and paths that the device accepts by itself."""

from __future__ import annotations

from pathlib import Path

import gpu_packs
import numpy as np
import pytest
from drafts import Writer
from engines import open_engine, random_ids
from gemma_drafts import NAMES, assistant, check_golden, write_accepting_pair
from lucebox import _engine
from lucebox.errors import UnsupportedError
from reference import convert
from tolerances import tolerance


def pair(data: Path, to: Path, name: str) -> tuple[Path, str]:
    target = convert.to_gguf(data / "tiny" / f"gemma4_{name}", to / "target.gguf")
    return target, str(assistant(data, name, to / "draft.gguf"))


EVERYDAY = [("a", 13)]
REST = [pytest.param(name, 111, marks=pytest.mark.slow) for name in NAMES]  # 6 s each


@pytest.mark.parametrize("name, longest", EVERYDAY + REST)
def test_drafts_of_transformers(pack: _engine.gpu.Pack, data: Path, tmp_path: Path, name: str, longest: int) -> None:
    """Both models in F32."""
    target, draft = pair(data, tmp_path, name)
    engine = open_engine(target, draft=draft, prefill_chunk=128, pack=pack)
    arrays = np.load(data / "tiny" / f"gemma4_assistant_{name}.npz")
    check_golden(engine, arrays, tolerance("logits", "f32_device"), longest)


@pytest.mark.parametrize(
    "budget, context, is_masked",
    [
        (5, 66, False),
        *(pytest.param(budget, 90, masked, marks=pytest.mark.slow) for budget in (0, 5) for masked in (False, True)),
    ],
)
def test_a_path_that_the_device_accepts(
    pack: _engine.gpu.Pack, data: Path, tmp_path: Path, budget: int, context: int, is_masked: bool, seed: int
) -> None:
    """The device moves the target's rows of a path before it drafts below the path. Under a mask, which here allows all
    tokens, the host walks instead. The window of the sliding layers ends within the text."""
    target, draft = write_accepting_pair(data, tmp_path)
    engine = open_engine(target, draft=str(draft), draft_budget=budget, context=context, pack=pack)
    vocab = engine.info["vocab"]
    prompt = random_ids(57, vocab, seed).tolist()
    plain, drafting = (Writer(engine, prompt, drafts) for drafts in (False, True))
    if is_masked:
        drafting.sampler.set_mask(np.full((vocab + 31) // 32, 0xFFFFFFFF, np.uint32))
    assert drafting.write(context - 57) == plain.write(context - 57)
    counts = drafting.session.draft_counts
    assert counts["accepted"] > counts["verified"] / 2 > 0


def test_it_needs_the_device_of_its_target(pack_folder: Path, data: Path, tmp_path: Path) -> None:
    first, second = gpu_packs.load_on_devices(pack_folder, 2)
    model, draft = pair(data, tmp_path, "a")
    with pytest.raises(UnsupportedError, match="the draft model reads the target's keys and values"):
        open_engine(model, draft=draft, pack=first, draft_pack=second)
