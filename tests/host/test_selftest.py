"""The runner of `lucebox selftest`, on fake devices that compute on the CPU, some of them wrong on purpose."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pack_data
import pytest
from lucebox import packs, selftest
from lucebox.cli.selftest import print_report
from lucebox.errors import DeviceError, UnsupportedError
from lucebox.packs import Manifest
from lucebox.selftest import LIMITS, Case, cases, runner
from lucebox.selftest.products import FP8_GEMMS
from numpy.typing import NDArray
from reference.attention import round_to
from reference.linear import linear

OPS = (
    "embed",
    "rms_norm",
    "gated_rms_norm",
    "linear",
    "linear_group",
    "swiglu",
    "geglu",
    "add_norm",
    "soft_cap",
    "rms_norm_rounded",
    "gated_rms_norm_rounded",
    "swiglu_rounded",
    "megakernel",
    "route_experts",
    "mix_experts",
    "add_bias",
    "rope",
    "rope_table",
    "causal_conv",
    "delta_prepare",
    "delta_inputs",
    "gated_delta",
    "kv_append",
    "attention_prepare",
    "kv_move",
    "attention",
    "read_memory",
    "sample_batched",
    "copy_rows",
    "previous_row",
    "block_conv",
    "top_tokens",
    "select_candidates",
    "grow_tree",
    "key_scores",
    "key_means",
    "select_blocks",
    "layer_norm",
    "bias_gelu",
    "read_patches",
    "add_positions",
    "split_heads",
    "merge_heads",
    "clamp",
    "pool_patches",
    "add_axis_positions",
    "loopback_sum",
    "loopback_gather",
)
KERNEL = pack_data.manifest()["generations"][0]["kernels"][0]


@pytest.fixture(scope="module")
def known() -> list[Case]:
    """The cases, with the CPU's results cached: the tests differ only in the device."""
    return [
        replace(
            case,
            reference=functools.cache(case.reference),
            unit=functools.cache(partial(case.unit_of, None)) if callable(case.unit) else case.unit,
        )
        for case in cases(np.random.default_rng(1), "BF16", FP8_GEMMS[:2])
    ]


@pytest.fixture(autouse=True)
def only_known(monkeypatch: pytest.MonkeyPatch, known: list[Case]) -> None:
    monkeypatch.setattr(runner, "cases", lambda _, wide, fp8: known)


class Twin:
    """A device that computes on the CPU and reports the kernel `<op>_kernel`."""

    name = "sim:0"

    def __init__(self, *more_kernels: str) -> None:
        kernels = [KERNEL | {"name": name} for name in (*(f"{op}_kernel" for op in OPS), *more_kernels)]
        self.manifest = Manifest.parse(json.dumps(pack_data.manifest(kernels=kernels)), "manifest.json")

    def call(self, case: Case) -> tuple[NDArray[Any], list[str]]:
        return case.collect(case.reference()).copy(), [f"{case.op}_kernel"]


def result(report: selftest.Report, kernel: str) -> selftest.KernelResult:
    return next(result for result in report.kernels if result.kernel == kernel)


@pytest.mark.slow  # 9 s
def test_a_right_device_passes_every_kernel() -> None:
    heard: list[tuple[int, int]] = []
    report = selftest.run(Twin(), 1, lambda done, total, _: heard.append((done, total)))
    assert report.ok and report.errors == ()
    assert (report.device, report.pack, report.seed) == ("sim:0", "sm_86", 1)
    assert [kernel.verdict for kernel in report.kernels] == ["ok"] * len(OPS)
    assert all(kernel.n_cases >= 2 and kernel.worst == 0 and kernel.seconds > 0 for kernel in report.kernels)
    total = sum(kernel.n_cases for kernel in report.kernels)
    assert heard == [(done, total) for done in range(total)]


def test_a_kernel_no_case_reaches_fails_as_no_test() -> None:
    report = selftest.run(Twin("new_kernel"), 1)
    assert not report.ok
    assert result(report, "new_kernel").verdict == "no test"
    assert result(report, "rope_kernel").verdict == "ok"


@pytest.mark.parametrize("has_bf16", [True, False])
def test_x_that_meets_bf16_is_rounded_as_the_chip_does(has_bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """x is rounded to f16 where matrix units have no bf16."""
    made: list[Case] = []

    def first_product(rng: np.random.Generator, wide: str, fp8: Sequence[str]) -> list[Case]:
        made.append(
            next(case for case in cases(rng, wide, fp8) if case.limit == "matrix" and case.arguments[1] == "BF16")
        )
        return made

    monkeypatch.setattr(runner, "cases", first_product)
    device = Twin()
    device.manifest = replace(device.manifest, capabilities={**device.manifest.capabilities, "bf16": has_bf16})
    selftest.run(device, 3)
    (case,) = made
    w, _, n_out, _, x, add = case.arguments
    wide = "BF16" if has_bf16 else "F16"
    rounded = round_to(x, wide)
    want = linear(w, "BF16", n_out, rounded, "f32")[0] + (0 if add is None else add)
    assert np.allclose(case.reference(), want, rtol=1e-5, atol=1e-5)


class Wrong(Twin):
    """A device with one wrong element in each result of these ops."""

    def __init__(self, *ops: str) -> None:
        super().__init__()
        self._ops = ops

    def call(self, case: Case) -> tuple[NDArray[Any], list[str]]:
        y, kernels = super().call(case)
        if case.op in self._ops:
            y.reshape(-1)[-1] += 1
        return y, kernels


def test_one_wrong_element_is_found_and_told() -> None:
    report = selftest.run(Wrong(*OPS), 2)
    assert not report.ok
    for op in OPS:
        failed = result(report, f"{op}_kernel")
        assert failed.verdict == "failed" and failed.worst > failed.limit
        assert failed.problem is not None and failed.problem.startswith(f"{op}([") and ", expected " in failed.problem


def test_a_wrong_kernel_fails_alone() -> None:
    report = selftest.run(Wrong("rope"), 2)
    assert [kernel.kernel for kernel in report.kernels if kernel.verdict != "ok"] == ["rope_kernel"]


def test_an_unwritten_value_is_found() -> None:
    class Forgetful(Twin):
        def call(self, case: Case) -> tuple[NDArray[Any], list[str]]:
            y, kernels = super().call(case)
            y = y.astype(np.float32)
            y.reshape(-1)[0] = np.nan
            return y, kernels

    report = selftest.run(Forgetful(), 3)
    assert {kernel.verdict for kernel in report.kernels} == {"failed"}
    problem = result(report, "swiglu_kernel").problem
    assert problem is not None and problem.endswith("1 NaN, expected 0")


def test_an_op_the_pack_lacks_is_left_out_and_its_kernel_has_no_test() -> None:
    class Lacking(Twin):
        def call(self, case: Case) -> tuple[NDArray[Any], list[str]]:
            if case.op == "rope":
                raise UnsupportedError("rope has no kernel in this pack")
            return super().call(case)

    report = selftest.run(Lacking(), 4)
    assert report.errors == ()
    assert [kernel.kernel for kernel in report.kernels if kernel.verdict == "no test"] == ["rope_kernel"]


def test_a_device_that_fails_is_an_error_of_its_case() -> None:
    class Failing(Twin):
        def call(self, case: Case) -> tuple[NDArray[Any], list[str]]:
            if case.op == "swiglu":
                raise DeviceError("cuLaunchKernel failed: CUDA_ERROR_ILLEGAL_ADDRESS")
            return super().call(case)

    report = selftest.run(Failing(), 5)
    assert not report.ok
    assert report.errors[0] == ("swiglu([1, 17408], [1, 17408]): cuLaunchKernel failed: CUDA_ERROR_ILLEGAL_ADDRESS")


@pytest.mark.skipif(
    all(pack.target != "sim" for pack in packs.find().usable), reason="the pack lucebox-sim is not installed"
)
def test_the_command_on_the_simulator() -> None:
    command = [sys.executable, "-m", "lucebox", "selftest", "--device", "sim", "--seed", "11"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "sim:0: pack sim is made for sim\n"
    report = json.loads(done.stdout)
    assert (report["ok"], report["seed"], report["errors"]) == (True, 11, [])
    assert {kernel["verdict"] for kernel in report["kernels"]} == {"ok"}
    table = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    n = len(report["kernels"])
    assert table.endswith(f"\n{n} of {n} kernels of pack sim ok on sim:0, seed 11\n")


ALL_SIM = ", ".join(f"sim:{i}" for i in range(8))


@pytest.mark.parametrize(
    "device, message",
    [
        ("cpu", "a self-test compares a GPU pack with the CPU: device must be cuda:N, hip:N or sim"),
        ("gpu", 'device must be auto, cpu, cuda:N, hip:N or sim:N (N counts from 0), got "gpu"'),
        ("sim:8", f"there is no device sim:8; devices found: {ALL_SIM}. `lucebox doctor` says more"),
    ],
)
def test_the_command_refuses(device: str, message: str) -> None:
    command = [sys.executable, "-m", "lucebox", "selftest", "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"lucebox: error: {message}\n")


def test_the_printed_report(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = (
        selftest.KernelResult("good_kernel", 3, 2e-7, 1e-5, 0.25),
        selftest.KernelResult("bad_kernel", 2, 0.5, 1e-5, 0.5, "rope([1]): element [0] is 1, expected 2"),
        selftest.KernelResult("new_kernel"),
    )
    print_report(selftest.Report("cuda:0", "sm_86", 7, kernels, tuple(f"case {i} failed" for i in range(9))))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["kernel", "cases", "worst", "limit", "time", "result"]
    assert lines[1].split() == ["good_kernel", "3", "2.0e-07", "1e-05", "250.0", "ms", "ok"]
    assert lines[2].endswith("failed: rope([1]): element [0] is 1, expected 2")
    assert lines[3].split() == ["new_kernel", "0", "no", "test"]
    assert lines[4:9] == [f"case {i} failed" for i in range(5)]
    assert lines[-1] == "1 of 3 kernels of pack sm_86 ok on cuda:0, seed 7, 9 cases could not run"


def test_a_seed_repeats_its_inputs_and_another_gives_others() -> None:
    def inputs(seed: int) -> list[bytes]:
        made = islice(cases(np.random.default_rng(seed), "BF16", FP8_GEMMS[:2]), 200)
        return [a.tobytes() for case in made for a in case.arguments if isinstance(a, np.ndarray)]

    assert inputs(7) == inputs(7)
    assert inputs(7) != inputs(8)


def test_cases_are_finite_odd_sized_and_have_a_limit(known: list[Case]) -> None:
    assert {case.limit for case in known} <= LIMITS.keys()
    assert {case.op for case in known} == set(OPS)
    for case in known:
        y = case.collect(case.reference())
        assert np.isfinite(y).all(), case.label
    for op in set(OPS) - {"read_memory", "loopback_sum", "megakernel"}:  # whole 16 bytes; the same; an odd n_out
        sizes = [
            n for case in known if case.op == op for a in case.arguments if isinstance(a, np.ndarray) for n in a.shape
        ]
        assert any(n > 1 and n % 2 for n in sizes), op


@pytest.mark.parametrize(
    "got, expected, error, problem",
    [
        ([[1.0, 2.0]], [[1.0, 2.0]], 0.0, None),
        ([[1.0, 2.0]], [[1.0, 4.0]], 0.5, "element [0, 1] is 2, expected 4"),
        ([[100.0], [3.0]], [[100.0], [2.0]], 0.5, "element [1, 0] is 3, expected 2"),
        ([[0.0]], [[0.0]], 0.0, None),
        ([[np.inf]], [[np.inf]], 0.0, None),
        ([[np.nan]], [[np.nan]], 0.0, None),
        ([[np.nan]], [[1.0]], np.inf, "1 NaN, expected 0"),
        ([1.0], [[1.0]], np.inf, "shape [1], expected [1, 1]"),
    ],
)
def test_compare(got: list[Any], expected: list[Any], error: float, problem: str | None) -> None:
    a, b = np.array(got), np.array(expected)
    assert selftest.compare(a, b, selftest.row_unit(b), 0.01) == (error, problem)
