"""Command-line flags from the fields and field docstrings of the option dataclasses.

A flag that was not given leaves no attribute, so a command can distinguish "not given" from "given the default".
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from lucebox.errors import InvalidRequestError
from lucebox.names import did_you_mean, same_name
from lucebox.options import EngineOptions, Sampling
from lucebox.serve.settings import ServeSettings
from lucebox.sizes import parse_size, show_size

__all__ = [
    "COMPRESSION_FLAGS",
    "Subparsers",
    "add_chat",
    "add_engine",
    "add_model",
    "add_models",
    "add_sampling",
    "add_server",
    "field_docs",
    "given",
    "one_of",
    "parse_field",
    "size",
]

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

SHORT = {"max_tokens": "-n", "temperature": "-t", "context": "-c", "decode_path": "--path"}
DRAFT_WORDS = ("none", "auto", "suffix", "mtp")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")
_SECONDS = {"s": 1, "m": 60, "h": 3600}
MIN_SIZE = 1024  # a smaller number of bytes lacks its unit
METAVARS = {int: "N", float: "X", str: "TEXT"}
# Commands that sample have Sampling's own --seed; a command runs one generation at a time; serve has its own cache.
NOT_ENGINE_FLAGS = frozenset({"seed", "sessions", "prefix_cache"})
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
COMPRESSION_FLAGS = frozenset(field.name for field in fields(EngineOptions) if field.name.startswith("prefill_")) - {
    "prefill_chunk"
}
"""Flags of commands that answer conversations."""


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a GGUF file, a folder of safetensors, a hub id (org/name or org/name:quant) or a catalog name",
    )
    parser.add_argument("--offline", action="store_true", help="use what is on this machine; download nothing")


def add_models(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="+",
        help="a GGUF file, a folder of safetensors, a hub id or a catalog name; NAME=MODEL; a folder of models; or a "
        "TOML file with tables [models.NAME]",
    )
    parser.add_argument("--offline", action="store_true", help="use what is on this machine; download nothing")


def add_chat(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("chat")
    group.add_argument("--system", metavar="TEXT", help="the system message")
    group.add_argument("--template", metavar="FILE", help="a Jinja chat template to use instead of the model's own")
    group.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        help="enable or disable reasoning before the answer, where the template supports it",
    )
    group.add_argument(
        "--reasoning-effort",
        type=one_of(EFFORTS),
        metavar="LEVEL",
        help=f"how long to reason: {', '.join(EFFORTS)}; also sets the level of a template that has its own",
    )
    group.add_argument(
        "--chat-template-kwargs",
        metavar="JSON",
        help="further variables of the chat template, as a JSON object: '{\"preserve_thinking\": true}'",
    )


def add_engine(parser: argparse.ArgumentParser, hidden: Collection[str] = ()) -> None:
    _add_fields(parser.add_argument_group("engine"), EngineOptions, {*NOT_ENGINE_FLAGS, *hidden})


def add_server(parser: argparse.ArgumentParser) -> None:
    _add_fields(parser.add_argument_group("server"), ServeSettings, ())


def add_sampling(parser: argparse.ArgumentParser, hidden: Collection[str] = ()) -> None:
    about = "the defaults are those of a continuation; those of an answer are what the model's makers recommend"
    _add_fields(parser.add_argument_group("sampling", about), Sampling, hidden)


def given(args: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The fields of cls set by flags, by name."""
    collected = {f.name: getattr(args, f.name) for f in fields(cls) if hasattr(args, f.name)}
    for name, kind in _hints(cls).items():
        if name not in collected:
            continue
        if get_origin(kind) is tuple:
            collected[name] = tuple(collected[name])
        elif get_origin(kind) is Mapping:
            collected[name] = dict(collected[name])
    return collected


def parse_field(cls: type, name: str, text: str) -> Any:
    """Parses the value of field `name` as on the command line.

    Raises:
        InvalidRequestError: no such field, or a value of another type.
    """
    kind = _hints(cls).get(name)
    if kind is None:
        known = [f.name for f in fields(cls)]
        raise InvalidRequestError(f"no option {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    try:
        if kind is bool:
            return _parse_bool(text)
        value = parser_of(kind)(text)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise InvalidRequestError(f"{name} cannot be {text!r}: {error}") from error
    if get_origin(kind) is tuple:
        return (value,)
    return dict([value]) if get_origin(kind) is Mapping else value


@cache
def field_docs(cls: type) -> dict[str, str]:
    """The string under each field of a dataclass, on one line."""
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            docs[statement.target.id] = " ".join(str(following.value.value).split())
    return docs


def _add_fields(group: argparse._ArgumentGroup, cls: type, skipped: Collection[str]) -> None:
    docs, hints = field_docs(cls), _hints(cls)
    for field in fields(cls):
        if field.name in skipped:
            continue
        flags = [flag for flag in (SHORT.get(field.name), "--" + field.name.replace("_", "-")) if flag]
        keywords: dict[str, Any] = {
            "dest": field.name,
            "default": argparse.SUPPRESS,
            "help": _help(field, docs[field.name]),
        }
        kind = hints[field.name]
        if kind is bool:
            keywords["action"] = "store_true"
        else:
            keywords["type"], keywords["metavar"] = parser_of(kind), _metavar(kind)
            if field.name == "draft":
                keywords["type"] = draft_word
            elif field.metadata.get("size"):
                keywords["type"], keywords["metavar"] = size, "SIZE"
            elif field.metadata.get("duration"):
                keywords["type"], keywords["metavar"] = duration, "TIME"
        if get_origin(kind) in (tuple, Mapping):
            keywords["action"] = "append"
            keywords["help"] += " May be given more than once."
        group.add_argument(*flags, **keywords)


def _help(field: Field[Any], doc: str) -> str:
    """A field's docstring as help text: "None:" becomes "Not given:", the default is added, % is escaped."""
    text = doc.replace("None:", "Not given:")
    if field.default not in (MISSING, None, ()) and not isinstance(field.default, bool):
        default = f"{field.default:g}" if isinstance(field.default, float) else field.default
        if field.metadata.get("size"):
            default = show_size(int(field.default))
        text += f" (default {default})"
    return text.replace("%", "%%")


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _inner(kind: Any) -> type:
    """int of `int | None` and of `tuple[int, ...]`."""
    if get_origin(kind) in (UnionType, tuple):
        kind = get_args(kind)[0]
    assert isinstance(kind, type)
    return kind


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    return "ID=BIAS" if get_origin(kind) is Mapping else METAVARS[_inner(kind)]


def parser_of(kind: Any) -> Callable[[str], Any]:
    """The parser of a field's type; a Literal's takes its words in any case."""
    if get_origin(kind) is Literal:
        return one_of(get_args(kind))
    return _parse_bias if get_origin(kind) is Mapping else _inner(kind)


def one_of(words: Collection[str]) -> Callable[[str], str]:
    """A parser of one of these words, in any case."""

    def parse(text: str) -> str:
        found = same_name(text, words)
        if found is None:
            raise argparse.ArgumentTypeError(f"expected {', '.join(words)}, got {text!r}{did_you_mean(text, words)}")
        return found

    return parse


def draft_word(text: str) -> str:
    """The words of --draft in any case; names and files as they are."""
    return same_name(text, [word + end for word in DRAFT_WORDS for end in ("", "+suffix")]) or text


def size(text: str) -> int:
    """A parser of sizes in bytes: 2GB, 512MiB, 4096."""
    if text.isdecimal() and 0 < int(text) < MIN_SIZE:
        raise argparse.ArgumentTypeError(f"{text} is a number of bytes; did you mean {text}GB?")
    try:
        return parse_size(text)
    except InvalidRequestError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def duration(text: str) -> float:
    """A parser of times in seconds: 90, 90s, 10m, 2h, 1.5h."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected seconds, or a time with its unit, as 90s, 10m or 2h; got {text!r}")
    return float(found[1]) * _SECONDS[found[2] or "s"]


def _parse_bias(text: str) -> tuple[int, float]:
    token, separator, bias = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"expected ID=BIAS, got {text!r}")
    try:
        return int(token), float(bias)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a token id and a number, got {text!r}") from None


def _parse_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("expected true or false")
    return text == "true"
