"""GPU packs: wheels of device code, one per GPU family, found at run time.

manifest.py reads what a pack says of itself, installed.py finds packs and checks their files, choice.py matches packs
with devices.
"""

from lucebox.packs.choice import Choice, Device, DeviceSpec, Selection, best_target, choose, parse_device, select
from lucebox.packs.installed import BrokenPack, Pack, Packs, find, install_command, install_line
from lucebox.packs.manifest import CodeObject, Compiler, Kernel, Manifest, extra

__all__ = [
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
    "best_target",
    "choose",
    "extra",
    "find",
    "install_command",
    "install_line",
    "parse_device",
    "select",
]
