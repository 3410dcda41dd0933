"""`prove_links`: the path and the time of a row between GPUs, proven as when a model split by layers is loaded. A child
process asks the drivers, because a copy that hangs cannot be ended within a process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

from lucebox import _engine, _kernels
from lucebox.errors import LuceboxError
from lucebox.packs.choice import parse_device
from lucebox.packs.drivers import driver_devices

__all__ = ["ROW_BYTES", "LinkState", "prove_links"]

ROW_BYTES = 4 * 5120  # a row of the residual stream of a 27B
COMMAND = (sys.executable, "-m", "lucebox.packs.links")
START_S = 20.0
"""Until all devices are open: drivers take a second for each."""
LINK_S = 2.0
"""Of a link: the proof of a link that works takes less than 0.2 s."""


@dataclass(frozen=True, slots=True)
class LinkState:
    sender: str
    receiver: str
    path: str | None = None
    """"peer", or "host: ..." with the reason; None if no path was proven."""
    row_us: float | None = None
    """Microseconds from sending a row of ROW_BYTES until the host sees that it arrived."""
    error: str | None = None
    """Why no path was proven."""


def prove_links(devices: Sequence[str]) -> tuple[LinkState, ...]:
    """The link from each of these devices ("cuda:0") to the next. A link that does not answer in time has an error, and
    the links after it are not tried."""
    pairs = list(pairwise(devices))
    if not pairs:
        return ()
    child = subprocess.Popen(
        (*COMMAND, *devices), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    links = [LinkState(*pair, **json.loads(answer)) for pair, answer in zip(pairs, _answers(child), strict=False)]
    if len(links) < len(pairs):
        links.append(LinkState(*pairs[len(links)], error=_end_of(child)))
    links += [LinkState(*pair, error="not tried") for pair in pairs[len(links) :]]
    _kill(child)
    return tuple(links)


def _answers(child: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """The lines after the first one, which says that all devices are open. Ends with the process or at a timeout."""
    assert child.stdout is not None
    text, n_lines, deadline = b"", 0, time.monotonic() + START_S
    while select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not (read := os.read(child.stdout.fileno(), 4096)):
            return
        *lines, text = (text + read).split(b"\n")
        for line in lines:
            if n_lines > 0:
                yield line
            n_lines, deadline = n_lines + 1, time.monotonic() + LINK_S


def _end_of(child: subprocess.Popen[bytes]) -> str:
    """Why the process gave no further answer."""
    with suppress(subprocess.TimeoutExpired):
        code = child.wait(0.2)
        how = f"with {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"the process that sent known answers ended {how}"
    return "no answer in time: the driver or a device hangs"


def _kill(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    assert child.stdout is not None
    child.stdout.close()
    with suppress(subprocess.TimeoutExpired):
        child.wait(0.5)  # the kernel may not end a process whose driver hangs


def _answer_all(names: Sequence[str]) -> None:
    """The child's work."""
    specs = [parse_device(name) for name in names]
    for backend in dict.fromkeys(spec.backend for spec in specs):
        driver_devices(backend)
    opened = [_engine.gpu.Device(spec.backend, spec.index) for spec in specs]
    print(flush=True)
    for sender, receiver in pairwise(opened):
        try:
            path, row_us = _kernels.driver.prove_link(sender, receiver, ROW_BYTES)
            answer: dict[str, str | float] = {"path": path, "row_us": round(row_us, 2)}
        except LuceboxError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _answer_all(sys.argv[1:])
