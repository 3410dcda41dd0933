"""The second extension module in the library of lucebox._engine: single ops and launches, for the self-test, tuning,
benchmarks and tests. Both modules are one library, so that memory and the wheel hold the engine once."""

import sys
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec

from lucebox import _engine

_loader = ExtensionFileLoader(__name__, _engine.__file__)
_spec = ModuleSpec(__name__, _loader, origin=_engine.__file__)
_spec.has_location = True
sys.modules[__name__] = module_from_spec(_spec)
_loader.exec_module(sys.modules[__name__])
