"""Device tests as functions that each need a fresh process, because a driver is loaded once per process.

device_scenarios.py KERNELS    runs all of them with the drivers on the library path; prints their results as JSON

test_device.py builds the stand-in drivers, runs this and has one test per result."""

from __future__ import annotations

import ctypes
import json
import os
import re
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from lucebox import errors
from lucebox._engine import gpu
from lucebox._kernels import driver

SONAMES = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so.7"}
VERSIONS = {"cuda": 13000, "hip": 70125424}
ARCHITECTURES = {"cuda": "9.0", "hip": "gfx1151:xnack-"}

Scenario = Callable[["Machine"], None]
SCENARIOS: dict[str, tuple[Scenario, tuple[str, ...]]] = {}


def scenario(*vendors: str) -> Callable[[Scenario], Scenario]:
    def register(function: Scenario) -> Scenario:
        SCENARIOS[function.__name__] = (function, vendors)
        return function

    return register


class Machine:
    """A vendor's driver, its script when it is a stand-in, and the test kernels."""

    def __init__(self, vendor: str, kernels: Path) -> None:
        self.vendor = vendor
        self.kernels = kernels
        self.image = kernels.read_bytes()
        self.driver = None if vendor == "sim" else ctypes.CDLL(SONAMES[vendor])
        self.set()

    def set(self, n_devices: int = 2, version: int = 0, architecture: str = "") -> None:
        """Configures the driver; has effect only before its first use."""
        if self.driver is not None:
            version = version or VERSIONS[self.vendor]
            architecture = architecture or ARCHITECTURES[self.vendor]
            self.driver.standin_set(n_devices, version, architecture.encode())

    def fail(self, call: str, status: int, after: int = 0) -> None:
        self.driver.standin_fail(call.encode(), status, after)

    def calls(self, name: str) -> int:
        return int(self.driver.standin_calls(name.encode()))

    def all_calls(self) -> list[str]:
        """The names of the functions called so far."""
        self.driver.standin_all_calls.restype = ctypes.c_char_p
        return self.driver.standin_all_calls().decode().split()

    def last_launch(self) -> str:
        self.driver.standin_last_launch.restype = ctypes.c_char_p
        return self.driver.standin_last_launch().decode()

    def open(self, index: int = 0) -> Opened:
        return Opened(self, index)


class Opened:
    """A device with a stream and the test kernels loaded."""

    def __init__(self, machine: Machine, index: int = 0) -> None:
        self.device = gpu.Device(machine.vendor, index)
        self.stream = driver.Stream(self.device)
        self.module = driver.Module(self.device, machine.image, "kernels.so")

    def upload(self, array: np.ndarray) -> driver.Buffer:
        buffer = driver.Buffer(self.device, array.nbytes)
        buffer.write(array, self.stream)
        return buffer

    def download(self, buffer: driver.Buffer, dtype: type = np.float32) -> np.ndarray:
        array = np.empty(len(buffer) // np.dtype(dtype).itemsize, dtype)
        buffer.read(array, self.stream)
        return array

    def scale(self, x: driver.Buffer, y: driver.Buffer, by: float, stream: driver.Stream | None = None) -> None:
        params = struct.pack("<QQif", x.address, y.address, len(x) // 4, by)
        (stream or self.stream).launch(self.module.kernel("scale_kernel"), (1, 1, 1), (32, 1, 1), params)

    def report(self, out: driver.Buffer, grid: int, block: int, **how: int) -> None:
        kernel = self.module.kernel("report_kernel")
        if how.get("shared_bytes", 0) > kernel.max_dynamic_shared_bytes:
            kernel.allow_shared(how["shared_bytes"])
        self.stream.launch(kernel, (grid, 1, 1), (block, 1, 1), struct.pack("<Q", out.address), **how)


@contextmanager
def raises(kind: type[Exception], *parts: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        print(f"{kind.__name__}: {error}")
        for part in parts:
            assert part in str(error), f"expected {part!r} in: {error}"
    else:
        raise AssertionError(f"expected {kind.__name__} with {parts}")


def sequence(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


@scenario("sim", "cuda", "hip")
def memory(machine: Machine) -> None:
    d = machine.open()
    free, total = d.device.memory()
    x = sequence(1000)
    a, b = d.upload(x), driver.Buffer(d.device, 4000)
    assert a.address % 256 == 0 and len(a) == 4000
    assert d.device.memory() == (free - 8000, total)
    assert np.isnan(d.download(b)).all()  # the simulator fills unwritten memory with NaN
    d.stream.fill(b, 0)
    d.stream.copy(b, a, bytes=400, to_offset=3600, from_offset=40)
    got = d.download(b)
    assert (got[:900] == 0).all() and (got[900:] == x[10:110]).all()
    pinned = driver.Buffer(d.device, 4000, pinned=True)
    d.stream.copy(pinned, a, bytes=4000)
    assert (d.download(pinned) == x).all()
    with raises(errors.InvalidRequestError, "4000 bytes at 4 do not fit a buffer of 4000"):
        a.write(x, d.stream, offset=4)
    with raises(errors.InvalidRequestError, "do not fit"):
        d.stream.copy(b, a, bytes=8, from_offset=2**64 - 4)
    del a, b
    assert d.device.memory() == (free, total)


@scenario("sim", "cuda", "hip")
def out_of_memory(machine: Machine) -> None:
    d = machine.open()
    free, total = d.device.memory()
    with raises(errors.OutOfMemoryError, f"{free + 1} bytes requested, {free} of {total} free", "device 0"):
        driver.Buffer(d.device, free + 1)
    assert (d.download(d.upload(sequence(8))) == sequence(8)).all()


@scenario("sim", "cuda", "hip")
def launches(machine: Machine) -> None:
    d = machine.open()
    x, y = d.upload(sequence(100)), driver.Buffer(d.device, 400)
    d.scale(x, y, 2.5)
    assert (d.download(y) == sequence(100) * np.float32(2.5)).all()

    out = d.upload(np.zeros(5, np.uint64))
    d.report(out, 7, 64, shared_bytes=100)
    assert d.download(out, np.uint64).tolist() == [7, 64, 100, 0, 1]
    d.report(out, 3, 32, cooperative=True)
    assert d.download(out, np.uint64).tolist() == [3, 32, 0, 1, 2]

    kernel = d.module.kernel("report_kernel")
    assert (kernel.max_threads, kernel.static_shared_bytes) == (256, 1024)
    assert kernel.occupancy(256) == 8
    with raises(
        errors.InvalidRequestError, "CooperativeLaunchTooLarge" if machine.vendor == "hip" else "720", "grid 999x1x1"
    ):
        d.report(out, 999, 32, cooperative=True)
    with raises(errors.DeviceError, "701", "block 512x1x1", "report_kernel"):
        d.report(out, 1, 512)


@scenario("sim", "cuda")
def large_shared_memory(machine: Machine) -> None:
    d = machine.open()
    out = d.upload(np.zeros(5, np.uint64))
    kernel = d.module.kernel("report_kernel")
    params = struct.pack("<Q", out.address)
    limit = d.device.info.shared_block_bytes - kernel.static_shared_bytes
    with raises(
        errors.InvalidRequestError, "49153 bytes of dynamic shared memory requested, 49152 allowed", "allow_shared"
    ):
        d.stream.launch(kernel, (1, 1, 1), (32, 1, 1), params, shared_bytes=49153)
    with raises(errors.InvalidRequestError, f"has {limit} beside its static 1024"):
        kernel.allow_shared(limit + 1)
    kernel.allow_shared(limit)
    d.stream.launch(kernel, (1, 1, 1), (32, 1, 1), params, shared_bytes=limit)
    assert d.download(out, np.uint64)[2] == limit


@scenario("sim", "cuda")
def parameters_of_another_size(machine: Machine) -> None:
    d = machine.open()
    kernel = d.module.kernel("report_kernel")
    assert kernel.params_bytes == 8
    with raises(errors.InternalError, "takes 8 bytes of parameters, 12 were given"):
        d.stream.launch(kernel, (1, 1, 1), (32, 1, 1), bytes(12))


@scenario("sim", "cuda", "hip")
def modules(machine: Machine) -> None:
    d = machine.open()
    with raises(errors.UnsupportedError, "500", "kernel no_such_kernel in kernels.so", "device 0"):
        d.module.kernel("no_such_kernel")
    for image in (b"", b"\x7fELF", b"no code object" * 100, machine.image[:-1], machine.image[:5000]):
        with raises(errors.FormatError, "rms_norm.cubin is no code object", f"({len(image)} bytes)"):
            driver.Module(d.device, image, "rms_norm.cubin")
    kernel = d.module.kernel("scale_kernel")
    del d.module  # the kernel keeps its module
    x, y = d.upload(sequence(4)), d.upload(sequence(4))
    d.stream.launch(kernel, (1, 1, 1), (32, 1, 1), struct.pack("<QQif", x.address, y.address, 4, 3.0))
    assert (d.download(y) == sequence(4) * 3).all()
    again = [driver.Module(d.device, machine.image).kernel("scale_kernel") for _ in range(3)]
    assert all(k.name == "scale_kernel" for k in again)


@scenario("sim", "cuda", "hip")
def events(machine: Machine) -> None:
    d = machine.open()
    start, end = driver.Event(d.device), driver.Event(d.device)
    x, y = d.upload(sequence(1 << 20)), driver.Buffer(d.device, 4 << 20)
    other = driver.Stream(d.device)
    d.stream.record(start)
    d.scale(x, y, 2.0)
    d.stream.record(end)
    other.wait(end)
    other.synchronize()
    end.synchronize()
    assert 0 < start.elapsed_ms(end) < 60_000
    assert start.elapsed_ms(end) == -end.elapsed_ms(start)
    with raises(errors.DeviceError, "400"):
        start.elapsed_ms(driver.Event(d.device))


@scenario("sim", "cuda", "hip")
def graphs(machine: Machine) -> None:
    d = machine.open()
    x, y = d.upload(sequence(16)), d.upload(np.zeros(16, np.float32))
    graph = driver.Graph(d.stream)
    with raises(errors.InvalidRequestError, "nothing captured"):
        graph.launch(d.stream)
    with graph:
        d.scale(x, y, 2.0)
        d.scale(y, y, 3.0)
        d.scale(y, x, 1.0)
    assert (d.download(y) == 0).all()  # captured, not run
    for power in (1, 2, 3):
        graph.launch(d.stream)
        assert (d.download(x) == sequence(16) * np.float32(6**power)).all()

    with graph:
        for by in (0.5, 0.5, 2.0):
            d.scale(x, x, by)
    assert graph.was_updated
    graph.launch(d.stream)
    assert (d.download(x) == sequence(16) * np.float32(108)).all()
    with graph:
        d.stream.fill(x, 0)
    assert not graph.was_updated
    graph.launch(d.stream)
    assert (d.download(x) == 0).all()

    with raises(ZeroDivisionError), graph:
        d.scale(x, y, 1.0 / 0.0)
    d.scale(y, y, 0.0)  # the stream runs again
    assert (d.download(y) == 0).all()


@scenario("sim", "cuda")
def captures_of_two_streams(machine: Machine) -> None:
    """While a thread has a capture open, it neither makes a graph nor allocates."""
    d = machine.open()
    x = d.upload(sequence(16))
    stream = driver.Stream(d.device)
    outer, inner = driver.Graph(d.stream), driver.Graph(stream)
    with raises(errors.InvalidRequestError, "900"), outer, inner:
        d.scale(x, x, 2.0)
    with raises(errors.InvalidRequestError, "900"), outer:
        driver.Buffer(d.device, 64)
    with outer:
        d.scale(x, x, 2.0)
    outer.launch(d.stream)
    assert (d.download(x) == 2 * sequence(16)).all()


@scenario("sim", "cuda", "hip")
def threads(machine: Machine) -> None:
    d = machine.open()
    results = {}

    def work(seed: int) -> None:
        stream = driver.Stream(d.device)
        x, y = driver.Buffer(d.device, 400), driver.Buffer(d.device, 400)
        x.write(sequence(100) + seed, stream)
        for step in range(200):
            d.scale(x, y, step + seed, stream)
        got = np.empty(100, np.float32)
        y.read(got, stream)
        results[seed] = got

    workers = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for seed in (1, 2):
        assert (results[seed] == (sequence(100) + seed) * np.float32(199 + seed)).all()


@scenario("sim", "cuda", "hip")
def peers(machine: Machine) -> None:
    a, b = machine.open(0), machine.open(1)
    driver.enable_peer(a.device, b.device)
    driver.enable_peer(a.device, b.device)  # enabling twice is not an error
    from_, to = b.upload(sequence(50)), driver.Buffer(a.device, 200)
    a.stream.copy_peer(to, a.device, from_, b.device, bytes=200)
    assert (a.download(to) == sequence(50)).all()
    with raises(errors.InvalidRequestError, "of device 0", "cannot run on a queue of device 1"):
        a.scale(to, to, 2.0, stream=b.stream)
    if machine.vendor != "sim":
        with raises(errors.UnsupportedError, "belong to different drivers"):
            driver.enable_peer(a.device, gpu.Device("sim"))


@scenario("sim", "cuda", "hip")
def any_order_of_destruction(machine: Machine) -> None:
    d = machine.open()
    stream, buffer, module = d.stream, d.upload(sequence(5)), d.module
    del d
    kernel = module.kernel("scale_kernel")
    del module
    stream.launch(kernel, (1, 1, 1), (1, 1, 1), struct.pack("<QQif", buffer.address, buffer.address, 5, 2.0))
    got = np.empty(5, np.float32)
    buffer.read(got, stream)
    assert (got == 2 * sequence(5)).all()


@scenario("sim", "cuda", "hip")
def no_such_device(machine: Machine) -> None:
    n = 8 if machine.vendor == "sim" else 2
    with raises(errors.DeviceError, f"there is no device {machine.vendor}:{n}", f"sees {n}"):
        gpu.Device(machine.vendor, n)
    with raises(errors.DeviceError, f"{machine.vendor}:-1"):
        gpu.Device(machine.vendor, -1)


@scenario("cuda", "hip")
def no_devices(machine: Machine) -> None:
    machine.set(n_devices=0)
    assert gpu.devices(machine.vendor) == []
    with raises(errors.DeviceError, "sees 0"):
        gpu.Device(machine.vendor, 0)


@scenario("sim")
def simulated_fault(machine: Machine) -> None:
    d = machine.open()
    with raises(errors.DeviceError, "fault_kernel: block 0, thread 3: read past the end", "the simulator stopped"):
        d.stream.launch(d.module.kernel("fault_kernel"), (1, 1, 1), (32, 1, 1), bytes(8))
    x = d.upload(sequence(4))
    d.scale(x, x, 2.0)  # the simulator goes on
    assert (d.download(x) == 2 * sequence(4)).all()
    with raises(errors.DeviceError, "clusters of 3 blocks"):
        d.report(d.upload(np.zeros(5, np.uint64)), 4, 32, cluster=3)


@scenario("cuda", "hip")
def lost_context(machine: Machine) -> None:
    d = machine.open()
    x = d.upload(sequence(4))
    machine.fail("cuStreamSynchronize" if machine.vendor == "cuda" else "hipStreamSynchronize", 700)
    d.scale(x, x, 2.0)
    with raises(errors.DeviceError, "700", "every later call on this device fails until the process is restarted"):
        d.stream.synchronize()
    with raises(errors.DeviceError, "700", "until the process is restarted", "device 0"):
        d.scale(x, x, 2.0)
    # leaving destroys what is left on a device that answers nothing any more


@scenario("cuda")
def faulting_kernel(machine: Machine) -> None:
    d = machine.open()
    with raises(errors.DeviceError, "cuLaunchKernel: CUDA_ERROR_LAUNCH_FAILED (719)", "fault_kernel", "restarted"):
        d.stream.launch(d.module.kernel("fault_kernel"), (1, 1, 1), (32, 1, 1), bytes(8))


@scenario("cuda")
def cuda_info(machine: Machine) -> None:
    first, second = gpu.devices("cuda")
    assert (first.vendor, first.index, second.index) == ("cuda", 0, 1)
    assert (first.name, first.architecture) == ("Stand-in GPU", "sm_90")
    assert (first.driver, first.driver_generation) == ("CUDA 13.0", "580")
    assert (first.pci, second.pci) == ("0000:01:00.0", "0000:02:00.0")
    assert first.uuid == "a0a1a2a3a4a5a6a7a8a9aaabacadaeaf" and second.uuid != first.uuid
    assert (first.n_sms, first.warp_size, first.max_threads_block) == (132, 32, 1024)
    assert (first.shared_block_bytes, first.shared_sm_bytes) == (227 << 10, 228 << 10)
    assert (first.registers_sm, first.l2_bytes, first.bus_bits) == (65536, 50 << 20, 5120)
    assert (first.clock_khz, first.memory_clock_khz, first.is_integrated) == (1755000, 2619000, False)
    assert first.has_cooperative and first.has_clusters and first.has_overlap and first.has_graphs
    gpu.require_driver(first, "580")
    with raises(errors.DeviceError, "for CUDA 13.0", "needs driver 590 or newer", "Stand-in GPU"):
        gpu.require_driver(first, "590")


@scenario("hip")
def hip_info(machine: Machine) -> None:
    first, second = gpu.devices("hip")
    assert (first.name, first.architecture) == ("Stand-in Radeon", "gfx1151")
    assert (first.driver, first.driver_generation) == ("HIP 7.1", "7.1")
    assert (first.pci, second.pci) == ("0000:41:00.0", "0000:42:00.0")
    assert first.uuid == ""  # this runtime has no hipDeviceGetUuid
    assert (first.n_sms, first.warp_size, first.max_threads_block) == (40, 32, 1024)
    assert (first.shared_block_bytes, first.shared_sm_bytes) == (64 << 10, 64 << 10)
    assert (first.registers_sm, first.l2_bytes, first.bus_bits) == (196608, 2 << 20, 256)
    assert first.is_integrated and first.has_cooperative and first.has_graphs
    assert not first.has_clusters and not first.has_overlap
    gpu.require_driver(first, "6.0")
    with raises(errors.DeviceError, "for HIP 7.1", "needs driver 7.2 or newer", "Update ROCm"):
        gpu.require_driver(first, "7.2")
    d = machine.open()
    with raises(errors.UnsupportedError, "is to overlap the previous kernel", "HIP 7.1"):
        d.report(d.upload(np.zeros(5, np.uint64)), 1, 32, overlap_previous=True)


@scenario("hip")
def unknown_properties(machine: Machine) -> None:
    machine.set(architecture="shifted")
    with raises(errors.DeviceError, "lays out hipDeviceProp_t", "41 compute units where the attribute says 40"):
        gpu.devices("hip")


@scenario("cuda")
def launch_attributes(machine: Machine) -> None:
    d = machine.open()
    out = d.upload(np.zeros(5, np.uint64))
    d.report(out, 4, 32, overlap_previous=True)
    assert machine.last_launch() == "cuLaunchKernelEx overlap=1"
    d.report(out, 4, 64, cluster=2, overlap_previous=True, cooperative=True, shared_bytes=16)
    assert machine.last_launch() == "cuLaunchKernelEx cluster=2 overlap=1 cooperative=1"
    assert d.download(out, np.uint64).tolist() == [4, 64, 16, 1, 2]
    assert machine.calls("cuLaunchKernel") == 0
    d.report(out, 4, 32)
    assert (machine.calls("cuLaunchKernel"), machine.calls("cuLaunchKernelEx")) == (1, 2)


@scenario("cuda")
def older_chip(machine: Machine) -> None:
    machine.set(architecture="8.6")
    d = machine.open()
    assert d.device.info.architecture == "sm_86"
    out = d.upload(np.zeros(5, np.uint64))
    with raises(errors.UnsupportedError, "needs clusters of 2 blocks", "sm_86", "CUDA 13.0"):
        d.report(out, 2, 32, cluster=2)
    with raises(errors.UnsupportedError, "overlap the previous kernel", "sm_86"):
        d.report(out, 2, 32, overlap_previous=True)


@scenario("cuda")
def older_driver(machine: Machine) -> None:
    machine.set(version=12020)
    (info, _) = gpu.devices("cuda")
    assert (info.driver, info.driver_generation) == ("CUDA 12.2", "535")
    assert info.has_graphs and not info.has_overlap  # whose graph edges came with 12.3
    with raises(errors.DeviceError, "CUDA 12.2", "driver 580 or newer", "Update the NVIDIA driver"):
        gpu.require_driver(info, "580")
    assert machine.open().module.kernel("scale_kernel").params_bytes == 0  # cuFuncGetParamInfo came with 12.4


def pack_with(machine: Machine, *files: str) -> gpu.Pack:
    """A pack on device 0. Its manifest lists code for drivers from 580 and from 525 on; only `files` of it exist."""
    capabilities = {"bf16": True, "async_copy": True, "fp4": False, "tma": True, "clusters": True,
                    "matrix": "wgmma", "shared_block_bytes": 232448}  # fmt: skip
    kernel = {"name": "scale_kernel", "max_threads": 32}
    generations = [
        {"min_driver": minimum, "compiler": {"flags": []}, "kernels": [{**kernel, "file": file}]}
        for minimum, file in (("580", "nvcc.so"), ("525", "nvrtc.so"))
    ]
    manifest = {
        "target": "sm_90", "vendor": "nvidia", "capabilities": capabilities, "tuning": {}, "generations": generations,
    }  # fmt: skip
    device = gpu.Device("cuda")
    try:
        gpu.Pack(device, json.dumps({**manifest, "abi": ""}), {})
    except errors.FormatError as error:  # the engine's own hash
        abi = re.findall(r"[0-9a-f]{16}", str(error))[-1]
    return gpu.Pack(device, json.dumps({**manifest, "abi": abi}), dict.fromkeys(files, machine.image))


def loads(machine: Machine, version: int, loaded: str, other: str) -> None:
    """Checks that a CUDA version's driver loads the pack's file `loaded` and does not accept `other` instead."""
    machine.set(version=version)
    pack_with(machine, loaded)
    with raises(errors.FormatError, f"has no file {loaded}"):
        pack_with(machine, other)


@scenario("cuda")
def pack_on_cuda_13_0(machine: Machine) -> None:
    loads(machine, 13000, "nvcc.so", "nvrtc.so")


@scenario("cuda")
def pack_on_cuda_12_4(machine: Machine) -> None:
    loads(machine, 12040, "nvrtc.so", "nvcc.so")


@scenario("cuda")
def pack_on_cuda_12_1(machine: Machine) -> None:
    loads(machine, 12010, "nvrtc.so", "nvcc.so")


@scenario("cuda")
def pack_on_cuda_11_8(machine: Machine) -> None:
    machine.set(version=11080)
    with raises(
        errors.DeviceError, '"Stand-in GPU" (sm_90) has a driver for CUDA 11.8', "driver 525 or newer", "Update"
    ):
        pack_with(machine, "nvcc.so", "nvrtc.so")


@scenario("cuda")
def missing_functions(machine: Machine) -> None:
    for name in ("cuMemAlloc", "cuEventRecord"):
        machine.driver.standin_hide(name.encode())
    with raises(errors.DeviceError, "libcuda.so.1 lacks cuMemAlloc, cuEventRecord", "driver 525 or newer"):
        gpu.devices("cuda")


@scenario("cuda")
def missing_optional_functions(machine: Machine) -> None:
    for name in ("cuLaunchKernelEx", "cuGraphExecUpdate", "cuStreamBeginCapture", "cuDeviceGetUuid"):
        machine.driver.standin_hide(name.encode())
    d = machine.open()
    info = d.device.info
    assert not info.has_clusters and not info.has_overlap and not info.has_graphs and info.uuid == ""
    with (
        raises(errors.UnsupportedError, "cuStreamBeginCapture is not in libcuda.so.1 (CUDA 13.0)"),
        driver.Graph(d.stream),
    ):
        pass
    with raises(errors.UnsupportedError, "needs clusters"):
        d.report(d.upload(np.zeros(5, np.uint64)), 2, 32, cluster=2)


@scenario("cuda")
def stub_library(machine: Machine) -> None:
    machine.fail("cuGetProcAddress_v2", 34)
    with raises(errors.DeviceError, "CUDA_ERROR_STUB_LIBRARY (34)", "toolkit's stub", "not the driver"):
        gpu.devices("cuda")


@scenario("cuda")
def failing_start(machine: Machine) -> None:
    machine.fail("cuInit", 803)
    with raises(errors.DeviceError, "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)", "reboot after a driver update"):
        gpu.devices("cuda")
    assert len(gpu.devices("cuda")) == 2  # repaired meanwhile, and queried again


@scenario("cuda", "hip")
def wrong_architecture(machine: Machine) -> None:
    d = machine.open()
    call, text, device = {
        "cuda": ("cuModuleLoadData", "CUDA_ERROR_NO_BINARY_FOR_GPU", '"Stand-in GPU" (sm_90)'),
        "hip": ("hipModuleLoadData", "hipErrorNoBinaryForGpu", '"Stand-in Radeon" (gfx1151)'),
    }[machine.vendor]
    machine.fail(call, 209)
    with raises(
        errors.UnsupportedError,
        f"[{machine.vendor}] {call}: {text} (209), device 0 {device}, sm_120 argmax.cubin: ",
        "compiled for another architecture; install the pack of this device",
    ):
        driver.Module(d.device, machine.image, "sm_120 argmax.cubin")


def workout(machine: Machine) -> None:
    """Uses everything once."""
    gpu.devices(machine.vendor)
    d, other = machine.open(), machine.open(1)
    driver.enable_peer(d.device, other.device)
    x, y, pinned = d.upload(sequence(8)), driver.Buffer(d.device, 32), driver.Buffer(d.device, 32, pinned=True)
    start, end = driver.Event(d.device), driver.Event(d.device)
    out = d.upload(np.zeros(5, np.uint64))
    d.stream.record(start)
    d.stream.fill(y, 0)
    d.stream.copy(pinned, x, bytes=32)
    d.stream.copy_peer(y, d.device, x, d.device, bytes=32)
    d.scale(x, y, 2.0)
    d.report(out, 2, 32, cooperative=True)
    if machine.vendor == "cuda":
        d.report(out, 2, 32, overlap_previous=True)
        kernel = d.module.kernel("report_kernel")
        kernel.allow_shared(100_000)
    d.module.kernel("report_kernel").occupancy(32)
    graph = driver.Graph(d.stream)
    for _ in range(2):
        with graph:
            d.scale(x, y, 2.0)
    graph.launch(d.stream)
    d.stream.record(end)
    d.stream.wait(end)
    end.synchronize()
    start.elapsed_ms(end)
    assert d.stream.is_done()
    d.device.memory()
    d.download(y)


# Read once when the driver is loaded, or allowed to be missing.
NOT_IN_A_WORKOUT = re.compile(r"\w+(Init|GetVersion|Count|GetUuid|GetParamInfo|GetProcAddress_v2)$")
RELEASE = re.compile(r"\w+(Release|Free|FreeHost|HostFree|Destroy|Unload)$")


@scenario("cuda", "hip")
def any_call_may_fail(machine: Machine) -> None:
    workout(machine)
    calls = [call for call in machine.all_calls() if not NOT_IN_A_WORKOUT.match(call)]
    assert len(calls) > 35
    for call in calls:
        machine.fail(call, 1)
        if RELEASE.match(call):  # a failed release is not an error
            workout(machine)
        else:
            with raises(errors.DeviceError, f"{call}: ", "(1)", "the driver refused an argument"):
                workout(machine)
    workout(machine)


@scenario("all")
def vendors_together(machine: Machine) -> None:
    machines = [machine, *(Machine(vendor, machine.kernels) for vendor in ("cuda", "hip"))]
    opened = [m.open(index) for m in machines for index in (0, 1)]
    buffers = [d.upload(sequence(32) + i) for i, d in enumerate(opened)]
    for _ in range(3):
        for d, buffer in zip(opened, buffers, strict=True):
            d.scale(buffer, buffer, 2.0)
    for i, (d, buffer) in enumerate(zip(opened, buffers, strict=True)):
        assert (d.download(buffer) == (sequence(32) + i) * 8).all()
    assert [d.device.info.architecture for d in opened] == ["sim", "sim", "sm_90", "sm_90", "gfx1151", "gfx1151"]
    with raises(errors.UnsupportedError, "cannot copy", "different drivers"):
        opened[2].stream.copy_peer(buffers[2], opened[2].device, buffers[4], opened[4].device, bytes=4)


def run(name: str, vendor: str, kernels: Path) -> tuple[int, str]:
    """Exit status and output of a scenario in a fork, which has Python's imports but no driver yet."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(into, 1)
        os.dup2(into, 2)
        function, _ = SCENARIOS[name]
        function(Machine("sim" if vendor == "all" else vendor, kernels))
        sys.exit()  # the normal exit, which destroys the remaining device objects
    os.close(into)
    with os.fdopen(out) as pipe:
        output = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output


def main() -> None:
    kernels = Path(sys.argv[1])
    results = {f"{name}-{vendor}": run(name, vendor, kernels) for name, (_, all) in SCENARIOS.items() for vendor in all}
    print(json.dumps(results))


if __name__ == "__main__":
    main()
