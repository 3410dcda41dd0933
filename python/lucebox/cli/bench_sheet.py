"""The part of `lucebox bench` that writes a sheet: measurements, self-test and facts of a GPU in one file to send."""

from __future__ import annotations

import json
import secrets
from datetime import date
from pathlib import Path
from typing import Any

import lucebox
from lucebox import selftest
from lucebox.api import LLM
from lucebox.cli import console
from lucebox.errors import InvalidRequestError
from lucebox.measure.bench import Report
from lucebox.measure.power_limit import find_power_limit
from lucebox.packs.manifest import Manifest
from lucebox.tune.measure import weight_type

__all__ = ["check_device", "save_sheet", "sheet"]

SCHEMA = 1


def check_device(llm: LLM) -> None:
    if llm.device_info is None:
        raise InvalidRequestError("a sheet describes a GPU: --sheet needs --device cuda:N, hip:N or sim")


def save_sheet(llm: LLM, report: Report, path: Path) -> None:
    """Runs the self-test of the pack and writes the file."""
    device = selftest.open_device(llm.options.device, console.note, llm.pack)
    with console.counting() as show:
        tested = selftest.run(device, secrets.randbits(32), show)
    path.write_text(json.dumps(sheet(llm, device.manifest, report, tested), indent=1) + "\n", encoding="utf-8")


def sheet(llm: LLM, manifest: Manifest, report: Report, tested: selftest.Report) -> dict[str, Any]:
    """Has no paths, host or user names. ci/tune_report.py reads it, with the keys of `lucebox tune --report`."""
    device = llm.device_info
    assert device is not None
    limit = find_power_limit(device)
    model = {
        "name": report.model,
        "weights": weight_type(Path(llm.info.path)),
        "bytes_per_token": llm.info.bytes_per_token,
    }
    return {
        "schema": SCHEMA,
        "kind": "sheet",
        "lucebox": lucebox.__version__,
        "commit": manifest.commit,
        "date": date.today().isoformat(),
        "target": manifest.target,
        "pack": manifest.name,
        "device": device.name,
        "architecture": device.architecture,
        "n_sms": device.n_sms,
        "memory_bytes": device.memory_bytes,
        "driver": device.driver,
        "kernels": report.kernels,
        "power_limit_w": None if limit is None else limit.read(),
        "bandwidth_gb_s": report.bandwidth_gb_s,
        "selftest": {
            "kernels": len(tested.kernels),
            "ok": sum(kernel.verdict == "ok" for kernel in tested.kernels),
            "wrong": [kernel.kernel for kernel in tested.kernels if kernel.verdict != "ok"],
            "failed_cases": len(tested.errors),
        },
        "models": [model],
        "rows": [
            {
                "model": report.model,
                "test": m.test,
                "n_tokens": m.n_tokens,
                "depth": m.depth,
                "sequences": m.sequences,
                "seconds": m.seconds,
                "joules": m.joules,
            }
            for m in report.measurements
        ],
    }
