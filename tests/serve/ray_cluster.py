"""Starts `lucebox serve --ray` with a Ray cluster of its own, and stops both."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from running import Running

__all__ = ["FILE", "cluster_address", "failed_start", "ray_environment", "replica_pids", "started_cluster"]

FILE = """
[models.tiny]
model = "tiny-hybrid"
device = "cpu"
context = 2048
prefill_chunk = 64
draft = "none"
slots = 2

[ray]
min_replicas = 2
"""


def ray_environment(folder: str) -> dict[str, str]:
    """Variables for a cluster that other clusters of this machine do not see. Ray keeps the cluster's token in HOME,
    and sends it to an explicit address only with RAY_AUTH_MODE."""
    own = {"RAY_TMPDIR": folder, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "HOME": folder}
    return {**os.environ, **own}


@contextmanager
def started_cluster(*flags: str, file: str = FILE) -> Iterator[tuple[Running, str]]:
    """A running server, and its Ray's folder. The end checks that no process remains."""
    folder = tempfile.mkdtemp(prefix="lb")  # a short path: Ray puts sockets there
    models = Path(folder) / "models.toml"
    models.write_text(file)
    command = [sys.executable, "-m", "lucebox", "serve", "--ray", str(models), "--port", "0", "--json", *flags]
    environment = ray_environment(folder)
    log = Path(folder) / "stderr"
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    started: set[int] = set()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, log.read_text()
        facts = json.loads(line)
        yield Running(facts["url"], process, facts), folder
        started = set(_descendants(process.pid))
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0, log.read_text()
        deadline = time.monotonic() + 30
        while remaining := {pid for pid in started if _command(pid)}:
            assert time.monotonic() < deadline, [_command(pid) for pid in remaining]
            time.sleep(0.2)
    finally:
        for pid in [*_descendants(process.pid), *started]:
            if _command(pid):
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def cluster_address(running: Running) -> str:
    """The address of the server's Ray cluster."""
    words = (word for pid in _descendants(running.process.pid) for word in _command(pid).split())
    return next(word for word in words if word.startswith("--gcs-address=")).partition("=")[2]


def failed_start(file: str) -> str:
    """The last line that a server prints which cannot start."""
    with tempfile.TemporaryDirectory(prefix="lb", ignore_cleanup_errors=True) as folder:
        models = Path(folder) / "models.toml"
        models.write_text(file)
        command = [sys.executable, "-m", "lucebox", "serve", "--ray", str(models), "--port", "0"]
        done = subprocess.run(command, env=ray_environment(folder), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1, done.stderr
    return done.stderr.strip().splitlines()[-1]


def replica_pids(running: Running) -> list[int]:
    """The processes of the model's replicas."""
    return [pid for pid in _descendants(running.process.pid) if "ServeReplica:lucebox:model" in _command(pid)]


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found, queue = [], [pid]
    while queue:
        new = children.get(queue.pop(), [])
        found += new
        queue += new
    return found
