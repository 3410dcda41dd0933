"""Draft models against the fp64 reference: rows of every append, chains and trees, and what they propose below them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantize_drafter
from draft_pairs import FIRST, SECOND, TARGET, Pair, check_candidates, reference_of, run, write_head
from engines import log_softmax, open_engine, random_ids
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize
from lucebox import _engine, _kernels
from lucebox.errors import FormatError, LuceboxError, UnsupportedError
from numpy.typing import NDArray
from reference import dflash, draft_files, gguf_files
from reference.decoder import Decoder, weights_of
from reference.draft_files import DraftShape
from reference.gguf_files import Packed, Shape
from reference.mtp import Mtp

F64 = NDArray[np.float64]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gguf_files.write_model(tmp_path_factory.mktemp("draft") / "target.gguf", TARGET)


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a draft in one of the forms that exist."""

    def write(shape: DraftShape, form: str = "gguf") -> Path:
        named = draft_files.tensors(shape)
        if form == "hf":
            return draft_files.write_hf(tmp_path / "draft", draft_files.hf_config(shape), named)
        is_older = form == "older"
        fields = draft_files.gguf_fields(shape, is_older=is_older)
        return gguf_files.write(tmp_path / "draft.gguf", fields, draft_files.gguf_tensors(named, is_older=is_older))

    return write


# --- DFlash


@pytest.mark.parametrize("form", ["hf", "gguf", "older"])
def test_forms(target: Path, write: Write, isa: str, form: str) -> None:
    run(Pair(target, str(write(FIRST, form)), reference_of(FIRST), isa=isa))


MASKS = {
    "full": replace(FIRST, sliding=(False, False)),
    "full causal": replace(FIRST, sliding=(False, False), is_causal=True),
    "sliding": replace(FIRST, sliding=(True,)),
    "sliding both ways": replace(FIRST, is_causal=False),
    "window below the block": replace(FIRST, window=3),
    "window below the block, both ways": replace(FIRST, window=3, is_causal=False),
    "block of two": replace(FIRST, block=2),
    "block of sixteen, eight heads to a KV head": replace(FIRST, block=16, n_heads=8, n_kv_heads=1),
    "block of sixty-four": replace(FIRST, block=64),
}


@pytest.mark.first_case
@pytest.mark.parametrize("name", MASKS)
def test_masks(target: Path, write: Write, isa: str, name: str) -> None:
    run(Pair(target, str(write(MASKS[name])), reference_of(MASKS[name]), isa=isa))


@pytest.mark.parametrize("form", ["hf", "gguf"])
@pytest.mark.parametrize("is_causal", [None, False], ids=["", "both ways"])
def test_second_version(target: Path, write: Write, isa: str, form: str, is_causal: bool | None) -> None:
    shape = replace(SECOND, is_causal=is_causal)
    run(Pair(target, str(write(shape, form)), reference_of(shape), isa=isa))


def test_scaled_and_capped_logits(target: Path, write: Write) -> None:
    shape = replace(FIRST, logit_scale=3.0, softcap=0.7)
    pair = Pair(target, str(write(shape, "hf")), reference_of(shape))
    pair.step(9, 9, np.random.default_rng(0))
    ids, logprobs, hidden = pair.drafting.propose(5, 7)
    logits = pair.logits(hidden.astype(np.float64))
    check_candidates(ids, logprobs, log_softmax(0.7 * np.tanh(3 * logits / 0.7)), pair.tolerance)


@pytest.mark.parametrize("dtype", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_quantised_draft(target: Path, tmp_path: Path, dtype: str) -> None:
    """The types that writers of drafts use; norms stay F32."""
    kind = GGMLQuantizationType[dtype]
    named = draft_files.tensors(FIRST)
    matrices = [name for name, tensor in named.items() if tensor.ndim == 2]
    packed = {name: Packed(dtype, quantize(named[name], kind).view(np.uint8)) for name in matrices}
    tensors = draft_files.gguf_tensors(named | packed)
    path = gguf_files.write(tmp_path / "draft.gguf", draft_files.gguf_fields(FIRST), tensors)
    weights = {name: dequantize(tensor.rows, kind) for name, tensor in packed.items()}
    run(Pair(target, str(path), dflash.Dflash(FIRST.config, named | weights)))


@pytest.mark.parametrize(("shape", "dtype"), [(FIRST, "Q8_0"), (replace(FIRST, is_causal=False), "BF16")])
def test_a_checkpoint_as_the_script_writes_it(
    target: Path, write: Write, tmp_path: Path, shape: DraftShape, dtype: str
) -> None:
    path = tmp_path / "quantised.gguf"
    quantize_drafter.write(write(shape, "hf"), path, dtype)
    weights = {dflash.hf_name(name): tensor for name, tensor in weights_of(GGUFReader(path)).items()}
    run(Pair(target, str(path), dflash.Dflash(shape.config, weights)))


@pytest.mark.parametrize("kind", ["dflash", "mtp"])
def test_snapshot(target: Path, write: Write, kind: str) -> None:
    """The rows of the draft are in it: a restored sequence drafts as the saved one would, bit by bit."""
    draft, reference = ("mtp", Mtp(Decoder(target))) if kind == "mtp" else (str(write(FIRST)), reference_of(FIRST))
    pair = Pair(target, draft, reference)
    rng = np.random.default_rng(0)
    pair.step(90, 90, rng)
    pair.step(-20, 0, rng)
    saved = pair.drafting.save()
    want = pair.drafting.propose(5, pair.drafting.max_depth)
    other = _kernels.Drafting(pair.engine)
    other.load(saved)
    for a, b in zip(want, other.propose(5, other.max_depth), strict=True):
        assert np.array_equal(a, b)
    pair.drafting = other
    pair.step(7, 7, rng)
    pair.check(root=5)


def test_depth_below_the_block(target: Path, write: Write) -> None:
    """Fewer tokens are the first of a whole block."""
    pair = Pair(target, str(write(FIRST)), reference_of(FIRST))
    pair.step(20, 20, np.random.default_rng(0))
    whole, part = (pair.drafting.propose(5, depth) for depth in (7, 3))
    for a, b in zip(whole, part, strict=True):
        assert np.array_equal(a[:3], b)


def test_a_rewound_sequence_drafts_the_same(target: Path, write: Write) -> None:
    for draft, reference in ((str(write(FIRST)), reference_of(FIRST)), ("mtp", Mtp(Decoder(target)))):
        pair = Pair(target, draft, reference)
        rng = np.random.default_rng(0)
        pair.step(20, 20, rng)
        before = pair.drafting.propose(5, pair.drafting.max_depth)
        pair.step(-30, 0, rng)
        pair.drafting.propose(5, pair.drafting.max_depth)
        pair.drafting.rewind(20)
        for a, b in zip(before, pair.drafting.propose(5, pair.drafting.max_depth), strict=True):
            assert np.array_equal(a, b)


def test_taps_are_the_outputs_of_layers(target: Path, write: Write) -> None:
    pair = Pair(target, str(write(FIRST)), reference_of(FIRST))
    assert pair.drafting.taps == list(FIRST.taps)
    ids = random_ids(9, TARGET.vocab)
    hidden, tapped = pair.append(ids, np.zeros(0, np.int32), np.zeros(0, np.uint64))
    inputs = _engine.Session(pair.engine).append(ids, taps=list(range(TARGET.n_layers + 1)))[1]
    assert np.array_equal(hidden, inputs[-1])
    assert np.array_equal(tapped, np.concatenate([inputs[i + 1] for i in FIRST.taps], axis=1))


def test_converted_file(data: Path, tmp_path: Path, isa: str) -> None:
    """A file of llama.cpp's converter, and the checkpoint it was made of."""
    path = data / "tiny" / "dflash_a.gguf"
    config = json.loads((data / "tiny" / "dflash_a" / "config.json").read_text())
    weights = {dflash.hf_name(name): tensor for name, tensor in weights_of(GGUFReader(path)).items()}
    target = data / "tiny" / "qwen35_a.gguf"
    folder = draft_files.write_hf(tmp_path / "hf", config, {k: v.astype(np.float32) for k, v in weights.items()})
    for draft in (path, folder):
        run(Pair(target, str(draft), dflash.Dflash(dflash.Config.of(config), weights), isa=isa))


def changed(write: Write, shape: DraftShape, change: Callable[[dict[str, Any], draft_files.Tensors], None]) -> Path:
    """A folder of safetensors after a change of its configuration or tensors."""
    folder = write(shape, "hf")
    config, named = draft_files.hf_config(shape), draft_files.tensors(shape)
    change(config, named)
    return draft_files.write_hf(folder, config, named)


def set_to(**fields: Any) -> Callable[[dict[str, Any], draft_files.Tensors], None]:
    return lambda config, named: config.update(fields)


def set_nested(**fields: Any) -> Callable[[dict[str, Any], draft_files.Tensors], None]:
    return lambda config, named: config["dflash_config"].update(fields)


def without(name: str) -> Callable[[dict[str, Any], draft_files.Tensors], None]:
    def change(config: dict[str, Any], named: draft_files.Tensors) -> None:
        config.pop(name, None)
        config["dflash_config"].pop(name, None)

    return change


def with_tensor(name: str) -> Callable[[dict[str, Any], draft_files.Tensors], None]:
    return lambda config, named: named.update({name: np.zeros((2, 2), np.float32)})


REFUSED = {
    "vocabulary": (set_to(vocab_size=999), "a vocabulary of 999 tokens; the target's has 131"),
    "hidden": (set_to(hidden_size=128), "hidden size 128; the target's is 64"),
    "layers": (set_to(num_target_layers=9), "a target of 9 layers; the target has 4"),
    "taps": (set_nested(target_layer_ids=[0, 4]), "reads layer 4 of its target, whose layers are 0 to 3"),
    "number of taps": (set_nested(target_layer_ids=[0, 1, 2]), "lists 3 layers; the weights are for 2"),
    "no mask": (without("mask_token_id"), "mask_token_id is missing"),
    "mask beyond the vocabulary": (set_nested(mask_token_id=131), "is 131; the vocabulary has 131 tokens"),
    "block": (set_nested(block_size=65), "is 65; supported: 2 to 64"),
    "no theta": (without("rope_parameters"), "rope_theta is missing"),
    "scaled embeddings": (set_nested(input_embedding_scale=2.0), "scaled embeddings are not supported"),
    "normed context": (set_nested(context_kv_layer_norm=True), "normed context rows"),
    "layer type": (set_to(layer_types=["linear_attention"] * 3), 'layer type "linear_attention" is not supported'),
    "layer types": (set_to(layer_types=["full_attention"]), "lists 1 layers; the draft has 3"),
    "no window": (set_to(sliding_window=None), "sliding_window is missing"),
    "Domino": (with_tensor("dflash.domino.start"), "the Domino head is not supported"),
    "DSpark": (with_tensor("markov_w1"), "the DSpark head is not supported"),
    "experts": (with_tensor("layers.0.mlp.experts.0.gate_proj.weight"), "a mixture of experts is not supported"),
    "left over": (with_tensor("layers.0.self_attn.sinks"), "is not part of this architecture"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(target: Path, write: Write, name: str) -> None:
    change, message = REFUSED[name]
    draft = changed(write, FIRST, change)
    with pytest.raises((FormatError, UnsupportedError), match=re.escape(message)) as caught:
        open_engine(target, draft=str(draft))
    assert str(draft) in str(caught.value)


WILD: list[Any] = [0, -1, 1, 2**24, 2**31, 2**62, 1e300, 0.5, "x", [], [[]], {}, None, True]


@pytest.mark.parametrize("shape", [FIRST, SECOND], ids=["first", "second"])
def test_any_field_is_read_or_refused(target: Path, write: Write, shape: DraftShape) -> None:
    """No value of a field does more harm than an error that names the draft."""
    folder, config = write(shape, "hf"), draft_files.hf_config(shape)

    def check(wild: dict[str, Any]) -> None:
        (folder / "config.json").write_text(json.dumps(wild))
        try:
            open_engine(target, draft=str(folder))
        except LuceboxError as error:
            assert str(folder) in str(error), error

    for name in config:
        for value in WILD:
            check(config | {name: value})
    for name in config["dflash_config"]:
        for value in WILD:
            check(config | {"dflash_config": config["dflash_config"] | {name: value}})


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_families_of_targets(tmp_path: Path, write: Write, architecture: str) -> None:
    target = gguf_files.write_model(tmp_path / "target.gguf", Shape(architecture, n_layers=4, tied=True))
    run(Pair(target, str(write(FIRST)), reference_of(FIRST)))


def test_a_model_is_no_draft(target: Path, data: Path) -> None:
    with pytest.raises(UnsupportedError, match="this is no draft model"):
        open_engine(target, draft=str(data / "tiny" / "llama_a.gguf"))


def test_defaults(target: Path, write: Write) -> None:
    """The reference's layers and the block of sixteen."""
    shape = replace(FIRST, taps=(1, 0), block=16)

    def change(config: dict[str, Any], named: draft_files.Tensors) -> None:
        del config["dflash_config"]["target_layer_ids"], config["dflash_config"]["block_size"]
        del config["layer_types"], config["rms_norm_eps"]

    engine = open_engine(target, draft=str(changed(write, shape, change)))
    drafting = _kernels.Drafting(engine)
    assert drafting.taps == [1, 1]  # round(1 + i (4 - 4) / (2 - 1))
    assert drafting.max_depth == 15


def test_mask_of_older_files(tmp_path: Path) -> None:
    """Files of Qwen3.5's drafts without the mask id, which the target's vocabulary tells."""
    target = gguf_files.write_model(tmp_path / "target.gguf", replace(TARGET, vocab=248320, n_layers=2, recurrent=None))
    shape = DraftShape(vocab=248320, sliding=(False,), n_target_layers=2, taps=(0, 1))
    fields = draft_files.gguf_fields(shape, is_older=True)
    del fields["dflash.mask_token_id"]
    named = draft_files.tensors(shape)
    path = gguf_files.write(tmp_path / "draft.gguf", fields, draft_files.gguf_tensors(named, is_older=True))
    pair = Pair(target, str(path), dflash.Dflash(replace(shape.config, mask_token=248070), named))
    pair.step(9, 9, np.random.default_rng(0))
    pair.check(root=5)


# --- MTP


@pytest.mark.parametrize("form", ["inside", "gguf", "mtp.", "model.mtp."])
def test_mtp(target: Path, tmp_path: Path, isa: str, form: str) -> None:
    draft = "mtp" if form == "inside" else str(write_head(tmp_path / "head", TARGET, None if form == "gguf" else form))
    run(Pair(target, draft, Mtp(Decoder(target)), isa=isa))


@pytest.mark.parametrize("joined", [False, True])
def test_mtp_with_experts(tmp_path: Path, isa: str, joined: bool) -> None:
    shape = replace(TARGET, architecture="qwen35moe", joined_experts=joined)
    path = gguf_files.write_model(tmp_path / "model.gguf", shape)
    run(Pair(path, "mtp", Mtp(Decoder(path)), isa=isa))


def test_mtp_with_tables_of_its_own(tmp_path: Path) -> None:
    named = gguf_files.tensors(TARGET)
    rng = np.random.default_rng(5)
    for name in ("embed_tokens", "shared_head_head"):
        table = rng.normal(0, 0.1, (TARGET.vocab, TARGET.hidden)).astype(np.float32)
        named[f"blk.{TARGET.n_layers}.nextn.{name}.weight"] = table
    del named[f"blk.{TARGET.n_layers}.nextn.shared_head_norm.weight"]
    path = gguf_files.write(tmp_path / "model.gguf", gguf_files.metadata(TARGET), named)
    run(Pair(path, "mtp", Mtp(Decoder(path))))


def test_mtp_of_another_target(target: Path, tmp_path: Path) -> None:
    for shape, message in (
        (replace(TARGET, hidden=96), "hidden size 96; the target has 64"),
        (replace(TARGET, n_layers=3, recurrent=None), "layers 3; the target has 4"),
    ):
        with pytest.raises(UnsupportedError, match=message):
            open_engine(target, draft=str(write_head(tmp_path / f"{message[:6]}.gguf", shape)))


def test_no_block(data: Path) -> None:
    with pytest.raises(UnsupportedError, match="no prediction block"):
        open_engine(data / "tiny" / "qwen35_a.gguf", draft="mtp")


def test_leftover_tensor_of_a_block(tmp_path: Path) -> None:
    named = gguf_files.tensors(TARGET) | {f"blk.{TARGET.n_layers}.extra.weight": np.zeros((2, 2), np.float32)}
    path = gguf_files.write(tmp_path / "model.gguf", gguf_files.metadata(TARGET), named)
    open_engine(path)
    with pytest.raises(FormatError, match=r"extra.weight.*is not part of this architecture"):
        open_engine(path, draft="mtp")
