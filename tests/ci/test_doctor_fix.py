"""`lucebox doctor --fix` in real environments: pip's, and uv's, which has no pip. The packs are small; the host wheel
is this tree's, and what it needs of others is linked from the environment of the tests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lucebox
import pytest
import wheel_data
from make_index import make_index
from once import once
from project import build_wheel, installed_wheel
from wheels import Wheel

TOOLS = Path(sys.executable).parent
UV = TOOLS / "uv"
NAME = "gfx1151"
PROJECT = "lucebox-gfx1151"
INFO = f"lucebox_{NAME}"
OLD = "0.0.9"


@dataclass(frozen=True)
class Environment:
    """A virtual environment with lucebox in it."""

    folder: Path
    host: Path
    old: Path
    index: str
    path: str
    """PATH of the commands: uv is on it or not."""

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def run(self, *command: str | Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PATH": self.path, "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, env=env)

    def doctor(self, *options: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return self.run(self.python, "-I", "-m", "lucebox", "doctor", *options, stdin=stdin)

    def fix(self, *options: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return self.doctor("--fix", "--index-url", self.index, *options, stdin=stdin)

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.doctor("--json").stdout)
        return found

    def installed(self) -> dict[str, str]:
        """Versions of lucebox and its packs."""
        stems = [info.name.removesuffix(".dist-info").rsplit("-", 1) for info in self.site.glob("lucebox*.dist-info")]
        return dict(stems)

    def conflicts(self) -> list[str]:
        """The lines of `pip check` about lucebox; the linked libraries are not all it would want."""
        command = [UV, "pip", "check", "--python", self.python]
        done = subprocess.run(command, capture_output=True, text=True)
        return [line for line in (done.stdout + done.stderr).splitlines() if "lucebox" in line and "Using" not in line]

    def reset(self) -> None:
        """lucebox as built, with a pack of an older version."""
        wheels = (self.host, self.old)
        command = [
            UV,
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--reinstall",
            "--no-index",
            "--python",
            self.python,
            *wheels,
        ]
        subprocess.run(command, check=True)
        assert self.installed() == {"lucebox": lucebox.__version__, INFO: OLD}


def pack(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack of this version whose code is a few bytes."""
    folder.mkdir()
    monkeypatch.setattr(wheel_data, "VERSION", version)
    return wheel_data.write(folder, wheel_data.pack_members(NAME))


def link_libraries(site: Path) -> None:
    """Links to the packages that lucebox needs, from the tests' environment. Metadata is copied: uv sees no link."""
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name.startswith(("pip", "lucebox", "__")) or (site / entry.name).exists():
            continue
        if entry.suffix == ".dist-info":
            shutil.copytree(entry, site / entry.name)
        elif entry.suffix != ".pth":
            (site / entry.name).symlink_to(entry)


# Every day by pip only where pip is what is tested: a run of it takes 1 s, of uv 0.2 s.
@pytest.fixture(scope="module", params=[pytest.param("pip", marks=pytest.mark.slow), "uv"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp(request.param)
    host = installed_wheel() or next(
        once("host_wheel", lambda out: shutil.copytree(build_wheel().parent, out)).glob("*.whl")
    )
    with pytest.MonkeyPatch.context() as patch:
        old, new = (pack(folder / version, version, patch) for version in (OLD, lucebox.__version__))
    make_index(folder / "index", [Wheel(host), Wheel(new)])
    if request.param == "pip":
        command = [sys.executable, "-m", "venv", folder / "venv"]
    else:
        command = [UV, "venv", "-q", "--python", sys.executable, folder / "venv"]
    subprocess.run(command, check=True)
    path = os.environ["PATH"] if request.param == "pip" else f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
    environment = Environment(folder / "venv", host, old, (folder / "index").as_uri(), path)
    link_libraries(environment.site)
    return environment


@pytest.fixture
def environment(made: Environment) -> Environment:
    made.reset()
    return made


def test_a_pack_of_another_version_is_replaced(environment: Environment) -> None:
    assert environment.conflicts()
    assert environment.report()["install"] == f'pip install "lucebox[{NAME}]"'
    done = environment.fix("--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"is version {OLD}" in done.stdout  # the first report
    assert done.stdout.rstrip().endswith("Models run on the CPU.")  # the second one, with nothing left to do
    assert environment.installed() == {"lucebox": lucebox.__version__, INFO: lucebox.__version__}
    assert environment.conflicts() == []
    again = environment.fix("--yes")
    assert again.returncode == 0 and "pip install" not in again.stdout


@pytest.mark.first_case
@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_without_a_yes_nothing_is_run(environment: Environment, answer: str) -> None:
    done = environment.fix(stdin=answer)
    assert done.returncode == 1
    assert f"install --index-url {environment.index}" in done.stdout and "Run this now? [y/N]" in done.stdout
    assert environment.installed()[INFO] == OLD


@pytest.mark.parametrize("made", [pytest.param("pip", marks=pytest.mark.slow), "uv"], indirect=True)  # 9 s
def test_the_command_is_shown_and_an_answer_runs_it(environment: Environment) -> None:
    done = environment.fix(stdin="y\n")
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(environment.python) in done.stdout
    assert environment.installed()[INFO] == lucebox.__version__


def test_a_damaged_pack_is_installed_again(environment: Environment) -> None:
    assert environment.fix("--yes").returncode == 0
    (code,) = (environment.site / INFO).glob("*.hsaco")
    good = code.read_bytes()
    code.unlink()  # uv links files from its cache: writing would change the cache
    code.write_bytes(good[:-1])
    assert "--force-reinstall --no-deps" in environment.report()["install"]
    done = environment.fix("--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert code.read_bytes() == good and environment.report()["install"] is None


def test_json_asks_nothing_and_is_one_object(environment: Environment) -> None:
    refused = environment.fix("--json")
    assert refused.returncode == 2 and "--fix needs --yes" in refused.stderr
    assert environment.installed()[INFO] == OLD
    done = environment.fix("--json", "--yes")
    report = json.loads(done.stdout)
    (ran,) = report["ran"]
    assert (done.returncode, ran["exit_code"], report["install"]) == (0, 0, None)
    assert ran["command"][-1] == f"lucebox[{NAME}]"
    assert [one["version"] for one in report["packs"]] == [lucebox.__version__]


def test_a_command_that_fails_is_told(environment: Environment, tmp_path: Path) -> None:
    make_index(tmp_path / "index", [Wheel(environment.host)])
    done = environment.doctor("--fix", "--yes", "--index-url", (tmp_path / "index").as_uri())
    assert done.returncode == 1 and "lucebox: error: exit code 1: " in done.stderr
    assert environment.installed()[INFO] == OLD


def test_pypi_is_not_asked_before_it_has_the_packs(environment: Environment) -> None:
    done = environment.doctor("--fix", "--yes")
    assert done.returncode == 1 and done.stderr.rstrip().endswith("lucebox doctor --fix --index-url URL")
    assert environment.installed()[INFO] == OLD


@pytest.mark.parametrize("made", ["uv"], indirect=True)
def test_neither_pip_nor_uv(environment: Environment) -> None:
    (environment.folder / "empty").mkdir(exist_ok=True)
    lost = Environment(**{**vars(environment), "path": str(environment.folder / "empty")})
    done = lost.fix("--yes")
    assert done.returncode == 1 and "-m ensurepip" in done.stderr
