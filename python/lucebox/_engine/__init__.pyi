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
    """The fastest CPU kernels this machine runs."""

def available_isas() -> list:
    """Instruction sets this build has bodies for and this machine runs."""

def kv_types() -> list:
    """Types of stored keys and values, by falling size."""

def kv_slot_bytes(kv: str, head_dim: int) -> int:
    """Bytes of one head's key or value, stored as this type."""

def allow_leaks() -> None:
    """Objects that threads hold at exit are not reported."""

def read_bandwidth(threads: int, bytes: int) -> float:
    """
    Best measured GB/s of reading `bytes` of memory with `threads` threads.
    """

class Engine:
    """
    One model's weights, immutable, with the plan of all memory it will use.
    """

    EARLIER_TOKENS: Final[int] = ...
    """Tokens of earlier outputs that an engine keeps for suffix drafts."""

    @staticmethod
    def open(path: str, pack: gpu.Pack | None = None, progress: object | None = None, **options) -> Engine: ...

    @property
    def options(self) -> dict:
        """What each option came to."""

    @property
    def info(self) -> dict: ...

    @property
    def plan(self) -> dict: ...

    @property
    def step_costs(self) -> object:
        """
        Milliseconds of a step, which the first session measures: {append: [(rows, ms)], plain_ms, draft_ms, draft_depth, first_ms, context_ms, is_fixed}; None before. Real times of steps replace them unless is_fixed.
        """

    @step_costs.setter
    def step_costs(self, arg: dict, /) -> None: ...

    @property
    def draft_may_pay(self) -> bool:
        """
        Whether the draft model gains at these costs if its drafts are as good as those of trained drafters mostly are. True without a draft model, without costs and with a fixed budget.
        """

    @property
    def n_pages(self) -> int:
        """Pages of the KV cache, of 64 tokens each."""

    @property
    def n_free_pages(self) -> int:
        """Pages that no session holds and no PageRun refers to."""

    def read_pages(self, run: PageRun) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """The bytes of the pages, as Session.read_pages() returns them."""

    @property
    def draft_kind(self) -> str | None:
        """Draft model: "dflash", "mtp", or None without one."""

    @property
    def outputs(self) -> speculation.EarlierOutputs:
        """Earlier outputs, which the suffix drafter reads; None without it."""

    @property
    def fingerprint(self) -> str:
        """
        A hash of the files' metadata, all weights and the settings that a saved session depends on. The first access reads all bytes of the files.
        """

    @property
    def layout(self) -> str:
        """
        A hash of the files' metadata, and names, types and shapes of their tensors.
        """

def plan_memory(path: str, free_bytes: int, manifest_json: str, n_sms: int, name: str, **options) -> tuple:
    """
    The plan of Engine.open and the options it resolves, for a GPU with this pack, or for the CPU (an empty manifest; free_bytes 0: of this machine). Loads no weights.
    """

def plan_scorer_memory(path: str, free_bytes: int, manifest_json: str, n_sms: int, name: str, is_lent: bool, **options) -> dict:
    """
    The plan of PromptScorer.open, likewise. is_lent: an engine lends these bytes of its weights.
    """

def promised_bytes(device: str) -> int:
    """
    Memory of a device that engines of this process have promised to their sessions and not yet allocated.
    """

def check_sampling(**options) -> None:
    """Checks the ranges of sampling options, without a vocabulary."""

def uniform_draw(seed: int, draw: int) -> float:
    """The uniform number in [0, 1) of one draw."""

class Sampler:
    """Turns logits into tokens, one uniform draw per sampled token."""

    def __init__(self, vocab: int, **options) -> None: ...

    def set_prompt(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    def set_mask(self, bits: Annotated[NDArray[numpy.uint32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None) -> None:
        """
        Allows only tokens whose bit (id % 32 of word id // 32) is set until the next call; None allows all.
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
    References to pages of the KV cache, which keep them and their contents.
    """

    def __len__(self) -> int: ...

    @property
    def is_shared(self) -> bool:
        """Whether somebody else holds some of the pages."""

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
        Makes the timeline equal to ids; returns how many leading tokens were reused. between_layers() is called within a chunk of more than step_rows rows. Other sessions of the engine may compute appends of up to step_rows rows there.
        """

    def append(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Sequence[int] = [], positions: object | None = None, taps: Sequence[int] = []) -> tuple:
        """
        Computes rows after the timeline without keeping them: (logits [rows, vocab], taps [n, rows, hidden]).
        """

    def commit(self, path: Sequence[int]) -> None: ...

    def rewind(self, n_tokens: int) -> None: ...

    def reset(self) -> None: ...

    def fork(self, source: Session) -> None:
        """
        Makes the timeline that of another session of the engine, to the bit. They share its pages.
        """

    def save(self) -> bytes:
        """A snapshot of the timeline and its state, as bytes."""

    def load(self, data: bytes, where: str = 'snapshot') -> None: ...

    @property
    def decode_path(self) -> str: ...

    def wait(self) -> None:
        """Waits until the device has computed what was sent to it."""

    def logits(self) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """Logits of the last token, after sync()."""

    def sample(self, sampler: Sampler) -> int: ...

    def logprobs(self, token: int, n_top: int = 0) -> tuple:
        """
        Natural log probability of the token, and (id, logprob) of the n_top likeliest.
        """

    def score(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> list[float]:
        """
        Natural log probability of every token after the first. Replaces the timeline.
        """

    def hidden(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float32], dict(shape=(None, None))]:
        """
        Makes the timeline equal to ids; returns the final hidden rows [n, hidden] of what it lacked. Keeps the timeline where ids continue it.
        """

    def suggest(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], parents: Sequence[int]) -> None:
        """
        Proposes a tree below the next token; the sync() that adds this token verifies it.
        """

    def set_drafting(self, on: bool) -> None: ...

    def expect(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        A text that the next output is likely to repeat, as a whole or in parts; empty: none.
        """

    def remember(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Keeps an output for the drafts of later ones."""

    def share_outputs(self, outputs: speculation.EarlierOutputs | None) -> None:
        """
        Drafts from these outputs, and keeps outputs there. None: those of all sessions.
        """

    @property
    def draft_counts(self) -> dict:
        """Trees verified, and tokens of them drafted and accepted."""

    @property
    def accepted_lengths(self) -> list[int]:
        """[64] verified trees by the number of their accepted tokens."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of 64 tokens, over all attention layers."""

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of the recurrent state; 0 without recurrent layers."""

    @property
    def step_rows(self) -> int:
        """Rows of the longest append between the layers of a prompt's."""

    @property
    def prefill_chunk(self) -> int:
        """
        Rows of a prefill chunk: sync() computes prompts in appends that end at its multiples.
        """

    def matched_prefix(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Sequence[int]) -> int:
        """
        Length of the longest prefix of ids whose state has the bits of a fresh run: computed in appends with exactly these ends, or in any appends where rows are invariant.
        """

    @property
    def rows_are_invariant(self) -> bool:
        """
        Whether a row has the same bits whichever appends compute the sequence.
        """

    def read_pages(self, first: int, count: int) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]: ...

    def read_recurrent(self) -> Annotated[NDArray[numpy.uint8], dict(shape=(None,))]:
        """The recurrent state after the newest token."""

    def assemble(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], ends: Sequence[int], first_page: int = 0, pages: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | PageRun] = [], recurrent: object | None = None) -> None:
        """
        Makes the timeline ids, as if computed in appends with these ends. Keeps the pages before first_page and takes the other pages, bytes or a PageRun each, and the recurrent state from the arguments.
        """

    @property
    def n_pages(self) -> int:
        """Pages of the KV cache that the session holds."""

    def reserve(self, n_tokens: int) -> bool:
        """
        Takes pages for a timeline of n_tokens, after swapping in. False: too few are free, and nothing changed.
        """

    def swap_out(self) -> None:
        """
        Copies the pages to host memory and gives them back. The next call that needs them swaps in, or raises OutOfMemoryError.
        """

    @property
    def is_swapped_out(self) -> bool: ...

    def share_pages(self, first: int, count: int) -> PageRun:
        """References to pages of the timeline, for assemble()."""

def sync_together(sessions: Sequence[Session], ids: Sequence[Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]]) -> int:
    """
    Session.sync() of several sessions of an engine, each with its ids. Where they lack one token each, a pass over the weights computes it for all of them. Returns the rows of these passes.
    """

def start_samples(sessions: Sequence[Session], samplers: Sequence[Sampler]) -> None:
    """
    After sync_together(): starts the choices that the next sample() of each session and sampler returns, so that a device chooses for all sessions before the host waits for one.
    """

class PromptScorer:
    """
    A model that tells how much the last rows of a prompt look at each of its tokens.
    """

    @staticmethod
    def open(path: str, pack: gpu.Pack | None = None, lender: Engine | None = None, progress: object | None = None, **options) -> PromptScorer:
        """
        lender: an engine on the same device whose weights make way while the scorer computes.
        """

    @property
    def options(self) -> dict:
        """What each option came to."""

    @property
    def plan(self) -> dict: ...

    def scored_layers(self, layers: Sequence[int]) -> list[int]:
        """
        The layers, or all with attention where there are none. Refuses layers that cannot score.
        """

    def score(self, ids: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], layers: Sequence[int] = [], progress: object | None = None, check: object | None = None) -> Annotated[NDArray[numpy.float32], dict(shape=(None,))]:
        """
        One score for each token: its largest softmax weight among the heads of `layers` (empty: all with attention), the mean over the last score_rows tokens. Layers after the last of them are not computed. progress(done, total) in tokens, layer by layer; it must not compute with this scorer or its lender. check() is called every 50 ms, and ends the call by raising.
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
        """A new dict of plain values; arrays are lists."""

    @property
    def tensors(self) -> list:
        """A new list of (name, dtype, shape, file, offset, bytes)."""

    def read_tensor(self, name: str) -> bytes:
        """A copy of the tensor's bytes."""

class Safetensors:
    """An open checkpoint folder."""

    def __init__(self, folder: str | os.PathLike) -> None: ...

    @property
    def folder(self) -> str: ...

    @property
    def config(self) -> object:
        """A new dict of config.json."""

    @property
    def tensors(self) -> list:
        """A new list of (name, dtype, shape, file, offset, bytes)."""

    def read_tensor(self, name: str) -> bytes:
        """A copy of the tensor's bytes."""

def device_type(type: str) -> str:
    """The type in which a device holds weights of a type, by their names."""

def open_model_file(path: str | os.PathLike) -> GgufFile | Safetensors:
    """Opens a GGUF file, a checkpoint folder, or a folder with one GGUF."""
