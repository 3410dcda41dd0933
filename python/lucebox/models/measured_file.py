"""Measurements of one start on a device, for later starts: one JSON file per model, device, build and set of options. A
damaged file, or one of another format, is replaced."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lucebox import _engine
from lucebox.cache import step_costs_folder
from lucebox.errors import FormatError
from lucebox.regular_files import read_regular

__all__ = ["MeasuredFile"]

MAX_BYTES = 1 << 20


class MeasuredFile:
    """The file of an opened model."""

    def __init__(self, engine: _engine.Engine, options: Sequence[str], **key: str | int) -> None:
        """options: names of the engine's options on which the values depend; key: what else they depend on."""
        library = Path(_engine.__file__).stat()
        self._key = {
            **key,
            "model": engine.layout,
            "engine": [library.st_size, library.st_mtime_ns],
            **{name: engine.options[name] for name in options},
        }
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = step_costs_folder() / f"{digest[:32]}.json"

    def read(self) -> Mapping[str, Any]:
        """The values; empty if there are none."""
        try:
            document = json.loads(read_regular(self.path, MAX_BYTES))
        except (OSError, ValueError, RecursionError, FormatError):
            return {}
        return document if isinstance(document, dict) and document.get("key") == self._key else {}

    def write(self, **values: Any) -> None:
        """Replaces the file. If the folder is not writable, the next start measures again."""
        temporary = self.path.with_suffix(f".{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"key": self._key, **values}, indent=1))
            temporary.replace(self.path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
