"""Installs lucebox with packs from an index made by make_index.py, as a user would, and checks the result.

    install_test.py INDEX [--extras sim,sm86]     (default: the pack of every wheel in INDEX)

Three routes: file://, HTTP with HTML pages (PEP 503), HTTP with JSON (PEP 691); the server is on the loopback address.
Third-party dependencies (numpy, ...) are downloaded once, beforehand, and passed to pip as a folder. INDEX is the only
index that pip uses, so the project's packages cannot come from elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from project import run, tools_environment
from wheels import Wheel

JSON_TYPE = "application/vnd.pypi.simple.v1+json"
LOOK = """
import json, lucebox, sys
from importlib import metadata
from lucebox import packs
json.dump({
    "version": lucebox.__version__,
    "packs": sorted(point.name for point in metadata.entry_points(group="lucebox.packs")),
    "usable": sorted(pack.target for pack in packs.find().usable),
}, sys.stdout)
"""


class Handler(SimpleHTTPRequestHandler):
    """Serves the files of a folder. A project's page is JSON if the client accepts JSON and the server speaks it."""

    def __init__(self, *arguments: object, speaks_json: bool, seen: list[str], directory: str) -> None:
        self.speaks_json, self.seen = speaks_json, seen
        super().__init__(*arguments, directory=directory)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if self.path.endswith("/"):
            is_json = self.speaks_json and JSON_TYPE in self.headers.get("Accept", "")
            self.path += "index.json" if is_json else "index.html"
        self.seen.append(self.path)
        super().do_GET()

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        types = {"index.json": JSON_TYPE, "index.html": "text/html"}
        return types.get(Path(path).name, "application/octet-stream")

    def log_message(self, format: str, *arguments: object) -> None:
        pass  # pip's output is enough


@contextlib.contextmanager
def served(index: Path, *, speaks_json: bool) -> Iterator[tuple[str, list[str]]]:
    """Serves the index at a loopback URL; yields the URL and the growing list of requested paths."""
    seen: list[str] = []
    handler = partial(Handler, speaks_json=speaks_json, seen=seen, directory=str(index))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()


class Installation:
    """A fresh virtual environment that installs lucebox from one index."""

    def __init__(self, folder: Path, index: Path) -> None:
        self.python = folder / "venv" / "bin" / "python"
        self.dependencies = folder / "dependencies"
        self.env = tools_environment(self.python, PIP_CONFIG_FILE=os.devnull, PIP_DISABLE_PIP_VERSION_CHECK="1")
        run(sys.executable, "-m", "venv", folder / "venv")
        # With the machine's pip settings, which decide where third-party packages come from.
        ours = ("--find-links", index / "lucebox")
        run(self.python, "-m", "pip", "download", "-qq", "-d", self.dependencies, *ours, "lucebox")
        for wheel in self.dependencies.glob("lucebox-*.whl"):
            wheel.unlink()

    def install(self, url: str, extras: list[str]) -> dict[str, object]:
        """Removes the previous route's packages, installs from this index, and returns what is installed then."""
        pip = (self.python, "-m", "pip")
        packs = [f"lucebox-{extra}" for extra in extras]
        run(*pip, "uninstall", "-qq", "-y", "lucebox", *packs, env=self.env)
        options = ("--no-cache-dir", "--index-url", url, "--find-links", self.dependencies)
        run(*pip, "install", "-qq", *options, f"lucebox[{','.join(extras)}]", env=self.env)
        run(*pip, "check", env=self.env)
        # -I: nothing in the folder or on PYTHONPATH may shadow the installed packages.
        looked = subprocess.run([self.python, "-I", "-c", LOOK], check=True, capture_output=True, text=True)
        found: dict[str, object] = json.loads(looked.stdout)
        return found


def check(found: dict[str, object], version: str, targets: list[str]) -> None:
    expected = {"version": version, "packs": targets, "usable": targets}
    if found != expected:
        sys.exit(f"installed is {found}, expected {expected}")


def test(index: Path, extras: list[str] | None) -> None:
    wheels = [Wheel(path) for path in sorted(index.glob("*/*.whl"))]
    version = next((wheel.version for wheel in wheels if wheel.project == "lucebox"), None)
    if version is None:
        sys.exit(f"{index} has no lucebox wheel")
    by_extra = {wheel.project.removeprefix("lucebox-"): next(iter(wheel.packs)) for wheel in wheels if wheel.packs}
    extras = extras or sorted(by_extra)
    if unknown := set(extras) - by_extra.keys():
        sys.exit(f"{index} has no pack for {', '.join(sorted(unknown))}; it has {', '.join(by_extra)}")
    targets = sorted(by_extra[extra] for extra in extras)

    with tempfile.TemporaryDirectory(prefix="lucebox-install-") as folder:
        installation = Installation(Path(folder), index)
        check(installation.install(index.resolve().as_uri(), extras), version, targets)
        for speaks_json in (False, True):
            with served(index, speaks_json=speaks_json) as (url, seen):
                check(installation.install(url, extras), version, targets)
            pages = [path for path in seen if path.endswith(".json" if speaks_json else "/index.html")]
            if len(pages) < 1 + len(extras):
                sys.exit(f"pip asked for {seen}, not for the {'JSON' if speaks_json else 'HTML'} of every project")
            # With JSON, only pip 23.2 and later asks for a .metadata file.
            if not speaks_json and not any(path.endswith(".metadata") for path in seen):
                sys.exit(f"pip asked for {seen} and used no .metadata file")
        doctor = (installation.python, "-I", "-m", "lucebox", "doctor", "--json")
        # Exit code 1 is correct if this machine has a GPU that needs another pack.
        done = subprocess.run(doctor, capture_output=True, text=True)
        shown = {pack["target"] for pack in json.loads(done.stdout or "{}").get("packs", [])}
        if shown != set(targets):
            sys.exit(f"lucebox doctor shows the packs {shown}, installed are {targets}: {done.stdout}{done.stderr}")
        if "sim" in targets:
            run(installation.python, "-I", "-m", "lucebox", "selftest", "--device", "sim")
    print(f"lucebox {version} with {', '.join(targets)}: file://, HTTP, HTTP with JSON")


def main() -> None:
    parser = argparse.ArgumentParser(description="Install lucebox from an index and look at what arrived.")
    parser.add_argument("index", type=Path)
    parser.add_argument("--extras", type=lambda text: text.split(","), help="extras, comma between (every pack)")
    arguments = parser.parse_args()
    test(arguments.index, arguments.extras)


if __name__ == "__main__":
    main()
