"""make_index.py writes what PEP 503, 658, 691 and 714 ask for, and pip installs from it over every route."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import urllib.request
from importlib.metadata import version
from pathlib import Path
from typing import Any

import install_test
import pytest
import wheel_data as data
from make_index import make_index
from project import ROOT, tools_environment
from wheels import Wheel

EXTRAS = [
    line
    for extra, slug in (("sm86", "sm86"), ("sm-86", "sm86"), ("gfx1151", "gfx1151"))
    for line in (f"Provides-Extra: {extra}", f"Requires-Dist: lucebox-{slug}=={data.VERSION}; extra == '{extra}'")
]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A host wheel without an engine and two packs: pip looks only at names and metadata."""
    folder = tmp_path_factory.mktemp("wheels")
    host = {
        "lucebox/__init__.py": b"",
        "lucebox-0.1.0.dist-info/METADATA": data.metadata("lucebox", *EXTRAS),
    }
    return [data.write(folder, members) for members in (host, *map(data.pack_members, ("sm_86", "gfx1151")))]


@pytest.fixture(scope="module")
def index(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "index"
    make_index(folder, [Wheel(path) for path in wheels])
    return folder


def test_same_bytes_whatever_the_order(wheels: list[Path], index: Path, tmp_path: Path) -> None:
    make_index(tmp_path / "again", [Wheel(path) for path in reversed(wheels)])
    first, second = (
        {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        for folder in (index, tmp_path / "again")
    )
    assert first == second and str(tmp_path).encode() not in b"".join(first.values())


def test_sums_cover_every_file(index: Path) -> None:
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=index, check=True)
    listed = {line.split("  ")[1] for line in (index / "SHA256SUMS").read_text().splitlines()}
    present = {file.relative_to(index).as_posix() for file in index.rglob("*") if file.is_file()}
    assert listed == present - {"SHA256SUMS"}


def test_html_and_json_say_the_same(index: Path, wheels: list[Path]) -> None:
    for wheel in map(Wheel, wheels):
        page = (index / wheel.project / "index.html").read_text()
        (file,) = json.loads((index / wheel.project / "index.json").read_text())["files"]
        metadata = (index / wheel.project / f"{wheel.path.name}.metadata").read_bytes()
        digest = hashlib.sha256(metadata).hexdigest()
        assert metadata == wheel.members[f"{wheel.info}/METADATA"]
        assert f'href="{file["url"]}#sha256={file["hashes"]["sha256"]}"' in page
        assert f'data-core-metadata="sha256={digest}"' in page and f'data-dist-info-metadata="sha256={digest}"' in page
        assert 'data-requires-python="&gt;=3.10"' in page and file["requires-python"] == ">=3.10"
        assert file["core-metadata"] == {"sha256": digest}
        assert "dist-info-metadata" not in file
        assert file["size"] == wheel.path.stat().st_size


def test_bill_of_materials(index: Path, wheels: list[Path]) -> None:
    bill = json.loads((index / "sbom.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    hashes = {component["name"]: component["hashes"][0]["content"] for component in bill["components"]}
    assert hashes == {wheel.project: wheel.sha256 for wheel in map(Wheel, wheels)}
    compilers = [(tool["name"], tool["version"]) for tool in bill["metadata"]["tools"]["components"]]
    assert compilers == [("nvcc", "13.0.88"), ("nvrtc", "12.4.127")]
    depends = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert depends[wheels[0].name] == sorted(wheel.name for wheel in wheels[1:])
    assert depends[wheels[1].name] == []
    (pack,) = (component for component in bill["components"] if component["name"] == "lucebox-sm86")
    assert [file["name"] for file in pack["components"]] == ["rms_norm.cubin", "rms_norm.nvrtc.cubin"]
    assert {"name": "lucebox:compiler-flags", "value": "-O3 -arch=sm_86"} in pack["properties"]


def test_pages_of_several_releases(wheels: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old wheels are listed, and their manifests not read: they may be of another schema."""
    monkeypatch.setattr(data, "VERSION", "0.0.9")
    members = {**data.pack_members("sm_86"), "lucebox_sm86/manifest.json": b"of another schema"}
    old = data.write(tmp_path, members)
    script = Path(install_test.__file__).with_name("make_index.py")
    command = [sys.executable, script, "--pages", "--limit-mb", "1", tmp_path / "index", old, *wheels]
    subprocess.run(command, check=True)
    page = json.loads((tmp_path / "index/lucebox-sm86/index.json").read_text())
    assert page["versions"] == ["0.0.9", "0.1.0"]
    assert {file.name for file in (tmp_path / "index").glob("*.*")} == {"index.html", "index.json"}
    command[4] = "0.0001"
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "leave out old releases" in done.stderr


def test_upload_times_and_yanked_versions(wheels: list[Path], tmp_path: Path) -> None:
    """uv's --exclude-newer, and a yanked version that is installed only where it is pinned."""
    times = tmp_path / "releases.json"
    times.write_text(json.dumps([{"tagName": "v0.1.0", "publishedAt": "2026-11-01T12:00:00Z"}]))
    yanked = tmp_path / "yanked.json"
    script = Path(install_test.__file__).with_name("make_index.py")
    command = [sys.executable, script, "--pages", "--releases", times, "--yanked", yanked, tmp_path / "index", *wheels]

    def installs(*words: str) -> bool:
        options = ["--no-cache", "--target", tmp_path / "site", "--reinstall"]
        with install_test.served(tmp_path / "index", speaks_json=True) as (url, _):
            done = subprocess.run(
                ["uv", "pip", "install", "-q", "--index-url", url, *options, *words], env=tools_environment()
            )
        return done.returncode == 0

    yanked.write_text("{}")
    subprocess.run(command, check=True)
    (file,) = json.loads((tmp_path / "index/lucebox-sm86/index.json").read_text())["files"]
    assert (file["upload-time"], file.get("yanked")) == ("2026-11-01T12:00:00Z", None)
    assert installs("lucebox[sm86]", "--exclude-newer", "2026-11-02")
    assert not installs("lucebox[sm86]", "--exclude-newer", "2026-10-31")

    yanked.write_text('{"0.1.0": "wrong tokens on <sm_86>"}')
    subprocess.run(command, check=True)
    (file,) = json.loads((tmp_path / "index/lucebox-sm86/index.json").read_text())["files"]
    assert file["yanked"] == "wrong tokens on <sm_86>"
    page = (tmp_path / "index/lucebox-sm86/index.html").read_text()
    assert 'data-yanked="wrong tokens on &lt;sm_86&gt;"' in page
    assert not installs("lucebox[sm86]>=0.1")
    assert installs("lucebox[sm86]==0.1.0", "lucebox-sm86==0.1.0")  # uv takes no yanked version from a requirement


def test_a_release_without_a_time_is_refused(wheels: list[Path], tmp_path: Path) -> None:
    (tmp_path / "releases.json").write_text("[]")
    script = Path(install_test.__file__).with_name("make_index.py")
    command = [sys.executable, script, "--pages", "--releases", tmp_path / "releases.json", tmp_path / "index", *wheels]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "releases.json has no release v0.1.0" in done.stderr


WORKFLOW = {"ref": "refs/tags/v0.1.0", "repository": "https://github.com/a/b", "path": ".github/workflows/release.yml"}


def sigstore_bundle(*files: Path, sha256: str = "") -> dict[str, Any]:
    """What GitHub keeps for these files, without a true signature."""
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": file.name, "digest": {"sha256": sha256 or Wheel(file).sha256}} for file in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": {"externalParameters": {"workflow": WORKFLOW}}},
    }
    return {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"certificate": {"rawBytes": "Y2VydA=="}, "tlogEntries": [{"logIndex": "1"}]},
        "dsseEnvelope": {
            "payload": base64.b64encode(json.dumps(statement).encode()).decode(),
            "payloadType": "application/vnd.in-toto+json",
            "signatures": [{"sig": "c2ln"}],
        },
    }


def indexed(folder: Path, wheels: list[Path], *bundles: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Makes an index of the wheels; the first one has these bundles, each other one a bundle of its own."""
    folder.joinpath("kept").mkdir()
    for i, wheel in enumerate(wheels):
        lines = [json.dumps(one) for one in ([sigstore_bundle(wheel)] if i else bundles)]
        (folder / f"kept/sha256:{Wheel(wheel).sha256}.jsonl").write_text("\n".join(lines) + "\n")
    script = Path(install_test.__file__).with_name("make_index.py")
    options = ["--pages", "--attestations", folder / "kept", "--url", "https://a.github.io/b/"]
    return subprocess.run([sys.executable, script, *options, folder / "index", *wheels], capture_output=True, text=True)


def test_provenance(wheels: list[Path], tmp_path: Path) -> None:
    """PEP 740: of the attestations that GitHub has for a wheel, the one of this wheel alone."""
    alone = sigstore_bundle(wheels[0])
    done = indexed(tmp_path, wheels, sigstore_bundle(*wheels), alone)
    assert done.returncode == 0, done.stderr
    url = f"https://a.github.io/b/lucebox/{wheels[0].name}.provenance"
    page = json.loads((tmp_path / "index/lucebox/index.json").read_text())
    assert (page["meta"]["api-version"], page["files"][0]["provenance"]) == ("1.3", url)
    html = (tmp_path / "index/lucebox/index.html").read_text()
    assert f'data-provenance="{url}"' in html and 'name="pypi:repository-version" content="1.3"' in html
    (bundle,) = json.loads((tmp_path / f"index/lucebox/{wheels[0].name}.provenance").read_text())["attestation_bundles"]
    assert bundle["publisher"] == {
        "kind": "GitHub",
        "repository": "a/b",
        "workflow": "release.yml",
        "environment": None,
    }
    (attestation,) = bundle["attestations"]
    assert attestation["envelope"] == {"statement": alone["dsseEnvelope"]["payload"], "signature": "c2ln"}
    assert attestation["verification_material"] == {
        "certificate": "Y2VydA==",
        "transparency_entries": [{"logIndex": "1"}],
    }
    assert pip_install((tmp_path / "index").as_uri(), tmp_path / "site") == EXPECTED


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("several files", "has no attestation of this file alone"),
        ("another file", "its attestation is of lucebox_sm86"),
        ("other bytes", "or of other bytes"),
        ("no log", "is in no public log"),
    ],
)
def test_an_attestation_that_does_not_fit_is_refused(
    wheels: list[Path], tmp_path: Path, fault: str, words: str
) -> None:
    bundle = {
        "several files": sigstore_bundle(*wheels),
        "another file": sigstore_bundle(wheels[1]),
        "other bytes": sigstore_bundle(wheels[0], sha256="0" * 64),
        "no log": sigstore_bundle(wheels[0]),
    }[fault]
    if fault == "no log":
        bundle["verificationMaterial"]["tlogEntries"] = []
    done = indexed(tmp_path, wheels, bundle)
    assert done.returncode == 2 and f"{wheels[0].name}: " in done.stderr and words in done.stderr


def test_a_wheel_without_an_attestation_is_refused(wheels: list[Path], tmp_path: Path) -> None:
    script = Path(install_test.__file__).with_name("make_index.py")
    command = [sys.executable, script, "--pages", "--attestations", tmp_path, tmp_path / "index", wheels[0]]
    for more, words in (
        (["--url", "https://a.github.io/b"], "`gh attestation download` makes it"),
        (["--url", "http://a.github.io/b"], "expected https://"),
        ([], "need each other"),
    ):
        done = subprocess.run([*command, *more], capture_output=True, text=True)
        assert done.returncode == 2 and words in done.stderr


def test_refuses_to_delete_its_input(index: Path) -> None:
    wheel = next(index.glob("lucebox/*.whl"))
    script = Path(install_test.__file__).with_name("make_index.py")
    done = subprocess.run([sys.executable, script, index, wheel], capture_output=True, text=True)
    assert done.returncode == 2 and "lie in the folder that is to be replaced" in done.stderr
    assert wheel.exists()


def pip_install(url: str, folder: Path) -> list[str]:
    options = ("--no-cache-dir", "--index-url", url, "--target", folder)
    command = [sys.executable, "-m", "pip", "--isolated", "install", "-qq", *options, "lucebox[sm86,gfx1151]"]
    subprocess.run(command, check=True, env={"PIP_CONFIG_FILE": "/dev/null"})
    return sorted(found.name for found in folder.glob("*.dist-info"))


EXPECTED = [f"{project}-0.1.0.dist-info" for project in ("lucebox", "lucebox_gfx1151", "lucebox_sm86")]


@pytest.mark.slow  # 2 s
def test_pip_from_a_folder(index: Path, tmp_path: Path) -> None:
    assert pip_install(index.as_uri(), tmp_path) == EXPECTED


@pytest.mark.parametrize("tool", [pytest.param("pip", marks=pytest.mark.slow), "uv"])  # 2 s
def test_the_name_of_a_target_is_an_extra(index: Path, tmp_path: Path, tool: str) -> None:
    if tool == "pip" and tuple(map(int, version("pip").split(".")[:2])) < (23, 3):
        pytest.skip("pip older than 23.3 compares names of extras letter by letter")
    command = {"pip": [sys.executable, "-m", "pip", "--isolated"], "uv": ["uv", "pip"]}[tool]
    more = ["install", "-q", "--no-cache-dir", "--index-url", index.as_uri(), "--target", tmp_path, "lucebox[sm_86]"]
    subprocess.run([*command, *more], check=True, env=tools_environment(PIP_CONFIG_FILE="/dev/null"))
    assert sorted(found.name for found in tmp_path.glob("*.dist-info")) == [EXPECTED[0], EXPECTED[2]]


@pytest.mark.slow  # 2 s each
@pytest.mark.parametrize(
    "speaks_json",
    [False, True],
    ids=["html", "json"],
)
def test_pip_over_http(index: Path, tmp_path: Path, speaks_json: bool) -> None:
    with install_test.served(index, speaks_json=speaks_json) as (url, seen):
        assert pip_install(url, tmp_path) == EXPECTED
    assert any(path.endswith("/index.json" if speaks_json else "/index.html") for path in seen)
    if not speaks_json:  # of the JSON, only pip from 23.2 on knows that there is such a file
        assert any(path.endswith(".whl.metadata") for path in seen)


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an index where a stranger has registered a newer lucebox-sm86."""
    monkeypatch.setattr(data, "VERSION", "9.9")
    wheel = data.write(tmp_path, data.pack_members("sm_86"))
    make_index(tmp_path / "strangers", [Wheel(wheel)])
    monkeypatch.undo()
    return (tmp_path / "strangers").as_uri()


def test_uv_takes_our_projects_from_our_index(index: Path, strangers: str, tmp_path: Path) -> None:
    """`uv pip install --index`, as README has it: the default index is not asked for what the other one has."""
    command = ["uv", "pip", "install", "-q", "--no-cache", "--index", index.as_uri(), "--default-index", strangers]
    subprocess.run([*command, "--target", tmp_path / "site", "lucebox[sm86]"], check=True, env=tools_environment())
    assert sorted(found.name for found in (tmp_path / "site").glob("*.dist-info")) == [EXPECTED[0], EXPECTED[2]]


def test_the_documented_project_of_uv(index: Path, strangers: str, tmp_path: Path) -> None:
    text = (ROOT / "docs/releasing.md").read_text().split("```toml\n")[1].split("```")[0]
    project = tmp_path / "mine"
    project.mkdir()
    (project / "pyproject.toml").write_text(text.replace("https://example.org/lucebox", index.as_uri()))
    command = ["uv", "lock", "-q", "--no-cache", "--default-index", strangers, "--python", sys.executable]
    subprocess.run(command, check=True, cwd=project, env=tools_environment())
    lock = (project / "uv.lock").read_text()
    assert f'name = "lucebox-sm86"\nversion = "{data.VERSION}"' in lock and "9.9" not in lock


def test_pip_refuses_a_changed_wheel(index: Path, tmp_path: Path, wheels: list[Path]) -> None:
    changed = tmp_path / "index"
    make_index(changed, [Wheel(path) for path in wheels])
    with (next(changed.glob("lucebox-sm86/*.whl"))).open("ab") as file:
        file.write(b"\0")
    with pytest.raises(subprocess.CalledProcessError):
        pip_install(changed.as_uri(), tmp_path / "site")


def test_content_types(index: Path) -> None:
    with install_test.served(index, speaks_json=True) as (url, _):
        for accept, content_type in ((install_test.JSON_TYPE, install_test.JSON_TYPE), ("text/html", "text/html")):
            request = urllib.request.Request(f"{url}/lucebox/", headers={"Accept": accept})
            with urllib.request.urlopen(request) as answer:
                assert answer.headers["Content-Type"] == content_type
