"""A model's shape, size and tensor types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lucebox.models.assets import TensorInfo

__all__ = ["ModelInfo", "model_info"]

ENGINE_FIELDS = [
    "architecture",
    "n_layers",
    "n_recurrent_layers",
    "hidden",
    "ffn",
    "vocab",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "tied",
    "bytes_per_token",
]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    path: str
    architecture: str
    n_layers: int
    n_recurrent_layers: int
    hidden: int
    ffn: int
    vocab: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    tied: bool
    """The output head shares the embedding table."""
    context_length: int
    """Maximum context of the model, in tokens."""
    n_params: int
    file_bytes: int
    """Bytes of all tensors."""
    bytes_per_token: int
    """Bytes of weights read per decoded token."""
    quant_mix: Mapping[str, int]
    """Number of values per tensor type."""


def model_info(name: str, path: Path, engine: Mapping[str, Any], tensors: Iterable[TensorInfo]) -> ModelInfo:
    """Collects a model's facts from the engine and the file's tensors."""
    mix: dict[str, int] = {}
    file_bytes = 0
    for tensor in tensors:
        mix[tensor.dtype] = mix.get(tensor.dtype, 0) + tensor.n_values
        file_bytes += tensor.bytes
    return ModelInfo(
        name=name,
        path=str(path),
        context_length=engine["max_context"],
        n_params=sum(mix.values()),
        file_bytes=file_bytes,
        quant_mix=mix,
        **{field: engine[field] for field in ENGINE_FIELDS},
    )
