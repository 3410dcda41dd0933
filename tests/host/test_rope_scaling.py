"""Rope scaling of every family, in GGUF and in safetensors, against the fp64 reference; sections that contradict."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draft_pairs import FIRST, TARGET, Pair, reference_of, run
from engines import largest_difference, logits_of, open_engine, random_ids
from lucebox import _engine
from lucebox.errors import FormatError, LuceboxError, UnsupportedError
from reference import checkpoints, draft_files, rope
from reference.decoder import Decoder
from reference.gguf_files import Shape, metadata, tensors, write
from reference.mtp import Mtp
from reference.rms_norm import F64
from safetensors.numpy import load_file
from tolerances import tolerance

EXACT = tolerance("logits", "f32")
N_IDS = 70
# At 16 tokens of original context the ramp of YaRN is within the few pairs of these models.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
FAMILIES = {
    "qwen35": Shape(n_layers=2, recurrent=(True, False), head_dim=64),
    "qwen3": Shape("qwen3", n_layers=1),
    "llama": Shape("llama", n_layers=1),
}


def gguf_model(path: Path, shape: Shape, **fields: Any) -> Path:
    changed = {f"rope.{name}": value for name, value in fields.items()}
    return write(path, metadata(shape) | changed, tensors(shape))


def check_gguf(path: Path, decoder: Decoder | None = None) -> None:
    decoder = decoder or Decoder(path)
    ids = random_ids(N_IDS, len(decoder.w["token_embd.weight"]))
    want = decoder.logits(ids)
    assert largest_difference(logits_of(open_engine(path), ids), want) < EXACT


GGUF_YARN = {"scaling.type": "yarn", "scaling.factor": 4.0, "scaling.original_context_length": 16}


@pytest.mark.parametrize("family", FAMILIES)
def test_yarn_in_gguf(tmp_path: Path, family: str) -> None:
    path = gguf_model(tmp_path / "y.gguf", FAMILIES[family], **GGUF_YARN)
    check_gguf(path)
    plain = Decoder(path)
    plain.frequencies, plain.rope_scale = rope.plain_frequencies(plain.theta, plain.n_rot), 1.0
    ids = random_ids(N_IDS, len(plain.w["token_embd.weight"]))
    assert largest_difference(plain.logits(ids), Decoder(path).logits(ids)) > 100 * EXACT, "the scaling shows nowhere"


def test_yarn_options_in_gguf(tmp_path: Path) -> None:
    """The context of the file is the default of the original one; turns, attention factor and multiplier are read."""
    shape = replace(FAMILIES["llama"], max_context=256)
    turns = {"scaling.yarn_beta_fast": 8.0, "scaling.yarn_beta_slow": 2.0}
    factors = {"scaling.factor": 4.0, "scaling.yarn_log_multiplier": 0.5, "scaling.attn_factor": 1.25}
    path = gguf_model(tmp_path / "y.gguf", shape, **{"scaling.type": "yarn"}, **turns, **factors)
    decoder = Decoder(path)
    decoder.frequencies = rope.yarn_frequencies(decoder.theta, decoder.n_rot, 4, 256, 8, 2)
    decoder.rope_scale = 1.25 * rope.yarn_scale(4) / rope.yarn_scale(4, 0.5)
    check_gguf(path, decoder)


@pytest.mark.parametrize(
    "fields",
    [
        {"scaling.factor": 4.0},  # without a type
        {"scale_linear": 4.0},  # the oldest name
        {"scaling.type": "linear", "scaling.factor": 4.0},
        {"scaling.type": "linear", "scaling.factor": 4.0, "scaling.original_context_length": 1024},
    ],
)
def test_linear_in_gguf(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = gguf_model(tmp_path / "l.gguf", FAMILIES["llama"], **fields)
    decoder = Decoder(path)
    decoder.frequencies = rope.plain_frequencies(decoder.theta, decoder.n_rot) / 4
    check_gguf(path, decoder)


@pytest.mark.parametrize("architecture", ["qwen3", "llama", "mistral3", "smollm3"])
def test_a_part_of_each_head_rotates(tmp_path: Path, architecture: str) -> None:
    """A layer of the last two, without what they add, is one of Llama."""
    shape = FAMILIES["qwen3" if architecture == "qwen3" else "llama"]
    half = {"rope.dimension_count": shape.head_dim // 2}
    decoder = Decoder(write(tmp_path / "h.gguf", metadata(shape) | half, tensors(shape)))
    assert decoder.n_rot == shape.head_dim // 2
    path = write(tmp_path / "o.gguf", metadata(shape) | half | {"general.architecture": architecture}, tensors(shape))
    check_gguf(path, decoder)


@pytest.mark.parametrize(
    "fields",
    [
        {"scaling.type": "none", "scaling.factor": 4.0},
        {"scaling.factor": 0.0},
        {"scaling.type": "linear", "scaling.factor": 0.0},
        {"scaling.factor": 1.0},
    ],
)
def test_no_scaling_in_gguf(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = gguf_model(tmp_path / "n.gguf", FAMILIES["llama"], **fields)
    decoder = Decoder(path)
    assert np.array_equal(decoder.frequencies, rope.plain_frequencies(decoder.theta, decoder.n_rot))
    check_gguf(path, decoder)


@pytest.mark.parametrize(
    ("fields", "error", "part"),
    [
        ({"scaling.type": "dynamic", "scaling.factor": 4.0}, UnsupportedError, '"dynamic" is not supported'),
        ({"scaling.type": "longrope"}, FormatError, "LongRoPE needs 16 short and long factors, found 0"),
        ({"scaling.type": "yarn"}, FormatError, "scaling.factor is missing"),
        ({**GGUF_YARN, "scaling.yarn_ext_factor": 0.5}, FormatError, "yarn_ext_factor is not 1"),
        ({**GGUF_YARN, "scaling.yarn_beta_fast": 0.5}, FormatError, "must be above yarn_beta_slow"),
        ({**GGUF_YARN, "freq_base": 1.0}, FormatError, "theta above 1"),
    ],
)
def test_refused_in_gguf(tmp_path: Path, fields: dict[str, Any], error: type[LuceboxError], part: str) -> None:
    with pytest.raises(error, match=part):
        open_engine(gguf_model(tmp_path / "r.gguf", FAMILIES["llama"], **fields))


def test_yarn_extends_the_context(tmp_path: Path) -> None:
    long = {**GGUF_YARN, "scaling.original_context_length": 4096}
    path = gguf_model(tmp_path / "c.gguf", FAMILIES["qwen3"], **long)
    assert open_engine(path).info["max_context"] == 16384
    long["scaling.original_context_length"] = 512  # below what the file says by itself
    assert open_engine(gguf_model(tmp_path / "c.gguf", FAMILIES["qwen3"], **long)).info["max_context"] == 4096


# --- safetensors

Config = dict[str, Any]
Write = Callable[[Callable[[Config], None]], Path]


@functools.cache
def read_once(gguf: Path) -> tuple[Decoder, Config, dict[str, Any]]:
    """The reference, which the tests give other frequencies, and the checkpoint."""
    folder = gguf.with_suffix("")
    if folder.exists():
        config = json.loads((folder / "config.json").read_text())
        return Decoder(gguf), config, load_file(folder / "model.safetensors")
    return Decoder(gguf), *checkpoints.from_gguf(gguf)


@pytest.fixture(params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path, data: Path) -> tuple[Path, Decoder, Write]:
    """A model in GGUF, its reference, and a function that writes it as a checkpoint with a changed configuration."""
    gguf = data / "tiny" / f"{request.param}_a.gguf"
    decoder, config, weights = read_once(gguf)

    def write_changed(change: Callable[[Config], None]) -> Path:
        changed = json.loads(json.dumps(config))
        change(changed)
        return checkpoints.write(tmp_path / "checkpoint", changed, weights)

    return gguf, decoder, write_changed


def scaled(decoder: Decoder, rule: Config) -> tuple[F64, float]:
    """Frequencies and factor of a section of config.json."""
    theta, n_rot, factor = decoder.theta, decoder.n_rot, rule.get("factor", 1.0)
    if rule["rope_type"] == "linear":
        return rope.plain_frequencies(theta, n_rot) / factor, 1.0
    original = rule["original_max_position_embeddings"]
    if rule["rope_type"] == "llama3":
        turns = rule["low_freq_factor"], rule["high_freq_factor"]
        return rope.llama3_frequencies(theta, n_rot, factor, *turns, original), 1.0
    turns = rule.get("beta_fast", 32), rule.get("beta_slow", 1)
    frequencies = rope.yarn_frequencies(theta, n_rot, factor, original, *turns, rule.get("truncate", True))
    if rule.get("mscale") and rule.get("mscale_all_dim"):
        scale = rope.yarn_scale(factor, rule["mscale"]) / rope.yarn_scale(factor, rule["mscale_all_dim"])
    else:
        scale = rope.yarn_scale(factor)
    return frequencies, rule.get("attention_factor", scale)


def check_hf(path: Path, decoder: Decoder, rule: Config) -> None:
    decoder.frequencies, decoder.rope_scale = scaled(decoder, rule)
    ids = random_ids(24, len(decoder.w["token_embd.weight"]))
    assert largest_difference(logits_of(open_engine(path), ids), decoder.logits(ids)) < EXACT


RULES = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn with every option": {**YARN, "beta_fast": 6, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.5},
    "yarn with DeepSeek's weights": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
}


@pytest.mark.parametrize("name", RULES)
def test_rules_in_safetensors(checkpoint: tuple[Path, Decoder, Write], name: str) -> None:
    _, decoder, write_changed = checkpoint
    check_hf(write_changed(lambda c: c["rope_parameters"].update(RULES[name])), decoder, RULES[name])


@pytest.mark.parametrize("checkpoint", ["qwen35"], indirect=True)
def test_where_the_section_may_be(checkpoint: tuple[Path, Decoder, Write]) -> None:
    """Beside the newer section, alone with an older key of the type, in a wrapper, and once per layer type."""
    _, decoder, write_changed = checkpoint
    older = {"type" if key == "rope_type" else key: value for key, value in YARN.items()}
    plain = {"theta": decoder.theta}

    def beside(c: Config) -> None:
        c.update(rope_theta=plain["theta"], rope_scaling=dict(YARN))

    def alone(c: Config) -> None:
        old = c.pop("rope_parameters")
        c.update(rope_theta=old["rope_theta"], partial_rotary_factor=old["partial_rotary_factor"])
        c["rope_scaling"] = older | {"mrope_section": old["mrope_section"]}

    def mrope(c: Config) -> None:
        beside(c)
        c["rope_parameters"]["rope_type"] = "mrope"

    def in_wrapper(c: Config) -> None:
        inner = dict(c)
        c.clear()
        c.update(model_type="qwen3_5", text_config=inner, rope_scaling=dict(YARN))

    def per_layer(c: Config) -> None:
        c["rope_parameters"] = {"full_attention": c["rope_parameters"] | YARN}
        c["rope_parameters"]["full_attention"].pop("mrope_section")

    for change in (beside, alone, mrope, in_wrapper, per_layer):
        check_hf(write_changed(change), decoder, YARN)


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
def test_yarn_without_a_factor(checkpoint: tuple[Path, Decoder, Write]) -> None:
    """It follows from the two contexts."""
    _, decoder, write_changed = checkpoint
    rule = {key: value for key, value in YARN.items() if key != "factor"}
    rule["original_max_position_embeddings"] = 64

    def change(c: Config) -> None:
        c["rope_parameters"] |= rule
        c["max_position_embeddings"] = 256

    check_hf(write_changed(change), decoder, YARN | {"original_max_position_embeddings": 64})


@pytest.mark.parametrize("checkpoint", ["llama"], indirect=True)
@pytest.mark.parametrize(
    ("change", "error", "part"),
    [
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_parameters": {"rope_type": "yarn", **YARN}},
         FormatError, 'rope scaling "linear" contradicts "yarn"'),
        ({"rope_scaling": {**YARN, "factor": 2.0}, "rope_parameters": YARN}, FormatError, "factor is 2, and 4 in"),
        ({"rope_theta": 5e5}, FormatError, "rope_theta is"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, UnsupportedError, '"dynamic" is not supported'),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}, UnsupportedError, '"ntk" is not supported'),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, FormatError, "needs original_max_position_emb"),
        ({"rope_scaling": {"rope_type": "longrope", "original_max_position_embeddings": 64, "short_factor": [1.0],
                           "long_factor": [0.0]}}, FormatError, "long_factor must be positive, found 0"),
        ({"rope_scaling": {"rope_type": "linear"}}, FormatError, 'rope scaling "linear" needs factor'),
        ({"rope_scaling": {**YARN, "factor": -4}}, FormatError, "factor must be positive"),
        ({"rope_scaling": {**YARN, "beta_fast": 0.5}}, FormatError, "beta_fast must be above beta_slow"),
        ({"rope_scaling": [4.0]}, FormatError, "rope_scaling must be an object"),
        ({"rope_parameters": {"a": {"rope_theta": 1e4}, "b": {"rope_theta": 1e6}}}, FormatError, "rope_theta is"),
        ({"partial_rotary_factor": 0.5}, FormatError, "rotates whole heads"),
    ],
)  # fmt: skip
def test_refused_in_safetensors(
    checkpoint: tuple[Path, Decoder, Write], change: Config, error: type[LuceboxError], part: str
) -> None:
    with pytest.raises(error, match=part):
        open_engine(checkpoint[2](lambda c: c.update(change)))


# --- draft models use the same rope


def test_draft_with_yarn(tmp_path: Path) -> None:
    target = gguf_model(tmp_path / "target.gguf", TARGET)
    config = draft_files.hf_config(FIRST)
    config["rope_parameters"] |= YARN
    draft = draft_files.write_hf(tmp_path / "draft", config, draft_files.tensors(FIRST))
    reference = reference_of(FIRST)
    reference.frequencies = rope.yarn_frequencies(1e4, FIRST.head_dim, 4, 16)
    reference.rope_scale = rope.yarn_scale(4)
    run(Pair(target, str(draft), reference), ((13, 13), (1, 1), (-7, 0), (23, 23)))


def test_prediction_block_with_yarn(tmp_path: Path) -> None:
    target = gguf_model(tmp_path / "target.gguf", TARGET, **GGUF_YARN)
    run(Pair(target, "mtp", Mtp(Decoder(target))), ((13, 13), (1, 1), (-7, 0), (23, 23)))


def test_a_session_of_another_scaling_is_refused(tmp_path: Path) -> None:
    plain = open_engine(gguf_model(tmp_path / "a.gguf", FAMILIES["llama"]))
    session = _engine.Session(plain)
    session.sync(np.arange(5, dtype=np.int32))
    saved = session.save()
    scaled_engine = open_engine(gguf_model(tmp_path / "b.gguf", FAMILIES["llama"], **GGUF_YARN))
    with pytest.raises(UnsupportedError, match="another model"):
        _engine.Session(scaled_engine).load(saved, "here")
