"""Whole models in exact mode: golden files of another implementation, and the fp64 reference on random files."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import largest_difference, logits_of, mean_kl, open_engine, open_scorer, random_ids
from lucebox import LuceboxError, _engine
from numpy.typing import NDArray
from reference import checkpoints, convert
from reference.checkpoints import Typed
from reference.decoder import Decoder
from reference.gguf_files import Shape, metadata, tensors, write, write_model
from reference.linear import BLOCK_TYPES, CODEBOOK_TYPES, PLAIN_TYPES, to_bf16
from safetensors.numpy import load_file
from tolerances import tolerance

EXACT = tolerance("logits", "f32")

F64 = NDArray[np.float64]
Write = Callable[[Shape], Path]


@dataclass
class Golden:
    model: Path
    ids: NDArray[np.int32]
    logits: NDArray[np.float32]
    layers: list[NDArray[np.float32]]  # the input of each, then the final normed rows


# Random weights in BF16; logits and layers of transformers 5.24 with the same values, computed in fp64.
OF_TRANSFORMERS = ["smollm3_a", "phi3_a", "mistral3_a", "gemma4_a", "gemma4_b", "gemma4_c"]


@pytest.fixture(
    scope="module",
    params=["qwen35_a.gguf", "qwen35_a", "qwen3_a.gguf", "qwen3_a", "llama_a.gguf", "llama_a", "gpt_oss_a"]
    + [name + suffix for name in OF_TRANSFORMERS for suffix in (".gguf", "")],
)
def golden(request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """Each family in both formats; a name without suffix is a folder of safetensors. gpt_oss_a: random weights, experts
    in MXFP4; logits of transformers 5.24's GptOssForCausalLM with the same values, computed in fp64."""
    name = str(request.param)
    model = data / "tiny" / name
    if not model.exists() and model.with_suffix("").exists():
        model = convert.to_gguf(model.with_suffix(""), tmp_path_factory.mktemp(name) / "model.gguf")
    elif not model.exists():
        gguf = model.with_suffix(".gguf")
        model = checkpoints.write(tmp_path_factory.mktemp(name), *checkpoints.from_gguf(gguf))
    arrays = np.load(data / "tiny" / f"{name.removesuffix('.gguf')}.npz")
    n_layers = sum(key.startswith("h") for key in arrays.files)
    return Golden(model, arrays["ids"].astype(np.int32), arrays["logits"], [arrays[f"h{i}"] for i in range(n_layers)])


def test_golden_logits_and_layers(golden: Golden, isa: str) -> None:
    engine = open_engine(golden.model, isa=isa, prefill_chunk=256)
    session = _engine.Session(engine)
    logits, taps = session.append(golden.ids, taps=list(range(len(golden.layers))))
    for i, layer in enumerate(golden.layers):
        assert largest_difference(taps[i], layer) < EXACT, f"layer {i}"
    assert largest_difference(logits, golden.logits) < EXACT


@pytest.mark.first_case
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_agree(golden: Golden, isa: str, chunk: int) -> None:
    assert largest_difference(logits_of(open_engine(golden.model, isa=isa), golden.ids, chunk), golden.logits) < EXACT


@pytest.mark.parametrize("chunk", [1, 7, 64, 150])
def test_prefill_chunk_option(golden: Golden, chunk: int) -> None:
    session = _engine.Session(open_engine(golden.model, prefill_chunk=chunk))
    session.sync(golden.ids)
    assert largest_difference(session.logits(), golden.logits[-1]) < EXACT


@pytest.mark.parametrize("suffix", ["", ".gguf"])
def test_short_factors_of_longrope(data: Path, tmp_path: Path, suffix: str) -> None:
    """phi3_a's original context has 64 tokens; the golden logits of 100 tokens have the long factors."""
    model = data / "tiny" / "phi3_a"
    arrays = np.load(data / "tiny" / "phi3_a.npz")
    if suffix:
        model = convert.to_gguf(model, tmp_path / "model.gguf")
    got = logits_of(open_engine(model, context=64), arrays["ids"][:60])
    assert largest_difference(got, arrays["short"]) < EXACT
    assert largest_difference(got, arrays["logits"][:60]) > EXACT


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("smollm3_a", {"no_rope_layers": [1, 0]}, "no_rope_layers lists 2 layers; the model has 5"),
        ("smollm3_a", {"use_sliding_window": True}, "use_sliding_window = true is not supported"),
        ("phi3_a", {"sliding_window": 63}, "sliding_window is 63; at least 64 are supported"),
        ("phi3_a", {"intermediate_size": 80}, r"gate_up_proj.weight.* has shape \[176, 96\]; expected \[160, 96\]"),
        ("phi3_a", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.7}},
         "gives 11 rotated values; must be even"),
        ("phi3_a", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "LongRoPE needs 8 short and"),
        ("mistral3_a", {"sliding_window": 8}, "sliding_window is 8; at least 64"),
        ("mistral3_a", {"head_dim": 24}, "has shape"),
        ("mistral3_a", {"rope_parameters": {"rope_type": "default", "llama_4_scaling_beta": 0.1}},
         "original_max_position_embeddings is missing"),
        ("gemma4_c", {"enable_moe_block": False}, "experts.down_proj.* is not part of this architecture"),
        ("gemma4_c", {"top_k_experts": 10}, "top_k_experts is 10; at most 9"),
        ("gemma4_c", {"moe_intermediate_size": 16}, "has shape"),
        ("gemma4_a", {"sliding_window": 63}, "sliding_window is 63; at least 64"),
        ("gemma4_a", {"hidden_activation": "silu"}, 'hidden_act "silu" is not supported; supported: gelu_pytorch_tanh'),
        ("gemma4_a", {"layer_types": ["full_attention"]}, "layer_types lists 1 layers; the model has 5"),
        ("gemma4_a", {"layer_types": ["linear_attention"] * 5}, 'layer type "linear_attention" is not supported'),
        ("gemma4_a", {"num_global_key_value_heads": 3}, "gives 3 of layer 2, which do not divide 4"),
        ("gemma4_a", {"global_head_dim": 40}, "has shape"),
        ("gemma4_a", {"num_kv_shared_layers": 5}, "num_kv_shared_layers is 5 of 5 layers"),
        ("gemma4_b", {"num_kv_shared_layers": 5}, "num_kv_shared_layers leaves layer 1 without keys and values"),
        ("gemma4_b", {"hidden_size_per_layer_input": 8}, "has shape"),
        ("gemma4_b", {"use_double_wide_mlp": False}, "has shape"),
    ],
)  # fmt: skip
def test_damaged_families_are_refused(data: Path, tmp_path: Path, name: str, config: dict, message: str) -> None:
    source = data / "tiny" / name
    fields = json.loads((source / "config.json").read_text()) | config
    folder = checkpoints.write(tmp_path, fields, {"x": np.zeros(1, np.float32)})
    (folder / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    with pytest.raises(LuceboxError, match=message):
        open_engine(folder)


@pytest.mark.parametrize("name", ["gemma4_a", "gemma4_b", "gemma4_c"])
def test_configurations_of_transformers_5_24(data: Path, tmp_path: Path, name: str) -> None:
    """They list how the full layers differ, in place of fields for all full layers."""
    source, arrays = data / "tiny" / name, np.load(data / "tiny" / f"{name}.npz")
    fields = json.loads((source / "config.json").read_text())
    own = {"head_dim": fields.pop("global_head_dim")}
    if (heads := fields.pop("num_global_key_value_heads", None)) is not None:
        own["num_key_value_heads"] = heads
    full = [f"{i:02}" for i, kind in enumerate(fields["layer_types"]) if kind == "full_attention"]

    def written(overrides: dict[str, dict[str, int]]) -> Path:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        checkpoints.write(folder, fields | {"per_layer_config": overrides}, {"x": np.zeros(1, np.float32)})
        (folder / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
        return folder

    got = logits_of(open_engine(written(dict.fromkeys(full, own))), arrays["ids"])
    assert largest_difference(got, arrays["logits"]) < EXACT
    for overrides, message in (
        ({full[0]: own}, r"head_dim is \d+ in layer \d; supported: multiples of 8 up to 512, the same in all"),
        ({full[0]: own | {"sliding_window": 9}}, "changes sliding_window of a layer, which is not supported"),
        ({"99": own}, 'names layer "99"; the model has'),
        ({"-1": own}, 'names layer "-1"; the model has'),
        ({full[0]: own | {"head_dim": 0}}, "head_dim is 0"),
    ):
        with pytest.raises(LuceboxError, match=message):
            open_engine(written(overrides))


def test_layers_that_differ_in_other_families(data: Path, tmp_path: Path) -> None:
    fields = json.loads((data / "tiny" / "smollm3_a" / "config.json").read_text())
    overrides = {"per_layer_config": {"1": {"intermediate_size": 8}}}
    folder = checkpoints.write(tmp_path, fields | overrides, {"x": np.zeros(1, np.float32)})
    with pytest.raises(LuceboxError, match="per_layer_config lets layers differ; that is not supported"):
        open_engine(folder)


def test_what_gemma4_does_not_support(data: Path) -> None:
    path = data / "tiny" / "gemma4_b"
    with pytest.raises(LuceboxError, match="layers of gemma4 differ in their attention, which block-sparse attention"):
        open_engine(path, sparse_prefill=0.9)
    with pytest.raises(LuceboxError, match="gemma4 cannot score prompts, because its layers differ"):
        open_scorer(path)


@pytest.mark.parametrize("name", ["gemma4_a", "gemma4_b", "gemma4_c"])
def test_trees_rewinds_and_forks_of_gemma4(data: Path, name: str) -> None:
    """Layers that keep nothing take part in commits of trees, rewinds and saved sessions."""
    arrays = np.load(data / "tiny" / f"{name}.npz")
    ids = arrays["ids"]
    engine = open_engine(data / "tiny" / name, prefill_chunk=64)
    session = _engine.Session(engine)
    session.append(ids[:60])
    session.commit(list(range(60)))
    branch = np.array([ids[60], 5, ids[61], 7, ids[62]], np.int32)
    logits, _ = session.append(branch, parents=[-1, 0, 0, 2, 2])
    assert largest_difference(logits[[0, 2, 4]], arrays["logits"][60:63]) < EXACT
    session.commit([0, 2, 4])
    logits, _ = session.append(ids[63:70])
    assert largest_difference(logits, arrays["logits"][63:70]) < EXACT
    session.commit(list(range(7)))
    session.rewind(40)
    logits, _ = session.append(ids[40:80])
    assert largest_difference(logits, arrays["logits"][40:80]) < EXACT
    session.commit(list(range(40)))
    other = _engine.Session(engine)
    other.load(session.save())
    logits, _ = other.append(ids[80:])
    assert largest_difference(logits, arrays["logits"][80:]) < EXACT


def test_window_of_all_layers(data: Path, tmp_path: Path) -> None:
    """phi3 and mistral3 may have one; a window of the whole context is none."""
    source = data / "tiny" / "mistral3_a"
    arrays = np.load(data / "tiny" / "mistral3_a.npz")
    fields = json.loads((source / "config.json").read_text())
    for window, sees_all in ((64, False), (512, True)):
        folder = checkpoints.write(
            tmp_path / str(window), fields | {"sliding_window": window}, {"x": np.zeros(1, np.float32)}
        )
        (folder / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
        got = logits_of(open_engine(folder), arrays["ids"])
        assert largest_difference(got[:64], arrays["logits"][:64]) < EXACT
        assert (largest_difference(got[64:], arrays["logits"][64:]) < EXACT) == sees_all


def test_unequal_positions(data: Path, isa: str) -> None:
    """Temporal, height and width positions differ, as they do for images."""
    arrays = np.load(data / "tiny" / "qwen35_a_mrope.npz")
    engine = open_engine(data / "tiny" / "qwen35_a.gguf", isa=isa, prefill_chunk=256)
    logits, _ = _engine.Session(engine).append(arrays["ids"].astype(np.int32), positions=arrays["pos"].astype(np.int32))
    assert largest_difference(logits, arrays["logits"]) < EXACT


def test_multimodal_wrapper(data: Path, tmp_path: Path) -> None:
    """The text model is one level deeper in the file; the vision tower and prediction blocks next to it are skipped."""
    source = data / "tiny" / "qwen35_a"
    config = json.loads((source / "config.json").read_text())
    tensors = {
        name.replace("model.", "model.language_model.", 1): t
        for name, t in load_file(source / "model.safetensors").items()
    }
    extra = np.zeros((3, 5), np.float32)
    tensors |= {"model.visual.blocks.0.attn.qkv.weight": extra, "mtp.fc.weight": extra}
    checkpoints.write(tmp_path, {"model_type": "qwen3_5", "text_config": config}, tensors)
    arrays = np.load(data / "tiny" / "qwen35_a.npz")
    assert largest_difference(logits_of(open_engine(tmp_path), arrays["ids"]), arrays["logits"]) < EXACT


# --- random files against the reference

N_IDS = 70  # crosses one run of recurrent rows, one KV page and a window


@functools.cache
def expected(path: Path, vocab: int) -> F64:
    return Decoder(path).logits(random_ids(N_IDS, vocab))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes each shape once."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def write(shape: Shape) -> Path:
        return write_model(folder / f"{abs(hash(shape))}.gguf", shape)

    return write


def check(path: Path, vocab: int, isa: str) -> None:
    engine = open_engine(path, isa=isa)
    assert largest_difference(logits_of(engine, random_ids(N_IDS, vocab)), expected(path, vocab)) < EXACT


BY_TYPE = {
    "gpt-oss": Shape("gpt-oss", n_layers=2, hidden=256, n_experts=7, expert_ffn=256, n_heads=4, head_dim=64),
    "qwen35": Shape(
        "qwen35", n_layers=2, recurrent=(True, False), hidden=256, ffn=256, n_heads=4, head_dim=64, d_state=64
    ),
    "llama": Shape("llama", n_layers=2, hidden=256, ffn=512, n_heads=4, head_dim=64, tied=True),
    "qwen35moe": Shape(
        "qwen35moe",
        n_layers=2,
        recurrent=(True, False),
        hidden=256,
        n_experts=7,
        expert_ffn=256,
        shared_ffn=256,
        n_heads=4,
        head_dim=64,
        d_state=64,
    ),
}


# All families share the products, so one is enough every day. 0.2 to 0.8 s each.
LLAMA_DAILY = [name if name == "llama" else pytest.param(name, marks=pytest.mark.slow) for name in BY_TYPE]


@pytest.mark.parametrize("dtype", BLOCK_TYPES + PLAIN_TYPES)
@pytest.mark.parametrize("family", LLAMA_DAILY)
def test_every_tensor_type(written: Write, family: str, dtype: str) -> None:
    shape = replace(BY_TYPE[family], dtype=dtype)
    check(written(shape), shape.vocab, "auto")


@pytest.mark.first_case
@pytest.mark.parametrize("dtype", BLOCK_TYPES + PLAIN_TYPES)
@pytest.mark.parametrize("family", LLAMA_DAILY)
def test_every_tensor_type_with_every_instruction_set(written: Write, family: str, dtype: str) -> None:
    shape = replace(BY_TYPE[family], dtype=dtype)
    for isa in _engine.available_isas():
        check(written(shape), shape.vocab, isa)


@pytest.mark.parametrize("dtype", CODEBOOK_TYPES)
def test_types_without_kernels_of_their_own(written: Write, dtype: str) -> None:
    shape = replace(BY_TYPE["llama"], dtype=dtype)
    check(written(shape), shape.vocab, "auto")


VARIANTS = {
    "as many value heads as key heads": Shape(n_v_heads=2),
    "two value heads a key head": Shape(n_v_heads=4),
    "three value heads a key head": Shape(n_v_heads=6, n_heads=6, n_kv_heads=1),
    "one key head": Shape(n_k_heads=1, n_v_heads=3),
    "tied": Shape(tied=True),
    "listed layers, attention first": Shape(n_layers=5, recurrent=(False, True, True, False, True)),
    "all layers recurrent": Shape(n_layers=3, recurrent=(True, True, True)),
    "no layer recurrent": Shape(n_layers=2, recurrent=(False, False)),
    "prediction block": Shape(n_mtp=1),
    "two prediction blocks, listed layers": Shape(n_layers=3, recurrent=(True, False, True), n_mtp=2),
    "KV heads per layer": Shape(kv_heads_per_layer=True),
    "two taps": Shape(n_taps=2),
    "large state": Shape(n_layers=2, recurrent=(True, False), d_state=128),
    "qwen3": Shape("qwen3"),
    "qwen3 tied, one KV head": Shape("qwen3", tied=True, n_kv_heads=1),
    "mixture": Shape("qwen35moe"),
    "mixture, gate and up joined": Shape("qwen35moe", joined_experts=True),
    "mixture with a prediction block": Shape("qwen35moe", n_mtp=1),
    "mixture of one expert": Shape("qwen35moe", n_experts=1, n_used=1),
    "mixture that uses all experts": Shape("qwen35moe", n_experts=5, n_used=5, expert_ffn=40, shared_ffn=24),
    "many experts": Shape("qwen35moe", n_layers=2, recurrent=(True, False), n_experts=300, n_used=16, expert_ffn=8),
    "qwen3 mixture": Shape("qwen3moe"),
    "gpt-oss": Shape("gpt-oss", n_layers=3, expert_ffn=40, yarn=32.0),
    "gpt-oss, gate and up joined": Shape("gpt-oss", n_layers=2, joined_experts=True, window=65),
    "gpt-oss with all rows in the window": Shape("gpt-oss", n_layers=2, window=128),
    "llama": Shape("llama", n_heads=3, n_kv_heads=3),
    "llama with rope factors": Shape("llama", rope_factors=True),
    "llama with linear rope": Shape("llama", linear_rope=4.0),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(written: Write, variant: str, isa: str) -> None:
    shape = VARIANTS[variant]
    check(written(shape), shape.vocab, isa)


# --- mixtures in safetensors


@pytest.mark.parametrize("is_joined", [True, False])
def test_experts_of_checkpoints(written: Write, tmp_path: Path, isa: str, is_joined: bool) -> None:
    shape = VARIANTS["qwen3 mixture"]
    config, tensors = checkpoints.from_gguf(written(shape))
    folder = checkpoints.write(tmp_path, config, checkpoints.join_experts(tensors) if is_joined else tensors)
    got = logits_of(open_engine(folder, isa=isa), random_ids(N_IDS, shape.vocab))
    assert largest_difference(got, expected(written(shape), shape.vocab)) < EXACT


# --- gpt-oss in safetensors


def damaged(data: Path, folder: Path, change: Callable[[Typed], Typed], **config: Any) -> Path:
    """The golden checkpoint of gpt-oss with other tensors and fields."""
    source = data / "tiny" / "gpt_oss_a"
    fields = json.loads((source / "config.json").read_text()) | config
    checkpoints.write(folder, fields, {"x": np.zeros(1, np.float32)})
    made = change(checkpoints.read_tensors(source / "model.safetensors"))
    by_size = dict(sorted(made.items(), key=lambda item: -item[1][1].itemsize))  # so that each is aligned
    checkpoints.write_tensors(folder / "model.safetensors", by_size)
    return folder


def in_bf16(typed: Typed) -> Typed:
    """Experts as transformers keeps them without MXFP4: [experts, n_in, n_out] in BF16, which holds MXFP4 exactly."""
    made = {name: tensor for name, tensor in typed.items() if not name.endswith(("_blocks", "_scales"))}
    for name in {name.removesuffix("_blocks") for name in typed if name.endswith("_blocks")}:
        (_, blocks), (_, scales) = typed[name + "_blocks"], typed[name + "_scales"]
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:3], 32)
        magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
        values = np.where(codes < 8, 1, -1).astype(np.float32) * magnitudes[codes & 7]
        values = (values * np.exp2(scales[..., None].astype(np.float32) - 127)).reshape(*blocks.shape[:2], -1)
        made[name] = ("BF16", to_bf16(np.ascontiguousarray(values.swapaxes(1, 2))))
    return made


def test_gpt_oss_without_mxfp4(data: Path, tmp_path: Path, isa: str) -> None:
    arrays = np.load(data / "tiny" / "gpt_oss_a.npz")
    path = damaged(data, tmp_path / "m", in_bf16, quantization_config=None)
    assert largest_difference(logits_of(open_engine(path, isa=isa), arrays["ids"]), arrays["logits"]) < EXACT


def test_gpt_oss_int8_stays_close(data: Path, isa: str) -> None:
    arrays = np.load(data / "tiny" / "gpt_oss_a.npz")
    for chunk in (1, 64):
        engine = open_engine(data / "tiny" / "gpt_oss_a", isa=isa, activations="int8")
        assert mean_kl(arrays["logits"], logits_of(engine, arrays["ids"], chunk)) < tolerance("kl", "int8")


FIRST = "model.layers.0.mlp."


@pytest.mark.parametrize(
    ("tensor", "config", "message"),
    [
        (("experts.gate_up_proj_scales", None), {}, r"gate_up_proj_scales is missing"),
        (("experts.down_proj_blocks", ("U8", np.zeros((5, 96, 2, 15), np.uint8))), {}, r"\[5, 96, 2, 15\]; expected"),
        (("experts.down_proj_scales", ("F32", np.zeros((5, 96, 2), np.float32))), {}, "is F32; expected U8"),
        (
            ("router.weight", ("F32", np.zeros((4, 96), np.float32))),
            {},
            r"router.weight.* has shape \[4, 96\]; expected",
        ),
        (("router.bias", None), {}, "router.bias is missing"),
        (("experts.gate_up_proj_bias", ("F32", np.zeros((5, 64), np.float32))), {}, r"gate_up_proj_bias.* has shape"),
        (("x", ("F32", np.zeros(1, np.float32))), {}, r'mlp\.x" .*is not part of this architecture'),
        (None, {"num_local_experts": 6}, "has shape .*; expected"),
        (None, {"num_experts_per_tok": 6}, "num_experts_per_tok is 6; at most 5"),
        (None, {"sliding_window": 63}, "sliding_window is 63; at least 64"),
        (None, {"layer_types": ["full_attention"]}, "layer_types lists 1 layers; the model has 3"),
        (None, {"layer_types": ["chunked_attention"] * 3}, 'layer type "chunked_attention" is not supported'),
        (None, {"swiglu_limit": -1}, "swiglu_limit"),
    ],
)
def test_damaged_gpt_oss_is_refused(
    data: Path, tmp_path: Path, tensor: tuple[str, Any] | None, config: dict, message: str
) -> None:
    def change(typed: Typed) -> Typed:
        if tensor is None:
            return typed
        rest = {name: value for name, value in typed.items() if name != FIRST + tensor[0]}
        return rest if tensor[1] is None else rest | {FIRST + tensor[0]: tensor[1]}

    with pytest.raises(LuceboxError, match=message):
        open_engine(damaged(data, tmp_path / "m", change, **config))


# --- routers and scales


@pytest.mark.parametrize("shape", ["mixture", "gpt-oss"])
def test_a_router_with_nan_is_one_error(written: Write, tmp_path: Path, shape: str) -> None:
    """NaN weights of a router make all logits NaN; the answer is an error that says so."""
    made = tensors(VARIANTS[shape])
    router = made["blk.1.ffn_gate_inp.weight"]
    assert isinstance(router, np.ndarray)
    router[2] = np.nan
    path = write(tmp_path / "m.gguf", metadata(VARIANTS[shape]), made)
    with pytest.raises(LuceboxError, match="logits after 1 tokens are not finite; the weights are damaged"):
        logits_of(open_engine(path), [1, 2])


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("ffn_gate_inp.weight", (7, 64), r"ffn_gate_inp.weight.* has shape \[7, 64\]; expected \[8, 64\]"),
        (
            "ffn_down_exps.weight",
            (7, 64, 32),
            r"ffn_down_exps.weight.* has shape \[7, 64, 32\]; expected \[8, 64, 32\]",
        ),
    ],
)
def test_wrong_numbers_of_experts(tmp_path: Path, name: str, shape: tuple[int, ...], message: str) -> None:
    own = Shape("qwen3moe", n_layers=2)
    made = tensors(own) | {f"blk.1.{name}": np.zeros(shape, np.float32)}
    with pytest.raises(LuceboxError, match=message):
        open_engine(write(tmp_path / "m.gguf", metadata(own), made))


@pytest.mark.parametrize("maker", ["modelopt", "compressed-tensors"])
def test_nvfp4_experts_of_checkpoints(written: Write, tmp_path: Path, maker: str) -> None:
    """A matrix per expert, each with a scale of its own; the same values as fp32."""
    config, weights = checkpoints.from_gguf(written(replace(VARIANTS["qwen3 mixture"], hidden=64, expert_ffn=64)))
    rng = np.random.default_rng(0)
    packed: Typed = {}
    plain: Typed = {}
    for name, tensor in weights.items():
        packed[name] = plain[name] = ("F32", tensor)
        if ".experts." in name:
            del packed[name]
            made, values = checkpoints.nvfp4(name, tensor.shape, maker, rng)
            packed |= made
            plain[name] = ("F32", values.astype(np.float32))
    logits = []
    for label, typed in (("nvfp4", packed), ("f32", plain)):
        path = checkpoints.write(tmp_path / label, config, {"x": np.zeros(1, np.float32)})
        checkpoints.write_tensors(path / "model.safetensors", typed)
        logits.append(logits_of(open_engine(path), random_ids(9, 131)))
    assert largest_difference(*logits) < EXACT


def test_weights_that_are_not_normalised(written: Write, tmp_path: Path) -> None:
    """norm_topk_prob is false by default: the chosen weights then sum to less than 1."""
    shape = VARIANTS["qwen3 mixture"]
    config, tensors = checkpoints.from_gguf(written(shape))
    del config["norm_topk_prob"]
    got = logits_of(open_engine(checkpoints.write(tmp_path, config, tensors)), random_ids(N_IDS, shape.vocab))
    assert largest_difference(got, expected(written(shape), shape.vocab)) > EXACT


@pytest.mark.parametrize("rows", [1, 7, 64, 200])
def test_windows_in_long_prompts(written: Write, isa: str, rows: int) -> None:
    """Rows of an append hide each other from windows too."""
    shape = VARIANTS["gpt-oss"]
    path, ids = written(shape), random_ids(200, shape.vocab)
    want = Decoder(path).logits(ids)
    assert largest_difference(logits_of(open_engine(path, isa=isa, prefill_chunk=256), ids, rows), want) < EXACT


def test_windows_of_trees(written: Write, isa: str) -> None:
    """A row of a tree has the window of its depth."""
    shape = VARIANTS["gpt-oss"]
    path, ids = written(shape), random_ids(140, shape.vocab)
    session = _engine.Session(open_engine(path, isa=isa, prefill_chunk=256))
    session.append(ids[:100])
    session.commit(list(range(100)))
    branch = np.concatenate([ids[100:120], (ids[100:120] + 1) % shape.vocab, ids[120:140]])
    parents = [*range(-1, 19), -1, *range(20, 39), 19, *range(40, 59)]
    logits, _ = session.append(branch.astype(np.int32), parents=parents)
    chain = np.concatenate([logits[:20], logits[40:]])
    assert largest_difference(chain, Decoder(path).logits(ids)[100:]) < EXACT


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 9}, "experts.8.gate_proj.weight is missing|shape"),
        ({"num_experts": 0}, "num_experts"),
        ({"num_experts": 1000}, "num_experts is 1000; at most 512"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok is 9; at most 8"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2; supported: 1"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers lists dense layers"),
        ({"moe_intermediate_size": 31}, "has shape"),
    ],
)
def test_damaged_mixtures_are_refused(written: Write, tmp_path: Path, changes: dict, message: str) -> None:
    config, tensors = checkpoints.from_gguf(written(VARIANTS["qwen3 mixture"]))
    folder = checkpoints.write(tmp_path, config | changes, tensors)
    with pytest.raises(LuceboxError, match=message):
        open_engine(folder)


# --- the modes that round


@pytest.mark.first_case
@pytest.mark.parametrize("dtype", ["Q8_0", "Q4_1", "Q4_K"])
@pytest.mark.parametrize("family", BY_TYPE)
def test_int8_activations_stay_close(written: Write, family: str, dtype: str, isa: str) -> None:
    shape = replace(BY_TYPE[family], dtype=dtype)
    path, ids = written(shape), random_ids(N_IDS, shape.vocab)
    got = logits_of(open_engine(path, isa=isa, activations="int8"), ids)
    assert largest_difference(got, expected(path, shape.vocab)) > 0
    assert mean_kl(expected(path, shape.vocab), got) < tolerance("kl", "int8")


@pytest.mark.first_case
@pytest.mark.parametrize("kv", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["qwen35_a", "qwen3_a", "llama_a"])
def test_narrow_kv_stays_close(data: Path, name: str, kv: str, isa: str) -> None:
    path = data / "tiny" / f"{name}.gguf"
    arrays = np.load(path.with_suffix(".npz"))
    got = logits_of(open_engine(path, isa=isa, kv=kv), arrays["ids"])
    assert largest_difference(got, arrays["logits"]) > EXACT, "the cache does not seem to be narrower"
    assert mean_kl(arrays["logits"], got) < tolerance("kl", f"{kv}_kv")
