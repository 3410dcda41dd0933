"""What the bits of a state depend on, beyond its tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lucebox import _engine

__all__ = ["fingerprint"]


def fingerprint(engine: _engine.Engine, manifest_json: str = "", device: str = "") -> str:
    """Tells apart all that may compute other bits: weights, options that cut or round, this build of the engine, and on
    a GPU the pack (its manifest) and the device (its name)."""
    build = hashlib.sha256(Path(_engine.__file__).read_bytes()).hexdigest()
    pack = hashlib.sha256(manifest_json.encode()).hexdigest() if manifest_json else ""
    info, plan = engine.info, engine.plan
    options = [info["isa"], info["kv"], info["prefill_chunk"], plan["context"]]
    return " ".join(map(str, [engine.fingerprint, *options, build, pack, device]))
