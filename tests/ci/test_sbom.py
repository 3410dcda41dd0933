"""Bills of materials: the same content gives the same bytes, and other content another number."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import sbom
import wheel_data

import targets

MANIFEST = wheel_data.manifest(targets.load("sm_86"), {"a.cubin": b"code"}, {"a.nvrtc.cubin": b"older"})


def test_a_pack() -> None:
    bill = sbom.of_pack(MANIFEST)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    subject = bill["metadata"]["component"]
    assert (subject["name"], subject["version"]) == ("lucebox-sm86", wheel_data.VERSION)
    compilers = [(tool["name"], tool["version"]) for tool in bill["metadata"]["tools"]["components"]]
    assert compilers == [("nvcc", "13.0.88"), ("nvrtc", "12.4.127")]
    files = [(file["name"], file["hashes"][0]["content"]) for file in bill["components"]]
    listed = [code["files"][0] for code in MANIFEST["generations"]]
    assert files == [(file["file"], file["sha256"]) for file in listed]
    names = {one["name"] for one in subject["properties"]}
    assert {"lucebox:nvcc-flags", "lucebox:nvrtc-flags"} < names and "lucebox:commit" not in names


def test_the_number_is_of_the_content() -> None:
    assert sbom.of_pack(MANIFEST) == sbom.of_pack(json.loads(json.dumps(MANIFEST)))
    other = sbom.of_pack({**MANIFEST, "commit": "0123"})
    assert other["serialNumber"] != sbom.of_pack(MANIFEST)["serialNumber"]


def test_the_host(tmp_path: Path) -> None:
    file = tmp_path / "sboms" / "lucebox.cdx.json"
    command = [sys.executable, sbom.__file__, "--out", file, "--compiler", "GNU 13.3.0"]
    subprocess.run([*map(str, command), "nanobind=3.1.0", "robin-map=1.4.0"], check=True)
    bill = json.loads(file.read_text())
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/lucebox@{sbom.project_version()}"
    assert [one["name"] for one in bill["components"]] == ["nanobind", "robin-map", "katex", "highlight.js"]
    assert bill["metadata"]["tools"]["components"][0]["version"] == "13.3.0"


def test_the_libraries_of_the_page() -> None:
    """Their versions are the files', and each comes with its licence."""
    folder = targets.ROOT / "python" / "lucebox" / "serve" / "static" / "vendor"
    said = {"katex": 'version:"{}"', "highlight.js": "Highlight.js v{} "}
    assert sbom.OF_PAGE.keys() == said.keys()
    for name, version in sbom.OF_PAGE.items():
        (script,) = (folder / name.removesuffix(".js")).glob("*.min.js")
        assert said[name].format(version) in script.read_text(encoding="utf-8")
        assert script.with_name("LICENSE").is_file()
