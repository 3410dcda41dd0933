"""Makes a named variant of an installed pack: its manifest, its folder for `targets/`, its wheel. The wheel has the
installed pack's code objects, byte for byte, except files that tuning recompiled or left out."""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
import zipfile
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from lucebox.errors import PackError
from lucebox.packs import Pack, package
from lucebox.tune.search import Choice

__all__ = ["changed_manifest", "file_stem", "variant_manifest", "write_folder", "write_wheel"]

Json = dict[str, Any]

TIME = (1980, 1, 1, 0, 0, 0)  # the earliest time stamp of zip, fixed for reproducible wheels
MODE = 0o100644 << 16
UNIX = 3


def file_stem(file: str) -> str:
    """The kernel source of a code object: gemv_32.nvrtc.cubin -> gemv_32."""
    return file.partition(".")[0]


def changed_manifest(manifest: Json, tuning: Mapping[str, int], without: Sequence[str]) -> Json:
    """A pack's manifest with changed constants, without the kernels and files of left-out sources, and without
    its archive."""
    generations = []
    for code in manifest["generations"]:
        files = [one for one in code["files"] if file_stem(one["file"]) not in without]
        kernels = [one for one in code["kernels"] if file_stem(one["file"]) not in without]
        generations.append({**code, "files": files, "kernels": kernels})
    tuning = {**manifest["tuning"], **tuning}
    return {**manifest, "tuning": tuning, "archive": None, "generations": generations}


def variant_manifest(manifest: Json, word: str, choice: Choice) -> Json:
    """The manifest of the variant named `word`."""
    changed = changed_manifest(manifest, choice.tuning, choice.without)
    kernels = {kernel["name"] for code in changed["generations"] for kernel in code["kernels"]}
    exceptions = [one for one in changed["exceptions"] if one["kernel"] in kernels]
    return {**changed, "variant": word, "exceptions": exceptions}


def write_folder(folder: Path, target: str, word: str, choice: Choice, about: str) -> Path:
    """Writes the variant's folder `<target>_<word>` with its target.toml, for `targets/`. `about` is the file's
    comment."""
    lines = [f"# {about}", f'inherits = "{target}"']
    if choice.without:
        lines.append(f"without = {json.dumps(list(choice.without))}")
    if choice.tuning:
        lines += ["", "[tuning]", *(f"{name} = {value}" for name, value in choice.tuning.items())]
    if choice.defines:
        lines += ["", "[defines]", *(f"{name} = {value}" for name, value in choice.defines.items())]
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "target.toml"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def write_wheel(pack: Pack, manifest: Json, code: Mapping[str, bytes], out: Path) -> Path:
    """Writes the variant's wheel with this manifest. `code`: the code objects that differ from the pack's.

    Raises:
        PackError: a file of the pack is damaged, or its wheel left no metadata.
    """
    name = f"{manifest['target']}_{manifest['variant']}"
    files = {one["file"]: one for generation in manifest["generations"] for one in generation["files"]}
    images = {**pack.images(), **code}
    content = {file: images[file] for file in files}
    for file, data in content.items():
        if hashlib.sha256(data).hexdigest() != files[file]["sha256"]:
            raise PackError(f"{file} of pack {pack.name} is not what its manifest says; install the pack again")
    text = json.dumps(manifest, indent=1) + "\n"
    source = _distribution(pack)
    project, stem = package(name).replace("_", "-"), f"{package(name)}-{pack.manifest.version}"
    info = f"{stem}.dist-info"
    members = {f"{package(name)}/{file}": data for file, data in sorted(content.items())}
    members |= {f"{package(name)}/__init__.py": b"", f"{package(name)}/manifest.json": text.encode()}
    wheel = _text(source, "WHEEL")
    members |= {
        f"{info}/METADATA": _renamed(_text(source, "METADATA"), project).encode(),
        f"{info}/WHEEL": wheel.encode(),
        f"{info}/entry_points.txt": f"[lucebox.packs]\n{name} = {package(name)}\n".encode(),
    }
    members |= {f"{info}/{file}": data for file, data in _more(source, pack, project, manifest).items()}
    rows = [f"{file},sha256={_digest(data)},{len(data)}\n" for file, data in members.items()]
    members[f"{info}/RECORD"] = ("".join(rows) + f"{info}/RECORD,,\n").encode()
    tag = next(line.removeprefix("Tag: ") for line in wheel.splitlines() if line.startswith("Tag: "))
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            entry = zipfile.ZipInfo(member, TIME)
            entry.external_attr, entry.create_system, entry.compress_type = MODE, UNIX, zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return file


def _distribution(pack: Pack) -> Distribution:
    try:
        return distribution(pack.distribution)
    except PackageNotFoundError:
        raise PackError(f"pack {pack.name} was not installed from a wheel; install its wheel") from None


def _text(source: Distribution, name: str) -> str:
    text = source.read_text(name)
    if text is None:
        raise PackError(f"{source.name} has no {name} in its metadata; install its wheel again")
    return text


def _renamed(metadata: str, project: str) -> str:
    head, separator, rest = metadata.partition("\n\n")
    lines = [f"Name: {project}" if line.startswith("Name: ") else line for line in head.splitlines()]
    return "\n".join(lines) + separator + rest


def _more(source: Distribution, pack: Pack, project: str, manifest: Json) -> dict[str, bytes]:
    """Licences and bill of materials of the pack's own wheel, by their path in .dist-info."""
    found = {}
    for file in source.files or ():
        folder, _, name = file.as_posix().partition(".dist-info/")
        if not folder or not name.startswith(("licenses/", "sboms/")):
            continue
        data = Path(str(source.locate_file(file))).read_bytes()
        if name == f"sboms/{pack.distribution}.cdx.json":
            name, data = f"sboms/{project}.cdx.json", _bill(json.loads(data), project, manifest).encode()
        found[name] = data
    return found


def _bill(bill: Json, project: str, manifest: Json) -> str:
    """The bill of materials of the variant: the variant's name and files, the pack's compiler and commit."""
    files = [one for code in manifest["generations"] for one in code["files"]]
    subject = bill["metadata"]["component"]
    subject |= {"bom-ref": project, "name": project, "purl": f"pkg:pypi/{project}@{manifest['version']}"}
    subject["properties"] = [*subject["properties"], {"name": "lucebox:variant", "value": manifest["variant"]}]
    bill["components"] = [
        {
            "type": "file",
            "bom-ref": one["file"],
            "name": one["file"],
            "hashes": [{"alg": "SHA-256", "content": one["sha256"]}],
        }
        for one in files
    ]
    bill["dependencies"] = [{"ref": project, "dependsOn": [one["file"] for one in files]}]
    bill.pop("serialNumber", None)
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bill, sort_keys=True))
    return json.dumps({**bill, "serialNumber": f"urn:uuid:{number}"}, indent=2, sort_keys=True) + "\n"


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
