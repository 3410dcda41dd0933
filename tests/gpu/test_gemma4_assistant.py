"""The assistant of Gemma 4 on a device: drafts of transformers, and paths that the device accepts by itself."""

from __future__ import annotations

from pathlib import Path

import gpu_packs
import numpy as np
import pytest
from engines import open_engine, random_ids
from gemma_drafts import NAMES, assistant, check_golden, write_accepting_pair
from lucebox import _engine
from lucebox.errors import UnsupportedError
from reference import convert
from tolerances import tolerance


def pair(data: Path, to: Path, name: str) -> tuple[Path, str]:
    target = convert.to_gguf(data / "tiny" / f"gemma4_{name}", to / "target.gguf")
    return target, str(assistant(data, name, to / "draft.gguf"))


@pytest.mark.parametrize("name", NAMES)
def test_drafts_of_transformers(pack: _engine.gpu.Pack, data: Path, tmp_path: Path, name: str) -> None:
    """Both models in F32."""
    target, draft = pair(data, tmp_path, name)
    engine = open_engine(target, draft=draft, prefill_chunk=128, pack=pack)
    check_golden(engine, np.load(data / "tiny" / f"gemma4_assistant_{name}.npz"), tolerance("logits", "f32_device"))


@pytest.mark.parametrize("budget", [5, pytest.param(0, marks=pytest.mark.slow)])
def test_a_draft_ahead_reads_the_accepted_path(
    pack: _engine.gpu.Pack, data: Path, tmp_path: Path, budget: int, seed: int
) -> None:
    """The device moves the target's rows of a path before it drafts below the path. Under a mask that allows all tokens
    the host walks, and no draft runs ahead: the same tokens, trees and paths."""
    target, draft = write_accepting_pair(data, tmp_path)
    engine = open_engine(target, draft=str(draft), draft_budget=budget, context=90, pack=pack)
    vocab = engine.info["vocab"]
    prompt = random_ids(57, vocab, seed).tolist()
    texts, counts = [], []
    for drafts, masked in ((False, False), (True, False), (True, True)):
        session, ids = _engine.Session(engine), list(prompt)
        session.set_drafting(drafts)
        sampler = _engine.Sampler(vocab)
        if masked:
            sampler.set_mask(np.full((vocab + 31) // 32, 0xFFFFFFFF, np.uint32))
        while len(ids) < 90:
            session.sync(np.array(ids, np.int32))
            ids.append(session.sample(sampler))
        texts.append(ids)
        counts.append(session.draft_counts)
    assert texts[1] == texts[0] and texts[2] == texts[0]
    assert counts[1]["accepted"] > counts[1]["verified"] / 2 > 0
    assert budget == 0 or counts[1] == counts[2]


def test_it_needs_the_device_of_its_target(pack_folder: Path, data: Path, tmp_path: Path) -> None:
    first, second = gpu_packs.load_on_devices(pack_folder, 2)
    model, draft = pair(data, tmp_path, "a")
    with pytest.raises(UnsupportedError, match="the draft model reads the target's keys and values"):
        open_engine(model, draft=draft, pack=first, draft_pack=second)
