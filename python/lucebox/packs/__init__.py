"""GPU packs: wheels of device code, one per target, found at run time.

manifest.py parses a pack's manifest, installed.py finds packs and checks their files, choice.py matches packs with
devices.
"""

from lucebox.packs.choice import (
    Choice,
    Device,
    DeviceSpec,
    Selection,
    best_installed,
    best_target,
    choose,
    fitting,
    is_at_least,
    parse_device,
    select,
)
from lucebox.packs.installed import (
    ON_PYPI,
    BrokenPack,
    Pack,
    Packs,
    broken_pack,
    find,
    install_command,
    reinstall_command,
)
from lucebox.packs.manifest import Board, CodeObject, Compiler, Kernel, Manifest, extra, package

__all__ = [
    "ON_PYPI",
    "Board",
    "BrokenPack",
    "Choice",
    "CodeObject",
    "Compiler",
    "Device",
    "DeviceSpec",
    "Kernel",
    "Manifest",
    "Pack",
    "Packs",
    "Selection",
    "best_installed",
    "best_target",
    "broken_pack",
    "choose",
    "extra",
    "find",
    "fitting",
    "install_command",
    "is_at_least",
    "package",
    "parse_device",
    "reinstall_command",
    "select",
]
