"""run_logged.py LOG COMMAND...: runs a compiler and keeps what it says in LOG. Shows it only when the compiler fails
or has more to say than the resources of each kernel."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

RESOURCES = re.compile(r"ptxas info|^\s+\d+ bytes stack frame|^\s*$")

log, command = Path(sys.argv[1]), sys.argv[2:]
done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
log.write_text(done.stdout)
if done.returncode or not all(map(RESOURCES.search, done.stdout.splitlines())):
    print(done.stdout, end="")
sys.exit(done.returncode)
