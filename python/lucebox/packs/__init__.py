"""GPU packs: wheels of device code, one per target, found at run time.

manifest.py parses a pack's manifest, installed.py finds packs and verifies their files, choice.py matches packs with
devices, pip_command.py represents the commands that install and repair them.
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
    min_driver,
    parse_device,
    parse_devices,
    select,
)
from lucebox.packs.installed import (
    ON_PYPI,
    BrokenPack,
    Pack,
    Packs,
    broken_pack,
    find,
    install_advice,
    install_command,
    open_folder,
    reinstall_command,
    unpacked,
)
from lucebox.packs.manifest import Board, CodeObject, Compiler, Generation, Kernel, Manifest, extra, package
from lucebox.packs.pip_command import PipCommand

__all__ = [
    "ON_PYPI",
    "Board",
    "BrokenPack",
    "Choice",
    "CodeObject",
    "Compiler",
    "Device",
    "DeviceSpec",
    "Generation",
    "Kernel",
    "Manifest",
    "Pack",
    "Packs",
    "PipCommand",
    "Selection",
    "best_installed",
    "best_target",
    "broken_pack",
    "choose",
    "extra",
    "find",
    "fitting",
    "install_advice",
    "install_command",
    "is_at_least",
    "min_driver",
    "open_folder",
    "package",
    "parse_device",
    "parse_devices",
    "reinstall_command",
    "select",
    "unpacked",
]
