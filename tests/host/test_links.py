"""The links that `lucebox doctor` shows, proven by a child process on simulated devices, and children that fail."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import pack_data
import pytest
from lucebox.cli.doctor import print_report
from lucebox.packs import links
from lucebox.packs.doctor import examine, with_links
from lucebox.packs.drivers import Survey
from lucebox.packs.links import LinkState, prove_links
from test_doctor import H100, STRIX

ANSWER = json.dumps({"path": "peer", "row_us": 3.5})


def test_links_of_simulated_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """sim:4 has no peer access to the devices 0 to 3, and sim:7 receives wrong data."""
    monkeypatch.setattr(links, "LINK_S", 30)  # other tests may run beside this one
    found = prove_links(["sim:0", "sim:1", "sim:4", "sim:7"])
    assert [(link.sender, link.receiver, link.error) for link in found] == [
        ("sim:0", "sim:1", None),
        ("sim:1", "sim:4", None),
        ("sim:4", "sim:7", None),
    ]
    paths = [link.path or "" for link in found]
    assert paths[0] == "peer"
    assert paths[1].startswith("host: device 4 ") and "has no peer access to device 1" in paths[1]
    assert paths[2].startswith("host: device 4 ") and paths[2].endswith("copies wrong data to its peer")
    assert all(link.row_us is not None and link.row_us > 0 for link in found)


def test_a_device_that_is_not_there() -> None:
    (link,) = prove_links(["sim:0", "sim:8"])
    assert (link.path, link.error) == (None, "the process that sent known answers ended with exit code 1")


def child_that(monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """The child answers for one link, and does `then`."""
    script = f"import os, time\nprint(flush=True)\nprint({ANSWER!r}, flush=True)\n{then}"
    monkeypatch.setattr(links, "COMMAND", (sys.executable, "-c", script))


def test_a_link_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(monkeypatch, "time.sleep(60)")
    monkeypatch.setattr(links, "LINK_S", 0.2)
    start = time.monotonic()
    found = prove_links(["cuda:0", "cuda:1", "cuda:2", "cuda:3"])
    assert time.monotonic() - start < 10
    assert found == (
        LinkState("cuda:0", "cuda:1", "peer", 3.5),
        LinkState("cuda:1", "cuda:2", error="no answer in time: the driver or a device hangs"),
        LinkState("cuda:2", "cuda:3", error="not tried"),
    )


def test_a_driver_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    child_that(monkeypatch, "os.abort()")
    link = prove_links(["cuda:0", "cuda:1", "cuda:2"])[1]
    assert link.error == "the process that sent known answers ended with SIGABRT"


def test_the_report_links_usable_gpus_of_a_vendor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    child_that(monkeypatch, "os.abort()")
    for target in ("sm_90", "gfx1151"):
        pack_data.install(tmp_path / "site", target)
    broken = dataclasses.replace(H100, index=1, error="exclusive process")
    cards = [H100, broken, *(dataclasses.replace(H100, index=i) for i in (2, 3)), STRIX]
    with pack_data.on_path(tmp_path / "site"):
        report = with_links(examine(Survey(tuple(cards), {}), tmp_path))
        alone = with_links(examine(Survey((H100, STRIX), {}), tmp_path))
    assert [(link.sender, link.receiver) for link in report.links] == [("cuda:0", "cuda:2"), ("cuda:2", "cuda:3")]
    assert alone.links == ()
    print_report(report)
    text = capsys.readouterr().out
    assert "row of 20 KiB" in text
    rows = [
        line.split(maxsplit=2)[2] for line in text.splitlines() if line.startswith(("cuda:0  cuda:", "cuda:2  cuda:"))
    ]
    assert rows == ["3.5 us  peer", "-  none: the process that sent known answers ended with SIGABRT"]
    print_report(alone)
    assert "row of" not in capsys.readouterr().out
