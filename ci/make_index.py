"""Makes a package index from wheels: a folder that pip and uv can read from any web server or by a file:// URL.

    make_index.py FOLDER WHEEL...

    FOLDER/<project>/index.html          PEP 503, with hashes
    FOLDER/<project>/index.json          PEP 691, for servers that choose by the Accept header
    FOLDER/<project>/<wheel>.metadata    PEP 658 and 714: pip resolves without downloading the wheel
    FOLDER/<project>/<wheel>.provenance  PEP 740: attestations of the wheel, with --attestations
    FOLDER/SHA256SUMS                    for `sha256sum --check`
    FOLDER/sbom.cdx.json                 CycloneDX 1.6: every wheel, its components and its compilers

With --pages, only the pages: for wheels of several releases, each of which has a bill of materials already. The same
wheels give the same bytes: no path is written, and only the times given by --releases.

--releases FILE    `gh release list --json tagName,publishedAt`: upload times (PEP 700), for uv's --exclude-newer
--yanked FILE      {"0.1.0": "the reason"}: versions that pip and uv install only where they are pinned (PEP 592)
--attestations FOLDER --url URL    what `gh attestation download` wrote, and where the index will be: the pages must
                                   name provenance by full addresses
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from provenance import ProvenanceError, provenance
from sbom import Json, dump, numbered
from wheels import Wheel


@dataclass(frozen=True)
class Releases:
    """What the index says of versions beyond their wheels."""

    times: Mapping[str, str] | None = None
    """{version: time of its release}, such as "2026-11-01T12:00:00Z"; None: all are unknown."""
    yanked: Mapping[str, str] = field(default_factory=dict)
    """{version: reason}, from ci/yanked.json; pip skips these versions unless one is pinned."""
    attestations: Path | None = None
    """The folder of `gh attestation download`; None: the index has no provenance."""
    url: str = ""
    """Where the index will be, without a slash at the end; provenance needs it."""

    def provenance_url(self, wheel: Wheel) -> str | None:
        return f"{self.url}/{wheel.project}/{wheel.path.name}.provenance" if self.attestations else None


def make_index(folder: Path, wheels: list[Wheel], releases: Releases = Releases()) -> None:
    """Writes the pages that pip and uv read, the bill of materials and SHA256SUMS of a release."""
    make_pages(folder, wheels, releases)
    ordered = sorted(wheels, key=lambda wheel: (wheel.project, wheel.path.name))
    _write(folder / "sbom.cdx.json", dump(bill_of_materials(ordered)))
    sums = [f"{_sha256(file.read_bytes())}  {file.relative_to(folder).as_posix()}\n" for file in _files(folder)]
    _write(folder / "SHA256SUMS", "".join(sums))


def make_pages(folder: Path, wheels: list[Wheel], releases: Releases = Releases()) -> None:
    """Writes only the files that pip and uv read, for the wheels of any projects."""
    shutil.rmtree(folder, ignore_errors=True)
    projects: dict[str, list[Wheel]] = defaultdict(list)
    for wheel in sorted(wheels, key=lambda wheel: wheel.path.name):
        projects[wheel.project].append(wheel)
    for project, files in sorted(projects.items()):
        own = folder / project
        own.mkdir(parents=True)
        for wheel in files:
            shutil.copyfile(wheel.path, own / wheel.path.name)
            (own / f"{wheel.path.name}.metadata").write_bytes(_metadata(wheel))
            if releases.attestations:
                _write(own / f"{wheel.path.name}.provenance", dump(provenance(wheel, releases.attestations)))
        _write(own / "index.html", page(project, [link(wheel, releases) for wheel in files]))
        _write(own / "index.json", dump(project_json(project, files, releases)))
    names = sorted(projects)
    _write(folder / "index.html", page("Packages", [f'<a href="{name}/">{name}</a>' for name in names]))
    _write(folder / "index.json", dump({"meta": META, "projects": [{"name": name} for name in names]}))


API_VERSION = "1.3"  # the first with provenance
META: Json = {"api-version": API_VERSION}


def link(wheel: Wheel, releases: Releases) -> str:
    attributes = {
        "href": f"{wheel.path.name}#sha256={wheel.sha256}",
        "data-requires-python": wheel.metadata["Requires-Python"],
        "data-core-metadata": f"sha256={_sha256(_metadata(wheel))}",
        "data-dist-info-metadata": f"sha256={_sha256(_metadata(wheel))}",  # PEP 658's name
        "data-yanked": releases.yanked.get(wheel.version),
        "data-provenance": releases.provenance_url(wheel),
    }
    written = " ".join(f'{name}="{html.escape(value)}"' for name, value in attributes.items() if value)
    return f"<a {written}>{wheel.path.name}</a>"


def page(title: str, links: list[str]) -> str:
    body = "".join(f"  {one}<br>\n" for one in links)
    version = f'<meta name="pypi:repository-version" content="{API_VERSION}">'
    head = f'<meta charset="utf-8">{version}<title>{title}</title>'
    return f"<!DOCTYPE html>\n<html>\n<head>{head}</head>\n<body>\n{body}</body>\n</html>\n"


def project_json(project: str, wheels: list[Wheel], releases: Releases) -> Json:
    files = []
    for wheel in wheels:
        digest = {"sha256": _sha256(_metadata(wheel))}
        file: Json = {
            "filename": wheel.path.name,
            "url": wheel.path.name,
            "hashes": {"sha256": wheel.sha256},
            "size": wheel.path.stat().st_size,
            "core-metadata": digest,  # PEP 714's name alone: pip 22.3 to 23.1 fails if the older name is there too
        }
        if requires := wheel.metadata["Requires-Python"]:
            file["requires-python"] = requires
        if releases.times is not None:
            file["upload-time"] = releases.times[wheel.version]
        if reason := releases.yanked.get(wheel.version):
            file["yanked"] = reason
        if provenance_url := releases.provenance_url(wheel):
            file["provenance"] = provenance_url
        files.append(file)
    return {"meta": META, "name": project, "versions": sorted({wheel.version for wheel in wheels}), "files": files}


def bill_of_materials(wheels: list[Wheel]) -> Json:
    compilers: dict[tuple[str, str], Json] = {}
    components, dependencies = [], []
    for wheel in wheels:
        manifests = [manifest(wheel, package) for package in wheel.packs.values()]
        for made in (code["compiler"] for one in manifests for code in one["generations"]):
            entry = {"type": "application", "name": made["name"], "version": made["version"]}
            compilers[made["name"], made["version"]] = entry
        components.append(component(wheel, manifests))
        dependencies.append({"ref": reference(wheel), "dependsOn": packs_of(wheel, wheels)})
    bill: Json = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"tools": {"components": [compilers[key] for key in sorted(compilers)]}},
        "components": components,
        "dependencies": dependencies,
    }
    return numbered(bill)


def component(wheel: Wheel, manifests: list[Json]) -> Json:
    properties = [{"name": "python:requires", "value": wheel.metadata["Requires-Python"] or ""}]
    for one in manifests:
        properties += [
            {"name": "lucebox:target", "value": one["target"]},
            {"name": "lucebox:architecture", "value": one["architecture"]},
        ]
        for compiler in (code["compiler"] for code in one["generations"]):
            properties += [
                {"name": "lucebox:compiler", "value": f"{compiler['name']} {compiler['version']}"},
                {"name": "lucebox:compiler-flags", "value": " ".join(compiler["flags"])},
            ]
    return {
        "type": "library",
        "bom-ref": reference(wheel),
        "name": wheel.project,
        "version": wheel.version,
        "description": wheel.metadata["Summary"] or "",
        "licenses": [{"expression": wheel.metadata["License-Expression"]}],
        "hashes": [{"alg": "SHA-256", "content": wheel.sha256}],
        "purl": f"pkg:pypi/{wheel.project}@{wheel.version}?file_name={wheel.path.name}",
        "properties": properties,
        "components": [
            code_object(wheel, file) for one in manifests for code in one["generations"] for file in code["files"]
        ],
    }


def code_object(wheel: Wheel, file: Json) -> Json:
    return {
        "type": "file",
        "bom-ref": f"{reference(wheel)}#{file['file']}",
        "name": file["file"],
        "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
    }


def reference(wheel: Wheel) -> str:
    return wheel.path.name


def packs_of(wheel: Wheel, wheels: list[Wheel]) -> list[str]:
    """The packs of this index that a host wheel's extras require."""
    wanted = {line.split()[0].split("=")[0] for line in wheel.metadata.get_all("Requires-Dist", [])}
    return sorted(reference(other) for other in wheels if other.packs and other.project in wanted)


def manifest(wheel: Wheel, package: str) -> Json:
    found: Json = json.loads(wheel.members[f"{package}/manifest.json"])
    return found


def _times(file: Path) -> dict[str, str]:
    listed = json.loads(file.read_text(encoding="utf-8"))
    return {one["tagName"].removeprefix("v"): one["publishedAt"] for one in listed}


def _metadata(wheel: Wheel) -> bytes:
    return wheel.members[f"{wheel.info}/METADATA"]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8", newline="\n")


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def main() -> int:
    parser = argparse.ArgumentParser(description="Make a package index out of wheels.")
    parser.add_argument("--pages", action="store_true", help="no SHA256SUMS and no bill of materials")
    parser.add_argument("--limit-mb", type=float, help="largest size of the index")
    parser.add_argument("--releases", type=Path, metavar="FILE", help="JSON: tagName and publishedAt of each release")
    parser.add_argument("--yanked", type=Path, metavar="FILE", help="JSON: withdrawn versions with the reason")
    parser.add_argument("--attestations", type=Path, metavar="FOLDER", help="bundles of `gh attestation download`")
    parser.add_argument("--url", help="where the index will be, for --attestations: https://...")
    parser.add_argument("folder", type=Path, help="the index; what is there is replaced")
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL")
    arguments = parser.parse_args()
    if any(arguments.folder.resolve() in wheel.resolve().parents for wheel in arguments.wheels):
        parser.error("the wheels lie in the folder that is to be replaced")
    if (arguments.attestations is None) != (arguments.url is None):
        parser.error("--attestations and --url need each other")
    if arguments.url is not None and not arguments.url.startswith("https://"):
        parser.error(f"--url: expected https://..., got {arguments.url}")
    names = [wheel.name for wheel in arguments.wheels]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        parser.error(f"given twice: {', '.join(twice)}")
    size = sum(wheel.stat().st_size for wheel in arguments.wheels) / 1e6
    if arguments.limit_mb is not None and size > arguments.limit_mb:
        parser.error(f"the wheels have {size:.0f} MB, the limit is {arguments.limit_mb:g} MB; leave out old releases")
    wheels = [Wheel(path) for path in arguments.wheels]
    releases = Releases(
        None if arguments.releases is None else _times(arguments.releases),
        {} if arguments.yanked is None else json.loads(arguments.yanked.read_text(encoding="utf-8")),
        arguments.attestations,
        (arguments.url or "").rstrip("/"),
    )
    for version in sorted({wheel.version for wheel in wheels}):
        if releases.times is not None and version not in releases.times:
            parser.error(f"{arguments.releases} has no release v{version}")
    make = make_pages if arguments.pages else make_index
    try:
        make(arguments.folder, wheels, releases)
    except ProvenanceError as error:
        parser.error(str(error))
    print(f"{arguments.folder}: {len(names)} wheels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
