"""Measurements that later starts reuse: a JSON file for each key, such as model, device, build and options. A damaged
file, or one of another format, is replaced."""

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

MAX_BYTES = 4 << 20


class MeasuredFile:
    """The values that belong to one key."""

    def __init__(self, key: Mapping[str, Any], prefix: str = "") -> None:
        """key: what the values depend on; prefix: of the file's name."""
        self._key = dict(key)
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = step_costs_folder() / f"{prefix}{digest[:32]}.json"

    @classmethod
    def of_engine(cls, engine: _engine.Engine, options: Sequence[str], **key: str | int) -> MeasuredFile:
        """The file of an opened model, for times. options: names of the engine's options on which they depend; key:
        what else they depend on."""
        library = Path(_engine.__file__).stat()
        build = {"model": engine.layout, "engine": [library.st_size, library.st_mtime_ns]}
        return cls({**key, **build, **{name: engine.options[name] for name in options}})

    def read(self) -> Mapping[str, Any]:
        """The values; empty if there are none."""
        try:
            document = json.loads(read_regular(self.path, MAX_BYTES))
        except (OSError, ValueError, RecursionError, FormatError):
            return {}
        return document if isinstance(document, dict) and document.get("key") == self._key else {}

    def write(self, **values: Any) -> None:
        """Replaces the file. If the folder is not writable, the next start learns again."""
        temporary = self.path.with_suffix(f".{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"key": self._key, **values}))
            temporary.replace(self.path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
