"""Devices through their vendors' drivers."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from numpy.typing import NDArray


class DeviceInfo:
    """What a device is, as its driver tells."""

    @property
    def vendor(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def architecture(self) -> str: ...

    @property
    def driver(self) -> str: ...

    @property
    def driver_generation(self) -> str:
        """What a pack's min_driver is compared with."""

    @property
    def pci(self) -> str: ...

    @property
    def uuid(self) -> str: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def n_sms(self) -> int: ...

    @property
    def warp_size(self) -> int: ...

    @property
    def max_threads_block(self) -> int: ...

    @property
    def registers_sm(self) -> int: ...

    @property
    def shared_block_bytes(self) -> int: ...

    @property
    def shared_sm_bytes(self) -> int: ...

    @property
    def l2_bytes(self) -> int: ...

    @property
    def clock_khz(self) -> int: ...

    @property
    def memory_clock_khz(self) -> int: ...

    @property
    def bus_bits(self) -> int: ...

    @property
    def is_integrated(self) -> bool: ...

    @property
    def has_cooperative(self) -> bool: ...

    @property
    def has_clusters(self) -> bool: ...

    @property
    def has_overlap(self) -> bool: ...

    @property
    def has_graphs(self) -> bool: ...

def devices(vendor: str) -> list[DeviceInfo]:
    """
    The devices of cuda, hip or sim. Raises DeviceError with what to install when the driver is missing.
    """

def require_driver(info: DeviceInfo, min_driver: str) -> None:
    """
    Raises DeviceError when the device's driver is older than a pack's min_driver.
    """

class Device:
    """An opened device."""

    def __init__(self, vendor: str, index: int = 0) -> None: ...

    @property
    def info(self) -> DeviceInfo: ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""

    def load(self, image: bytes, label: str = 'the module') -> Module:
        """A code object from its bytes; the label names it in errors."""

    def enable_peer(self, peer: Device) -> None:
        """Lets this device reach the memory of another."""

class Buffer:
    """
    Device memory, or pinned memory of the host; its contents start undefined.
    """

    def __init__(self, device: Device, bytes: int, pinned: bool = False) -> None: ...

    @property
    def address(self) -> int: ...

    def __len__(self) -> int: ...

    def write(self, array: Annotated[NDArray, dict(order='C', device='cpu', writable=False)], stream: Stream, offset: int = 0) -> None:
        """Copies an array in, and waits."""

    def read(self, array: Annotated[NDArray, dict(order='C', device='cpu')], stream: Stream, offset: int = 0) -> None:
        """Copies out into an array, and waits."""

class Module:
    """A loaded code object."""

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

    def __init__(self, device: Device) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_ms(self, later: Event) -> float:
        """Milliseconds from this event to a later one."""

class Stream:
    """Work in order."""

    def __init__(self, device: Device) -> None: ...

    def launch(self, kernel: Kernel, grid: Sequence[int], block: Sequence[int], params: bytes, *, shared_bytes: int = 0, cooperative: bool = False, cluster: int = 0, overlap_previous: bool = False) -> None: ...

    def copy(self, to: Buffer, from_: Buffer, bytes: int, to_offset: int = 0, from_offset: int = 0) -> None: ...

    def copy_peer(self, to: Buffer, to_device: Device, from_: Buffer, from_device: Device, bytes: int) -> None: ...

    def fill(self, to: Buffer, value: int) -> None: ...

    def record(self, event: Event) -> None: ...

    def wait(self, event: Event) -> None: ...

    def synchronize(self) -> None: ...

class Graph:
    """What a `with` block sent to a stream; a later block updates it."""

    def __init__(self, stream: Stream) -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(self, type: object | None, value: object | None, traceback: object | None) -> None: ...

    def launch(self, stream: Stream) -> None: ...

    @property
    def was_updated(self) -> bool:
        """Whether the last capture fitted the graph in place."""

class Pack:
    """A kernel pack loaded on a device."""

    def __init__(self, device: Device, manifest_json: str, files: Mapping[str, bytes]) -> None: ...

    @property
    def target(self) -> str: ...

    @property
    def name(self) -> str:
        """The device it is on: cuda:0, sim."""

    @property
    def device(self) -> DeviceInfo: ...

    @property
    def launched(self) -> str:
        """The last launch, as text."""

    def take_started(self) -> list[str]:
        """Names of the kernels started since the last call of this."""
