"""The fingerprint of a model and its options: everything that determines the bits of a state, except the tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lucebox import _engine

__all__ = ["fingerprint"]


def fingerprint(engine: _engine.Engine, manifest_json: str = "", code: str | None = None, device: str = "") -> str:
    """A string that differs whenever the computed bits may differ.

    Covers the weights, options that change chunks or rounding, the engine's build, and on a GPU the pack's manifest,
    the compiler of the code that the driver loads from it, and the device's name.
    """
    build = hashlib.sha256(Path(_engine.__file__).read_bytes()).hexdigest()
    pack = hashlib.sha256(manifest_json.encode()).hexdigest() if manifest_json else ""
    options = [engine.options[name] for name in ("isa", "kv", "prefill_chunk", "context")]
    return " ".join(map(str, [engine.fingerprint, *options, build, pack, code or "", device]))
