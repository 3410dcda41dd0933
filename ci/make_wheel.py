"""Makes the wheel of a pack that CMake built: the last step of `cmake --workflow --preset NAME`.

    make_wheel.py sm_86 build/sm_86/pack/lucebox_sm86 --sbom FILE --out build/sm_86/wheel

The wheel has the members that `pip wheel ./targets/sm_86` writes, except the name of the generator. The same pack gives
the same bytes. Prints the command that installs the wheel.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import generate_targets

import targets
from targets import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Json = dict[str, Any]

TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip file can store
MODE = 0o100644 << 16
UNIX = 3


def make_wheel(project: Json, package: Path, bill: Path, out: Path, root: Path = ROOT) -> Path:
    """Writes the wheel of `package` with its bill of materials; `project` is the pack's pyproject.toml. Other wheels in
    `out` are removed."""
    about, build = project["project"], project["tool"]["scikit-build"]
    stem = f"{about['name'].replace('-', '_')}-{about['version']}"
    is_pure = not build["wheel"].get("platlib", True)
    tag = f"{build['wheel']['py-api']}-none-{'any' if is_pure else platform()}"
    info = f"{stem}.dist-info"
    members = {f"{package.name}/{file.name}": file.read_bytes() for file in sorted(package.iterdir()) if file.is_file()}
    members |= {
        f"{info}/METADATA": metadata(about).encode(),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: lucebox\nRoot-Is-Purelib: {str(is_pure).lower()}\nTag: {tag}\n\n"
        ).encode(),
        f"{info}/entry_points.txt": entry_points(about).encode(),
        f"{info}/licenses/LICENSE": (root / "LICENSE").read_bytes(),
        f"{info}/sboms/{bill.name}": bill.read_bytes(),
    }
    rows = [f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in members.items()]
    members[f"{info}/RECORD"] = ("".join(rows) + f"{info}/RECORD,,\n").encode()
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.whl"):
        old.unlink()
    wheel = out / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name, TIME)
            entry.external_attr, entry.create_system, entry.compress_type = MODE, UNIX, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
    return wheel


def metadata(about: Json) -> str:
    """METADATA of a [project] table, in the field order of the reference tool for core metadata."""
    lines = [("Metadata-Version", "2.4"), ("Name", about["name"]), ("Version", about["version"])]
    lines += [("Summary", about["description"])]
    lines += [("Keywords", ",".join(about["keywords"]))] if about.get("keywords") else []
    people = about.get("authors", [])
    names = [person["name"] for person in people if "email" not in person]
    emails = [f"{person['name']} <{person['email']}>" for person in people if "email" in person]
    lines += [("Author", ", ".join(names))] if names else []
    lines += [("Author-Email", ", ".join(emails))] if emails else []
    lines += [("License-Expression", about["license"])]
    lines += [("License-File", name) for name in about.get("license-files", [])]
    lines += [("Classifier", classifier) for classifier in about.get("classifiers", [])]
    lines += [("Project-URL", f"{name}, {url}") for name, url in about.get("urls", {}).items()]
    lines += [("Requires-Python", about["requires-python"])]
    lines += [("Requires-Dist", normal_requirement(requirement)) for requirement in about.get("dependencies", [])]
    lines += [("Description-Content-Type", about["readme"]["content-type"])]
    return "".join(f"{key}: {value}\n" for key, value in lines) + f"\n{about['readme']['text']}"


def normal_requirement(text: str) -> str:
    """A requirement as pip's tools write it: "lucebox==1" without spaces, the marker unchanged."""
    requirement, semicolon, marker = text.partition(";")
    return requirement.replace(" ", "") + semicolon + marker


def entry_points(about: Json) -> str:
    groups = []
    for group, entries in about["entry-points"].items():
        groups.append(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items()))
    return "\n".join(groups) + "\n"


def platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the wheel of a pack that CMake built.")
    parser.add_argument("target")
    targets.add_arguments(parser)
    parser.add_argument("package", type=Path, help="the import package that make_pack.py wrote")
    parser.add_argument("--sbom", type=Path, required=True, help="the bill of materials that make_pack.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of the wheel")
    arguments = parser.parse_args()
    try:
        target = targets.chosen(arguments)
    except targets.TargetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    host = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version, urls = generate_targets.host_version(host), generate_targets.host_urls(host)
    project = tomllib.loads(generate_targets.pack_project(target, version, urls))
    wheel = make_wheel(project, arguments.package, arguments.sbom, arguments.out).resolve()
    shown = wheel.relative_to(ROOT) if wheel.is_relative_to(ROOT) else wheel  # presets run in the root
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB. To install it:\n")
    print(f"    pip install --no-deps --force-reinstall {shown}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
