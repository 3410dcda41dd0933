"""Finds the imports between the modules of a Python package, from its sources, and the import cycles.

Imports inside functions and under TYPE_CHECKING count. Not counted: imports from the package's root, whose `__init__`
only re-exports names, imports of compiled modules, and imports by a computed name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["Imports", "circles", "imports_of"]

# For each module (without the package's name) the modules that it imports, each with the first line that does.
Imports = dict[str, dict[str, int]]


def imports_of(package: Path, files: Iterable[Path]) -> Imports:
    """The imports of the files in the folder `package`."""
    modules = {_name(package, file): file for file in files if file.suffix == ".py" and file.is_relative_to(package)}
    modules.pop("", None)
    found: Imports = {name: {} for name in modules}
    for name, file in modules.items():
        own = found[name]
        for line, target in _targets(ast.parse(file.read_bytes()), package.name, name, file):
            while target and target not in modules:  # a name inside a module
                target = target.rpartition(".")[0]
            if target and target != name:
                own[target] = min(line, own.get(target, line))
    return found


def circles(imports: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or not."""
    reached = {name: _reached(imports, name) for name in imports}
    found: list[list[str]] = []
    for name in sorted(imports):
        group = sorted(other for other in reached[name] if name in reached[other])
        if group and group not in found:
            found.append(group)
    return found


def _reached(imports: Mapping[str, Iterable[str]], start: str) -> set[str]:
    """The modules that a module imports, directly or not; itself only if it is on a circle."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        for target in imports[ahead.pop()]:
            if target not in found:
                found.add(target)
                ahead.append(target)
    return found


def _targets(tree: ast.Module, package: str, module: str, file: Path) -> Iterator[tuple[int, str]]:
    """(line, imported name) for each import from this package, without the package's name: "serve.errors.ApiError"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = [package, *module.split(".")]
                above = parts[: len(parts) - node.level + (file.name == "__init__.py")]
                base = ".".join([*above, *([base] if base else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.startswith(f"{package}."):
                yield node.lineno, name.removeprefix(f"{package}.")


def _name(package: Path, file: Path) -> str:
    parts = file.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
