"""ci/targets.py: what the schema of target.toml takes and refuses."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import targets
from targets import ROOT, TargetError

KNOWN = targets.load_all()
SUFFIXED = [target for target in KNOWN if target.architecture.endswith("a")]

# One whole target with every key, in a tree that has two kernel files.
WHOLE = """
schema = 1
name = "sm_86"
vendor = "nvidia"
architecture = "sm_86"
min_driver = "580"
nvrtc = { version = "12.4", min_driver = "525" }
hosts = ["x86_64"]

[[boards]]
name = "GeForce RTX 3090"
sm_count = 82
memory_gb = 24
bandwidth_gb_s = 936
source = "a datasheet"

[capabilities]
bf16 = true
matrix = "mma_bf16"
async_copy = true
fp8 = false
fp4 = false
tma = false
clusters = false
shared_block_bytes = 101376
warp_size = 32

[tuning]
matvec_threads_per_sm = 512
speculation_budget = 22
prefill_chunk = 512
megakernel_max_mib = 0
megakernel_max_kv_mib = 0

[[exceptions]]
kernel = "rope_kernel"
what = "spill"
reason = "measured: it is faster so"
"""


DRIVERS = 'min_driver = "580"\nnvrtc = { version = "12.4", min_driver = "525" }\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for file in ("src/gpu/elementwise/rope.cpp", "src/gpu/gemm/gemm.cpp", "src/gpu/gemm/choose.cpp"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    write(tmp_path, WHOLE)
    return tmp_path


def write(tree: Path, text: str, name: str = "sm_86") -> None:
    folder = tree / "targets" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "target.toml").write_text(text)


# The schema


def test_every_key_is_read(tree: Path) -> None:
    target = targets.load("sm_86", tree)
    assert (target.slug, target.hosts, target.min_driver) == ("sm86", ("x86_64",), "580")
    assert (target.nvrtc, target.oldest_driver) == (targets.Nvrtc("12.4", "525"), "525")
    assert target.boards == (targets.Board("GeForce RTX 3090", "a datasheet", 82, 24, 936),)
    assert (target.capabilities.matrix, target.tuning.speculation_budget) == ("mma_bf16", 22)
    assert target.exceptions[0].kernel == "rope_kernel"


@pytest.mark.parametrize(
    ("needs", "is_met"),
    [
        ("", True),
        ("// Needs: async_copy", True),
        ("// Needs: tma", False),
        ("// Needs: no tma, mma_bf16", True),
        ("// Needs: nvidia, 99 KiB of shared memory", True),
        ("// Needs: 100 KiB of shared memory", False),
        ("// Needs: async_copy, wgmma", False),
        ("// Needs: amd", False),
    ],
)
def test_a_kernel_file_goes_in_where_its_needs_are_met(tree: Path, needs: str, is_met: bool) -> None:
    (tree / "src/gpu/gemm/gemm.cpp").write_text(f"// GEMM.\n{needs}\n")
    chosen = ["src/gpu/elementwise/rope.cpp", *(["src/gpu/gemm/gemm.cpp"] if is_met else [])]
    assert sorted(targets.load("sm_86", tree).sources(tree)) == chosen


def test_the_simulator_has_every_kernel(tree: Path) -> None:
    (tree / "src/gpu/gemm/gemm.cpp").write_text("// Needs: wgmma, no tma\n")
    board = WHOLE[WHOLE.index("[[boards]]") : WHOLE.index("[capabilities]")]
    sim = WHOLE.replace(board, "").replace(DRIVERS, "").replace("sm_86", "sim")
    write(tree, sim.replace("nvidia", "sim").replace("mma_bf16", "emulated"), "sim")
    assert "src/gpu/gemm/gemm.cpp" in targets.load("sim", tree).sources(tree)


def test_an_unknown_need_is_refused(tree: Path) -> None:
    (tree / "src/gpu/gemm/gemm.cpp").write_text("// Needs: tma, magic\n")
    message = re.escape("src/gpu/gemm/gemm.cpp: Needs: 'magic': expected N KiB of shared memory, or amd, async_copy")
    with pytest.raises(TargetError, match=message):
        targets.load("sm_86", tree).sources(tree)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 1\ncolour = 3", "colour: no such key; the keys are schema, name, vendor"),
        ("fp4 = false", "fp4 = false\nfp6 = true", "capabilities.fp6: no such key; the keys are bf16, matrix"),
        (
            "matvec_threads",
            "matvec_thread",
            "tuning.matvec_thread_per_sm: no such key; the keys are matvec_threads_per_sm",
        ),
        ("sm_count = 82", "sms = 82", "boards[0].sms: no such key; the keys are name, source, sm_count"),
        ("schema = 1\n", "", "schema: missing"),
        ("tma = false\n", "", "capabilities.tma: missing"),
        ("speculation_budget = 22\n", "", "tuning.speculation_budget: missing"),
        ('source = "a datasheet"\n', "", "boards[0].source: missing"),
        ('reason = "measured: it is faster so"', "", "exceptions[0].reason: missing"),
        ("bf16 = true", "bf16 = 1", "capabilities.bf16: expected true or false, got 1"),
        ("sm_count = 82", "sm_count = true", "boards[0].sm_count: expected an integer, got True"),
        ("memory_gb = 24", 'memory_gb = "24"', "boards[0].memory_gb: expected a number, got '24'"),
        ('["x86_64"]', '"x86_64"', "hosts: expected a list, got 'x86_64'"),
        ('["x86_64"]', "[64]", "hosts[0]: expected a string, got 64"),
        ('"a datasheet"', '" "', "boards[0].source: expected text, got ' '"),
        ("[[boards]]", "[boards]", "boards: expected a list, got {"),
        ("[[boards]]", "boards = [1]\n[[boars]]", "boars: no such key"),
        ("schema = 1", "schema = 2", "schema: expected 1, got 2"),
        ("schema = 1", "schema = ", "not TOML"),
        ('name = "sm_86"', 'name = "sm_89"', "name: expected 'sm_86', the name of the folder, got 'sm_89'"),
        ('"nvidia"', '"intel"', "vendor: expected one of nvidia, amd, sim, got 'intel'"),
        ('"nvidia"', '"amd"', "architecture: 'sm_86' is none of vendor 'amd'"),
        ('architecture = "sm_86"', 'architecture = "sm_80"', "architecture: expected 'sm_86' or 'sm_86a', got 'sm_80'"),
        ('"580"', '"new"', "min_driver: expected a version such as '580' or '6.0', got 'new'"),
        ('min_driver = "580"\n', "", "min_driver: expected a version such as '580' or '6.0', got ''"),
        ('"12.4"', '"13.0"', "nvrtc.version: expected a release of CUDA 12 such as '12.4', got '13.0'"),
        ('"12.4"', '"12"', "nvrtc.version: expected a release of CUDA 12 such as '12.4', got '12'"),
        ('"525"', '"590"', "nvrtc.min_driver: expected 580 or an older driver, got '590'"),
        ('"525"', '"old"', "nvrtc.min_driver: expected 580 or an older driver, got 'old'"),
        (', min_driver = "525"', "", "nvrtc.min_driver: missing"),
        ('what = "spill"', 'what = "spill"\ncompiler = "gcc"', "exceptions[0].compiler: expected nvcc or nvrtc of a"),
        ('["x86_64"]', '["riscv64"]', "hosts: expected some of x86_64, aarch64, got ['riscv64']"),
        ('["x86_64"]', "[]", "hosts: expected some of x86_64, aarch64, got []"),
        ('"mma_bf16"', '"magic"', "capabilities.matrix: expected one of mma_f16, mma_bf16"),
        ('"mma_bf16"', '"wgmma"', "capabilities.matrix: sm_86 has no wgmma; it has mma_bf16"),
        ("bf16 = true", "bf16 = false", "capabilities.bf16: false contradicts matrix = 'mma_bf16'"),
        ("fp4 = false", "fp4 = true", "capabilities.fp4: sm_86 has none, got true"),
        ("fp8 = false", "fp8 = true", "capabilities.fp8: sm_86 has none, got true"),
        ("tma = false", "tma = true", "capabilities.tma: sm_86 has none, got true"),
        ("clusters = false", "clusters = true", "capabilities.clusters: sm_86 has none, got true"),
        ("101376", "99", "capabilities.shared_block_bytes: expected whole KiB from 16 to 256, got 99 bytes"),
        ("warp_size = 32", "warp_size = 64", "capabilities.warp_size: expected 32, which every kernel is written for"),
        (
            "per_sm = 512",
            "per_sm = 500",
            "tuning.matvec_threads_per_sm: expected 32 to 2048, a multiple of 32, got 500",
        ),
        ("budget = 22", "budget = 65", "tuning.speculation_budget: expected 1 to 64, got 65"),
        ("chunk = 512", "chunk = 96", "tuning.prefill_chunk: expected 64 to 8192, a multiple of 64, got 96"),
        ("sm_count = 82", "sm_count = 0", "boards[0].sm_count: expected more than 0, got 0"),
        ('"spill"', '"slow"', "exceptions[0].what: expected one of spill, got 'slow'"),
    ],
)
def test_refused(tree: Path, old: str, new: str, message: str) -> None:
    assert old in WHOLE
    write(tree, WHOLE.replace(old, new, 1))
    with pytest.raises(TargetError, match=re.escape(message)) as error:
        targets.load("sm_86", tree)
    assert str(error.value).startswith("targets/sm_86/target.toml: ")


def test_boards_are_named_once_and_there(tree: Path) -> None:
    board = WHOLE[WHOLE.index("[[boards]]") : WHOLE.index("[capabilities]")]
    write(tree, WHOLE.replace(board, board + board))
    with pytest.raises(TargetError, match=re.escape("boards[1].name: 'GeForce RTX 3090' is there twice")):
        targets.load("sm_86", tree)
    write(tree, WHOLE.replace(board, ""))
    with pytest.raises(TargetError, match="boards: expected one or more, got 0"):
        targets.load("sm_86", tree)


def test_sim_has_no_driver(tree: Path) -> None:
    sim = WHOLE.replace("sm_86", "sim").replace("nvidia", "sim").replace("mma_bf16", "emulated")
    write(tree, sim, "sim")
    with pytest.raises(TargetError, match="min_driver: sim needs no driver, got '580'"):
        targets.load("sim", tree)


def test_no_such_target(tree: Path) -> None:
    with pytest.raises(TargetError, match=r"targets/sm_99/target.toml: no such file; the targets are sm_86"):
        targets.load("sm_99", tree)


@pytest.mark.parametrize("target", SUFFIXED, ids=lambda target: target.name)
def test_family_instructions_need_the_suffix(target: targets.Target) -> None:
    # ptxas accepts: wgmma, tcgen05 and block-scaled FP4 exist in code with the `a` suffix alone.
    plain = dataclasses.replace(target, architecture=target.name)
    assert targets._check_capabilities(target, target.name, ROOT) is None
    assert f"{target.name} has no" in str(targets._check_capabilities(plain, target.name, ROOT))


# Variants

LAPTOP = """
inherits = "sm_86"
without = ["gemm"]

[tuning]
speculation_budget = 12
"""


def test_a_variant_changes_constants_and_leaves_out_files(tree: Path) -> None:
    write(tree, LAPTOP, "sm_86_laptop")
    base, target = targets.load("sm_86", tree), targets.load("sm_86_laptop", tree)
    assert (target.name, target.family, target.variant) == ("sm_86_laptop", "sm_86", "laptop")
    assert (target.slug, target.project) == ("sm86_laptop", "lucebox-sm86-laptop")
    assert target.tuning == dataclasses.replace(base.tuning, speculation_budget=12)
    assert target.sources(tree) == ["src/gpu/elementwise/rope.cpp"]
    assert (target.architecture, target.capabilities, target.boards) == (
        base.architecture,
        base.capabilities,
        base.boards,
    )
    assert targets.names(tree) == ["sm_86", "sm_86_laptop"]


def test_options_give_the_variant_of_a_folder(tree: Path) -> None:
    write(tree, LAPTOP, "sm_86_laptop")
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    targets.add_arguments(parser)
    words = ["sm_86", "--variant=laptop", "--tuning=speculation_budget=12", "--without=gemm"]
    assert targets.chosen(parser.parse_args(words), tree) == targets.load("sm_86_laptop", tree)
    assert targets.chosen(parser.parse_args(["sm_86"]), tree) == targets.load("sm_86", tree)
    many = ["sm_86", "--variant=x", "--tuning=speculation_budget=12; prefill_chunk=256", "--without=gemm,rope"]
    target = targets.chosen(parser.parse_args(many), tree)
    assert (target.tuning.prefill_chunk, target.without) == (256, ("gemm", "rope"))
    compiled = targets.chosen(parser.parse_args(["sm_86", "--variant=x", "--defines=LUCEBOX_GEMV_BLOCKS=3"]), tree)
    write(tree, 'inherits = "sm_86"\n\n[defines]\nLUCEBOX_GEMV_BLOCKS = 3\n', "sm_86_x")
    assert compiled == targets.load("sm_86_x", tree) and compiled.defines == {"LUCEBOX_GEMV_BLOCKS": 3}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tuning=speculation_budget=12"], "tuning: a changed sm_86 needs a name of its own: set the variant"),
        (["--without=gemm"], "without: a changed sm_86 needs a name of its own: set the variant"),
        (["--variant=My-Laptop"], "expected a word of small letters and digits behind sm_86_, got 'My-Laptop'"),
        (["--variant=x", "--tuning=speed=9"], "tuning.speed: no such constant; they are matvec_threads_per_sm"),
        (["--variant=x", "--tuning=speculation_budget"], "tuning: expected KEY=N, got 'speculation_budget'"),
        (["--variant=x", "--tuning=speculation_budget=65"], "tuning.speculation_budget: expected 1 to 64, got 65"),
        (["--variant=x", "--without=gemv"], "without: sm_86 has no kernel file gemv; it has rope, gemm"),
    ],
)
def test_options_refused(tree: Path, words: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    targets.add_arguments(parser)
    with pytest.raises(TargetError, match=re.escape(message)):
        targets.chosen(parser.parse_args(["sm_86", *words]), tree)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("sm_86_x", LAPTOP + "[defines]\nSPEED = 3\n", "defines.SPEED: no such constant; they are LUCEBOX_GEMV_BLOCKS"),
        ("sm_86_x", LAPTOP + "[defines]\nLUCEBOX_GEMV_BLOCKS = true\n", "expected 1 to 4, got True"),
        ("sm_86_x", "defines = 3\n" + LAPTOP, "defines: expected a table, got 3"),
        ("sm_86_x", LAPTOP + "colour = 3\n", "tuning.colour: no such constant"),
        (
            "sm_86_x",
            "boards = []\n" + LAPTOP,
            "boards: no such key of a variant; the keys are inherits, tuning, defines, without",
        ),
        ("sm_89_x", LAPTOP, "inherits: expected the start of the folder's name, got 'sm_86'"),
        ("sm_86_x", LAPTOP.replace("12", '"12"'), "tuning.speculation_budget: expected an integer, got '12'"),
        ("sm_86_x", LAPTOP.replace('"gemm"', "1"), "without[0]: expected a string, got 1"),
        ("sm_99_x", LAPTOP.replace("sm_86", "sm_99"), "targets/sm_99/target.toml: no such file"),
    ],
)
def test_folders_refused(tree: Path, name: str, text: str, message: str) -> None:
    write(tree, text, name)
    with pytest.raises(TargetError, match=re.escape(message)):
        targets.load(name, tree)


def test_a_variant_of_a_variant_is_refused(tree: Path) -> None:
    write(tree, LAPTOP, "sm_86_laptop")
    write(tree, LAPTOP.replace("sm_86", "sm_86_laptop"), "sm_86_laptop_x")
    with pytest.raises(TargetError, match="sm_86_laptop is a variant itself; vary sm_86"):
        targets.load("sm_86_laptop_x", tree)


# The folders


def test_every_folder_is_a_target_in_the_order_of_the_tables() -> None:
    names = [target.name for target in KNOWN]
    assert sorted(names) == sorted(folder.name for folder in (ROOT / "targets").iterdir() if folder.is_dir())
    vendors = [target.vendor for target in KNOWN]
    assert vendors == sorted(vendors, key=["nvidia", "amd", "sim"].index)
    for vendor in ("nvidia", "amd"):
        numbers = [int(re.sub(r"\D", "", target.name)) for target in KNOWN if target.vendor == vendor]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("target", [SUFFIXED[0], KNOWN[-1]], ids=lambda target: target.name)
def test_a_description_is_what_the_file_says(target: targets.Target) -> None:
    command = [sys.executable, ROOT / "ci/targets.py", target.name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    told = json.loads(done.stdout)
    assert (told["slug"], told["architecture"]) == (target.slug, target.architecture)
    assert told["capabilities"] == dataclasses.asdict(target.capabilities)
    assert told["sources"] == target.sources()
    failed = subprocess.run([sys.executable, ROOT / "ci/targets.py", "sm_99"], capture_output=True, text=True)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("targets/sm_99/target.toml: no such file")


HEAD = "id,architecture,name,source\n"
ROW = "10de:2204,sm_86,GeForce RTX 3090,pci.ids\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,name\n", "expected the columns id, architecture, name, source"),
        (HEAD + "10de:2204,sm_86,GeForce RTX 3090,\n", "pci_ids.csv:2: expected 4 cells with text"),
        (HEAD + "8086:2204,sm_86,GeForce RTX 3090,pci.ids\n", "pci_ids.csv:2: id must be 10de or 1002"),
        (HEAD + "10de:2204,gfx1100,GeForce RTX 3090,pci.ids\n", "'gfx1100' is no architecture of nvidia"),
        (HEAD + ROW + ROW, "expected every id once"),
        (HEAD + "1002:744c,gfx1100,Radeon,pci.ids\n" + ROW, "NVIDIA's first, in order"),
    ],
)
def test_pci_ids_out_of_order(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets/pci_ids.csv").write_text(text)
    with pytest.raises(targets.TargetError, match=re.escape(words)):
        targets.load_pci_ids(tmp_path)
