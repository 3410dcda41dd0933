"""Token ids as the engine takes them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

__all__ = ["NO_IDS", "Ids"]

Ids: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
NO_IDS: Ids = np.empty(0, np.int32)
