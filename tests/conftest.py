"""Fixtures and options for all tests."""

from __future__ import annotations

import os
import secrets
import signal
import time
import zlib
from collections.abc import Generator
from pathlib import Path

# Set before numpy loads: OpenBLAS threads spin for milliseconds after each product, on cores that other tests need.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import once
import pytest
from hypothesis import settings
from lucebox import HubError, _engine
from lucebox.models import catalog

settings.register_profile(
    "lucebox", deadline=None, derandomize=True
)  # the same inputs in every run and on every machine
settings.load_profile("lucebox")

# A shell's background jobs ignore SIGINT, and child processes inherit that, but tests interrupt their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share", type=int, default=1, metavar="N", help="about one of N of each test's cases, always the same ones"
    )
    parser.addoption(
        "--grids",
        type=int,
        default=1,
        metavar="N",
        help="each value of a test's parameters, and about one of N of its other cases, always the same ones; of tests "
        "marked first_case the first one",
    )
    parser.addoption(
        "--draws", type=int, default=0, metavar="N", help="only the tests that draw fresh inputs, N times each"
    )


def pytest_configure() -> None:
    """Gives each process of a parallel run (pytest -n) one core. By default an engine has a thread per core, and its
    threads spin between the ops of a step: on a small model, two take three times the CPU time of one."""
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    n = metafunc.config.getoption("--draws")
    if n and "seed" in metafunc.fixturenames and not _has_own_seeds(metafunc.definition):
        metafunc.parametrize("seed", [secrets.randbits(32) for _ in range(n)], ids=map(str, range(n)))


def _parametrized(item: pytest.Item) -> list[tuple[str, ...]]:
    """The names of each parametrize mark."""
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    return [tuple(name.replace(" ", "").split(",") if isinstance(name, str) else name) for name in names]


def _has_own_seeds(item: pytest.Item) -> bool:
    """Whether a test parametrizes `seed` itself, with the same seeds in every run."""
    return any("seed" in names for names in _parametrized(item))


def _values(item: pytest.Item) -> set[tuple[object, ...]]:
    """The case's values, one for each parametrize mark and each other parameter."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    marked = [names for names in _parametrized(item) if params.keys() >= set(names)]
    alone = params.keys() - {name for names in marked for name in names}
    return {(names, *(id(params[name]) for name in names)) for names in (*marked, *((name,) for name in alone))}


@pytest.hookimpl(trylast=True)  # after -k and --deselect
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share, grids, draws = (config.getoption(name) for name in ("--share", "--grids", "--draws"))
    if share == grids == 1 and not draws:
        return
    seen: dict[str, set[tuple[object, ...]]] = {}
    kept, left_out = [], []
    for item in items:
        test, values, number = item.nodeid.partition("[")[0], _values(item), zlib.crc32(item.nodeid.encode())
        is_kept = test not in seen or (
            number % share == 0
            and (grids == 1 or not item.get_closest_marker("first_case"))
            and (number % grids == 0 or not values <= seen[test])
        )
        is_drawn = not draws or ("seed" in getattr(item, "fixturenames", ()) and not _has_own_seeds(item))
        if is_kept and is_drawn:
            seen.setdefault(test, set()).update(values)
        (kept if is_kept and is_drawn else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


MOST_CPU_S = 4.0
"""Of an everyday test on an idle machine; dearer ones are marked slow, or make `make test` longer for everyone."""
BEGAN = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[BEGAN] = time.process_time()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append(("cpu_s", time.process_time() - item.stash[BEGAN]))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Lists the everyday tests that take the most CPU time, of the test processes themselves."""
    if terminalreporter.config.getoption("markexpr") != "not slow":
        return
    reports = terminalreporter.stats.get("", ())  # of passed setups and teardowns
    used = {report.nodeid: s for report in reports for key, s in report.user_properties if key == "cpu_s"}
    if dear := {name: s for name, s in used.items() if s > MOST_CPU_S}:
        terminalreporter.section(f"more than {MOST_CPU_S:.0f} s of CPU time")
        for name, s in sorted(dear.items(), key=lambda pair: -pair[1]):
            terminalreporter.line(f"{s:6.1f} s  {name}")


@pytest.fixture(scope="session", autouse=True)
def folder_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Sets the folder of once(), next to the worker processes' temporary folders, which pytest removes after three
    runs."""
    own = tmp_path_factory.getbasetemp()
    once.folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "once"


@pytest.fixture(scope="session")
def data() -> Path:
    """The small files the tests read."""
    return Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct Q4_1, fetched by the catalog."""
    try:
        return catalog.fetch("smollm2-135m")
    except HubError as error:
        pytest.skip(f"the weights cannot be fetched here: {error}")


@pytest.fixture
def seed() -> int:
    """A fresh random seed in every run; pytest prints it if a test fails."""
    return secrets.randbits(32)


@pytest.fixture(params=_engine.available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    """Each instruction set whose CPU kernels this machine can run."""
    return str(request.param)
