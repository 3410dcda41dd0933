"""The plan of a release, and what release_collect.py refuses. Wheels and sdists are small ones made for the purpose."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
import release_collect
import release_plan
import wheel_data
from project import ROOT
from release_plan import Plan, ReleaseError, check_tag, plan

import targets

PLAN = plan()
MORE = (
    "Author: The lucebox authors",
    "Keywords: llm",
    "Classifier: Development Status :: 4 - Beta",
    "Description-Content-Type: text/markdown",
)


def tree(folder: Path, **changes: tuple[str, str]) -> Path:
    """The files that the plan reads, with a text replaced in those of `changes`."""
    for name in (
        "pyproject.toml",
        "python/lucebox/packs/installed.py",
        "models/tiny-hybrid/pyproject.toml",
        "kernels/pyproject.toml",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "targets", folder / "targets")
    for name, (old, new) in changes.items():
        file = folder / name
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))
    return folder


def test_packs_and_kernels_come_before_the_demo_and_the_demo_before_the_host() -> None:
    names = [project.name for project in PLAN.projects]
    released = [target.project for target in targets.load_all() if not target.variant]
    assert names == [*released, "lucebox-kernels", "lucebox-tiny", "lucebox"]
    assert [project.stage for project in PLAN.projects] == [*["packs"] * (len(released) + 1), "tiny", "host"]


def test_every_name_that_the_host_pins_is_in_the_release() -> None:
    """A name that nobody registers is one that a stranger can."""
    pinned = set(re.findall(r'"(lucebox-\w+) == ', (ROOT / "pyproject.toml").read_text()))
    assert pinned == {project.name for project in PLAN.projects} - {"lucebox"}
    assert all(set(project.files) > set(project.not_on_pypi) for project in PLAN.projects)


def test_one_environment_per_project() -> None:
    environments = [project.environment for project in PLAN.projects]
    assert len(set(environments)) == len(environments)
    assert {project.environment for project in PLAN.projects} == {f"pypi-{project.name}" for project in PLAN.projects}


def test_the_tag_is_the_version() -> None:
    check_tag(f"v{PLAN.version}", PLAN.version)
    for tag in (PLAN.version, f"v{PLAN.version}.0", f"release-{PLAN.version}", "v9.9.9", ""):
        with pytest.raises(ReleaseError, match=re.escape(f"expected v{PLAN.version}")):
            check_tag(tag, PLAN.version)


@pytest.mark.parametrize("version", ["0.2", "0.2.0-rc1", "v0.2.0", "0.2.0.rc1", "0.2.0+local"])
def test_a_version_has_one_spelling(tmp_path: Path, version: str) -> None:
    root = tree(tmp_path, **{"pyproject.toml": (f'version = "{PLAN.version}"', f'version = "{version}"')})
    with pytest.raises(ReleaseError, match="version must look like"):
        plan(root)


def test_a_project_of_another_version_is_refused(tmp_path: Path) -> None:
    name = "targets/sm_86/pyproject.toml"
    root = tree(tmp_path, **{name: (f'version = "{PLAN.version}"', 'version = "0.0.9"')})
    with pytest.raises(
        ReleaseError, match=r"targets/sm_86/pyproject\.toml has version 0\.0\.9, .* run `make generate`"
    ):
        plan(root)


@pytest.mark.parametrize(("version", "is_pre"), [("1.2.3", False), ("1.2.3rc1", True), ("1.2.3.post1", False)])
def test_prereleases(version: str, is_pre: bool) -> None:
    assert replace(PLAN, version=version).is_prerelease is is_pre


def test_only_a_host_that_says_so_goes_to_pypi(tmp_path: Path) -> None:
    name = "python/lucebox/packs/installed.py"
    assert plan(tree(tmp_path / "no", **{name: ("ON_PYPI = False", "ON_PYPI = False")})).on_pypi is False
    assert plan(tree(tmp_path / "yes", **{name: ("ON_PYPI = False", "ON_PYPI = True")})).on_pypi is True
    with pytest.raises(ReleaseError, match="ON_PYPI"):
        plan(tree(tmp_path / "odd", **{name: ("ON_PYPI = False", "ON_PYPI = maybe()")}))


def test_the_address_is_the_one_thing_missing(tmp_path: Path) -> None:
    urls = '[project.urls]\nSource = "https://example.org/owner/name"\n\n[project.scripts]'
    root = tree(tmp_path, **{"pyproject.toml": ("[project.scripts]", urls)})
    assert plan(root).missing == ()
    assert PLAN.missing == () or "Source under [project.urls]" in PLAN.missing[0]


def test_outputs_of_the_workflow_are_json_on_one_line() -> None:
    said = dict(line.split("=", 1) for line in release_plan.outputs(PLAN).splitlines())
    assert json.loads(said["targets"]) == targets.names()
    assert json.loads(said["packs"]) == [project.name for project in PLAN.projects if project.stage == "packs"]
    assert (said["pypi"], said["prerelease"]) == (str(PLAN.on_pypi).lower(), str(PLAN.is_prerelease).lower())


def test_the_command_refuses_a_wrong_tag() -> None:
    command = [sys.executable, ROOT / "ci/release_plan.py", "--tag", "v0.0.0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: tag v0.0.0 does not fit version")


# Collecting


def wheel(folder: Path, *more: str, tag: str = "py3-none-any", text: str = "A pack.\n") -> Path:
    """A wheel of lucebox-gfx1151 with these metadata."""
    members = wheel_data.pack_members("gfx1151")
    info = wheel_data.info("gfx1151")
    fields = wheel_data.metadata("lucebox-gfx1151", *(more or MORE)).decode()
    return wheel_data.write(folder, {**members, f"{info}/METADATA": f"{fields}\n{text}".encode()}, tag)


def sdist(folder: Path, stem: str) -> Path:
    fields = wheel_data.metadata(stem.rsplit("-", 1)[0].replace("_", "-"), *MORE)
    with tarfile.open(folder / f"{stem}.tar.gz", "w:gz") as archive:
        for name, content in (("PKG-INFO", fields + b"\nSources.\n"), ("LICENSE", b"Apache-2.0\n")):
            entry = tarfile.TarInfo(f"{stem}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return folder / f"{stem}.tar.gz"


@pytest.fixture
def pack_plan() -> Plan:
    """A release of one pack."""
    version = wheel_data.VERSION
    files = (f"lucebox_gfx1151-{version}-py3-none-any.whl", f"lucebox_gfx1151-{version}.tar.gz")
    return Plan(version, ("gfx1151",), (release_plan.Project("lucebox-gfx1151", files),), True, ())


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    folder = tmp_path / "dist"
    folder.mkdir()
    sdist(folder, f"lucebox_gfx1151-{wheel_data.VERSION}")
    return folder


def test_files_in_order_are_sorted_for_the_uploads(dist: Path, tmp_path: Path, pack_plan: Plan) -> None:
    wheel(dist)
    found = release_collect.check(dist, pack_plan)
    assert (found.files, found.absent, found.problems) == (pack_plan.projects[0].files, (), ())
    refused = replace(pack_plan.projects[0], not_on_pypi=found.files[:1])
    release_collect.sort(dist, tmp_path / "out", replace(pack_plan, projects=(refused,)))
    there = [file.relative_to(tmp_path / "out").as_posix() for file in (tmp_path / "out").rglob("*.*")]
    assert sorted(there) == sorted([*(f"all/{name}" for name in found.files), f"pypi/lucebox-gfx1151/{found.files[1]}"])


def test_a_missing_and_a_strange_file(dist: Path, pack_plan: Plan) -> None:
    (dist / "notes.txt").touch()
    found = release_collect.check(dist, pack_plan)
    assert found.problems == (
        f"notes.txt: no file of lucebox {pack_plan.version}",
        f"{pack_plan.projects[0].files[0]}: is not there",
    )
    assert len(release_collect.check(dist, pack_plan, partial=True).problems) == 1


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("more", "text", "reason"),
    [
        ((*MORE[1:],), "A pack.\n", "has no Author"),
        ((*MORE[:2], MORE[3]), "A pack.\n", "has no classifier of its development status"),
        ((*MORE, "Classifier: Topic :: Not known"), "A pack.\n", 'PyPI knows no classifier "Topic :: Not known"'),
        ((*MORE, "Requires-Dist: numpy @ https://example.org/n.whl"), "A pack.\n", "requires an address, which PyPI"),
        (MORE, "See [here](docs/targets.md).\n", "a link that leads nowhere on PyPI: docs/targets.md"),
        (MORE, "", "has no long description"),
    ],
)
def test_metadata_that_pypi_refuses_or_shows_badly(
    dist: Path, pack_plan: Plan, more: tuple[str, ...], text: str, reason: str
) -> None:
    made = wheel(dist, *more, text=text)
    problems = release_collect.check(dist, pack_plan).problems
    assert any(one.startswith(f"{made.name}: ") and reason in one for one in problems), problems


def test_a_tag_that_pypi_refuses(dist: Path, pack_plan: Plan) -> None:
    made = wheel(dist, tag="py3-none-linux_x86_64")
    files = (made.name, pack_plan.projects[0].files[1])
    project = replace(pack_plan.projects[0], files=files)
    (problem,) = release_collect.check(dist, replace(pack_plan, projects=(project,))).problems
    assert problem == f"{made.name}: PyPI does not take the platform tag linux_x86_64"
    aside = replace(project, not_on_pypi=(made.name,))
    assert release_collect.check(dist, replace(pack_plan, projects=(aside,))).problems == ()


def test_twine_is_asked(dist: Path, pack_plan: Plan) -> None:
    """A page in reStructuredText that does not render is for twine to find."""
    wheel(dist, *MORE[:3], "Description-Content-Type: text/x-rst", text="Title\n==\n\n.. unknown::\n")
    (problem,) = release_collect.check(dist, pack_plan).problems
    assert problem.startswith("twine check: ") and "markup" in problem
