"""
The native engine of lucebox. Use the lucebox package; names here are not a public interface.
"""

from collections.abc import Sequence
import os
from typing import Annotated, Final

import numpy
from numpy.typing import NDArray

from lucebox._engine import gpu as gpu, speculation as speculation


def best_isa() -> str:
    """The fastest instruction set that this machine supports."""

def available_isas() -> list:
    """
    Instruction sets for which this build has kernels and which this machine supports.
    """

def kv_types() -> list:
    """Types of stored keys and values, largest first."""

def kv_slot_bytes(kv: str, head_dim: int) -> int:
    """Bytes of one head's key or value, stored as this type."""

def allow_leaks() -> None:
    """Disables the report of objects that threads still hold at exit."""

class EncodedImage:
    """
    An image as rows for the language model. While it exists, its rows stay in memory.
    """

    @property
    def ids(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """
        [n] the ids that stand for its rows in a prompt, beyond the vocabulary.
        """

    @property
    def rows(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """[n, hidden], a copy."""

FIRST_IMAGE_ID: int = 1073741824

def read_bandwidth(threads: int, bytes: int) -> float:
    """
    Reads `bytes` of memory with `threads` threads and returns the best GB/s it measured.
    """

class KeptWeights:
    """
    Weights of an engine in pinned host memory, for a later load of its files.
    """

    @property
    def n_bytes(self) -> int:
        """Bytes copied so far."""

    @property
    def is_complete(self) -> bool:
        """Whether a load can use the copy."""

    def free_slice(self) -> bool:
        """Frees the last slice. Returns whether others remain."""

class Engine:
    """
    One model's weights, immutable, with the plan of all memory it will use.
    """

    EARLIER_TOKENS: Final[int] = ...
    """Number of output tokens that an engine keeps for suffix drafts."""

    @staticmethod
    def open(path: str, pack: gpu.Pack | None = None, progress: object | None = None, others: Sequence[gpu.Pack] = [], draft_pack: gpu.Pack | None = None, vision_pack: gpu.Pack | None = None, vision_on_cpu: bool = False, kept: KeptWeights | None = None, **options) -> Engine: ...

    def keep_weights(self) -> KeptWeights:
        """
        An empty copy of all weights, for keep_slice(). Throws UnsupportedError on the CPU and for experts in host memory.
        """

    def keep_slice(self, kept: KeptWeights, slice_bytes: int) -> bool:
        """
        Copies the next slice to new pinned memory. Returns whether others follow; without, the copy is complete: a later open(kept=...) in this process copies it to the devices if files, devices and split are the same, and reads the files otherwise. Throws OutOfMemoryError if the rest takes more than half of the available memory, or the system pins no more.
        """

    def has_weights_of(self, kept: KeptWeights) -> bool:
        """
        Whether the copy, complete or not, is of the engine's files, devices and split.
        """

    @property
    def options(self) -> dict:
        """The options, with every default resolved."""

    @property
    def info(self) -> dict: ...

    @property
    def n_stages(self) -> int:
        """
        Devices that compute one after the other, each its layers; 1: a device, or devices that compute together.
        """

    @property
    def links(self) -> list[str]:
        """
        How rows get from each device of a split model to the next: "peer", or "host: ..." with the reason.
        """

    @property
    def link_us(self) -> list[float]:
        """
        Microseconds of one row over each link, measured when the model was loaded.
        """

    @property
    def plan(self) -> dict: ...

    @property
    def expert_counts(self) -> tuple:
        """
        (hits, misses, bytes): the experts that all passes so far found in device memory, those copied from host memory, and their bytes; 0 if all experts are in device memory.
        """

    def set_decode_path(self, path: str) -> None:
        """
        The way to decode of sessions that are opened from now on. Their step costs are not known.
        """

    @property
    def expert_uses(self) -> list[list[int]]:
        """
        How often the experts of each layer were chosen: [layer][expert], a prediction block's last. Empty if all experts are in device memory. Setting it, for the first layers or all, copies the experts used most to the device; no bit of a result changes.
        """

    @expert_uses.setter
    def expert_uses(self, arg: Sequence[Sequence[int]], /) -> None: ...

    @property
    def step_costs(self) -> object:
        """
        Times of a step in milliseconds: {append: [(rows, ms)], plain_ms, draft_ms, draft_depth, first_ms, context_ms, is_fixed}. None until the first session has measured them. Unless is_fixed, times of real steps replace them.
        """

    @step_costs.setter
    def step_costs(self, arg: dict, /) -> None: ...

    @property
    def draft_experience(self) -> dict:
        """
        Learned acceptance of drafts in all sessions, by kind of sampling: {greedy: [numbers], sampled: [numbers]}, for a file. A kind that is missing is not known. Setting it throws InvalidRequestError for other numbers.
        """

    @draft_experience.setter
    def draft_experience(self, arg: dict, /) -> None: ...

    @property
    def draft_may_pay(self) -> bool:
        """
        Whether drafting pays at these costs if the drafts are as good as a typical trained drafter's. True without a draft model, without costs and with a fixed budget.
        """

    @property
    def n_pages(self) -> int:
        """Number of pages in the KV cache; a page holds 64 tokens."""

    @property
    def n_free_pages(self) -> int:
        """Number of pages that neither a session nor a PageRun holds."""

    @property
    def n_free_window_pages(self) -> int:
        """
        The same for the pages of the layers with a window, which are not among n_pages.
        """

    @property
    def lacks_window_pages(self) -> bool:
        """
        Whether a session lacked pages of the layers with a window, and none has become free since.
        """

    def read_pages(self, run: PageRun) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """
        Copies the pages, in the format of Session.read_pages() or Session.read_windows().
        """

    @property
    def tower(self) -> object:
        """The vision tower's shape; None: the model was opened without one."""

    def find_image(self, key: str) -> EncodedImage:
        """The encoded image of this key, if its rows are still in memory."""

    def encode_image(self, key: str, rgb: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order='C', device='cpu', writable=False)]) -> EncodedImage:
        """
        Encodes the pixels [height, width, 3], whose sides are multiples of the tower's unit, or returns the image already encoded under this key.
        """

    @property
    def draft_kind(self) -> str | None:
        """
        Kind of the draft model: "dflash", "mtp" or "assistant"; None without one.
        """

    @property
    def outputs(self) -> speculation.EarlierOutputs:
        """
        Earlier outputs that the suffix drafter searches; None without a suffix drafter.
        """

    @property
    def fingerprint(self) -> str:
        """
        Hash of the files' metadata, all weights and the settings that a saved session depends on. The first access reads the whole files.
        """

    @property
    def layout(self) -> str:
        """
        Hash of the files' metadata and of their tensors' names, types and shapes.
        """

    @staticmethod
    def layout_of(path: str) -> str:
        """The layout of a model file, without a draft model."""

def plan_memory(path: str, free_bytes: int, manifest_json: str, n_sms: int, name: str, others: Sequence[tuple[int, str, int, str]] = [], draft_device: tuple[int, str, int, str] | None = None, vision_device: tuple[int, str, int, str] | None = None, **options) -> tuple:
    """
    Returns the plan that Engine.open would make and the options as it would resolve them, without loading weights. An empty manifest_json plans for the CPU, where free_bytes = 0 means the free memory of this machine. others: further devices, as (free_bytes, manifest_json, n_sms, name); draft_device: one for the draft model; vision_device: one for the vision tower.
    """

def plan_scorer_memory(path: str, free_bytes: int, manifest_json: str, n_sms: int, name: str, is_lent: bool, **options) -> dict:
    """
    Returns the plan that PromptScorer.open would make. is_lent: free_bytes are weights that an engine lends.
    """

def promised_bytes(device: str) -> int:
    """
    Bytes of a device that engines of this process have reserved for sessions and not yet allocated.
    """

def available_memory() -> int:
    """Bytes of main memory that this process can allocate without swapping."""

def check_sampling(**options) -> None:
    """Checks the ranges of sampling options, without a vocabulary."""

def uniform_draw(seed: int, draw: int) -> float:
    """The uniform number in [0, 1) of draw number `draw`."""

class Sampler:
    """Turns logits into tokens, one uniform draw per sampled token."""

    def __init__(self, vocab: int, **options) -> None: ...

    def set_prompt(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def set_mask(self, bits: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None:
        """
        Until the next call, allows only tokens whose bit (id % 32 of word id // 32) is set; None allows all.
        """

    def sample(self, logits: Annotated[NDArray[numpy.float32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> int: ...

    def record_forced(self, token: int) -> None:
        """
        Records a token that the caller appended without sampling; penalties count it.
        """

    def drop_last(self) -> None:
        """
        Removes the token recorded last, which another one replaces; penalties no longer count it.
        """

class PageRun:
    """
    References to pages of the KV cache, which keep the pages allocated and unchanged.
    """

    def __len__(self) -> int: ...

    @property
    def n_bytes(self) -> int: ...

    @property
    def is_in_use(self) -> bool:
        """
        Whether sessions hold all of the pages, so that they stay allocated without any PageRun.
        """

class Session:
    """One mutable token timeline on an engine."""

    def __init__(self, engine: Engine) -> None: ...

    @property
    def tokens(self) -> list[int]: ...

    @property
    def n_tokens(self) -> int: ...

    @property
    def context(self) -> int: ...

    @property
    def rewind_floor(self) -> int: ...

    def sync(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], progress: object | None = None, between_layers: object | None = None) -> int:
        """
        Makes the timeline equal to ids and returns the number of leading tokens that it reused. In a chunk of more than step_rows rows, calls between_layers() between layers: there, other sessions of the engine may compute appends of up to step_rows rows.
        """

    def append(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Sequence[int] = [], positions: object | None = None, taps: Sequence[int] = []) -> tuple:
        """
        Computes rows that follow the timeline, without committing them; returns (logits [rows, vocab], taps [n, rows, hidden]).
        """

    def commit(self, path: Sequence[int]) -> None: ...

    def rewind(self, n_tokens: int) -> None: ...

    def reset(self) -> None: ...

    def fork(self, source: Session) -> None:
        """
        Makes the timeline a bit-exact copy of another session's on the same engine. The two share its pages.
        """

    def save(self) -> bytes:
        """Serialises the timeline and its state."""

    def load(self, data: bytes, where: str = 'snapshot') -> None: ...

    @property
    def decode_path(self) -> str: ...

    def measure_plain_ms(self) -> float:
        """
        Milliseconds of a plain token, measured on this session, which is empty and does not draft.
        """

    def wait(self) -> None:
        """Waits until the device has finished all work sent to it."""

    def wait_for_choice(self) -> None:
        """
        Waits until the device has chosen the token that sample() returns next, if it has begun to.
        """

    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """Logits of the last token, after sync()."""

    def sample(self, sampler: Sampler) -> int: ...

    def logprobs(self, token: int, n_top: int = 0) -> tuple:
        """
        Natural log probability of the token, and (id, log probability) of the n_top likeliest tokens.
        """

    def score(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[float]:
        """
        Natural log probability of every token after the first. Replaces the timeline.
        """

    def hidden(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        Makes the timeline equal to ids and returns the final hidden rows [n, hidden] of the n tokens that it computed: the new ones if ids continue the timeline, else all.
        """

    def suggest(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Sequence[int]) -> None:
        """
        Proposes a draft tree that follows the next token; the sync() that appends this token verifies the tree.
        """

    def set_drafting(self, on: bool) -> None: ...

    def set_sampling(self, sampler: Sampler) -> None:
        """
        Judges the next drafts by what greedy or by what sampled sequences of the engine showed, as this sampler is.
        """

    def expect(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        Sets a text that the next output is likely to repeat, as a whole or in parts; empty: none.
        """

    def remember(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Keeps an output, from which later outputs are drafted."""

    def share_outputs(self, outputs: speculation.EarlierOutputs | None) -> None:
        """
        Drafts from these outputs and keeps new outputs there. None: the outputs that all sessions of the engine share.
        """

    @property
    def draft_counts(self) -> dict:
        """Numbers of trees verified, tokens in them, and tokens accepted."""

    @property
    def accepted_lengths(self) -> list[int]:
        """
        [64]: entry n is the number of verified trees of which n tokens were accepted.
        """

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of 64 tokens, over all attention layers."""

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of the recurrent layers' state; 0 if the model has none."""

    @property
    def window_bytes(self) -> int:
        """
        Maximum bytes of the pages that hold the windows at one length; 0 if no layer has a window.
        """

    @property
    def own_floor(self) -> int:
        """
        The shortest prefix of the tokens to which assemble() can return without pieces.
        """

    @property
    def step_rows(self) -> int:
        """Maximum rows of an append between the layers of a prompt's chunk."""

    @property
    def n_stages(self) -> int:
        """Engine.n_stages"""

    @property
    def prefill_chunk(self) -> int:
        """
        Rows of a prefill chunk: sync() cuts a prompt into appends at its multiples.
        """

    def matched_prefix(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Sequence[int]) -> int:
        """
        Length of the longest prefix of ids whose state has the bits of a fresh run: computed in appends with exactly these ends, or in any appends where rows are invariant.
        """

    @property
    def images_are_whole(self) -> bool:
        """
        Whether an append has all rows of an image, because they see each other.
        """

    @property
    def rows_are_invariant(self) -> bool:
        """
        Whether a row has the same bits whichever appends compute the sequence.
        """

    def read_pages(self, first: int, count: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]: ...

    def read_recurrent(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """Copies the recurrent state after the newest token."""

    def read_windows(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """Copies the pages that hold the windows after the newest token."""

    def assemble(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Sequence[int], first_page: int = 0, pages: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | PageRun] = [], recurrent: object | None = None, windows: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | PageRun | None = None) -> None:
        """
        Makes the timeline equal to ids, as if it had computed them in appends with these ends. Keeps its pages before first_page; takes the other pages (each piece is bytes or a PageRun), the recurrent state and the windows (bytes or a PageRun) from the arguments.
        """

    @property
    def n_pages(self) -> int:
        """Number of pages of the KV cache that the session holds."""

    def reserve(self, n_tokens: int) -> bool:
        """
        Allocates pages for a timeline of n_tokens; swaps the session in first. Returns False and changes nothing if too few pages are free.
        """

    def swap_out(self) -> None:
        """
        Copies the pages to host memory and frees them. The next call that needs them swaps them in, or raises OutOfMemoryError.
        """

    @property
    def is_swapped_out(self) -> bool: ...

    def share_pages(self, first: int, count: int) -> PageRun:
        """Returns references to pages of the timeline, for assemble()."""

    def share_windows(self) -> PageRun:
        """
        Returns references to the pages that hold the windows after the newest token; None if no layer has a window.
        """

def sync_together(sessions: Sequence[Session], ids: Sequence[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]]) -> int:
    """
    Calls Session.sync() on several sessions of an engine, each with its ids. Sessions that lack exactly one token share passes over the weights. Returns the number of rows in these passes.
    """

def start_samples(sessions: Sequence[Session], samplers: Sequence[Sampler]) -> None:
    """
    After sync_together(): starts the choice that each session's next sample() with its sampler returns, so that a device chooses for all sessions before the host waits for any.
    """

class PromptScorer:
    """
    A model that scores the tokens of a prompt by the attention that its last rows pay them.
    """

    @staticmethod
    def open(path: str, pack: gpu.Pack | None = None, lender: Engine | None = None, progress: object | None = None, **options) -> PromptScorer:
        """
        lender: an engine on the same device, whose weights move to host memory while the scorer computes.
        """

    @property
    def options(self) -> dict:
        """The options, with every default resolved."""

    @property
    def plan(self) -> dict: ...

    def scored_layers(self, layers: Sequence[int]) -> list[int]:
        """
        The layers; if empty, all layers with attention. Raises InvalidRequestError unless they ascend and have attention.
        """

    def score(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], layers: Sequence[int] = [], progress: object | None = None, check: object | None = None) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """
        Scores each token: its largest softmax weight among the heads of `layers` (empty: all layers with attention), averaged over the last score_rows tokens. Does not compute the layers after the last of these. progress(done, total) counts tokens, layer by layer; it must not use this scorer or its lender. check() is called every 50 ms; it ends the call by raising.
        """

class GgufFile:
    """An open GGUF file or split set."""

    def __init__(self, path: str | os.PathLike) -> None: ...

    @property
    def version(self) -> int: ...

    @property
    def alignment(self) -> int: ...

    @property
    def metadata(self) -> dict:
        """The metadata as a new dict of plain values; arrays are lists."""

    @property
    def tensors(self) -> list:
        """
        The tensors as a new list of (name, dtype, shape, file, offset, bytes).
        """

    def read_tensor(self, name: str) -> bytes:
        """Copies the tensor's bytes."""

class Safetensors:
    """An open checkpoint folder."""

    def __init__(self, folder: str | os.PathLike) -> None: ...

    @property
    def folder(self) -> str: ...

    @property
    def config(self) -> object:
        """config.json as a new dict."""

    @property
    def tensors(self) -> list:
        """
        The tensors as a new list of (name, dtype, shape, file, offset, bytes).
        """

    def read_tensor(self, name: str) -> bytes:
        """Copies the tensor's bytes."""

def device_type(type: str) -> str:
    """Name of the type in which a GPU stores weights of this type."""

def open_model_file(path: str | os.PathLike) -> GgufFile | Safetensors:
    """Opens a GGUF file, a checkpoint folder, or a folder with one GGUF."""
