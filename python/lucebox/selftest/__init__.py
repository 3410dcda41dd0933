"""`lucebox selftest`: every kernel of a pack on a device, compared with the same op on the CPU.

runner.py runs the cases and checks the results, case.py has the error limits, cases.py lists the cases, and one file
per op family generates them.
"""

from lucebox.selftest.case import LIMITS, Case, row_unit
from lucebox.selftest.cases import cases
from lucebox.selftest.runner import (
    DeviceOps,
    KernelResult,
    PackDevice,
    Report,
    compare,
    open_device,
    run,
)

__all__ = [
    "LIMITS",
    "Case",
    "DeviceOps",
    "KernelResult",
    "PackDevice",
    "Report",
    "cases",
    "compare",
    "open_device",
    "row_unit",
    "run",
]
