"""The assistant of Gemma 4: drafts of transformers, no token that it changes, and files that are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from drafts import SAMPLINGS, Writer, write
from engines import open_engine, random_ids
from gemma_drafts import NAMES, assistant, check_golden, write_accepting_pair
from gemma_images import golden_of, open_gemma
from lucebox import _engine
from lucebox.errors import LuceboxError
from lucebox.models.drafters import Drafters, resolve_drafts
from lucebox.models.resolve import ResolvedModel
from reference import checkpoints, convert, gguf_files
from tolerances import tolerance

EXACT = tolerance("logits", "f32")


@pytest.fixture(scope="module")
def pair(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_accepting_pair(data, tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("form", ["safetensors", "gguf"])
def test_drafts_of_transformers(data: Path, tmp_path: Path, isa: str, name: str, form: str) -> None:
    draft = assistant(data, name, tmp_path / "draft.gguf" if form == "gguf" else None)
    engine = open_engine(data / "tiny" / f"gemma4_{name}", draft=str(draft), prefill_chunk=128, isa=isa)
    check_golden(engine, np.load(data / "tiny" / f"gemma4_assistant_{name}.npz"), EXACT, longest=111)


@pytest.mark.parametrize("budget", [0, 1, 5, 63])
@pytest.mark.parametrize("sampling", ["greedy", "penalised"])
def test_no_token_changes(pair: tuple[Path, Path], budget: int, sampling: str, seed: int) -> None:
    """Over several windows of the sliding layers, and to the end of the context."""
    engine = open_engine(pair[0], draft=str(pair[1]), context=250, draft_budget=budget)
    prompt = random_ids(150, engine.info["vocab"], seed).tolist()
    plain, drafting = (Writer(engine, prompt, drafts, **SAMPLINGS[sampling]) for drafts in (False, True))
    assert drafting.write(101) == plain.write(101)
    counts = drafting.session.draft_counts
    assert sampling != "greedy" or counts["accepted"] > counts["verified"] / 2 > 0


def test_weights_that_guess_badly_change_no_token(data: Path) -> None:
    """Random ones, for a target whose last layers have no keys and values."""
    engine = open_engine(data / "tiny" / "gemma4_b", draft=str(assistant(data, "b", None)), context=90, draft_budget=9)
    prompt = random_ids(20, engine.info["vocab"]).tolist()
    plain, drafting = _engine.Session(engine), _engine.Session(engine)
    plain.set_drafting(False)
    assert write(drafting, prompt, 70) == write(plain, prompt, 70)
    assert drafting.draft_counts["verified"] > 20


def test_drafts_after_an_image(data: Path) -> None:
    golden = golden_of(data, "gemma4_vl_a")
    engine = open_gemma(golden.folder, draft_model=str(assistant(data, "a", None)), draft_budget=3)
    prompt = golden.ids_with(golden.encoded(engine)).tolist()
    plain, drafting = _engine.Session(engine), _engine.Session(engine)
    plain.set_drafting(False)
    assert write(drafting, prompt, 40) == write(plain, prompt, 40)
    assert drafting.draft_counts["verified"] > 5


def test_the_plan_counts_it(data: Path) -> None:
    """A row of the target's hidden size, the rows after it, and no keys and values."""
    model = data / "tiny" / "gemma4_a"
    own, plain = (
        {name: n for name, n, *_ in open_engine(model, draft=draft).plan["entries"]}
        for draft in (str(assistant(data, "a", None)), "none")
    )
    assert own["recurrent state"] == 4 * 64 and own["pending rows"] == 64 * 4 * 64
    assert own["KV windows"] == plain["KV windows"] and own["KV cache"] == plain["KV cache"]
    assert own["vectors"] > plain["vectors"] and "recurrent state" not in plain


def changed(data: Path, folder: Path, change: dict[str, Any], text: dict[str, Any]) -> Path:
    source = assistant(data, "a", None)
    config = json.loads((source / "config.json").read_text()) | change
    config["text_config"] |= text
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(source / "model.safetensors", folder)
    return folder


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ({"sliding_window": 96}, "is for a target with a window of 96; the target has 64"),
        ({"vocab_size": 130}, r"embed_tokens.weight.* has shape \[131, 40\]; expected \[130, 40\]"),
        ({"num_key_value_heads": 1}, "is for a target with sliding KV heads 1; the target has 2"),
        ({"per_layer_config": {"2": {"head_dim": 32}}}, "is for a target with full KV heads 2; the target has 1"),
        ({"head_dim": 32}, "is for a target with sliding heads of 32; the target has 16"),
        ({"per_layer_config": {"3": {"head_dim": 32}}}, 'names layer "3"; the model has 3 layers'),
        ({"per_layer_config": {"x": {}}}, 'names layer "x"; the model has 3 layers'),
        ({"per_layer_config": {"2": {"intermediate_size": 9}}}, "changes intermediate_size of a layer"),
        ({"hidden_activation": "silu"}, 'hidden_act "silu" is not supported'),
        ({"intermediate_size": 48}, "has shape"),
        ({"layer_types": ["sliding_attention"] * 3, "per_layer_config": {}}, "has shape"),
    ],
)
def test_refused(data: Path, tmp_path: Path, text: dict[str, Any], message: str) -> None:
    draft = changed(data, tmp_path / "draft", {}, text)
    with pytest.raises(LuceboxError, match=message) as caught:
        open_engine(data / "tiny" / "gemma4_a", draft=str(draft))
    assert str(draft) in str(caught.value)


def test_another_target(data: Path, tmp_path: Path) -> None:
    draft = str(assistant(data, "a", None))
    with pytest.raises(LuceboxError, match="the assistant drafts for Gemma 4, and the target is smollm3"):
        open_engine(data / "tiny" / "smollm3_a", draft=draft)
    with pytest.raises(LuceboxError, match="sliding KV heads 2; the target has 1"):
        open_engine(data / "tiny" / "gemma4_b", draft=draft)
    with pytest.raises(LuceboxError, match=r'architecture "gemma4_assistant" is .* convert the assistant again'):
        older = gguf_files.write(tmp_path / "older.gguf", {"general.architecture": "gemma4_assistant"}, {})
        open_engine(data / "tiny" / "gemma4_a", draft=str(older))


def test_auto_finds_it_beside_the_model(data: Path, tmp_path: Path) -> None:
    """A GGUF file of the model's width, whatever else is in the folder; or the folder NAME-assistant."""
    rest = Drafters(suffix=True), Drafters()
    model = convert.to_gguf(data / "tiny" / "gemma4_a", tmp_path / "gemma-Q8_0.gguf")
    found = ResolvedModel(model, "path", model.stem)
    assert resolve_drafts("auto", found) == rest
    draft = assistant(data, "a", tmp_path / "gemma-assistant-Q8_0.gguf")
    (tmp_path / "mtp-broken.gguf").write_bytes(b"GGUF")
    writer = gguf.GGUFWriter(tmp_path / "mtp-of-another.gguf", "gemma4-assistant")
    writer.add_uint32("gemma4-assistant.embedding_length_out", 128)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert resolve_drafts("auto", found) == (Drafters(str(draft), suffix=True), *rest)
    folder = checkpoints.write(tmp_path / "gemma", {"model_type": "gemma4_text"}, {"x": np.zeros(1, np.float32)})
    found = ResolvedModel(folder, "path", folder.name)
    assert resolve_drafts("auto", found) == rest
    beside = changed(data, tmp_path / "gemma-assistant", {}, {})
    assert resolve_drafts("auto", found) == (Drafters(str(beside), suffix=True), *rest)
