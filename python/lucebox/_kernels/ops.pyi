"""Single ops, on the CPU or on a pack's device."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

import lucebox._engine
import lucebox._engine.gpu
import lucebox._kernels.driver


def run(calls: Sequence[tuple[str, Sequence[dict], Sequence[dict]]], pack: lucebox._engine.gpu.Pack | None = None, threads: int = 1, isa: str = 'auto') -> list[tuple[list[dict], list[dict]]]:
    """
    Runs calls (op, fields, readers) in order, on the CPU or on a pack's device, and returns what the ops of each wrote, and its readers. `fields` has a dict for each sequence; of a linear, for each product of one x. `readers` are the linears that read the result, which the stream may fuse. Names of ops and fields are as in src/cpp/ops/operands.h. An output that is given the name of an input takes that input's memory. An input that is given as (call, op, field) is what that earlier op wrote. Rounded rows are given as their bits, 8 or 16; weights may be the seed of random bytes.
    """

def time(calls: Sequence[tuple[str, Sequence[dict], Sequence[dict]]], pack: lucebox._engine.gpu.Pack | None = None, sets: int = 1, replays: int = 20, tries: int = 5, threads: int = 1, isa: str = 'auto') -> dict:
    """
    Seconds of calls as of run(), over `sets` copies of their memory in turn on a device, by its clock, with its launches. A product's x is already rounded. Of products and attention also the bytes that have to move, of attention the flops of the slots that a linear append sees.
    """

def take_launches(pack: lucebox._engine.gpu.Pack) -> list[str]:
    """
    The launches of run(), read_memory() and the sampler since the last call of this, as text.
    """

def read_memory(pack: lucebox._engine.gpu.Pack, x: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object:
    """Sums of the 32-bit words that each block has read."""

def read_bandwidth(pack: lucebox._engine.gpu.Pack, bytes: int = 1073741824, sets: int = 1, replays: int = 20, tries: int = 5) -> float:
    """
    Bytes a second of a kernel that only reads `bytes` a launch, from `sets` buffers in turn.
    """

def loopback_sum(pack: lucebox._engine.gpu.Pack, x: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], add: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
    """add + (x + x): an all-reduce of two ranks that are one device."""

def loopback_gather(pack: lucebox._engine.gpu.Pack, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
    """x twice, side by side: an all-gather of two ranks that are one device."""

class HeldRank(lucebox._kernels.driver.HeldStream):
    """A rank whose stream hangs."""

    def erase_arrival(self) -> None:
        """Waits until a peer's values arrive, and erases their tags and flags."""

def hold_rank(engine: lucebox._engine.Engine, rank: int) -> HeldRank:
    """Hangs the stream of a rank once the work sent before has ended."""

def crash_rank(engine: lucebox._engine.Engine, rank: int) -> None:
    """
    Sends a rank a kernel that writes to an address without memory. A GPU is lost to this process.
    """

class RankExchange:
    """The exchanges between ranks, one rank per pack."""

    def __init__(self, packs: Sequence[lucebox._engine.gpu.Pack], max_values: int, timeout_s: float, link: str = 'auto') -> None:
        """
        max_values: of an exchange; longer ones go in parts. Proves the path between the devices.
        """

    @property
    def links(self) -> str:
        """"peer", or "host: ..." with the reason."""

    def hold(self, rank: int) -> HeldRank:
        """As hold_rank()."""

    def sum(self, x: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], add: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, late: int = -1, delay_s: float = 0.0, absent: int = -1) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        add + the sum over ranks of x [ranks, count], on every rank: [ranks, count]. late: a rank that begins delay_s later; absent: a rank that never begins.
        """

    def gather(self, x: Sequence[Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)]]) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None, None))]:
        """
        The columns of all ranks, x[rank] [rows, width], side by side on every rank: [ranks, rows, total].
        """

    def time_us(self, count: int, n_exchanges: int, n_runs: int) -> float:
        """
        Mean microseconds of an all-reduce of count values in a graph of n_exchanges.
        """

def sample(pack: lucebox._engine.gpu.Pack, logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ring_capacity: int = 4, with_append: bool = True, mask: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, tree: tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None = None, first: int = 0, replay_length: int = -1, **options) -> list[dict]:
    """
    One token for each step of logits [sequences, steps, vocab], and what the device then knows: a dict of arrays for each sequence. Launches are for all sequences where the pack has kernels for that. With a tree (tokens, parents), the tokens of a walk down it from row `first`, whose rows the logits belong to; `accept` is then n_before, root, accepted[64], positions[3, 37] and last_slot of an AcceptPath.
    """

def decode_ahead(engine: lucebox._engine.Engine, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], sampler: lucebox._engine.Sampler, n_tokens: int, ahead: int) -> list[int]:
    """
    Tokens from these logits on, with up to `ahead` steps asked for before their tokens are looked at.
    """

def megakernel(pack: lucebox._engine.gpu.Pack, calls: Sequence[tuple[str, Sequence[dict], Sequence[dict]]], missing: int = 0, is_lost: bool = False, most: int = 1, allowed: int = 1) -> list[tuple[list[dict], list[dict]]]:
    """
    run() of a call as phases of a megakernel before the sampler, which takes what its first product writes as logits.
    """
