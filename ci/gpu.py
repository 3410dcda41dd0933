"""Builds lucebox and one kernel pack with the toolchain of this machine, then tests and measures them on its GPU. Needs
no network: everything comes from the Python that runs this, or from a folder of wheels.

    ci/gpu                            every part, on the first GPU
    ci/gpu build tests                only these parts, in the order of the table PARTS
    ci/gpu --target sim               without a GPU: with the sim pack and without sanitizers
    ci/gpu --wheels FOLDER            first installs these wheels: build tools that this machine lacks
    ci/gpu --tune qwen35-0.8b         part "tune" runs lucebox tune on synthetic weights of that shape
    ci/gpu --other sm_80              part "other" installs only that pack and records lucebox's reaction

A part that fails does not stop the others. The folder of --out gets report.json, report.md, log.txt and the benchmarks'
tables, even if an external time limit stops the run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import time
import venv
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import IO

from gpu_report import Part, Report, Step, write

import targets

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "gpu"
# Import name of each package that the build and the tests use -> its name as a distribution.
PACKAGES = {
    "scikit_build_core": "scikit-build-core",
    "nanobind": "nanobind",
    "numpy": "numpy",
    "tokenizers": "tokenizers",
    "jinja2": "jinja2",
    "huggingface_hub": "huggingface_hub",
    "rich": "rich",
    "tqdm": "tqdm",
    "pytest": "pytest",
    "pytest_timeout": "pytest-timeout",
    "hypothesis": "hypothesis",
}
MINUTES = 8.75  # for all parts, on 16 cores; the steps' limits are chosen for this total
SANITIZERS = ("memcheck", "racecheck")


class Machine:
    """This machine, the environment for the wheels, and the deadline."""

    def __init__(self, target: targets.Target, out: Path, minutes: float) -> None:
        self.target = target
        self.device = {"nvidia": "cuda:0", "amd": "hip:0", "sim": "sim"}[target.vendor]
        self.deadline = time.monotonic() + minutes * 60
        self.stretch = minutes / MINUTES
        self.log: IO[str] = (out / "log.txt").open("w")
        self.out = out.resolve()
        folders = [WORK / "venv" / "bin", Path(sys.executable).parent]
        if (cuda := Path("/usr/local/cuda/bin")).exists() and shutil.which("nvcc") is None:
            folders.append(cuda)
        path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
        self.env = {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "PIP_CONFIG_FILE": os.devnull}

    def run(self, *command: str | Path, limit: float, env: dict[str, str] | None = None) -> Step:
        """Runs a command in the root of the project. After `limit` seconds, which --minutes scales, stops it and all
        processes that it started."""
        words = [str(part) for part in command]
        shown = " ".join(word.removeprefix(f"{ROOT}/") for word in words)
        print(f"  + {shown}", flush=True)
        self.log.write(f"\n+ {shown}\n")
        self.log.flush()
        limit = max(1.0, min(limit * self.stretch, self.deadline - time.monotonic()))
        start, before = time.monotonic(), self.log.tell()
        process = subprocess.Popen(
            words,
            cwd=ROOT,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = None
        with (self.out / "log.txt").open(errors="replace") as log:
            log.seek(before)
            output = log.read()
        return Step(shown, code, round(time.monotonic() - start, 1), round(limit), output)

    def lucebox(self, *words: str, limit: float, where: str = "venv") -> Step:
        return self.run(WORK / where / "bin" / "python", "-m", "lucebox", *words, limit=limit)


def make_environment(folder: Path) -> Path:
    """A fresh environment that sees the packages of this Python. A .pth file lists their folders, because this Python
    may itself be a virtual environment."""
    venv.EnvBuilder(clear=True).create(folder)
    python = folder / "bin" / "python"
    variables = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", "venv", vars=variables))
    seen = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    (own / "packages_of_the_outer_python.pth").write_text("".join(f"{path}\n" for path in seen))
    return python


def missing(target: targets.Target, python: Path) -> Iterator[str]:
    """Missing packages, tools and headers, a line each."""
    program = "; ".join(
        ["import importlib.util as u", f"print(*[n for n in {list(PACKAGES)!r} if u.find_spec(n) is None])"]
    )
    found = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True, cwd=WORK).stdout
    absent = [PACKAGES[name] for name in found.split()]
    if absent:
        yield (
            f"Python packages: {' '.join(absent)}. Where there is a network: "
            f"pip download -d wheels {' '.join(absent)}; then here: ci/gpu --wheels wheels"
        )
    path = os.pathsep.join([str(python.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
    tools = ["cmake", "ninja", "g++"]
    for tool in tools:
        if shutil.which(tool, path=path) is None:
            yield f"{tool}: not on PATH"
    if target.vendor == "nvidia" and shutil.which("nvcc", path=f"{path}{os.pathsep}/usr/local/cuda/bin") is None:
        yield "nvcc: neither on PATH nor in /usr/local/cuda/bin"
    include = sysconfig.get_path("include")
    if not (Path(include) / "Python.h").exists():
        yield f"Python.h: not in {include}; install the headers of Python {sys.version.split()[0]}"


def build(machine: Machine, options: argparse.Namespace) -> Iterator[Step]:
    python = make_environment(WORK / "venv")
    pip = (python, "-m", "pip")
    if options.wheels:
        wheels = sorted(options.wheels.glob("*.whl"))
        yield machine.run(*pip, "install", "-q", "--no-index", "--no-deps", *wheels, limit=60)
    lacks = list(missing(machine.target, python))
    if lacks:
        yield Step("look for what the build needs", 1, 0, 0, "missing on this machine:\n  " + "\n  ".join(lacks))
        return
    shutil.rmtree(WORK / "wheels", ignore_errors=True)
    yield machine.run(*pip, *WHEEL, ROOT, limit=200)
    yield pack_wheel(machine, machine.target.name)
    if wheels := [*host_wheels(), *pack_wheels(machine.target)]:  # if one build failed, the other is still tested
        yield machine.run(*pip, "install", "-q", "--no-index", "--no-deps", "--force-reinstall", *wheels, limit=60)


WHEEL = ("wheel", "-v", "--no-build-isolation", "--no-deps", "--no-index", "--wheel-dir", WORK / "wheels")


def pack_wheel(machine: Machine, target: str) -> Step:
    system = () if target == "sim" else ("--config-settings", "cmake.define.LUCEBOX_TOOLCHAIN=system")
    pip = (WORK / "venv" / "bin" / "python", "-m", "pip")
    return machine.run(*pip, *WHEEL, *system, ROOT / "targets" / target, limit=150)


def host_wheels() -> list[Path]:
    return sorted((WORK / "wheels").glob("lucebox-*.whl"))


def pack_wheels(target: targets.Target) -> list[Path]:
    return sorted((WORK / "wheels").glob(f"lucebox_{target.slug}-*.whl"))


def doctor(machine: Machine, options: argparse.Namespace) -> Iterator[Step]:
    yield machine.lucebox("doctor", limit=30)
    yield machine.lucebox("doctor", "--json", limit=30)


def selftest(machine: Machine, options: argparse.Namespace) -> Iterator[Step]:
    same = ("selftest", "--device", machine.device, "--seed", "1")
    yield machine.lucebox(*same, limit=90)
    yield machine.lucebox(*same, "--json", limit=90)


def tests(machine: Machine, options: argparse.Namespace) -> Iterator[Step]:
    pytest = (WORK / "venv" / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu")
    if machine.target.vendor == "sim":  # without --pack the tests build the sim pack and run on it
        yield machine.run(*pytest, limit=150)
    elif pack := installed_pack(machine):
        yield machine.run(*pytest, "--pack", pack, "-k", pack.name, limit=150)
    else:
        yield absent_pack(machine, "tests/gpu")


def installed_pack(machine: Machine) -> Path | None:
    return next((WORK / "venv").glob(f"lib/python*/site-packages/lucebox_{machine.target.slug}"), None)


def absent_pack(machine: Machine, what: str) -> Step:
    return Step(what, 1, 0, 0, f"the pack of {machine.target.name} is not installed: its build failed or was not run")


def sanitizers(machine: Machine, options: argparse.Namespace) -> Iterator[Step]:
    if machine.target.vendor != "nvidia":
        return
    program = shutil.which("compute-sanitizer", path=machine.env["PATH"] + ":/usr/local/cuda/bin")
    if program is None:
        yield Step("compute-sanitizer", 127, 0, 0, "compute-sanitizer: neither on PATH nor in /usr/local/cuda/bin")
        return
    python = WORK / "venv" / "bin" / "python"
    small = ("-m", "lucebox", "selftest", "--device", machine.device, "--seed", "1")  # every kernel, in small cases
    for tool in SANITIZERS:
        yield machine.run(program, "--tool", tool, "--error-exitcode", "99", python, *small, limit=100)


def bench(machine: Machine, options: argparse.Namespace) -> Iterator[Step]:
    python = WORK / "venv" / "bin" / "python"
    if (pack := installed_pack(machine)) is None:
        yield absent_pack(machine, "benchmarks/matvec_gpu.py")
        return
    # The simulator's times mean nothing: it suffices that the benchmark runs.
    small = ("--types", "Q4_K", "--shapes", "256x512", "--read-mb", "1") if machine.target.vendor == "sim" else ()
    results = ("--json", machine.out / "bench.json", "--csv", machine.out / "bench.csv")
    yield machine.run(python, "benchmarks/matvec_gpu.py", "--pack", pack, *results, *small, limit=120)


def other(machine: Machine, options: argparse.Namespace) -> Iterator[Step]:
    """Records lucebox's reaction when the only pack is for another target; refusing it is fine."""
    for name in options.other:
        yield pack_wheel(machine, name)
        python = make_environment(WORK / "other")
        wheels = [*host_wheels(), *pack_wheels(targets.load(name))]
        yield machine.run(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", *wheels, limit=60)
        for words in (("doctor",), ("selftest", "--device", machine.device)):
            attempt = machine.lucebox(*words, limit=60, where="other")
            attempt.may_fail = True
            yield attempt


def tune(machine: Machine, options: argparse.Namespace) -> Iterator[Step]:
    """Finds the best constants for this GPU, over models of all named shapes."""
    models = []
    for shape in options.tune:
        models.append(WORK / f"{shape}.Q4_K_M.gguf")
        script = (WORK / "venv" / "bin" / "python", "benchmarks/make_synthetic_gguf.py")
        yield machine.run(*script, "--shape", shape, "--type", "Q4_K_M", "--out", models[-1], limit=120)
    if models:
        results = ("--out", machine.out, "--report", machine.out / "tune.json")
        yield machine.lucebox("tune", *map(str, models), "--device", machine.device, *map(str, results), limit=330)


PARTS: dict[str, Callable[[Machine, argparse.Namespace], Iterator[Step]]] = {
    "build": build,
    "doctor": doctor,
    "selftest": selftest,
    "tests": tests,
    "bench": bench,
    "sanitizers": sanitizers,
    "tune": tune,
    "other": other,
}


def this_target() -> str:
    """The target of the first GPU, from the compute capability that nvidia-smi prints."""
    try:
        answer = gpu_facts("compute_cap")[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        sys.exit(f"cannot tell which GPU this is (nvidia-smi: {error}); name it: ci/gpu --target sm_90")
    return f"sm_{answer.replace('.', '')}"


def gpu_facts(*names: str) -> list[str]:
    """Properties of the first GPU by their nvidia-smi names, as nvidia-smi prints them."""
    query = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    lines = subprocess.run(query, check=True, capture_output=True, text=True, timeout=30).stdout.splitlines()
    return [fact.strip() for fact in lines[0].split(",")]


def described(target: targets.Target) -> dict[str, str]:
    """The machine's description for the head of the report."""
    facts = {"target": target.name, "python": sys.version.split()[0], "cores": str(os.cpu_count())}
    if target.vendor == "nvidia":
        try:
            names = ("name", "memory.total", "driver_version", "clocks.max.sm")
            facts |= dict(zip(("gpu", "memory", "driver", "highest SM clock"), gpu_facts(*names), strict=True))
        except (OSError, subprocess.SubprocessError, IndexError) as error:
            facts["gpu"] = f"nvidia-smi: {error}"
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    facts["commit"] = git.stdout.strip() if git.returncode == 0 else "unknown: not a git checkout"
    for name in ("scikit-build-core", "nanobind", "cmake"):
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not a Python package here"
    return facts


def main() -> int:
    parser = argparse.ArgumentParser(description="Build, test and measure lucebox on this machine's GPU.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of: {', '.join(PARTS)} (all)")
    parser.add_argument("--target", help="the pack to build (that of the first GPU)")
    parser.add_argument("--other", action="append", default=[], metavar="TARGET", help="a pack that is not this GPU's")
    parser.add_argument("--tune", action="append", default=[], metavar="SHAPE", help="a model to tune the pack with")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="wheels of build tools that are missing here")
    parser.add_argument("--out", type=Path, default=WORK / "report", metavar="FOLDER", help="where the reports go")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"time for everything ({MINUTES})")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"no part {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    try:
        target = targets.load(options.target or this_target())
    except targets.TargetError as error:
        sys.exit(str(error))
    options.out.mkdir(parents=True, exist_ok=True)
    WORK.mkdir(parents=True, exist_ok=True)

    machine = Machine(target, options.out, options.minutes)
    report = Report(described(target), machine.device)
    for name, steps in PARTS.items():
        if options.parts and name not in options.parts:
            continue
        print(f"{name}", flush=True)
        part = Part(name)
        report.parts.append(part)
        for step in steps(machine, options):
            part.steps.append(step)
            write(report, options.out)
        print(f"  {part.result} ({part.seconds:.0f} s)", flush=True)
        if part.result == "FAILED":
            print("\n".join(f"  | {line}" for line in part.failure.splitlines()[-30:]), flush=True)
    write(report, options.out)
    print(f"{options.out}/report.md")
    return 1 if any(part.result == "FAILED" for part in report.parts) else 0


if __name__ == "__main__":
    sys.exit(main())
