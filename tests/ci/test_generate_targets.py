"""What ci/generate_targets.py makes: it is what is checked in, agrees with the folders, and the gate sees it drift."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import check_generated
import generate_targets
import pytest

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
    found = [problem for problem in check_generated.drift() if "python/lucebox/_engine" not in problem]
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
        assert requirement == f"lucebox-{target.slug} == {project['version']}"


def test_extras_need_their_markers() -> None:
    with pytest.raises(TargetError, match="expected the lines '# One extra per pack"):
        generate_targets.with_extras("[project]\n", KNOWN, "1.0")


@pytest.mark.parametrize("target", KNOWN, ids=lambda target: target.name)
def test_pack_project(target: targets.Target) -> None:
    pack: dict[str, Any] = tomllib.loads((ROOT / "targets" / target.name / "pyproject.toml").read_text())
    host = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    project, build = pack["project"], pack["tool"]["scikit-build"]
    assert (project["name"], project["version"]) == (f"lucebox-{target.slug}", host["version"])
    assert project["license"] == host["license"]
    assert project["entry-points"] == {"lucebox.packs": {target.name: f"lucebox_{target.slug}"}}
    assert build["cmake"]["define"] == {"LUCEBOX_TARGET": target.name, "LUCEBOX_PYTHON": "OFF"}
    assert (build["install"]["components"], build["wheel"]["packages"]) == (["pack"], [])
    assert (build["wheel"]["py-api"], build["wheel"]["reproducible"]) == ("py3", True)
    assert build["wheel"].get("platlib", True) == (target.vendor == "sim")  # only sim's kernels run on the host
    compilers = [item for item in pack["build-system"]["requires"] if item.startswith(("nvidia-", "ziglang"))]
    assert len(compilers) == {"nvidia": 5, "amd": 1, "sim": 0}[target.vendor]


def test_a_new_folder_reaches_every_file(tmp_path: Path) -> None:
    for name in NAMES:
        shutil.copytree(ROOT / "targets" / name, tmp_path / "targets" / name)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    before = generate_targets.files(tmp_path)
    example = (ROOT / "targets/gfx1100/target.toml").read_text().replace("gfx1100", "gfx1199")
    (tmp_path / "targets/gfx1199").mkdir()
    (tmp_path / "targets/gfx1199/target.toml").write_text(example)
    after = generate_targets.files(tmp_path)
    changed = {name for name in after if after[name] != before.get(name)}
    shared = {*before.keys() - {f"targets/{name}/pyproject.toml" for name in NAMES}}
    assert changed == shared | {"targets/gfx1199/pyproject.toml"}
    assert all("gfx1199" in after[name] for name in changed)


def test_a_variants_folder_gets_a_preset_and_a_project(tmp_path: Path) -> None:
    for name in NAMES:
        shutil.copytree(ROOT / "targets" / name, tmp_path / "targets" / name)
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    before = generate_targets.files(tmp_path)
    (tmp_path / "targets/sm_86_laptop").mkdir()
    text = 'inherits = "sm_86"\n\n[tuning]\nspeculation_budget = 12\n'
    (tmp_path / "targets/sm_86_laptop/target.toml").write_text(text)
    after = generate_targets.files(tmp_path)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"CMakePresets.json", "targets/sm_86_laptop/pyproject.toml"}  # not released: no extra, no table
    pack = tomllib.loads(after["targets/sm_86_laptop/pyproject.toml"])
    assert pack["project"]["name"] == "lucebox-sm86-laptop"
    assert pack["project"]["entry-points"] == {"lucebox.packs": {"sm_86_laptop": "lucebox_sm86_laptop"}}
    shown = {preset["name"]: preset for preset in json.loads(after["CMakePresets.json"])["configurePresets"]}
    assert shown["sm_86_laptop"]["cacheVariables"] == {"LUCEBOX_TARGET": "sm_86_laptop"}
