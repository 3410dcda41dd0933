"""GPUs that could make a model faster: every command names them with the install command, and require_gpu refuses the
CPU. Stand-in drivers report the GPU."""

from __future__ import annotations

import json
from pathlib import Path

import machine_data
import pack_data
import pytest
from lucebox import LLM, errors
from lucebox.packs import machine
from lucebox.packs.devices import resolve_device
from lucebox.packs.drivers import driver_devices
from test_device import drivers, run  # noqa: F401 a fixture

MISSING = (
    "cuda:0 is not used: Stand-in GPU (sm_75) needs the pack sm_75, which is not installed (installed: none); "
    'pip install "lucebox[sm75]"'
)
OTHER_VERSION = (
    "cuda:0 (Stand-in GPU) is not used: lucebox-sm75 is version 0.0.9, lucebox is 0.1.0, and they must be equal; "
    'pip install "lucebox[sm75]"'
)
SLOWER = (
    "cuda:0 (Stand-in GPU) is slower than it could be: pack sm_80 runs on sm_89 by the vendor's compatibility rule; "
    'sm_89 is better: pip install "lucebox[sm89]"'
)


def with_gpu(drivers: Path, site: Path, architecture: str, *commands: list[str]) -> list[tuple[int, list[str]]]:  # noqa: F811
    """Exit code and stderr of each command on a machine with one NVIDIA GPU and the packs in `site`."""
    script = (
        "import contextlib, ctypes, io, json, sys\n"
        f"ctypes.CDLL('libcuda.so.1').standin_set(1, 13000, {architecture.encode()!r})\n"
        "ctypes.CDLL('libamdhip64.so.7').standin_set(0, 70151831, b'gfx1151')\n"
        f"sys.path.insert(0, {str(site)!r})\n"
        "import lucebox\n"
        "lucebox.__version__ = '0.1.0'\n"
        "from lucebox.cli import main\n"
        "from lucebox.measure import bench\n"
        "bench.BANDWIDTH_BYTES = 1 << 20\n"
        f"for words in {commands!r}:\n"
        "    notes = io.StringIO()\n"
        "    sys.stdin = io.StringIO('/status\\n')\n"
        "    with contextlib.redirect_stderr(notes), contextlib.redirect_stdout(io.StringIO()):\n"
        "        code = main(words)\n"
        "    print(json.dumps([code, notes.getvalue().splitlines()]))\n"
    )
    return [tuple(json.loads(line)) for line in run(drivers, "-c", script).splitlines()]


@pytest.mark.slow  # 11 s: ten commands; every day, the tests below
def test_every_command_names_the_gpu_that_it_does_not_use(drivers: Path, tmp_path: Path) -> None:  # noqa: F811
    small = ["tiny-hybrid", "--context", "64", "--threads", "1"]
    results = with_gpu(
        drivers,
        tmp_path,
        "7.5",
        ["run", *small, "once", "-n", "2", "--quiet"],
        ["bench", *small, "-p", "0", "-n", "2", "-r", "1"],
        ["bench", *small, "--draft", "suffix", "--prompts", "1", "--tokens", "2"],
        ["chat", *small],
        ["run", *small, "once", "-n", "2", "--require-gpu"],
    )
    *used, (refused, refusal) = results
    named = [(code, notes.count(f"note: {MISSING}")) for code, notes in used]
    assert named == [(0, 1), (0, 1), (0, 1), (0, 2)]  # /status in the chat says it again
    assert refused == 1
    assert refusal == [
        f"lucebox: error: no GPU is usable, and require_gpu refuses the CPU: {MISSING}. `lucebox doctor` says more"
    ]


def test_a_pack_of_another_version_is_named(drivers: Path, tmp_path: Path) -> None:  # noqa: F811
    pack_data.install(tmp_path, "sm_75", content=pack_data.manifest("sm_75", version="0.0.9"))
    ((code, notes),) = with_gpu(
        drivers, tmp_path, "7.5", ["run", "tiny-hybrid", "once", "-n", "2", "-c", "64", "--threads", "1"]
    )
    assert (code, notes[0]) == (0, f"note: {OTHER_VERSION}")


def test_a_better_pack_is_named(drivers: Path, tmp_path: Path) -> None:  # noqa: F811
    pack_data.install(tmp_path, "sm_80")
    script = (
        "import ctypes, sys\n"
        "ctypes.CDLL('libcuda.so.1').standin_set(1, 13000, b'8.9')\n"
        "ctypes.CDLL('libamdhip64.so.7').standin_set(0, 70151831, b'gfx1151')\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from lucebox.packs.devices import resolve_device\n"
        "for device in ('auto', 'cuda:0'): print(*resolve_device(device, require_gpu=True).unused)\n"
    )
    assert run(drivers, "-c", script).splitlines() == [SLOWER, SLOWER]


def test_a_card_without_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_data.pci(tmp_path, "0000:01:00.0", "10de", "2204")
    machine_data.pci(tmp_path, "0000:02:00.0", "1002", "164e")  # a chip without a pack
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    (line,) = resolve_device("auto").unused
    assert line.startswith("GeForce RTX 3090 (sm_86) is not used: cannot load the NVIDIA driver: libcuda.so.1: ")
    assert line.endswith("No such file or directory. Install the NVIDIA driver 525 or newer")
    with pytest.raises(errors.PackError, match=r"no GPU is usable, .*GeForce RTX 3090 \(sm_86\) is not used"):
        LLM("tiny-hybrid", require_gpu=True)


def test_the_simulator_needs_no_library() -> None:
    assert [device.vendor for device in driver_devices("sim")][:1] == ["sim"]


def test_require_gpu_without_any_gpu() -> None:
    with pytest.raises(errors.PackError, match="this machine has none that lucebox knows"):
        LLM("tiny-hybrid", require_gpu=True)
    for device in ("cpu", "sim"):
        with pytest.raises(errors.InvalidRequestError, match=f'require_gpu needs a GPU, device is "{device}"'):
            LLM("tiny-hybrid", device=device, require_gpu=True)
