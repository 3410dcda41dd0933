"""The modules of sentence-transformers: how the rows of a checkpoint become one vector per text.

modules.json lists them: a Transformer (the checkpoint itself), a Pooling, then any number of Dense and Normalize. Other
modules are refused by name, because leaving one out would give other vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.errors import FormatError, InvalidRequestError, UnsupportedError
from lucebox.regular_files import read_regular
from lucebox.text.tokenizer_json import parse_json, read_json

__all__ = ["MODULES_FILE", "EmbeddingModules", "Pooling", "Vector", "module_folders", "normalized", "read_modules"]

Pooling: TypeAlias = Literal["mean", "cls", "last", "max", "weightedmean", "mean_sqrt_len"]
"""The mean of all rows, the first row, the last one, the largest values, the mean weighted by position, or the sum over
the square root of the number of rows."""

Vector: TypeAlias = NDArray[np.float64]
Step: TypeAlias = Callable[[Vector], Vector]
"""[n] -> [m] what follows the pooling."""

MODULES_FILE = "modules.json"
_MAX_BYTES = 1 << 20
# sentence-transformers' flags, in the order in which it concatenates the vectors of several.
_FLAGS: Mapping[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "last",
}
_NAMES: Mapping[str, Pooling] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len",
    "weightedmean": "weightedmean",
    "lasttoken": "last",
}
_GELU = np.vectorize(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))), otypes=[np.float64])
_ACTIVATIONS: Mapping[str, Step] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
    "GELU": _GELU,
}


@dataclass(frozen=True, slots=True)
class EmbeddingModules:
    """What a checkpoint does with its rows."""

    poolings: tuple[Pooling, ...] = ()
    """Their vectors are concatenated. Empty: the files name none."""
    steps: tuple[Step, ...] = ()
    pools_prompt: bool = True
    """Whether the rows of the prompt before the text are pooled too."""


def read_modules(folder: Path) -> EmbeddingModules:
    """The modules of a checkpoint folder. Without modules.json: the pooling in 1_Pooling, if there is one.

    Raises:
        FormatError: a file is damaged. UnsupportedError: a module, pooling or activation is not implemented.
    """
    file = folder / MODULES_FILE
    if not file.is_file():
        config = folder / "1_Pooling" / "config.json"
        return _pooling(config) if config.is_file() else EmbeddingModules()
    pooling = EmbeddingModules()
    steps: list[Step] = []
    for i, (kind, path) in enumerate(_entries(file)):
        if kind == "Transformer":
            if i > 0 or path:
                raise UnsupportedError(
                    f"{file}: a Transformer as module {i} in {path or 'the folder'} is not supported"
                )
        elif i == 0:
            raise UnsupportedError(f"{file}: the first module is {kind}, expected Transformer")
        elif kind == "Pooling" and not pooling.poolings:
            pooling = _pooling(folder / path / "config.json")
        elif kind == "Normalize" and pooling.poolings:
            steps.append(normalized)
        elif kind == "Dense" and pooling.poolings:
            steps.append(_dense(folder / path))
        else:
            where = "" if pooling.poolings else " before a Pooling"
            raise UnsupportedError(
                f"{file}: module {i} is {kind}{where}, which is not supported; "
                "supported are Transformer, Pooling, Dense, Normalize, in this order"
            )
    return replace(pooling, steps=tuple(steps))


def module_folders(modules: Path) -> list[str]:
    """The folders that a modules.json names, besides the checkpoint's own; empty if the file is damaged."""
    try:
        return [path for _, path in _entries(modules) if path]
    except FormatError:
        return []


def normalized(vector: Vector) -> Vector:
    length = float(np.linalg.norm(vector))
    return vector / length if length > 0 else vector


def _entries(file: Path) -> list[tuple[str, str]]:
    """(class name, folder) of each module, in order."""
    try:
        modules = parse_json(read_regular(file, _MAX_BYTES), str(file))
    except OSError as error:
        raise FormatError(f"{file}: cannot be read: {error.strerror}") from error
    if not isinstance(modules, list) or not modules:
        raise FormatError(f"{file}: expected a list of modules")
    entries = []
    for i, module in enumerate(modules):
        kind = module.get("type") if isinstance(module, dict) else None
        path = module.get("path", "") if isinstance(module, dict) else None
        if not isinstance(kind, str) or not isinstance(path, str):
            raise FormatError(f"{file}: module {i} has no type and path as text")
        parts = PurePosixPath(path).parts
        if path.startswith("/") or "\\" in path or "\0" in path or ".." in parts:
            raise FormatError(f"{file}: module {i} has the path {path!a}, expected a folder beside it")
        entries.append((kind.rsplit(".", 1)[-1][:60], "/".join(parts)))
    return entries


def _pooling(file: Path) -> EmbeddingModules:
    """A Pooling without further modules, from its configuration."""
    config = read_json(file)
    return EmbeddingModules(_poolings(file, config), pools_prompt=config.get("include_prompt") is not False)


def _poolings(file: Path, config: Mapping[str, Any]) -> tuple[Pooling, ...]:
    named = config.get("pooling_mode")  # of sentence-transformers 5.4 and later
    if named is not None:
        names = [named] if isinstance(named, str) else named
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise FormatError(f"{file}: pooling_mode is {named!r}, expected a name or a list of names")
        for name in names:
            if name not in _NAMES:
                raise UnsupportedError(f"{file}: pooling {name!a} is not supported; supported: {', '.join(_NAMES)}")
        return tuple(pooling for name, pooling in _NAMES.items() if name in names)
    found = tuple(pooling for flag, pooling in _FLAGS.items() if config.get(flag) is True)
    unknown = [key for key, value in config.items() if key.startswith("pooling_mode_") and value and key not in _FLAGS]
    if unknown:
        raise UnsupportedError(f"{file}: {unknown[0][:60]!a} is not supported; supported: {', '.join(_FLAGS)}")
    if not found:
        raise FormatError(f"{file}: names no pooling")
    return found


def _dense(folder: Path) -> Step:
    """activation(weight x + bias)"""
    file = folder / "config.json"
    config = read_json(file)
    n_in, n_out = (config.get(key) for key in ("in_features", "out_features"))
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1]
    activate = _ACTIVATIONS.get(activation)
    if activate is None:
        raise UnsupportedError(
            f"{file}: activation {activation[:60]!a} is not supported; supported: {', '.join(_ACTIVATIONS)}"
        )
    for key in ("module_input_name", "module_output_name"):
        if config.get(key, "sentence_embedding") != "sentence_embedding":
            raise UnsupportedError(f"{file}: {key} is {config[key]!a}; supported: sentence_embedding")
    if not (folder / "model.safetensors").is_file():
        raise UnsupportedError(
            f"{folder}: expected model.safetensors; pickled weights (pytorch_model.bin) are not read"
        )
    tensors = _tensors(folder)
    weight, bias = tensors.get("linear.weight"), tensors.get("linear.bias")
    if weight is None or weight.shape != (n_out, n_in) or (bias is not None and bias.shape != (n_out,)):
        found = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items()) or "no tensor"
        raise FormatError(f"{folder}: expected linear.weight of [{n_out}, {n_in}] and linear.bias, found {found}")
    if config.get("bias", True) is True and bias is None:
        raise FormatError(f"{folder}: linear.bias is missing")

    def step(vector: Vector) -> Vector:
        if len(vector) != weight.shape[1]:
            raise InvalidRequestError(
                f"a Dense module takes {weight.shape[1]} values, and the pooling has {len(vector)}"
            )
        return np.asarray(activate(weight @ vector + (0 if bias is None else bias)), np.float64)

    return step


def _tensors(folder: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a module's folder in fp64."""
    tensors = {}
    file = _engine.open_model_file(str(folder))
    data = folder / "model.safetensors"
    for name, dtype, shape, _, offset, n_bytes in file.tensors:
        raw = np.fromfile(data, np.uint8, n_bytes, offset=offset)
        if dtype == "BF16":
            values = (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        elif dtype in ("F32", "F16"):
            values = raw.view(np.float32 if dtype == "F32" else np.float16)
        else:
            raise UnsupportedError(f"{data}: tensor {name} has type {dtype}; supported: F32, F16, BF16")
        tensors[name] = values.reshape(shape).astype(np.float64)
    return tensors
