"""Single ops on a device, as in ops, with a gpu.Pack first."""

from collections.abc import Sequence
from typing import Annotated

import numpy
from numpy.typing import NDArray

import lucebox._engine
import lucebox._engine.gpu


def run(pack: lucebox._engine.gpu.Pack, op: str, **fields) -> dict:
    """
    Runs an op on its fields, by the names in src/cpp/ops/operands.h: a dict of what it writes. An output that is given the name of an input takes that input's memory; rounded rows are given as their bits, 8 or 16.
    """

def run_several(pack: lucebox._engine.gpu.Pack, op: str, fields: Sequence[dict]) -> list[dict]:
    """
    Runs an op of one row for several sequences, in one launch if the pack has a kernel for that: run() of each dict of fields, with a list of results.
    """

def time(pack: lucebox._engine.gpu.Pack, op: str, sets: int = 1, replays: int = 20, tries: int = 5, **fields) -> dict:
    """
    Seconds of an op by the device's clock, over `sets` copies of its fields in turn, and its first launch. Of an attention also the bytes that have to move, and the flops of the slots that a chain sees.
    """

def read_memory(pack: lucebox._engine.gpu.Pack, x: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> object:
    """Sums of the 32-bit words that each block has read."""

def read_bandwidth(pack: lucebox._engine.gpu.Pack, bytes: int = 1073741824, sets: int = 1, replays: int = 20, tries: int = 5) -> float:
    """
    Bytes a second of a kernel that only reads `bytes` a launch, from `sets` buffers in turn.
    """

def delta_net(pack: lucebox._engine.gpu.Pack, last: dict, **fields) -> tuple:
    """
    A delta_net by its fields, then the product `last` of its norm, by its own fields but x: what either writes, and the launches of each kernel. What a device need not write keeps its 0xff bytes.
    """

def sample(pack: lucebox._engine.gpu.Pack, logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None), order='C', device='cpu', writable=False)], prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ring_capacity: int = 4, with_append: bool = True, mask: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, tree: tuple[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]] | None = None, first: int = 0, replay_length: int = -1, **options) -> dict:
    """
    One token for each row of logits, and what the device then knows: a dict of arrays. With a tree (tokens, parents), the tokens of a walk down it from row `first`, whose rows the logits belong to; `accept` is then n_before, root, accepted[64] and positions[3, 37] of an AcceptPath.
    """

def sample_several(pack: lucebox._engine.gpu.Pack, logits: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order='C', device='cpu', writable=False)], prompt: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], **options) -> list[dict]:
    """
    sample() of sequences with this prompt, in launches for all where the pack has kernels for that. logits: [sequences, steps, vocab].
    """

def linear_group(pack: lucebox._engine.gpu.Pack, products: Sequence[dict]) -> list[dict]:
    """
    Up to four products of one x, each by its fields as a linear, those of one type in one launch: the results of each.
    """

def matmul_group(pack: lucebox._engine.gpu.Pack, products: Sequence[dict]) -> list[dict]:
    """The same with many rows of x, on matrix units."""

def matmul_chain(pack: lucebox._engine.gpu.Pack, products: Sequence[dict], between: dict, last: dict) -> tuple:
    """
    Few rows: a product and an rms_norm of it, or two products and a swiglu of them, then the product `last` of that, each by its fields. `between` and the x of `last` have no memory that is read. The results of the products, and of `last`.
    """

def time_linear(pack: lucebox._engine.gpu.Pack, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int = 1, activations: str = 'int8', sets: int = 1, replays: int = 20, tries: int = 5) -> dict:
    """
    Seconds of the mat-vec of x already rounded, over `sets` rotated sets of weights, the bytes it moves, and the launch.
    """

def time_matmul(pack: lucebox._engine.gpu.Pack, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int, activations: str = 'int8', sets: int = 1, replays: int = 20, tries: int = 5) -> dict:
    """
    Seconds of the product of x already rounded to 8 or 16 bits (16-bit numbers are made within the time), over `sets` rotated sets of weights, the bytes it moves, and the launch of its tiles.
    """

def load_planes(pack: lucebox._engine.gpu.Pack, weights: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)]], dtypes: Sequence[str], n_out: Sequence[int], n_in: Sequence[int], threads: int = 1, slot_bytes: int = 2097152, progress_bytes: int = 33554432, progress: object | None = None) -> list:
    """
    The planes of matrices, brought to the device as a model's are and read back.
    """

def time_load(pack: lucebox._engine.gpu.Pack, path: str, threads: int, slot_bytes: int = 2097152, progress: object | None = None) -> dict:
    """
    Brings a model's weights to the device and drops them: seconds, and bytes there.
    """

def weight_table(pack: lucebox._engine.gpu.Pack, path: str) -> tuple[list[int], list[int]]:
    """
    Addresses of a loaded model's matrices by slot: of the host's table, and of the device's.
    """

def decode_ahead(engine: lucebox._engine.Engine, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)], sampler: lucebox._engine.Sampler, n_tokens: int, ahead: int) -> list[int]:
    """
    Tokens from these logits on, with up to `ahead` steps asked for before their tokens are looked at.
    """

def megakernel(pack: lucebox._engine.gpu.Pack, norm: dict, product: dict, missing: int = 0, is_lost: bool = False, most: int = 1, allowed: int = 1) -> dict:
    """
    What a product of a norm, by the fields of either, writes as logits: one phase of a megakernel, before the sampler.
    """

def choose(manifest_json: str, n_sms: int, op: str, capacity: int = 0, **fields) -> list[dict]:
    """
    The launches of an op, by its numbers as src/cpp/ops/operands.h names them; those not given are 0. `capacity`: of an attention's cache; the partials of its splits are held to the scratch.
    """

def choose_sampling(manifest_json: str, n_sms: int, op: str, size: int) -> dict:
    """The launch of sample, count_window or next_token."""

def choose_linear(manifest_json: str, n_sms: int, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int = 1, activations: str = 'int8') -> list[dict]:
    """The launches of a group, one for each type in it."""

def choose_gemm(manifest_json: str, n_sms: int, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int, activations: str = 'int8') -> dict:
    """
    The launches of a group of products with many rows, the bits its x is rounded to, its scratch memory.
    """

def attention_config(manifest_json: str, n_sms: int, capacity: int, **fields) -> str:
    """
    The kernel, tiles and splits of an attention, as text; its numbers as of choose().
    """

def gemm_config(manifest_json: str, n_sms: int, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int, activations: str = 'int8') -> str:
    """The kernel and tiles of a group of one weight type, as text."""

def skinny_config(manifest_json: str, n_sms: int, dtypes: Sequence[str], n_out: Sequence[int], n_in: int, rows: int) -> str | None:
    """
    The kernel and cut of a skinny GEMM, as text; None where the pack has no kernel for the group.
    """
