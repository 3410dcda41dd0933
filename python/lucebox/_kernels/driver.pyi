"""Memory, modules and launches of a device."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

import lucebox._engine
import lucebox._engine.gpu


def delay_sim_device(device: int, seconds: float) -> None:
    """
    Injects a fault: the next kernel on this simulated device begins this much later.
    """

def corrupt_sim_link(device: int, flipped: int, every: int, n_wrong: int) -> None:
    """
    Injects a fault: every `every`-th word that kernels of this simulated device send to other devices arrives with these bits inverted, until n_wrong words have.
    """

def enable_peer(device: lucebox._engine.gpu.Device, peer: lucebox._engine.gpu.Device) -> None:
    """Lets a device reach the memory of another."""

def numa_node(pci: str, folder: str) -> int:
    """
    The NUMA node of the device at a PCI address, or -1 if the system names none. folder: of all PCI devices.
    """

def memory_policy_near(node: int) -> int:
    """
    The kernel's number of this thread's memory policy while its pages come from a node; -1: there is none.
    """

class Buffer:
    """
    Device memory, or pinned memory of the host; its contents start undefined.
    """

    def __init__(self, device: lucebox._engine.gpu.Device, bytes: int, pinned: bool = False) -> None: ...

    @property
    def address(self) -> int: ...

    def __len__(self) -> int: ...

    def write(self, array: Annotated[NDArray, dict(order='C', device='cpu', writable=False)], stream: Stream, offset: int = 0) -> None:
        """Copies an array in, and waits."""

    def read(self, array: Annotated[NDArray, dict(order='C', device='cpu')], stream: Stream, offset: int = 0) -> None:
        """Copies out into an array, and waits."""

class Module:
    """A loaded code object."""

    def __init__(self, device: lucebox._engine.gpu.Device, image: bytes, label: str = 'the module') -> None:
        """The label names the code object in errors."""

    @property
    def label(self) -> str: ...

    def kernel(self, name: str) -> Kernel: ...

class Kernel:
    """A kernel that takes one struct by value."""

    @property
    def name(self) -> str: ...

    @property
    def max_threads(self) -> int: ...

    @property
    def registers(self) -> int: ...

    @property
    def static_shared_bytes(self) -> int: ...

    @property
    def local_bytes(self) -> int: ...

    @property
    def max_dynamic_shared_bytes(self) -> int: ...

    @property
    def params_bytes(self) -> int:
        """0 where the driver does not tell."""

    def allow_shared(self, bytes: int) -> None: ...

    def occupancy(self, threads: int, shared_bytes: int = 0) -> int:
        """Blocks that fit on one SM."""

class Event:
    """A point in a stream."""

    def __init__(self, device: lucebox._engine.gpu.Device) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_ms(self, later: Event) -> float:
        """Milliseconds from this event to a later one."""

class Stream:
    """Work in order."""

    def __init__(self, device: lucebox._engine.gpu.Device) -> None: ...

    def launch(self, kernel: Kernel, grid: Sequence[int], block: Sequence[int], params: bytes, *, shared_bytes: int = 0, cooperative: bool = False, cluster: int = 0, overlap_previous: bool = False) -> None: ...

    def copy(self, to: Buffer, from_: Buffer, bytes: int, to_offset: int = 0, from_offset: int = 0) -> None: ...

    def copy_peer(self, to: Buffer, to_device: lucebox._engine.gpu.Device, from_: Buffer, from_device: lucebox._engine.gpu.Device, bytes: int) -> None: ...

    def fill(self, to: Buffer, value: int) -> None: ...

    def record(self, event: Event) -> None: ...

    def wait(self, event: Event) -> None: ...

    def synchronize(self) -> None: ...

    def is_done(self) -> bool:
        """Whether all work sent so far has ended."""

class Graph:
    """What a `with` block sent to a stream; a later block updates it."""

    def __init__(self, stream: Stream) -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(self, type: object | None, value: object | None, traceback: object | None) -> None: ...

    def launch(self, stream: Stream) -> None: ...

    @property
    def was_updated(self) -> bool:
        """Whether the last capture fitted the graph in place."""

def prove_link(sender: lucebox._engine.gpu.Device, receiver: lucebox._engine.gpu.Device, row_bytes: int) -> tuple[str, float]:
    """
    Sends known answers as a model that is split by layers does. Returns the path ("peer", or "host: ..." with the reason), and the mean microseconds of a row.
    """

class HeldStream:
    """A fault: a stream that hangs until release(), or the end of a `with`."""

    def release(self) -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(self, *args) -> None: ...

def hold_device(engine: lucebox._engine.Engine, shard: int) -> HeldStream:
    """
    Hangs the stream of a device of a model once the work sent before has ended.
    """

class LinkChain:
    """Devices that hand rows from each to the next."""

    def __init__(self, devices: Sequence[lucebox._engine.gpu.Device], max_values: int, timeout_s: float) -> None:
        """timeout_s: of a device that makes no progress."""

    def hold(self, device: int) -> HeldStream:
        """As hold_device()."""

    def restart(self) -> None:
        """After an error; raises while a device still hangs."""

    def pass_on(self, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """x [count], which goes through the memory of each device."""
