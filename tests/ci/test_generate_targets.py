"""What ci/generate_targets.py makes: it is what is checked in, agrees with the folders, and the gate sees it drift."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import check_generated
import generate_targets
import pytest
from project import tracked_files

import targets
from targets import ROOT, TargetError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KNOWN = targets.load_all()
NAMES = [target.name for target in KNOWN]


def test_generated_files_are_those_checked_in() -> None:
    for name, text in generate_targets.files().items():
        assert (ROOT / name).read_text() == text, f"{name}: run python ci/generate_targets.py"


def test_the_gate_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # The stubs and reference pages of the gate need the installed package's tools; here only the targets' part counts.
    monkeypatch.setattr(check_generated, "stubs", dict)
    monkeypatch.setattr(check_generated.generate_reference, "pages", dict)
    made = {**generate_targets.files(), "CMakePresets.json": "{}\n"}
    monkeypatch.setattr(generate_targets, "files", lambda: made)
    monkeypatch.setattr(generate_targets, "present", lambda: {"targets/sm_99/pyproject.toml"})
    found = [problem for problem in check_generated.drift() if ".pyi" not in problem]
    assert "CMakePresets.json is not what the sources say; run `make generate`" in found
    assert "targets/sm_99/pyproject.toml is generated no more; delete it" in found
    assert not any("docs/targets.md" in problem for problem in found)


def test_presets() -> None:
    whole = json.loads((ROOT / "CMakePresets.json").read_text())
    shown = {preset["name"]: preset for preset in whole["configurePresets"] if not preset.get("hidden")}
    assert set(shown) == {"cpu", "cpu-asan", "sim-asan", *NAMES}
    for name in NAMES:
        assert shown[name]["cacheVariables"] == {"LUCEBOX_TARGET": name}
    assert [preset["name"] for preset in whole["buildPresets"]] == list(shown)
    assert [preset["name"] for preset in whole["workflowPresets"]] == list(shown)


def test_cmake_reads_the_presets() -> None:
    done = subprocess.run(["cmake", "--list-presets"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.findall(r'^  "(\S+)"', done.stdout, re.MULTILINE) == ["cpu", "cpu-asan", *NAMES, "sim-asan"]


def test_extras_pin_the_packs_to_the_host() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for target in KNOWN:
        (requirement,) = project["optional-dependencies"][target.slug]
        assert project["optional-dependencies"][target.name.replace("_", "-")] == [requirement]
        assert requirement == f"lucebox-{target.slug} == {project['version']}"
    assert project["optional-dependencies"]["tune"] == [f"lucebox-kernels == {project['version']}"]
    assert project["optional-dependencies"]["demo"] == [f"lucebox-tiny == {project['version']}", "lucebox[vision]"]


def test_version_and_addresses_stand_in_one_place(tmp_path: Path) -> None:
    """A change of both in the host's file reaches every project and every pin."""
    shutil.copytree(ROOT / "targets", tmp_path / "targets")
    shutil.copy(ROOT / "LICENSE", tmp_path)
    text = (ROOT / "pyproject.toml").read_text()
    old = generate_targets.host_version(text)
    urls = '[project.urls]\n"Bug tracker" = "https://example.org/bugs"\n\n[project.scripts]'
    changed = text.replace(f'version = "{old}"', 'version = "7.8.9"').replace("[project.scripts]", urls)
    (tmp_path / "pyproject.toml").write_text(changed)
    made = generate_targets.files(tmp_path)
    projects = {name: tomllib.loads(made[name])["project"] for name in made if name.endswith("pyproject.toml")}
    assert len(projects) == len(KNOWN) + 3
    for name, project in projects.items():
        assert (project["version"], project["urls"]) == ("7.8.9", {"Bug tracker": "https://example.org/bugs"})
        assert f"== {old}" not in made[name]
    assert projects["models/tiny-hybrid/pyproject.toml"]["name"] == "lucebox-tiny"


def test_an_sdist_has_no_weights() -> None:
    """Only git's own files, less what neither host nor packs need; a folder of weights would make it 45 MB."""
    excluded = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["sdist"]["exclude"]
    kept = [
        file
        for file in tracked_files()
        if not any(f"/{file.relative_to(ROOT).as_posix()}".startswith(folder) for folder in excluded)
    ]
    weights = {".gguf", ".safetensors", ".npz", ".xz"}
    assert not [file for file in kept if file.suffix in weights]
    assert sum(file.stat().st_size for file in kept) < 16 << 20


def test_extras_need_their_markers() -> None:
    with pytest.raises(TargetError, match=r"expected the lines .# The demo's model"):
        generate_targets.with_extras("[project]\n", KNOWN, "1.0")


@pytest.mark.parametrize("target", KNOWN, ids=lambda target: target.name)
def test_pack_project(target: targets.Target) -> None:
    pack: dict[str, Any] = tomllib.loads((ROOT / "targets" / target.name / "pyproject.toml").read_text())
    host = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    project, build = pack["project"], pack["tool"]["scikit-build"]
    assert (project["name"], project["version"]) == (f"lucebox-{target.slug}", host["version"])
    assert (project["license"], project["license-files"]) == (host["license"], host["license-files"])
    assert (project["authors"], set(project["classifiers"]) <= set(host["classifiers"])) == (host["authors"], True)
    assert ("Environment :: GPU :: NVIDIA CUDA" in project["classifiers"]) == (target.vendor == "nvidia")
    assert project["dependencies"] == [f"lucebox == {host['version']}"]
    assert project["entry-points"] == {"lucebox.packs": {target.name: f"lucebox_{target.slug}"}}
    assert build["cmake"]["define"] == {"LUCEBOX_TARGET": target.name, "LUCEBOX_PYTHON": "OFF"}
    assert (build["install"]["components"], build["wheel"]["packages"]) == (["pack"], [])
    assert (build["wheel"]["py-api"], build["wheel"]["reproducible"]) == ("py3", True)
    assert build["wheel"].get("platlib", True) == (target.vendor == "sim")  # only sim's kernels run on the host
    compilers = [item for item in pack["build-system"]["requires"] if item.startswith(("nvidia-", "ziglang"))]
    if target.nvrtc is None:
        assert len(compilers) == {"nvidia": 5, "amd": 1, "sim": 0}[target.vendor]
        assert "config-setting" not in build
        return
    assert compilers == [f"nvidia-cuda-nvrtc-cu12=={target.nvrtc.version}.*"]
    if not target.has_nvcc:
        assert "config-setting" not in build
        return
    assert build["config-setting"]["lucebox.nvcc"]["type"] == "bool"
    (more,) = (one for one in build["overrides"] if one["if"].get("config-setting") == {"lucebox.nvcc": True})
    assert len(more["build"]["requires"]) == 5 and more["cmake"]["define"] == {"LUCEBOX_NVCC": "ON"}
    assert more["inherit"]["cmake"]["define"] == "append"


@pytest.mark.first_case
@pytest.mark.parametrize(("host", "code"), [("0.2.0", 1), ("0.1.0", 0)])
def test_pip_check_sees_a_pack_of_another_version(tmp_path: Path, host: str, code: int) -> None:
    """`pip install -U lucebox` leaves the pack as it was; `pip check` says so."""
    venv.create(tmp_path)
    (site,) = tmp_path.glob("lib/python*/site-packages")
    pack = tomllib.loads(generate_targets.pack_project(targets.load("sm_86"), "0.1.0", {}))["project"]
    for name, version, needs in (("lucebox", host, []), (pack["name"], pack["version"], pack["dependencies"])):
        folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {need}" for need in needs)]
        (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines]) + "\n")
        (folder / "RECORD").touch()
    command = [sys.executable, "-m", "pip", "--python", tmp_path / "bin/python", "check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("lucebox-sm86 0.1.0 has requirement lucebox==0.1.0, but you have lucebox 0.2.0" in done.stdout) == bool(
        code
    )


def test_a_new_folder_reaches_every_file(tmp_path: Path) -> None:
    for name in NAMES:
        shutil.copytree(ROOT / "targets" / name, tmp_path / "targets" / name)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    shutil.copy(ROOT / "targets/pci_ids.csv", tmp_path / "targets")
    shutil.copy(ROOT / "LICENSE", tmp_path)
    before = generate_targets.files(tmp_path)
    example = (ROOT / "targets/gfx1100/target.toml").read_text().replace("gfx1100", "gfx1199")
    (tmp_path / "targets/gfx1199").mkdir()
    (tmp_path / "targets/gfx1199/target.toml").write_text(example)
    after = generate_targets.files(tmp_path)
    changed = {name for name in after if after[name] != before.get(name)}
    own = {"pyproject.toml", "LICENSE"}
    other = {"python/lucebox/packs/pci_ids.json", "models/tiny-hybrid/pyproject.toml", "kernels/LICENSE"}
    other |= {*(f"targets/{name}/{file}" for name in NAMES for file in own)}
    assert changed == {*before.keys() - other} | {f"targets/gfx1199/{file}" for file in own}
    assert all("gfx1199" in after[name] for name in changed - {"targets/gfx1199/LICENSE"})


def test_a_variants_folder_gets_a_preset_and_a_project(tmp_path: Path) -> None:
    for name in NAMES:
        shutil.copytree(ROOT / "targets" / name, tmp_path / "targets" / name)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    shutil.copy(ROOT / "targets/pci_ids.csv", tmp_path / "targets")
    shutil.copy(ROOT / "LICENSE", tmp_path)
    before = generate_targets.files(tmp_path)
    (tmp_path / "targets/sm_86_laptop").mkdir()
    text = 'inherits = "sm_86"\n\n[tuning]\nspeculation_budget = 12\n'
    (tmp_path / "targets/sm_86_laptop/target.toml").write_text(text)
    after = generate_targets.files(tmp_path)
    changed = {name for name in after if after[name] != before.get(name)}
    folder = "targets/sm_86_laptop"
    assert changed == {"CMakePresets.json", f"{folder}/pyproject.toml", f"{folder}/LICENSE"}  # no extra, no table
    pack = tomllib.loads(after["targets/sm_86_laptop/pyproject.toml"])
    assert pack["project"]["name"] == "lucebox-sm86-laptop"
    assert pack["project"]["dependencies"] == ["lucebox == " + pack["project"]["version"]]
    assert pack["project"]["entry-points"] == {"lucebox.packs": {"sm_86_laptop": "lucebox_sm86_laptop"}}
    assert "../sm_86/target.toml" in pack["tool"]["scikit-build"]["sdist"]["force-include"]
    shown = {preset["name"]: preset for preset in json.loads(after["CMakePresets.json"])["configurePresets"]}
    assert shown["sm_86_laptop"]["cacheVariables"] == {"LUCEBOX_TARGET": "sm_86_laptop"}
