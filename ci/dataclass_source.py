"""Reads dataclasses from their source, without importing it: what is generated from them is needed to build the module
that they import."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SourceField:
    name: str
    type: str
    """Source text of the annotation, unresolved."""
    default: ast.expr | None
    """None if the field is required or has a factory."""
    factory: ast.expr | None
    metadata: Mapping[str, Any]
    doc: str
    """The docstring under the field, its lines joined by spaces."""


@dataclass(frozen=True)
class SourceClass:
    name: str
    bases: tuple[str, ...]
    doc: str
    fields: tuple[SourceField, ...]


def read_classes(file: Path) -> list[SourceClass]:
    """Parses a file without importing it; returns its classes in the order of the source."""
    tree = ast.parse(file.read_text())
    constants = _constants(tree)
    return [_read_class(node, constants) for node in tree.body if isinstance(node, ast.ClassDef)]


def _constants(tree: ast.Module) -> dict[str, Any]:
    """The module's dictionaries of literals, which fields have as metadata."""
    named = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name):
            with suppress(ValueError):  # not of literals alone
                named[node.targets[0].id] = ast.literal_eval(node.value)
    return named


def _metadata(value: ast.expr, constants: Mapping[str, Any]) -> Any:
    """A dictionary, its name, or the union of two."""
    if isinstance(value, ast.BinOp):
        return _metadata(value.left, constants) | _metadata(value.right, constants)
    return constants[value.id] if isinstance(value, ast.Name) else ast.literal_eval(value)


def _read_class(node: ast.ClassDef, constants: Mapping[str, Any]) -> SourceClass:
    found = []
    for statement, below in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign):
            continue
        doc = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
        found.append(_read_field(statement, " ".join(str(doc).split()), constants))
    doc = " ".join((ast.get_docstring(node) or "").split())
    return SourceClass(node.name, tuple(map(ast.unparse, node.bases)), doc, tuple(found))


def _read_field(statement: ast.AnnAssign, doc: str, constants: Mapping[str, Any]) -> SourceField:
    value, given = statement.value, {}
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        given = {keyword.arg: keyword.value for keyword in value.keywords}
        value = given.get("default")
    return SourceField(
        ast.unparse(statement.target),
        ast.unparse(statement.annotation),
        value,
        given.get("default_factory"),
        _metadata(given["metadata"], constants) if "metadata" in given else {},
        doc,
    )
