"""Reads the MODEL arguments of `lucebox serve`: models, NAME=MODEL, folders of models and TOML files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lucebox.cli import options
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.local_files import read_text
from lucebox.models.hub import models_in_folder
from lucebox.names import did_you_mean
from lucebox.options import EngineOptions
from lucebox.serve.model_spec import OWN_OPTIONS, OWN_SETTINGS, ModelSpec
from lucebox.serve.settings import ServeSettings
from lucebox.sizes import parse_size

__all__ = ["RAY_TABLE", "on_one_server", "read_models", "read_ray"]

MAX_FILE = 1 << 20
_NAMED = re.compile(r"([\w.:@-]+)=(.+)", re.S)
DEFAULT_SESSIONS = 4
RAY_TABLE = "ray"
"""The table of a TOML file that `--ray` reads."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A model, with the fields of a TOML table."""

    model: str
    name: str | None = None
    table: Mapping[str, Any] | None = None
    where: str = ""


def read_models(
    arguments: Sequence[str], settings: ServeSettings, engine: Mapping[str, Any], *, offline: bool
) -> list[ModelSpec]:
    """The models to serve. engine: the engine options given by flags, which a TOML file overrides for its models;
    memory_limit is for all models together.

    Raises:
        InvalidRequestError: an argument, a file or a combination of flags that has no meaning; the message says why.
    """
    named = [one for argument in arguments for one in _expanded(argument)]
    if len(named) > 1:
        for flag in ("model_name", "alias"):
            if getattr(settings, flag):
                raise InvalidRequestError(
                    f"--{flag.replace('_', '-')} is for one model, and there are {len(named)}: write NAME=MODEL, or "
                    "`alias` in a TOML file"
                )
    folder = settings.prefix_cache_dir
    flags = dict(engine)
    limit = flags.pop("memory_limit", None)
    specs = []
    for one in named:
        own_settings, own_options = _fields_of(one)
        if len(named) > 1 and folder is not None:
            file = one.name or Path(one.model).name
            own_settings["prefix_cache_dir"] = str(Path(folder) / quote(file, safe=""))
        own = replace(settings, **own_settings)
        chosen = EngineOptions(**{**flags, **own_options, "sessions": own.slots or DEFAULT_SESSIONS, "prefix_cache": 0})
        specs.append(ModelSpec(one.model, chosen, own, offline, None if limit is None else parse_size(limit)))
    return specs


def on_one_server(specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    """The replicas of the models, which share the devices and the prefix cache of one server.

    Raises:
        InvalidRequestError: as `ModelSpec.replicated`.
    """
    each = [replica for spec in specs for replica in spec.replicated()]
    return [_with_cache(spec, len(each)) for spec in each]


def _with_cache(spec: ModelSpec, n: int) -> ModelSpec:
    """The spec with its part of the prefix cache: all models and replicas share its memory and disk, and a folder is
    locked by the cache of one."""
    own = spec.settings
    folder = own.prefix_cache_dir
    if folder is not None and own.replicas > 1:
        folder = str(Path(folder) / f"replica-{spec.replica}")
    own = replace(own, prefix_cache_disk=own.prefix_cache_disk // n, prefix_cache_dir=folder)
    return replace(spec, settings=own, n_caches=n)


def read_ray(arguments: Sequence[str]) -> dict[str, Any]:
    """The table RAY_TABLE of the only TOML file; empty if there is none.

    Raises:
        InvalidRequestError: several files have one, or it is no table.
    """
    found = [_toml(path).get(RAY_TABLE) for path in map(Path, arguments) if path.suffix == ".toml"]
    tables = [one for one in found if one is not None]
    if len(tables) > 1 or not all(isinstance(one, dict) for one in tables):
        raise InvalidRequestError(f"expected one table [{RAY_TABLE}] in one TOML file")
    return tables[0] if tables else {}


def _expanded(argument: str) -> Iterator[_Named]:
    path = Path(argument)
    if found := None if path.exists() else _NAMED.fullmatch(argument):
        yield _Named(found[2], found[1])
    elif path.suffix == ".toml":
        yield from _tables(path)
    elif path.is_dir() and len(models := models_in_folder(path)) > 1:
        yield from (_Named(str(model)) for model in models)
    else:
        yield _Named(argument)


def _tables(path: Path) -> Iterator[_Named]:
    """The tables [models.NAME] of a TOML file."""
    document = _toml(path)
    document.pop(RAY_TABLE, None)
    models = document.pop("models", None)
    if document or not isinstance(models, dict) or not models:
        extra = f"; found {', '.join(map(repr, document))}" if document else ""
        raise InvalidRequestError(f"{path}: expected tables [models.NAME], each with `model`{extra}")
    for name, table in models.items():
        where = f"{path}: [models.{name}]"
        if not isinstance(table, dict) or not isinstance(model := table.get("model"), str):
            raise InvalidRequestError(f"{where} has no `model`: a path, a hub id or a catalog name, as a string")
        beside = path.parent / model
        rest = {key: value for key, value in table.items() if key != "model"}
        yield _Named(str(beside) if beside.exists() else model, name, rest, where)


def _toml(path: Path) -> dict[str, Any]:
    try:
        if sys.version_info >= (3, 11):
            import tomllib
        else:
            import tomli as tomllib
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"{error.name} is not installed; run: pip install 'lucebox[serve]'") from error
    try:
        document: dict[str, Any] = tomllib.loads(read_text(str(path), MAX_FILE))
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequestError(f"{path} is not TOML: {error}") from error
    return document


def _fields_of(one: _Named) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table's fields of ServeSettings and of EngineOptions."""
    own_settings: dict[str, Any] = {} if one.name is None else {"model_name": one.name}
    own_options: dict[str, Any] = {}
    for key, value in (one.table or {}).items():
        if key in OWN_SETTINGS:
            own_settings[key] = _parsed(ServeSettings, key, value, one.where)
        elif key in OWN_OPTIONS:
            own_options[key] = _parsed(EngineOptions, key, value, one.where)
        else:
            known = [*OWN_SETTINGS, *OWN_OPTIONS]
            hint = did_you_mean(key, known) or f"; a model has {', '.join(known)}"
            raise InvalidRequestError(f"{one.where} has no option {key!r}{hint}")
    return own_settings, own_options


def _parsed(cls: type, key: str, value: Any, where: str) -> Any:
    """A TOML value as the command line reads its text."""
    try:
        if isinstance(value, list):
            return tuple(text for item in value for text in options.parse_field(cls, key, _text(item)))
        return options.parse_field(cls, key, _text(value))
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{where}: {error}") from error


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidRequestError(f"expected a string, a number, true or false, got {value!r}")
