"""GPU packs, from installed wheels to the choice for a device: every defect of a pack, and its message."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lucebox
import pack_data
import pytest
from lucebox import packs
from lucebox.errors import InvalidRequestError, PackError
from lucebox.packs import targets

VERSION = lucebox.__version__
MEND = f"; pip install --force-reinstall --no-deps lucebox-sm86=={VERSION}"
WHERE = "lucebox_sm86/manifest.json"


@dataclass
class Gpu:
    """A driver's description of a device."""

    architecture: str
    name: str = "GPU"
    vendor: str = "cuda"
    index: int = 0
    driver: str = "CUDA 13.0"
    driver_generation: str = "580"


def found(site: Path) -> packs.Packs:
    with pack_data.on_path(site):
        return packs.find()


def error_of(site: Path) -> str:
    """The error of the only pack of `site`."""
    there = found(site)
    assert there.usable == ()
    (broken,) = there.broken
    return broken.error


# finding


def test_no_pack_is_no_error(tmp_path: Path) -> None:
    assert found(tmp_path) == packs.Packs((), ())


def test_a_good_pack_is_found_and_loads(tmp_path: Path) -> None:
    pack_data.install(tmp_path)
    (pack,) = found(tmp_path).usable
    assert (pack.target, pack.distribution) == ("sm_86", "lucebox-sm86")
    assert pack.manifest.generations[0].compiler == packs.Compiler("nvcc", "13.0.88", ("-O3",))
    assert pack.manifest.generations[0].kernels[0].registers == 24
    assert pack.manifest_json == json.dumps(pack_data.manifest())
    assert pack.load(pack.manifest.generations[0]) == pack_data.CODE


def test_packs_of_several_targets_stand_side_by_side(tmp_path: Path) -> None:
    for target in ("sm_90", "gfx1151", "sim"):
        pack_data.install(tmp_path, target)
    assert [pack.target for pack in found(tmp_path).usable] == ["gfx1151", "sim", "sm_90"]


def test_two_packs_of_one_target_are_both_refused(tmp_path: Path) -> None:
    pack_data.install(tmp_path)
    pack_data.install(tmp_path, distribution="mylab-sm86")
    there = found(tmp_path)
    assert there.usable == ()
    assert [broken.error for broken in there.broken] == [
        "lucebox-sm86 and mylab-sm86 both claim sm_86, keep one; pip uninstall mylab-sm86"
    ] * 2


def test_an_entry_point_to_a_missing_package(tmp_path: Path) -> None:
    pack_data.install(tmp_path, package=False)
    assert error_of(tmp_path) == "lucebox-sm86 is installed but its package lucebox_sm86 is not" + MEND


def test_an_entry_point_to_another_package_is_not_imported(tmp_path: Path) -> None:
    pack_data.install(tmp_path, entry="antigravity")
    assert error_of(tmp_path) == (
        "lucebox-sm86: the package of sm_86 must be lucebox_sm86, its entry point says antigravity"
    )


def test_no_manifest(tmp_path: Path) -> None:
    (pack_data.install(tmp_path) / "manifest.json").unlink()
    assert error_of(tmp_path) == f"{WHERE} cannot be read (No such file or directory){MEND}"


def test_a_pack_of_a_target_that_the_host_does_not_know(tmp_path: Path) -> None:
    pack_data.install(tmp_path, "gfx1152")
    (pack,) = found(tmp_path).usable
    assert (pack.target, pack.architecture, pack.distribution) == ("gfx1152", "gfx1152", "lucebox-gfx1152")
    assert pack.manifest.boards == (packs.Board("Board of gfx1152", 8, 24, None),)


def test_a_name_that_no_vendor_gives(tmp_path: Path) -> None:
    pack_data.install(tmp_path, "xe_2", content=pack_data.manifest(target="sm_86"))
    assert error_of(tmp_path) == (
        'lucebox_xe2/manifest.json of lucebox-xe2: "target" must be xe_2 in a pack for xe_2, got sm_86; '
        "build it again (pip wheel --no-deps ./targets/xe_2) and install the wheel"
    )


# the manifest

(CODE,) = pack_data.manifest()["generations"]
FILES, KERNELS = CODE["files"], CODE["kernels"]


def one(items: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    """The list with its second item changed."""
    changed = items[1] | changes
    return [items[0], {key: value for key, value in changed.items() if value is not ...}]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"schema": 4}, "schema 4 is of a newer lucebox; this one reads schema 3"),
        ({"schema": 4, "boards": ..., "shards": 7}, "schema 4 is of a newer lucebox; this one reads schema 3"),
        ({"schema": 0}, "schema 0 is not known; this lucebox reads schema 3"),
        ({"schema": ...}, '"schema" must be 3, got null'),
        ({"schema": "2"}, '"schema" must be 3, got "2"'),
        ({"tuning": ...}, 'key "tuning" is missing'),
        ({"colour": "red"}, 'key "colour" is not known in schema 3'),
        ({"compiler": "nvcc"}, '"generations[0].compiler" must be an object, got "nvcc"'),
        ({"compiler": {"name": "nvcc", "version": "13"}}, 'key "generations[0].compiler.flags" is missing'),
        (
            {"compiler": {"name": "nvcc", "version": "13", "flags": [3]}},
            '"generations[0].compiler.flags[0]" must be a string, got 3',
        ),
        ({"tuning": {"matvec_threads_per_sm": 1.5}}, '"tuning.matvec_threads_per_sm" must be an integer, got 1.5'),
        ({"tuning": {"matvec_threads_per_sm": True}}, '"tuning.matvec_threads_per_sm" must be an integer, got true'),
        (
            {"capabilities": {"bf16": None}},
            '"capabilities.bf16" must be true or false or an integer or a string, got null',
        ),
        ({"min_driver": 580}, '"generations[0].min_driver" must be a string, got 580'),
        ({"variant": ...}, 'key "variant" is missing'),
        ({"variant": "My-Laptop"}, '"variant" must be small letters and digits, got "My-Laptop"'),
        ({"boards": ...}, 'key "boards" is missing'),
        (
            {"boards": [{"name": "A", "sm_count": 8, "memory_gb": "24", "bandwidth_gb_s": None}]},
            '"boards[0].memory_gb" must be an integer or a number or null, got "24"',
        ),
        ({"min_driver": "new"}, '"generations[0].min_driver" must be a version like 580 or 6.0, got "new"'),
        ({"vendor": "intel"}, '"vendor" must be nvidia, amd or sim, got "intel"'),
        ({"archive": 3}, '"archive" must be an object, got 3'),
        ({"archive": FILES[0] | {"file": "a/b"}}, '"archive.file" must be a file name without folders, got "a/b"'),
        ({"files": {}}, '"generations[0].files" must be a list, got {}'),
        ({"files": one(FILES, bytes=-1)}, '"generations[0].files[1].bytes" must not be negative, got -1'),
        (
            {"files": one(FILES, file="../../etc/passwd")},
            '"generations[0].files[1].file" must be a file name without folders, got "../../etc/passwd"',
        ),
        (
            {"files": one(FILES, sha256="f00")},
            '"generations[0].files[1].sha256" must be 64 hexadecimal digits, got "f00"',
        ),
        ({"files": one(FILES, file="rms_norm.cubin")}, '"generations[0].files" names rms_norm.cubin twice'),
        ({"kernels": one(KERNELS, registers=...)}, 'key "generations[0].kernels[1].registers" is missing'),
        (
            {"kernels": one(KERNELS, registers="24")},
            '"generations[0].kernels[1].registers" must be an integer, got "24"',
        ),
        (
            {"kernels": one(KERNELS, file="x.cubin")},
            '"generations[0].kernels[1].file" is "x.cubin", which "files" does not have',
        ),
        ({"generations": []}, '"generations" must have one or more, got none'),
        ({"kernels": one(KERNELS, name="rms_norm_kernel")}, '"generations[0].kernels" names rms_norm_kernel twice'),
    ],
)
def test_a_manifest_out_of_order_names_the_file_and_the_key(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    pack_data.install(tmp_path, content=pack_data.manifest(**changes))
    assert error_of(tmp_path) == f"{WHERE}: {message}{MEND}"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"min_driver": "580"}, '"generations" must be for ever older drivers, got ["580", "580"]'),
        ({"min_driver": "590"}, '"generations" must be for ever older drivers, got ["580", "590"]'),
        ({"kernels": KERNELS[:1]}, 'all "generations" must have the same kernels, they differ in matvec_kernel'),
        (
            {"files": one(FILES, sha256="f00")},
            '"generations[1].files[1].sha256" must be 64 hexadecimal digits, got "f00"',
        ),
    ],
)
def test_a_second_generation_out_of_order(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    pack_data.install(tmp_path, content=pack_data.with_older_code(**changes))
    assert error_of(tmp_path) == f"{WHERE}: {message}{MEND}"


@pytest.mark.parametrize("text", ["", "{", "\0", "[" * 100_000])
def test_a_manifest_that_is_no_json(tmp_path: Path, text: str) -> None:
    pack_data.install(tmp_path, content=text)
    assert error_of(tmp_path).startswith(f"{WHERE} is not JSON: ")


@pytest.mark.parametrize("text", ["3", "[]", "null"])
def test_a_manifest_that_is_no_object(tmp_path: Path, text: str) -> None:
    pack_data.install(tmp_path, content=text)
    assert error_of(tmp_path) == f'{WHERE}: "schema" must be 3, got null{MEND}'


@pytest.mark.parametrize(
    "key, value, expected",
    [("target", "sm_89", "sm_86"), ("architecture", "sm_90a", "sm_86 or sm_86a"), ("vendor", "amd", "nvidia")],
)
def test_a_pack_that_is_not_what_it_announces(tmp_path: Path, key: str, value: str, expected: str) -> None:
    pack_data.install(tmp_path, content=pack_data.manifest(**{key: value}))
    assert error_of(tmp_path) == (
        f'{WHERE} of lucebox-sm86: "{key}" must be {expected} in a pack for sm_86, got {value}{MEND}'
    )


def test_a_pack_of_another_version(tmp_path: Path) -> None:
    pack_data.install(tmp_path, content=pack_data.manifest(version="0.0.9"))
    assert error_of(tmp_path) == (
        f'lucebox-sm86 is version 0.0.9, lucebox is {VERSION}, and they must be equal; pip install "lucebox[sm86]"'
    )


# the files


def load_error(site: Path) -> str:
    (pack,) = found(site).usable
    with pytest.raises(PackError) as error:
        pack.load(pack.manifest.generations[0])
    return str(error.value)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    file = pack_data.install(tmp_path) / "matvec.cubin"
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    message = load_error(tmp_path)
    assert message.startswith(f"{file} is damaged: expected sha256 {FILES[1]['sha256']}, found ")
    assert message.endswith(MEND)


def test_a_truncated_file_is_found(tmp_path: Path) -> None:
    file = pack_data.install(tmp_path) / "matvec.cubin"
    file.write_bytes(file.read_bytes()[:-3])
    size = FILES[1]["bytes"]
    assert load_error(tmp_path) == (
        f"{file} has {size - 3} bytes, the manifest says {size}: it is truncated or replaced{MEND}"
    )


IMAGES = {f"{name}.cubin": f"\x7fELF {name}".encode() * 1000 for name in "abcd"}
CONTENT = b"".join(IMAGES.values())


def packed(site: Path, archive: bytes) -> packs.Pack:
    """A pack of two generations, which has the code IMAGES in this archive."""
    stored, *files = (
        {"file": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in {"code.xz": archive, **IMAGES}.items()
    )
    kernels = [
        [kernel | {"file": f"{name}.cubin"} for kernel, name in zip(KERNELS, pair, strict=True)]
        for pair in ("ab", "cd")
    ]
    content = pack_data.with_older_code(files=files[2:], kernels=kernels[1]) | {"archive": stored}
    content["generations"][0] |= {"files": files[:2], "kernels": kernels[0]}
    folder = pack_data.install(site, content=content)
    (folder / "code.xz").write_bytes(archive)
    (pack,) = found(site).usable
    return pack


def test_an_archive_has_all_code(tmp_path: Path) -> None:
    pack = packed(tmp_path, lzma.compress(CONTENT))
    pack.check()
    newer, older = map(pack.load, pack.manifest.generations)
    assert (list(newer), list(older)) == (["a.cubin", "b.cubin"], ["c.cubin", "d.cubin"])
    assert newer | older == pack.images() == IMAGES


def test_a_flipped_bit_of_an_archive_is_found(tmp_path: Path) -> None:
    pack = packed(tmp_path, lzma.compress(CONTENT))
    file = tmp_path / "lucebox_sm86" / "code.xz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    for act in (pack.check, pack.images):
        with pytest.raises(PackError, match=r"code\.xz is damaged: expected sha256 "):
            act()


@pytest.mark.parametrize(
    "archive, problem",
    [
        (lambda: b"\x7fELF" * 10, "no xz file that can be read (Input format not supported by decoder)"),
        (lambda: lzma.compress(CONTENT)[:-100], "an xz file of "),
        (
            lambda: lzma.compress(CONTENT[:-1]),
            f"an xz file of {len(CONTENT) - 1} bytes, the manifest says {len(CONTENT)} or more",
        ),
        (
            lambda: lzma.compress(CONTENT, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 512 << 20}]),
            "no xz file that can be read (Memory usage limit exceeded)",
        ),
    ],
    ids=["no xz", "cut short", "too few bytes", "a large dictionary"],
)
def test_an_archive_that_cannot_be_unpacked(tmp_path: Path, archive: Callable[[], bytes], problem: str) -> None:
    pack = packed(tmp_path, archive())
    with pytest.raises(PackError) as error:
        pack.images()
    assert str(error.value).startswith(f"{tmp_path / 'lucebox_sm86' / 'code.xz'}: {problem}")
    assert str(error.value).endswith(MEND)


def test_no_more_is_decompressed_than_the_manifest_lists(tmp_path: Path) -> None:
    pack = packed(tmp_path, lzma.compress(CONTENT + bytes(64 << 20)))
    assert pack.images() == IMAGES
    huge = replace(pack.manifest.archive, bytes=1 << 40)
    with pytest.raises(ValueError, match="bytes of code, more than 256 MiB"):
        packs.unpacked(b"", [huge])


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    file = pack_data.install(tmp_path) / "matvec.cubin"
    file.unlink()
    assert load_error(tmp_path) == f"{file} cannot be read (No such file or directory){MEND}"


# the choice


def choose(site: Path, gpu: Gpu, *installed: str) -> packs.Choice:
    for target in installed:
        pack_data.install(site, target)
    return packs.choose(gpu, found(site))


def refusal(site: Path, gpu: Gpu, *installed: str) -> str:
    with pytest.raises(PackError) as error:
        choose(site, gpu, *installed)
    return str(error.value)


@pytest.mark.parametrize("architecture", ["sm_90", "gfx1151", "sim"])
def test_the_exact_pack_goes_first(tmp_path: Path, architecture: str) -> None:
    gpu = Gpu(architecture, driver_generation="580" if architecture == "sm_90" else "7.1")
    choice = choose(tmp_path, gpu, "sm_80", "sm_90", "gfx1151", "sim")
    assert (choice.pack.target, choice.reason) == (architecture, f"pack {architecture} is made for {architecture}")


def test_then_the_nearest_compatible_one_which_says_what_is_better(tmp_path: Path) -> None:
    choice = choose(tmp_path, Gpu("sm_89"), "sm_80", "sm_86", "sm_90")
    assert choice.pack.target == "sm_86"
    assert choice.reason == (
        'pack sm_86 runs on sm_89 by the vendor\'s compatibility rule; sm_89 is better: pip install "lucebox[sm89]"'
    )


def test_a_chip_without_a_pack_of_its_own_runs_a_compatible_one(tmp_path: Path) -> None:
    assert "the pack sm_75, which is not installed (installed: none)" in refusal(tmp_path, Gpu("sm_78"))
    assert choose(tmp_path, Gpu("sm_78"), "sm_75").reason == (
        "pack sm_75 runs on sm_78 by the vendor's compatibility rule"
    )


def test_a_missing_pack_names_the_line(tmp_path: Path) -> None:
    assert refusal(tmp_path, Gpu("sm_89", "NVIDIA L4"), "sm_90") == (
        'NVIDIA L4 (sm_89) needs the pack sm_89, which is not installed (installed: sm_90); pip install "lucebox[sm89]"'
    )


def test_code_with_a_suffix_runs_on_no_other_chip(tmp_path: Path) -> None:
    assert "needs the pack sm_121" in refusal(tmp_path, Gpu("sm_121"), "sm_120", "sm_100")


def test_a_chip_no_pack_runs_on(tmp_path: Path) -> None:
    assert refusal(tmp_path, Gpu("sm_61", "GTX 1080"), "sm_75") == (
        f"GTX 1080 (sm_61): no pack runs on this chip; there are packs for {', '.join(targets.NAMES)}"
    )


def test_a_device_of_a_target_that_the_host_does_not_know(tmp_path: Path) -> None:
    gpu = Gpu("gfx1152", vendor="hip", driver_generation="7.1")
    assert choose(tmp_path, gpu, "gfx1152", "gfx1151").reason == "pack gfx1152 is made for gfx1152"
    assert "no pack runs on this chip" in refusal(tmp_path, Gpu("gfx1153", vendor="hip", driver_generation="7.1"))
    old = Gpu("gfx1152", vendor="hip", driver_generation="5.7")
    assert "pack gfx1152 needs HIP runtime 6.0 or newer" in refusal(tmp_path, old)


def test_an_unknown_targets_code_follows_the_vendors_rule(tmp_path: Path) -> None:
    pack_data.install(tmp_path, "sm_122")
    pack_data.install(tmp_path, "sm_140", content=pack_data.manifest(target="sm_140", architecture="sm_140a"))
    assert choose(tmp_path, Gpu("sm_122")).pack.target == "sm_122"
    assert choose(tmp_path, Gpu("sm_124")).reason == "pack sm_122 runs on sm_124 by the vendor's compatibility rule"
    assert choose(tmp_path, Gpu("sm_140")).reason == "pack sm_140 is made for sm_140"
    assert "no pack runs on this chip" in refusal(tmp_path, Gpu("sm_141"))


def test_the_manifest_suffices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for target in ("sm_80", "sm_90", "gfx1151"):
        pack_data.install(tmp_path, target)
    monkeypatch.setattr(targets, "TARGETS", ())
    assert choose(tmp_path, Gpu("sm_90")).pack.target == "sm_90"
    assert choose(tmp_path, Gpu("sm_89")).pack.target == "sm_80"
    assert choose(tmp_path, Gpu("gfx1151", vendor="hip", driver_generation="7.1")).pack.target == "gfx1151"


def test_a_broken_pack_of_an_unknown_target_is_an_error(tmp_path: Path) -> None:
    pack_data.install(tmp_path, "gfx1152", content="{")
    message = refusal(tmp_path, Gpu("gfx1152", vendor="hip", driver_generation="7.1"))
    assert message.startswith("lucebox_gfx1152/manifest.json is not JSON: ")
    assert message.endswith("; build it again (pip wheel --no-deps ./targets/gfx1152) and install the wheel")


# variants

LAPTOP = "sm_86_laptop"


def installed_at(site: Path, name: str, seconds: int) -> None:
    """A pack that was installed at this time."""
    pack_data.install(site, name)
    (info,) = site.glob(f"{packs.package(name)}-*.dist-info")
    os.utime(info, (seconds, seconds))


def test_a_variant_is_a_pack_of_its_own(tmp_path: Path) -> None:
    pack_data.install(tmp_path, LAPTOP)
    (pack,) = found(tmp_path).usable
    assert (pack.name, pack.target, pack.variant) == (LAPTOP, "sm_86", "laptop")
    assert (pack.distribution, pack.folder.name) == ("lucebox-sm86-laptop", "lucebox_sm86_laptop")
    assert choose(tmp_path, Gpu("sm_86")).reason == f"pack {LAPTOP} is made for sm_86"
    assert choose(tmp_path, Gpu("sm_89")).reason.startswith(f"pack {LAPTOP} runs on sm_89 by the vendor's")


def test_a_variant_goes_before_its_target_whenever_it_was_installed(tmp_path: Path) -> None:
    installed_at(tmp_path, LAPTOP, 1000)
    installed_at(tmp_path, "sm_86", 2000)
    choice = choose(tmp_path, Gpu("sm_86"))
    assert (choice.pack.name, choice.reason) == (LAPTOP, f"pack {LAPTOP} is made for sm_86; preferred over sm_86")


def test_of_two_variants_the_last_installed_one(tmp_path: Path) -> None:
    installed_at(tmp_path, LAPTOP, 2000)
    installed_at(tmp_path, "sm_86_desktop", 1000)
    assert choose(tmp_path, Gpu("sm_86")).pack.name == LAPTOP
    installed_at(tmp_path, "sm_86_tiny", 3000)
    assert choose(tmp_path, Gpu("sm_86")).pack.name == "sm_86_tiny"


def test_the_own_target_goes_before_a_variant_of_an_older_one(tmp_path: Path) -> None:
    assert choose(tmp_path, Gpu("sm_89"), LAPTOP, "sm_89").pack.name == "sm_89"


@pytest.mark.parametrize("name", ["sm_86", LAPTOP])
def test_a_named_pack(tmp_path: Path, name: str) -> None:
    for one in ("sm_86", LAPTOP, "sm_90"):
        pack_data.install(tmp_path, one)
    choice = packs.choose(Gpu("sm_86"), found(tmp_path), name)
    assert (choice.pack.name, choice.reason) == (name, f"pack {name} as asked for")


def test_a_named_pack_is_never_replaced(tmp_path: Path) -> None:
    for one in ("sm_86", "sm_90"):
        pack_data.install(tmp_path, one)
    for device in ("cuda:0", "auto"):
        spec = packs.parse_device(device)
        with pytest.raises(PackError, match=f"there is no pack {LAPTOP}; installed: sm_86, sm_90"):
            packs.select(spec, [Gpu("sm_86")], found(tmp_path), LAPTOP)
        with pytest.raises(PackError, match=r"GPU \(sm_86\): the code of pack sm_90 does not run on this chip"):
            packs.select(spec, [Gpu("sm_86")], found(tmp_path), "sm_90")
    with pytest.raises(PackError, match="there is no GPU for the pack sm_90"):
        packs.select(packs.parse_device("auto"), [], found(tmp_path), "sm_90")
    with pytest.raises(InvalidRequestError, match='device "cpu" takes no pack, got "sm_90"'):
        packs.select(packs.parse_device("cpu"), [], found(tmp_path), "sm_90")


def test_a_variant_of_another_version_says_how_to_mend_it(tmp_path: Path) -> None:
    pack_data.install(tmp_path, "sm_86")
    pack_data.install(tmp_path, LAPTOP, content=pack_data.manifest(LAPTOP, version="0.0.9"))
    assert refusal(tmp_path, Gpu("sm_86")) == (
        f"lucebox-sm86-laptop is version 0.0.9, lucebox is {VERSION}, and they must be equal; "
        "build the variant again and install its wheel, or pip uninstall lucebox-sm86-laptop"
    )


def test_a_variant_in_the_wheel_of_its_target_is_refused(tmp_path: Path) -> None:
    pack_data.install(tmp_path, content=pack_data.manifest(LAPTOP))
    message = error_of(tmp_path)
    assert message == f'{WHERE} of lucebox-sm86: "variant" must be empty in a pack for sm_86, got laptop{MEND}'


def test_a_broken_exact_pack_is_an_error_and_no_reason_to_take_another(tmp_path: Path) -> None:
    pack_data.install(tmp_path, "sm_86", content="{")
    assert refusal(tmp_path, Gpu("sm_86"), "sm_80").startswith(f"{WHERE} is not JSON: ")


@pytest.mark.parametrize(
    "gpu, installed, message",
    [
        (
            Gpu("sm_86", driver="CUDA 12.4", driver_generation="550"),
            "sm_86",
            "pack sm_86 needs NVIDIA driver 580 or newer; the one of GPU is of generation 550 (CUDA 12.4). "
            "Update it, then run `lucebox doctor`",
        ),
        (
            Gpu("gfx1151", vendor="hip", driver="HIP 5.7", driver_generation="5.7"),
            "gfx1151",
            "pack gfx1151 needs HIP runtime 6.0 or newer; the one of GPU is of generation 5.7 (HIP 5.7). "
            "Update it, then run `lucebox doctor`",
        ),
    ],
)
def test_an_old_driver(tmp_path: Path, gpu: Gpu, installed: str, message: str) -> None:
    assert refusal(tmp_path, gpu, installed) == message


@pytest.mark.parametrize(
    "generation, compiler, end",
    [
        ("525", "nvrtc", "; driver 580 or newer would load its code by nvcc, a little faster"),
        ("575", "nvrtc", "; driver 580 or newer would load its code by nvcc, a little faster"),
        ("580", "nvcc", ""),
        ("600", "nvcc", ""),
    ],
)
def test_the_newest_code_that_the_driver_loads(tmp_path: Path, generation: str, compiler: str, end: str) -> None:
    pack_data.install(tmp_path, content=pack_data.with_older_code())
    choice = packs.choose(Gpu("sm_86", driver_generation=generation), found(tmp_path))
    assert choice.code.compiler.name == compiler
    assert choice.reason == f"pack sm_86 is made for sm_86{end}"


def test_a_driver_too_old_for_all_code(tmp_path: Path) -> None:
    pack_data.install(tmp_path, content=pack_data.with_older_code())
    with pytest.raises(
        PackError, match=r"needs NVIDIA driver 525 or newer; the one of GPU is of generation 520 \(CUDA"
    ):
        packs.choose(Gpu("sm_86", driver="CUDA 11.8", driver_generation="520"), found(tmp_path))


# devices by name


@pytest.mark.parametrize(
    "text, expected",
    [
        ("auto", ("auto", 0)),
        ("cpu", ("cpu", 0)),
        ("sim", ("sim", 0)),
        ("sim:1", ("sim", 1)),
        ("CUDA", ("cuda", 0)),
        ("cuda:12", ("cuda", 12)),
        ("hip:1", ("hip", 1)),
    ],
)
def test_parse_device(text: str, expected: tuple[str, int]) -> None:
    assert packs.parse_device(text) == packs.DeviceSpec(*expected)


@pytest.mark.parametrize("text", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0", "sm_86", "cuda:0 "])
def test_parse_device_refuses(text: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        packs.parse_device(text)
    assert str(error.value) == f'device must be auto, cpu, cuda:N, hip:N or sim:N (N counts from 0), got "{text}"'


def test_parse_devices() -> None:
    assert packs.parse_devices("cuda:1") == (packs.DeviceSpec("cuda", 1),)
    assert packs.parse_devices("sim:2, sim,SIM:1") == tuple(packs.DeviceSpec("sim", i) for i in (2, 0, 1))
    assert packs.parse_devices("cuda:0,hip:1") == (packs.DeviceSpec("cuda", 0), packs.DeviceSpec("hip", 1))


@pytest.mark.parametrize(
    "text, message",
    [
        ("cuda:0,cpu", 'several devices are GPUs by their names, as cuda:0,cuda:1; "cpu" in "cuda:0,cpu" is none'),
        ("cuda,cuda:0", '"cuda,cuda:0" names cuda:0 twice; name each device once'),
        ("cuda:0,", 'device must be auto, cpu, cuda:N, hip:N or sim:N (N counts from 0), got ""'),
    ],
)
def test_parse_devices_refuses(text: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        packs.parse_devices(text)
    assert str(error.value) == message


def select(text: str, gpus: list[Gpu], site: Path) -> packs.Selection:
    return packs.select(packs.parse_device(text), gpus, found(site))


def test_auto_takes_the_first_device_with_a_pack_and_says_why_not_the_others(tmp_path: Path) -> None:
    pack_data.install(tmp_path, "gfx1151")
    amd = Gpu("gfx1151", vendor="hip", driver_generation="7.1")
    selection = select("auto", [Gpu("sm_61"), Gpu("sm_86", index=1), amd], tmp_path)
    assert (selection.device, selection.info) == ("hip:0", amd)
    assert [line.partition(": ")[0] for line in selection.report] == ["cuda:0", "cuda:1", "hip:0"]
    assert "no pack runs on this chip" in selection.report[0]
    assert 'pip install "lucebox[sm86]"' in selection.report[1]
    assert selection.report[2] == "hip:0: pack gfx1151 is made for gfx1151"


def test_auto_ends_at_the_cpu_with_the_reasons(tmp_path: Path) -> None:
    selection = select("auto", [Gpu("sm_86")], tmp_path)
    assert (selection.device, selection.choice) == ("cpu", None)
    assert "sm_86, which is not installed (installed: none)" in selection.report[0]
    assert selection.report[1] == "cpu: no GPU has a usable pack"
    assert select("auto", [], tmp_path).report == ("cpu: no GPU found",)


def test_auto_never_takes_sim(tmp_path: Path) -> None:
    pack_data.install(tmp_path, "sim")
    assert select("auto", [Gpu("sim", vendor="sim")], tmp_path).device == "cpu"
    assert select("sim", [Gpu("sim", vendor="sim")], tmp_path).device == "sim:0"


def test_a_named_device_is_never_replaced(tmp_path: Path) -> None:
    pack_data.install(tmp_path, "sm_86")
    gpus = [Gpu("sm_86"), Gpu("sm_61", index=1)]
    assert select("cuda", gpus, tmp_path).report == ("cuda:0: pack sm_86 is made for sm_86",)
    with pytest.raises(PackError, match="no pack runs on this chip"):
        select("cuda:1", gpus, tmp_path)
    with pytest.raises(PackError) as error:
        select("hip:1", gpus, tmp_path)
    assert str(error.value) == ("there is no device hip:1; devices found: cuda:0, cuda:1. `lucebox doctor` says more")


def test_cpu_is_the_cpu(tmp_path: Path) -> None:
    assert select("cpu", [Gpu("sm_86")], tmp_path).report == ("cpu: as asked for",)
