"""Wheels by preset: the same members as pip's, the same bytes again, and the page's user preset."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from pathlib import Path

import generate_targets
import make_wheel
import pytest
import test_pack_build
from lucebox import packs
from lucebox.packs.drivers import Gpu
from pack_data import on_path
from project import ROOT
from wheels import Wheel

import targets

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "gfx1151"
PAGE = (ROOT / "docs/building-packs.md").read_text()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The project with one small kernel and the presets."""
    folder = test_pack_build.tree(tmp_path / "tree", NAME, test_pack_build.GOOD)
    shutil.copytree(ROOT / "targets", folder / "targets", dirs_exist_ok=True)
    test_pack_build.drop_exceptions(folder, NAME)
    shutil.copy(ROOT / "CMakePresets.json", folder)
    return folder


def workflow(tree: Path, preset: str) -> tuple[str, Wheel]:
    """What the workflow said, and its wheel."""
    done = test_pack_build.command(["cmake", "--workflow", "--preset", preset], tree, test_pack_build.interpreter(NAME))
    assert done.returncode == 0, done.stdout
    (wheel,) = (tree / "build" / preset / "wheel").glob("*.whl")
    return done.stdout, Wheel(wheel)


def test_the_workflow_ends_with_the_line_that_installs_the_wheel(tree: Path) -> None:
    said, wheel = workflow(tree, NAME)
    assert wheel.path.name == "lucebox_gfx1151-0.1.0-py3-none-any.whl"
    line = f"    pip install --no-deps --force-reinstall {wheel.path.relative_to(tree)}"
    assert said.rstrip().endswith(line)
    before = wheel.path.read_bytes()
    said, again = workflow(tree, NAME)
    assert said.rstrip().endswith(line) and again.path.read_bytes() == before


@pytest.mark.slow  # 3 s
def test_the_members_are_those_of_pip(tree: Path, tmp_path: Path) -> None:
    _, ours = workflow(tree, NAME)
    python = test_pack_build.interpreter(NAME)
    pip = [python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, f"./targets/{NAME}"]
    done = test_pack_build.command(pip, tree, python)
    assert done.returncode == 0, done.stdout
    theirs = Wheel(tmp_path / ours.path.name)
    assert list(ours.damaged_members()) == []
    assert ours.members.keys() == theirs.members.keys()
    assert f"{ours.info}/sboms/lucebox-{NAME}.cdx.json" in ours.members
    differing = {name for name in ours.members if ours.members[name] != theirs.members[name]}
    assert differing == {f"{ours.info}/WHEEL", f"{ours.info}/RECORD"}  # they name the generator
    assert ours.tags == theirs.tags
    assert ours.packs == theirs.packs == {NAME: "lucebox_gfx1151"}


def test_two_folders_give_the_same_wheel(tmp_path: Path) -> None:
    target = targets.load(NAME)
    project = tomllib.loads(generate_targets.pack_project(target, "0.1.0", {}))
    made = []
    for folder in ("one", "two"):
        package = tmp_path / folder / "lucebox_gfx1151"
        package.mkdir(parents=True)
        for name in ("manifest.json", "__init__.py"):
            (package / name).write_text(name)
        bill = tmp_path / folder / "lucebox-gfx1151.cdx.json"
        bill.write_text("{}")
        made.append(make_wheel.make_wheel(project, package, bill, tmp_path / folder / "wheel"))
    assert made[0].read_bytes() == made[1].read_bytes()
    with zipfile.ZipFile(made[0]) as archive:
        assert {info.date_time for info in archive.infolist()} == {make_wheel.TIME}


def test_the_simulators_wheel_is_of_this_platform(tmp_path: Path) -> None:
    project = tomllib.loads(generate_targets.pack_project(targets.load("sim"), "0.1.0", {}))
    package = tmp_path / "lucebox_sim"
    package.mkdir()
    bill = tmp_path / "lucebox-sim.cdx.json"
    bill.write_text("{}")
    wheel = Wheel(make_wheel.make_wheel(project, package, bill, tmp_path))
    assert re.fullmatch(r"py3-none-\w+", "-".join(wheel.name_parts[2:]))
    assert wheel.name_parts[4] == make_wheel.platform() != "any"


def test_every_key_of_the_project_reaches_the_metadata() -> None:
    about = {
        "name": "lucebox-x",
        "version": "1",
        "description": "d",
        "keywords": ["a", "b"],
        "authors": [{"name": "N"}, {"name": "M", "email": "m@example.org"}],
        "license": "Apache-2.0",
        "license-files": ["LICENSE"],
        "classifiers": ["C :: D"],
        "urls": {"Source": "https://example.org"},
        "requires-python": ">=3.10",
        "dependencies": ["lucebox == 1"],
        "readme": {"text": "words", "content-type": "text/plain"},
    }
    assert make_wheel.metadata(about).splitlines() == [
        "Metadata-Version: 2.4",
        "Name: lucebox-x",
        "Version: 1",
        "Summary: d",
        "Keywords: a,b",
        "Author: N",
        "Author-Email: M <m@example.org>",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "Classifier: C :: D",
        "Project-URL: Source, https://example.org",
        "Requires-Python: >=3.10",
        "Requires-Dist: lucebox==1",
        "Description-Content-Type: text/plain",
        "",
        "words",
    ]


def second_kernel(tree: Path, stem: str) -> None:
    """Adds a kernel file of that name."""
    text = test_pack_build.HEAD + test_pack_build.GOOD.replace("good", stem).replace("kTable", f"k_{stem}")
    (tree / f"src/gpu/probe/{stem}.cpp").write_text(text)


def host_choice(wheels: list[Wheel], site: Path) -> packs.Choice:
    """The pack that a host with these wheels takes for a device."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel.path) as archive:
            archive.extractall(site)
    device = Gpu("hip", 0, "Radeon 8060S", NAME, "HIP 7.1", "7.1", total_bytes=1, free_bytes=1)
    with on_path(site):
        return packs.choose(device, packs.find())


@pytest.mark.slow  # 3 s
def test_the_user_preset_of_the_page(tree: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"\n\n(    \{\n(?:    .+\n)+    \}\n)", PAGE)
    (tree / "CMakeUserPresets.json").write_text(example)
    (preset,) = json.loads(example)["configurePresets"]
    stems = preset["cacheVariables"]["LUCEBOX_WITHOUT"].split(";")
    assert {*stems} <= {file.stem for file in targets.kernel_files()}
    for stem in stems:
        second_kernel(tree, stem)
    assert f"cmake --workflow --preset {preset['name']} " in PAGE
    said, variant = workflow(tree, preset["name"])
    assert variant.path.name == "lucebox_gfx1151_laptop-0.1.0-py3-none-any.whl"
    assert f"build/{preset['name']}/wheel/{variant.path.name}" in said.rstrip().splitlines()[-1]
    manifest = json.loads(variant.members["lucebox_gfx1151_laptop/manifest.json"])
    assert (manifest["target"], manifest["variant"]) == (NAME, "laptop")
    (own,) = re.findall(r"speculation_budget=(\d+)", preset["cacheVariables"]["LUCEBOX_TUNING"])
    assert manifest["tuning"]["speculation_budget"] == int(own) != targets.load(NAME).tuning.speculation_budget
    assert [kernel["name"] for kernel in manifest["generations"][0]["kernels"]] == ["good_kernel"]
    assert variant.metadata["Name"] == "lucebox-gfx1151-laptop"
    assert variant.metadata.get_all("Requires-Dist") == ["lucebox==0.1.0"]
    bill = json.loads(variant.members[f"{variant.info}/sboms/lucebox-gfx1151-laptop.cdx.json"])
    assert bill["metadata"]["component"]["name"] == "lucebox-gfx1151-laptop"

    _, standard = workflow(tree, NAME)
    choice = host_choice([variant, standard], tmp_path / "site")
    assert choice.reason == "pack gfx1151_laptop is made for gfx1151; preferred over gfx1151"


@pytest.mark.slow  # 4 s; every day, test_adding_a_target.py adds a folder and the test above builds a variant
def test_the_variant_folder_of_the_page(tree: Path, tmp_path: Path) -> None:
    (example,) = re.findall(r"target.toml`:\n\n((?:    .+\n|\n(?=    ))+)", PAGE)
    (name,) = re.findall(r"`targets/(\w+)/target.toml`:", PAGE)
    file = tree / f"targets/{name}/target.toml"
    file.parent.mkdir()
    file.write_text(re.sub("^    ", "", example, flags=re.MULTILINE))
    for stem in re.findall(r'"(megakernel\w+)"', example):
        second_kernel(tree, stem)
    (tree / "docs").mkdir()
    python = test_pack_build.interpreter(NAME)
    done = test_pack_build.command([python, "ci/generate_targets.py"], tree, python)
    assert done.returncode == 0, done.stdout
    _, ours = workflow(tree, name)
    pip = [python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, f"./targets/{name}"]
    assert " ".join(map(str, [*pip[2:5], pip[-1]])) in PAGE
    done = test_pack_build.command(pip, tree, python)
    assert done.returncode == 0, done.stdout
    theirs = Wheel(tmp_path / ours.path.name)
    differing = {one for one in ours.members if ours.members[one] != theirs.members[one]}
    assert differing == {f"{ours.info}/WHEEL", f"{ours.info}/RECORD"}
    assert host_choice([theirs], tmp_path / "site").pack.name == name


def test_a_constant_of_a_variant_reaches_the_compiler(tree: Path) -> None:
    cache = {"LUCEBOX_VARIANT": "x", "LUCEBOX_DEFINES": "LUCEBOX_GEMV_BLOCKS=3"}
    preset = {"name": "x", "inherits": NAME, "cacheVariables": cache}
    steps = [{"type": step, "name": "x"} for step in ("configure", "build")]
    presets = {
        "version": 6,
        "configurePresets": [preset],
        "buildPresets": [{"name": "x", "configurePreset": "x"}],
        "workflowPresets": [{"name": "x", "steps": steps}],
    }
    (tree / "CMakeUserPresets.json").write_text(json.dumps(presets))
    _, wheel = workflow(tree, "x")
    manifest = json.loads(wheel.members["lucebox_gfx1151_x/manifest.json"])
    assert manifest["generations"][0]["compiler"]["flags"][-1] == "-DLUCEBOX_GEMV_BLOCKS=3"


def test_pip_takes_no_variant_of_a_project(tree: Path) -> None:
    said = test_pack_build.configure(
        tree, NAME, test_pack_build.interpreter(NAME), "-DSKBUILD=2", "-DLUCEBOX_VARIANT=laptop"
    )
    assert "LUCEBOX_VARIANT=laptop: pip names the wheel after its project" in " ".join(said.split())


def test_a_changed_target_needs_a_name(tree: Path) -> None:
    python = test_pack_build.interpreter(NAME)
    said = test_pack_build.configure(tree, NAME, python, "-DLUCEBOX_TUNING=speculation_budget=4;prefill_chunk=256")
    assert "a changed gfx1151 needs a name of its own" in " ".join(said.split())
