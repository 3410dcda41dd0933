"""verify_wheel.py accepts a pack that is in order and names what is wrong with any other."""

from __future__ import annotations

import hashlib
import json
import lzma
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sbom
import verify_wheel
import wheel_data as data
from lucebox.packs.manifest import Manifest

import targets

PACKAGE = "lucebox_sm86"
CUBIN = f"{PACKAGE}/rms_norm.cubin"
INFO = data.info("sm_86")
BILL_OF_ANOTHER = json.dumps({"metadata": {"component": {"name": "lucebox-sm89", "version": "1"}}}).encode()


def problems(wheel: Path) -> list[str]:
    return verify_wheel.verify(wheel, imports=False).problems


def changed(members: dict[str, bytes], **values: Any) -> dict[str, bytes]:
    """The pack with other values in its manifest; those of code in each generation."""
    name = f"{PACKAGE}/manifest.json"
    manifest = json.loads(members[name])
    of_code = {key: values.pop(key) for key in ("files", "kernels") if key in values}
    generations = [{**code, **of_code} for code in manifest["generations"]]
    return {**members, name: json.dumps({**manifest, "generations": generations, **values}).encode()}


@pytest.mark.parametrize("target", ["sm_75", "sm_90", "gfx1151"])
def test_pack_in_order(tmp_path: Path, target: str) -> None:
    report = verify_wheel.verify(data.write(tmp_path, data.pack_members(target)))
    assert report.problems == []
    assert (report.kind, report.facts["target"], report.facts["kernels"]) == ("pack", target, "1")


def test_the_demos_model(tmp_path: Path) -> None:
    info = f"lucebox_tiny-{data.VERSION}.dist-info"
    members = {
        "lucebox_tiny/tiny.gguf": b"GGUF",
        f"{info}/METADATA": data.metadata("lucebox-tiny"),
        f"{info}/licenses/LICENSE": b"Apache-2.0\n",
    }
    report = verify_wheel.verify(data.write(tmp_path, members))
    assert (report.kind, report.problems) == ("model", [])
    del members["lucebox_tiny/tiny.gguf"]
    assert problems(data.write(tmp_path, members)) == ["holds no GGUF file"]
    (problem,) = problems(data.write(tmp_path, {**members, "a.gguf": b"GGUF"}, "py3-none-linux_x86_64"))
    assert "must have the tag py3-none-any" in problem


def test_the_kernel_sources(tmp_path: Path) -> None:
    info, source = f"lucebox_kernels-{data.VERSION}.dist-info", "lucebox_kernels/source"
    members = {
        f"{source}/ci/compile_kernels.py": b"",
        **{f"{source}/targets/{target.name}/target.toml": b"" for target in targets.load_all() if not target.variant},
        f"{info}/METADATA": data.metadata("lucebox-kernels", f"Requires-Dist: lucebox=={data.VERSION}"),
        f"{info}/licenses/LICENSE": b"Apache-2.0\n",
    }
    report = verify_wheel.verify(data.write(tmp_path, members))
    assert (report.kind, report.problems) == ("kernels", [])
    assert problems(data.write(tmp_path, {**members, "a.so": data.elf(data.EM_X86_64)})) == ["a.so is compiled code"]
    del members[f"{source}/targets/sm_86/target.toml"]
    assert problems(data.write(tmp_path, members)) == [f"{source}/targets/sm_86/target.toml is missing"]
    loose = {**members, f"{info}/METADATA": data.metadata("lucebox-kernels")}
    assert f"must require lucebox=={data.VERSION}" in problems(data.write(tmp_path, loose))


def test_sim_pack_has_a_platform(tmp_path: Path) -> None:
    members = data.pack_members("sim")
    assert problems(data.write(tmp_path, members, "py3-none-linux_x86_64")) == []
    (problem,) = problems(data.write(tmp_path, members))
    assert "py3-none-<platform>, got py3-none-any" in problem


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({CUBIN: data.elf(data.EM_CUDA, b"CODE")}, "do not have the size and sha256"),
        ({CUBIN: data.elf(data.EM_CUDA)[:-1]}, "67 bytes do not have the size and sha256"),
        ({f"{PACKAGE}/helper.py": b"import os\n"}, "helper.py is not in the manifest"),
        ({f"{PACKAGE}/__init__.py": b"import os\n"}, "must be there and empty"),
        ({"other/__init__.py": b""}, "other/__init__.py is not in the manifest"),
        ({f"{INFO}/METADATA": data.metadata("lucebox-sm89")}, "METADATA is of lucebox-sm89"),
        ({f"{INFO}/entry_points.txt": b""}, "announces 0 packs"),
        ({f"{INFO}/entry_points.txt": b"[lucebox.packs]\nsm_86 = lucebox_sm80\n"}, "with package lucebox_sm86, got"),
        ({f"{INFO}/entry_points.txt": b"[lucebox.packs]\nsm_42 = lucebox_sm42\n"}, "targets/sm_42/target.toml"),
        ({f"{PACKAGE}/manifest.json": b"{"}, "manifest.json is not JSON"),
        (
            {f"{INFO}/METADATA": data.metadata("lucebox-sm86").replace(b"License-File: LICENSE\n", b"")},
            "no License-File",
        ),
        ({f"{INFO}/METADATA": data.metadata("lucebox-sm86", "License-File: NOTICE")}, "NOTICE is missing"),
        ({f"{INFO}/sboms/lucebox-sm86.cdx.json": b"{"}, "missing or no CycloneDX"),
        ({f"{INFO}/sboms/lucebox-sm86.cdx.json": BILL_OF_ANOTHER}, "lucebox-sm86.cdx.json is of lucebox-sm89 1"),
        ({f"{PACKAGE}/manifest.json": b"\xff"}, "missing or not text"),
        ({f"{INFO}/notes.txt": b"built in /ho" + b"me/someone/x"}, "names a folder of the machine that built it"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_changed_member(tmp_path: Path, change: dict[str, bytes], words: str) -> None:
    assert any(words in problem for problem in problems(data.write(tmp_path, data.pack_members() | change)))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"target": "sm_80"}, "target must be sm_86, got sm_80"),
        ({"architecture": "sm_80"}, "architecture must be sm_86, got sm_80"),
        ({"version": "0.0.9"}, "version must be 0.1.0, got 0.0.9"),
        ({"schema": 7}, "schema"),
        ({"surprise": 1}, "surprise"),
        ({"kernels": []}, "lists no kernel"),
        ({"kernels": [], "files": []}, "lists no kernel"),
    ],
    ids=str,
)
def test_manifest_that_disagrees(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    found = problems(data.write(tmp_path, changed(data.pack_members(), **values)))
    assert any(words in problem for problem in found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (data.elf(data.EM_X86_64), "got ELF machine 62"),
        (data.elf(data.EM_AMDGPU), "got ELF machine 224"),
        (b"#!/bin/sh\necho\n", "got a script"),
        (b"MZ\x90\x00", "got no ELF file"),
    ],
    ids=["host code", "another vendor's", "a script", "no ELF"],
)
def test_only_device_code(tmp_path: Path, content: bytes, words: str) -> None:
    """The manifest lists the file as it is: size and hash say nothing here."""
    members = data.pack_members() | {CUBIN: content}
    older = {"rms_norm.nvrtc.cubin": data.elf(data.EM_CUDA)}
    made = data.manifest(targets.load("sm_86"), {"rms_norm.cubin": content}, older)
    (problem,) = problems(data.write(tmp_path, changed(members, generations=made["generations"])))
    assert words in problem


def archived(content: bytes, listed: bytes | None = None) -> dict[str, bytes]:
    """The members of a Radeon's pack with this content in its archive, and these code objects in its manifest."""
    members = data.pack_members("gfx1151")
    made = json.loads(members.pop("lucebox_gfx1151/manifest.json"))
    del members["lucebox_gfx1151/rms_norm.hsaco"]
    archive = lzma.compress(content)
    stored = {"code.xz": archive, "rms_norm.hsaco": content if listed is None else listed}
    made["archive"], *made["generations"][0]["files"] = (
        {"file": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in stored.items()
    )
    return members | {"lucebox_gfx1151/code.xz": archive, "lucebox_gfx1151/manifest.json": json.dumps(made).encode()}


def test_code_in_an_archive(tmp_path: Path) -> None:
    code = data.elf(data.EM_AMDGPU)
    assert problems(data.write(tmp_path, archived(code))) == []
    (problem,) = problems(data.write(tmp_path, archived(data.elf(data.EM_X86_64))))
    assert "lucebox_gfx1151/rms_norm.hsaco must be device code" in problem
    (problem,) = problems(data.write(tmp_path, archived(code, listed=code[:-1] + b"x")))
    assert problem.endswith("code.xz: rms_norm.hsaco does not have the sha256 that the manifest lists")
    (problem,) = problems(data.write(tmp_path, archived(code, listed=code + b"x")))
    assert "code.xz: an xz file of " in problem


def test_code_for_every_driver(tmp_path: Path) -> None:
    members = data.pack_members()
    newer, _ = json.loads(members[f"{PACKAGE}/manifest.json"])["generations"]
    found = problems(data.write(tmp_path, changed(members, generations=[newer])))
    assert any("has no code for drivers from 525 on, which NVRTC compiles" in problem for problem in found)


def test_a_pack_by_nvrtc_alone(tmp_path: Path) -> None:
    """As it is published: drivers from the oldest on take its code."""
    members = data.pack_members()
    del members[CUBIN]
    (_, older) = json.loads(members[f"{PACKAGE}/manifest.json"])["generations"]
    wheel = data.write(tmp_path, changed(members, generations=[older]))
    assert problems(wheel) == []


def test_spills(tmp_path: Path) -> None:
    found = problems(data.write(tmp_path, data.pack_members(spill_bytes=8)))
    for problem, file in zip(found, ("rms_norm.cubin", "rms_norm.nvrtc.cubin"), strict=True):
        assert problem.startswith(f"kernel rms_norm_kernel of {file} spills 8 bytes")
        assert "targets/sm_86/target.toml" in problem


def test_code_for_the_building_machine(tmp_path: Path) -> None:
    members = data.pack_members("sim")
    name = "lucebox_sim/manifest.json"
    made = json.loads(members[name])
    assert problems(data.write(tmp_path, members, "py3-none-linux_x86_64")) == []
    made["generations"][0]["compiler"]["flags"] += ["-O1", "-mfma"]
    wheel = data.write(tmp_path, members | {name: json.dumps(made).encode()}, "py3-none-linux_x86_64")
    found = problems(wheel)
    assert any("-mfma makes code for the machine that built it" in problem for problem in found)


def test_spill_with_a_reason() -> None:
    """What [[exceptions]] of the target excuses."""
    target = targets.load("sm_86")
    made = Manifest.parse(json.dumps(data.manifest(target, {"a.cubin": b""}, spill_bytes=8)), "here")
    excused = replace(target, exceptions=(targets.Waiver("a_kernel", "spill", "no other way"),))
    assert list(verify_wheel._resources(made, target)) and not list(verify_wheel._resources(made, excused))


@pytest.mark.parametrize("tag", ["py3-none-linux_x86_64", "cp312-abi3-linux_x86_64"])
def test_tag_of_a_pack(tmp_path: Path, tag: str) -> None:
    (problem,) = problems(data.write(tmp_path, data.pack_members(), tag))
    assert "must have the tag py3-none-any" in problem


@pytest.mark.parametrize("pins", [[], ["lucebox"], ["lucebox==0.0.9"], ["lucebox==0.1.0", "numpy"]], ids=str)
def test_a_pack_pins_the_host(tmp_path: Path, pins: list[str]) -> None:
    metadata = data.metadata("lucebox-sm86", *(f"Requires-Dist: {pin}" for pin in pins))
    (problem,) = problems(data.write(tmp_path, data.pack_members() | {f"{INFO}/METADATA": metadata}))
    assert problem == f"must require lucebox==0.1.0 and nothing else, got {', '.join(pins) or 'nothing'}"


def test_tag_in_the_name_only(tmp_path: Path) -> None:
    wheel = data.write(tmp_path, data.pack_members())
    renamed = wheel.rename(tmp_path / wheel.name.replace("py3", "py2.py3"))
    assert any("the file name says" in problem for problem in problems(renamed))


def test_record(tmp_path: Path) -> None:
    wheel = data.write(tmp_path, data.pack_members() | {f"{INFO}/RECORD": b"gone.py,sha256=x,1\n"})
    found = problems(wheel)
    assert "RECORD lists gone.py, which is not in the wheel" in found
    assert f"{CUBIN} is not in RECORD" in found


def test_size(tmp_path: Path) -> None:
    members = data.pack_members("sim")
    library = next(name for name in members if name.endswith(".so"))
    for more, limit in ((3 << 20, None), (5 << 20, 4)):
        wheel = data.write(tmp_path, {**members, library: members[library] + bytes(more)}, "py3-none-linux_x86_64")
        said = [problem for problem in problems(wheel) if "the limit is" in problem]
        assert said == ([f"is 5.0 MB; the limit is {limit} MB"] if limit else [])


def test_no_zip(tmp_path: Path) -> None:
    wheel = tmp_path / "lucebox_sm86-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"hello")
    (problem,) = problems(wheel)
    assert "cannot be read as a wheel" in problem


def host_wheel(folder: Path, *flags: str, tag: str = "cp312-abi3-linux_x86_64", extra: str = "") -> Path:
    """A host wheel around a real shared library, linked with these flags."""
    source, library = folder / "engine.c", folder / "engine.so"
    source.write_text("double cosine(double); double twice(double x) { return 2 * x; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", source, "-o", library, "-Wl,--no-as-needed", *flags], check=True)
    suffix = ".abi3.so" if "-abi3-" in tag else ".cpython-311-x86_64-linux-gnu.so"
    members = {
        f"lucebox/_engine{suffix}": library.read_bytes(),
        "lucebox/__init__.py": b"",
        "lucebox-0.1.0.dist-info/METADATA": data.metadata("lucebox", *([f"Requires-Dist: {extra}"] if extra else [])),
        "lucebox-0.1.0.dist-info/licenses/LICENSE": b"Apache-2.0\n",
        "lucebox-0.1.0.dist-info/sboms/lucebox.cdx.json": sbom.dump(
            sbom.of_wheel("lucebox", data.VERSION, [{"name": "GNU", "version": "13.3.0"}], [], {})
        ).encode(),
    }
    return data.write(folder, members, tag)


@pytest.mark.parametrize("tag", ["cp312-abi3-linux_x86_64", "cp311-cp311-linux_x86_64"])
def test_host_in_order(tmp_path: Path, tag: str) -> None:
    report = verify_wheel.verify(host_wheel(tmp_path, "-lm", tag=tag), imports=False)
    assert report.problems == []
    assert "libm.so.6" in report.facts["needs"] and report.facts["glibc"]


def test_host_needs_a_vendor_library(tmp_path: Path) -> None:
    vendor = tmp_path / "libcuda.so.1"
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", vendor, "-Wl,-soname,libcuda.so.1"], check=True)
    (problem,) = problems(host_wheel(tmp_path, str(vendor)))
    assert "needs libcuda.so.1" in problem


def test_host_library_path(tmp_path: Path) -> None:
    (problem,) = problems(host_wheel(tmp_path, "-Wl,-rpath,/usr/local/lib"))
    assert "has the library path /usr/local/lib" in problem


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("cp312-cp312-linux_x86_64", "must have the tag cp312-abi3"),
        ("py3-none-linux_x86_64", "must have the tag cp312-abi3"),
        ("cp312-abi3-linux_aarch64", "is ELF machine 62, the wheel's platform is linux_aarch64"),
        ("cp312-abi3-manylinux_2_1_x86_64", "the tag promises 2.1"),
    ],
)
def test_tag_of_a_host_wheel(tmp_path: Path, tag: str, words: str) -> None:
    assert any(words in problem for problem in problems(host_wheel(tmp_path, tag=tag)))


@pytest.mark.parametrize("pin", ["lucebox-sm86; extra == 'sm86'", "lucebox-sm86==0.2.0; extra == 'sm86'"])
def test_extras_pin_the_version(tmp_path: Path, pin: str) -> None:
    (problem,) = problems(host_wheel(tmp_path, extra=pin))
    assert "must pin its pack to 0.1.0" in problem


def test_command(tmp_path: Path) -> None:
    """Exit code, the line per failure, and the same as JSON."""
    good = data.write(tmp_path, data.pack_members("gfx1151"))
    bad = data.write(tmp_path, data.pack_members(spill_bytes=8))
    command = [sys.executable, str(Path(verify_wheel.__file__))]
    done = subprocess.run([*command, str(good), str(bad)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith(f"{bad.name}: kernel rms_norm_kernel of rms_norm.nvrtc.cubin spills")
    done = subprocess.run([*command, "--json", str(good)], capture_output=True, text=True)
    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["facts"]["target"] == "gfx1151"
