"""Lists a release: its projects in the order of their upload to PyPI, and each project's files. Needs only Python.

release_plan.py                   the list
release_plan.py --tag v0.1.0      fails if the tag does not match the version
release_plan.py --json            the same as JSON
release_plan.py --outputs         as outputs of a workflow's step: key=value
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import generate_targets

import targets
from targets import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# PEP 440's normal form: file names contain it, and each version has only one tag.
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?")
HOST_PYTHONS = ("cp310-cp310", "cp311-cp311", "cp312-abi3")
ARCHITECTURES = ("x86_64", "aarch64")
SOURCES = (("pyproject.toml",), ("kernels", "pyproject.toml"), ("models", "tiny-hybrid", "pyproject.toml"))
WHERE_THE_URL_GOES = "the repository's address: Source under [project.urls] in pyproject.toml, then `make generate`"


class ReleaseError(Exception):
    """The tree cannot be released."""


@dataclass(frozen=True)
class Project:
    """One project and its files, by name."""

    name: str
    files: tuple[str, ...]
    """All files. They go to the GitHub Release, and the wheels to the index."""
    not_on_pypi: tuple[str, ...] = ()
    """The files among them that PyPI refuses."""

    @property
    def environment(self) -> str:
        """The GitHub environment that may publish the project; it identifies the project's trusted publisher."""
        return f"pypi-{self.name}"

    @property
    def stage(self) -> str:
        return {"lucebox": "host", "lucebox-tiny": "tiny"}.get(self.name, "packs")


@dataclass(frozen=True)
class Plan:
    """A whole release."""

    version: str
    targets: tuple[str, ...]
    """The targets whose packs are released. Variants are private."""
    projects: tuple[Project, ...]
    """In upload order: a project follows the projects that it pins, except that packs and lucebox-kernels precede the
    host, which they pin."""
    on_pypi: bool
    """The host in this tree claims that every project is on PyPI (ON_PYPI), so the release must go there."""
    missing: tuple[str, ...]
    """Settings that the owner has yet to make."""

    @property
    def is_prerelease(self) -> bool:
        return re.search(r"[a-z]", self.version.replace(".post", "")) is not None


def plan(root: Path = ROOT) -> Plan:
    """The plan of a tree.

    Raises:
        ReleaseError: the version is not in normal form, or a project has another version.
    """
    host = (root / "pyproject.toml").read_text(encoding="utf-8")
    version = generate_targets.host_version(host)
    if not VERSION.fullmatch(version):
        raise ReleaseError(f'pyproject.toml: version must look like 1.2.3, 1.2.3rc1 or 1.2.3.post1, got "{version}"')
    released = [target for target in targets.load_all(root) if not target.variant]
    sources = [*SOURCES, *(("targets", target.name, "pyproject.toml") for target in released)]
    for parts in sources:
        found = tomllib.loads(root.joinpath(*parts).read_text(encoding="utf-8"))["project"]["version"]
        if found != version:
            raise ReleaseError(f"{'/'.join(parts)} has version {found}, pyproject.toml {version}: run `make generate`")
    projects = [
        *(_pack(target, version) for target in released),
        Project("lucebox-kernels", (f"lucebox_kernels-{version}-py3-none-any.whl",)),
        Project("lucebox-tiny", (f"lucebox_tiny-{version}-py3-none-any.whl", f"lucebox_tiny-{version}.tar.gz")),
        _host(version),
    ]
    urls = generate_targets.host_urls(host)
    missing = () if "Source" in urls else (WHERE_THE_URL_GOES,)
    return Plan(version, tuple(target.name for target in released), tuple(projects), _on_pypi(root), missing)


def _pack(target: targets.Target, version: str) -> Project:
    stem = f"lucebox_{target.slug}-{version}"
    if target.vendor != "sim":
        return Project(target.project, (f"{stem}-py3-none-any.whl", f"{stem}.tar.gz"))
    # The wheel is built for CI's machines, with the tag linux_<machine>, which PyPI refuses. The sdist still goes to
    # PyPI: the host has an extra of this name, and a stranger could register the name if it were free.
    wheel = f"{stem}-py3-none-linux_x86_64.whl"
    return Project(target.project, (wheel, f"{stem}.tar.gz"), not_on_pypi=(wheel,))


def _host(version: str) -> Project:
    wheels = [
        f"lucebox-{version}-{python}-manylinux_2_28_{architecture}.whl"
        for python in HOST_PYTHONS
        for architecture in ARCHITECTURES
    ]
    return Project("lucebox", (*wheels, f"lucebox-{version}.tar.gz"))


def _on_pypi(root: Path) -> bool:
    file = root / "python/lucebox/packs/installed.py"
    found = re.search(r"^ON_PYPI = (True|False)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise ReleaseError(f"{file.relative_to(root)}: expected a line ON_PYPI = True or False, found none")
    return found[1] == "True"


def check_tag(tag: str, version: str) -> None:
    """Raises:
    ReleaseError: the tag is not `v` followed by the version."""
    if tag != f"v{version}":
        raise ReleaseError(f"tag {tag} does not fit version {version} of pyproject.toml: expected v{version}")


def table(plan: Plan) -> str:
    """The upload order and each project's destination."""
    where = "PyPI, index, GitHub Release" if plan.on_pypi else "index, GitHub Release (not PyPI: ON_PYPI is False)"
    lines = [f"lucebox {plan.version}: {where}", "", f"{'':>3} {'project':<18}{'environment':<24}files"]
    for i, project in enumerate(plan.projects, start=1):
        without = f", {len(project.not_on_pypi)} not on PyPI" if project.not_on_pypi else ""
        lines.append(f"{i:>3} {project.name:<18}{project.environment:<24}{len(project.files)}{without}")
    return "\n".join([*lines, "", *(f"missing: {one}" for one in plan.missing)]).rstrip()


def outputs(plan: Plan) -> str:
    """The outputs that the jobs of release.yml read."""

    def truth(value: bool) -> str:
        return str(value).lower()

    return "\n".join(
        [
            f"targets={json.dumps(plan.targets)}",
            f"packs={json.dumps([project.name for project in plan.projects if project.stage == 'packs'])}",
            f"wheels={json.dumps([name for one in plan.projects for name in one.files if name.endswith('.whl')])}",
            f"pypi={truth(plan.on_pypi)}",
            f"prerelease={truth(plan.is_prerelease)}",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="List the projects and files of a release, in the order of upload.")
    parser.add_argument("--tag", help="refuse it unless it is v and the version")
    forms: dict[str, Callable[[Plan], str]] = {
        "json": lambda plan: json.dumps(asdict(plan), indent=2),
        "outputs": outputs,
    }
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--json", dest="form", action="store_const", const="json", help="print JSON")
    group.add_argument(
        "--outputs", dest="form", action="store_const", const="outputs", help="print key=value for a workflow"
    )
    arguments = parser.parse_args()
    try:
        made = plan()
        if arguments.tag is not None:
            check_tag(arguments.tag, made.version)
    except (ReleaseError, targets.TargetError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(forms.get(arguments.form, table)(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
