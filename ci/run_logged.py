"""run_logged.py LOG COMMAND...: runs a compiler and writes its output to LOG. Shows the output only if the compiler
fails or prints more than each kernel's resources."""

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
