"""GPUs, through their vendors' drivers."""

from collections.abc import Mapping


class DeviceInfo:
    """Properties of a device, as its driver reports them."""

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
        """The version that a pack's min_driver is compared with."""

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
    Lists the devices of cuda, hip or sim. Raises DeviceError if the driver is missing; it says what to install.
    """

def driver_version(vendor: str) -> tuple[str, str]:
    """
    The version of a vendor's driver library ("CUDA 13.0"), and its generation ("580"), with or without devices.
    """

def require_driver(info: DeviceInfo, min_driver: str) -> None:
    """
    Raises DeviceError if the device's driver is older than a pack's min_driver.
    """

class Device:
    """An opened device."""

    def __init__(self, vendor: str, index: int = 0) -> None: ...

    @property
    def info(self) -> DeviceInfo: ...

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""

class Pack:
    """A kernel pack loaded on a device."""

    def __init__(self, device: Device, manifest_json: str, files: Mapping[str, bytes]) -> None: ...

    @property
    def target(self) -> str: ...

    @property
    def name(self) -> str:
        """Name of its device: cuda:0."""

    @property
    def device(self) -> DeviceInfo: ...
