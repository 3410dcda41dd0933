"""Makes the project's virtual environment with the tools of a build: make_venv.py FOLDER. Runs on the machine's
Python, before anything is installed, and reports what is missing."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

if sys.version_info < (3, 10):  # noqa: UP036 (this runs before pip has looked at requires-python)
    sys.exit(f"lucebox needs Python 3.10 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.12 ...")
missing = [tool for tool in ("g++", "git") if shutil.which(tool) is None]
if missing:
    sys.exit(f"not found: {', '.join(missing)}. On Debian or Ubuntu: apt install g++ git")

folder = Path(sys.argv[1])
try:
    venv.create(folder, with_pip=True, clear=True)
except subprocess.CalledProcessError:
    sys.exit("this Python cannot make virtual environments. On Debian or Ubuntu: apt install python3-venv")
requirements = Path(__file__).with_name("requirements-build.txt")
subprocess.run([folder / "bin" / "pip", "install", "-qq", "--no-compile", "-r", requirements], check=True)
