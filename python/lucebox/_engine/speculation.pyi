"""Sources of drafts that sessions share."""

from typing import Annotated

import numpy
from numpy.typing import NDArray


class EarlierOutputs:
    """The newest outputs of sessions, up to `capacity` tokens."""

    def __init__(self, capacity: int) -> None: ...

    def add(self, output: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def clear(self) -> None: ...

    @property
    def n_tokens(self) -> int: ...
