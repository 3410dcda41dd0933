"""Files that are no supported model, or that other tools write in other forms: each is read, or refused with its
reason."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines import open_engine
from lucebox import LLM, _engine
from lucebox.errors import FormatError, LuceboxError, UnsupportedError
from reference import gguf_files
from reference.checkpoints import write_tensors
from safetensors.numpy import load_file
from test_foreign_files import Write, folder, gguf, same_logits, wrapped  # noqa: F401 (fixtures)

MLP = "model.layers.0.mlp.gate_proj."


def changed(**values: Any) -> Any:
    return lambda config: config | values


# --- other tasks


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"is_causal": False}, "is_causal = false: bidirectional attention is not supported"),
        ({"use_bidirectional_attention": True}, "bidirectional attention is not supported"),
        ({"architectures": ["Qwen3ForSequenceClassification"]}, "is a reranker or classifier"),
        ({"architectures": ["LlamaForTokenClassification"]}, "is a reranker or classifier"),
    ],
)
def test_other_tasks_of_a_folder(folder: Write, config: dict[str, Any], message: str) -> None:  # noqa: F811
    for change in (changed(**config), lambda one: wrapped({**one, **config})):
        with pytest.raises(UnsupportedError, match=message):
            open_engine(folder(change))
    open_engine(folder(changed(is_causal=True, use_bidirectional_attention=None, architectures=["Qwen3ForCausalLM"])))


@pytest.mark.parametrize(
    ("fields", "extra", "message"),
    [
        ({"qwen3.attention.causal": False}, {}, "qwen3.attention.causal is false: bidirectional"),
        ({"qwen3.pooling_type": 4}, {}, "this is a reranker"),
        ({}, {"cls.output.weight": np.zeros((2, 64), np.float32)}, "this is a reranker"),
        ({"general.type": "adapter"}, {}, "a LoRA adapter, not a model; merge it"),
        ({"general.type": "mmproj"}, {}, "a vision projector"),
    ],
)
def test_other_tasks_in_gguf(gguf: Write, fields: Any, extra: Any, message: str) -> None:  # noqa: F811
    with pytest.raises(UnsupportedError, match=message):
        open_engine(gguf("qwen3_a.gguf", fields, extra=extra))
    open_engine(
        gguf("qwen3_a.gguf", {"qwen3.attention.causal": True, "qwen3.pooling_type": 3, "general.type": "model"})
    )


# --- quantised weights and layouts of other tools


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
            "weights of bitsandbytes are",
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "weights of GPTQ are"),
        ({"quantization": {"group_size": 64, "bits": 4}}, "weights of MLX in 4 bits are"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}},
            'compressed-tensors in the format "mxfp4-pack-quantized"',
        ),
    ],
)
def test_quantised_weights_by_their_configuration(folder: Write, config: Any, message: str) -> None:  # noqa: F811
    with pytest.raises(UnsupportedError, match=rf"{message}.* not supported\. Use a checkpoint in BF16"):
        open_engine(folder(changed(**config)))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"weight": ("U8", (96 * 32, 1)), "weight.absmax": ("F32", (96,))}, "weights of bitsandbytes, which"),
        ({"weight": ("I8", (96, 64)), "SCB": ("F32", (96,))}, "weights of bitsandbytes, which"),
        ({"weight": ("U32", (96, 8)), "scales": ("BF16", (96, 1)), "biases": ("BF16", (96, 1))}, "MLX in a few bits"),
        ({"weight_packed": ("U8", (96, 32)), "weight_scale": ("U8", (96, 2))}, "MXFP4 of compressed-tensors"),
    ],
)
def test_quantised_weights_by_their_tensors(folder: Write, tensors: Any, message: str) -> None:  # noqa: F811
    path = folder()
    kept = {name: ("F32", array.astype(np.float32)) for name, array in load_file(path / "model.safetensors").items()}
    n_ffn = len(kept.pop(f"{MLP}weight")[1])
    size = {"U8": np.uint8, "I8": np.int8, "U32": np.uint32, "F32": np.float32, "BF16": np.uint16}
    scale = n_ffn / 96
    for name, (dtype, shape) in tensors.items():
        kept[MLP + name] = (dtype, np.zeros((int(shape[0] * scale), *shape[1:]), size[dtype]))
    write_tensors(path / "model.safetensors", kept)
    with pytest.raises(UnsupportedError, match=message):
        open_engine(path)


def test_the_layout_of_mlx(folder: Write) -> None:  # noqa: F811
    def moved(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {n: np.moveaxis(t, 2, 1).copy() if n.endswith("conv1d.weight") else t for n, t in tensors.items()}

    with pytest.raises(UnsupportedError, match="the layout of MLX, which also changes the norms"):
        open_engine(folder(tensors=moved))


@pytest.mark.parametrize("insert", ["_orig_mod.", "_fsdp_wrapped_module.", "module.", "base_model.model.", "deep"])
def test_names_that_training_tools_change(data: Path, folder: Write, insert: str) -> None:  # noqa: F811
    def renamed(tensors: Mapping[str, Any]) -> dict[str, Any]:
        if insert != "deep":
            return {insert + name: tensor for name, tensor in tensors.items()}
        return {name.replace(".mlp.", "._orig_mod.mlp._checkpoint_wrapped_module."): t for name, t in tensors.items()}

    same_logits(folder(tensors=renamed), data / "tiny" / "qwen35_a")


def test_adapters_keep_their_names(folder: Write) -> None:  # noqa: F811
    def with_adapter(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {**tensors, f"base_model.model.{MLP}lora_A.weight": np.zeros((4, 64), np.float32)}

    with pytest.raises(FormatError, match=r"lora_A\.weight"):
        open_engine(folder(tensors=with_adapter))


def test_a_prediction_block_without_its_count(gguf: Write) -> None:  # noqa: F811
    extra = {"blk.4.nextn.eh_proj.weight": np.zeros((64, 128), np.float32)}
    with pytest.raises(FormatError, match=r"of a prediction block \(MTP\), but the key qwen35.nextn_predict_layers"):
        open_engine(gguf("qwen35_a.gguf", extra=extra))


# --- files that hold something else

FOREIGN = {
    b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12345\n": "a Git LFS pointer, .*git lfs pull",
    b"<!DOCTYPE html><html>Entry not found</html>": "a web page",
    b"PK\x03\x04" + bytes(60): "a zip file, such as PyTorch's pickled weights",
    '{"a": 1}'.encode("utf-16"): "UTF-16 text; convert it",
}


@pytest.mark.parametrize("content", FOREIGN, ids=FOREIGN.values())
@pytest.mark.parametrize("name", ["m.gguf", "model.safetensors", "config.json", "tokenizer.json"])
def test_files_with_foreign_content(folder: Write, name: str, content: bytes) -> None:  # noqa: F811
    path = folder()
    file = path.parent / name if name == "m.gguf" else path / name
    file.write_bytes(content)
    with pytest.raises(
        FormatError, match=f"{name}.*{FOREIGN[content] if content[:2] != b'PK' or 'json' not in name else ''}"
    ):
        LLM(file if name == "m.gguf" else path, device="cpu", draft="none")


# --- what need not be refused


def test_numbers_that_json_lacks(data: Path, folder: Write) -> None:  # noqa: F811
    path = folder()
    text = (path / "config.json").read_text().rstrip().removesuffix("}")
    unused = '"time_step_limit": [0.0, Infinity], "a": -Infinity, "b": NaN}'
    (path / "config.json").write_bytes(b"\xef\xbb\xbf" + f"{text}, {unused}".encode())
    same_logits(path, data / "tiny" / "qwen35_a")
    for value in ("NaN", "Infinity", "-Infinity"):
        config = json.loads((data / "tiny" / "qwen35_a" / "config.json").read_text()) | {"rms_norm_eps": "X"}
        (path / "config.json").write_text(json.dumps(config).replace('"X"', value))
        with pytest.raises(FormatError, match="rms_norm_eps must be a positive number"):
            open_engine(path)


def test_empty_tensors(data: Path, folder: Write, gguf: Write) -> None:  # noqa: F811
    def with_empty(tensors: Mapping[str, Any]) -> dict[str, Any]:
        return {**tensors, "model.visual.empty": np.zeros((0, 4), np.float32)}

    same_logits(folder(tensors=with_empty), data / "tiny" / "qwen35_a")
    for name in ("model.norm.weight", "model.embed_tokens.weight"):
        with pytest.raises(FormatError, match=f"{name}.* has shape"):
            open_engine(folder(tensors=lambda t, name=name: {**t, name: t[name][:0]}))


def test_end_tokens_of_minus_1(folder: Write, gguf: Write) -> None:  # noqa: F811
    path = folder(changed(eos_token_id=-1), files={"generation_config.json": '{"eos_token_id": [-1, 7]}'})
    with LLM(path, device="cpu", draft="none") as llm:
        assert 7 in llm.end_ids and -1 not in llm.end_ids
    with LLM(gguf("llama_a.gguf", {"tokenizer.ggml.eos_token_id": -1}), device="cpu", draft="none") as llm:
        assert all(i >= 0 for i in llm.end_ids)


# --- sizes


def test_sizes_that_overflow(folder: Write) -> None:  # noqa: F811
    heads = changed(num_attention_heads=1 << 24, num_key_value_heads=1 << 24, head_dim=512)
    with pytest.raises(FormatError, match="16777216 heads of 512 values, more than 2"):
        open_engine(folder(heads))
    wide = changed(linear_num_key_heads=1 << 24, linear_num_value_heads=1 << 24, linear_key_head_dim=512)
    with pytest.raises(FormatError, match="channels, more than 2"):
        open_engine(folder(wide))


@pytest.mark.parametrize("options", [{"kv_tokens": 2**31 - 1}, {"kv_tokens": 2**31 - 64}, {"sessions": 2**31 - 1}])
def test_options_that_overflow(data: Path, options: dict[str, int]) -> None:
    """A plan is refused or fits; no size wraps around."""
    try:
        plan = dict(open_engine(data / "tiny" / "qwen35_a", **options).plan)
    except LuceboxError as error:
        assert "kv_tokens must be between 1 and" in str(error) or "needs" in str(error) or "available" in str(error)
    else:
        assert 0 < plan["kv_tokens"] < 2**31
        assert all(entry[1] >= 0 for entry in plan["entries"])


# --- files that change while they are mapped


def test_a_file_that_shrinks(data: Path, tmp_path: Path) -> None:
    path, drafter = tmp_path / "m.gguf", tmp_path / "d.gguf"
    path.write_bytes((data / "tiny" / "llama_a.gguf").read_bytes())
    with (
        LLM(data / "tiny" / "llama_a.gguf", device="cpu", draft="none") as other,
        LLM(path, device="cpu", draft="none") as llm,
    ):
        want = llm.generate("hello", max_tokens=4, ignore_eos=True).ids
        with path.open("r+b") as file:
            file.truncate(4096)
        for _ in range(2):
            with pytest.raises(FormatError, match=r"m\.gguf: the file became shorter while it was in use"):
                llm.generate("other words", max_tokens=4, ignore_eos=True)
        assert other.generate("hello", max_tokens=4, ignore_eos=True).ids == want
    path.write_bytes((data / "tiny" / "llama_a.gguf").read_bytes())
    with LLM(path, device="cpu", draft="none") as llm:
        assert llm.generate("hello", max_tokens=4, ignore_eos=True).ids == want
    with LLM("tiny-hybrid", device="cpu", draft="none") as llm:
        target = Path(llm.info.path)
    drafter.write_bytes(next(target.parent.glob("*dflash*")).read_bytes())
    with LLM(target, device="cpu", draft=str(drafter)) as llm:
        llm.generate("import os", max_tokens=8)
        with drafter.open("r+b") as file:
            file.truncate(4096)
        with pytest.raises(FormatError, match=r"d\.gguf: the file became shorter"):
            llm.generate("def f(a):", max_tokens=16)


@pytest.mark.parametrize("vocab", [1, 3, 7])
def test_a_prediction_block_with_a_tiny_vocabulary(tmp_path: Path, vocab: int) -> None:
    """A draft has fewer candidates than usual; its tokens change nothing."""
    shape = gguf_files.Shape("qwen35", n_layers=4, recurrent=(True, False, True, False), n_mtp=1, vocab=vocab)
    path = gguf_files.write_model(tmp_path / "m.gguf", shape)
    found = []
    for draft in ("none", "mtp", "mtp+suffix"):
        session = _engine.Session(open_engine(path, draft=draft))
        sampler, ids = _engine.Sampler(vocab), [0]
        for _ in range(24):
            session.sync(np.array(ids, np.int32))
            ids.append(session.sample(sampler))
        found.append(ids)
    assert found[0] == found[1] == found[2] and max(found[0]) < vocab
