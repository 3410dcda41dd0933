"""Tunes a pack for this machine's chip: measure.py times a model under different constants, search.py chooses the
constants, variant.py makes a pack with them, run.py runs all steps."""

from lucebox.tune.kernels import Compiled, Kernels
from lucebox.tune.run import Progress, Report, Result, select_device, tune
from lucebox.tune.search import Choice, Constant, Model, Sample, Trial
from lucebox.tune.variant import variant_manifest, write_folder, write_wheel

__all__ = [
    "Choice",
    "Compiled",
    "Constant",
    "Kernels",
    "Model",
    "Progress",
    "Report",
    "Result",
    "Sample",
    "Trial",
    "select_device",
    "tune",
    "variant_manifest",
    "write_folder",
    "write_wheel",
]
