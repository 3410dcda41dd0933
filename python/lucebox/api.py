"""`LLM`: a model loaded on a device, with text in and text out. The engine sees tokens only; text, chat and sampling
options meet here."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.assets import TensorInfo, TextAssets
from lucebox.chat.quoting import Quoting
from lucebox.chat.template import ChatTemplate
from lucebox.devices import open_pack, resolve_device
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.hub import Progress
from lucebox.machine import processor_name
from lucebox.memory import MemoryPlan
from lucebox.options import EngineOptions, Sampling, engine_fields
from lucebox.resolve import resolve
from lucebox.results import Chunk, FinishReason, Generation, Timings, TokenLogprob, Usage
from lucebox.text import StopMatcher, StreamDecoder, Tokenizer

__all__ = ["LLM", "ModelInfo"]

MAX_LOGPROBS = 20  # as in the OpenAI API
SEED_MASK = (1 << 64) - 1
BANDWIDTH_BYTES = 512 << 20  # well past any last-level cache
LOGITS_CHUNK = 16  # tokens whose logits are computed at once
ENGINE_FIELDS = [
    "architecture",
    "n_layers",
    "n_recurrent_layers",
    "hidden",
    "ffn",
    "vocab",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "tied",
    "bytes_per_token",
]
Ids = np.ndarray[tuple[int], np.dtype[np.int32]]
KernelTimes = list[tuple[str, int, float]]
StepRow = tuple[int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded."""

    name: str
    path: str
    architecture: str
    n_layers: int
    n_recurrent_layers: int
    hidden: int
    ffn: int
    vocab: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    tied: bool
    """The output head is the embedding table."""
    context_length: int
    """Tokens the model was made for."""
    n_params: int
    file_bytes: int
    """Bytes of tensors."""
    bytes_per_token: int
    """Bytes of weights one decoded token reads."""
    quant_mix: Mapping[str, int]
    """Values stored in each tensor type."""


class LLM:
    """A model and one session on it.

    `model` is a path (a GGUF file or a folder of safetensors), a hub id ("org/name" or "org/name:quant") or a catalog
    name; the other arguments are the fields of `EngineOptions`. Calls from several threads take turns token by token.

    Raises:
        ModelNotFoundError, HubError: the model cannot be found or fetched.
        FormatError, UnsupportedError: the file is damaged, or not for this engine.
        OutOfMemoryError: the plan does not fit; the message has the numbers.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        offline: bool = False,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        wanted = EngineOptions(**options)
        selection = resolve_device(wanted.device)
        self.device_reason = "; ".join(selection.report)
        for name in ("context", "threads", "prefill_chunk"):
            if (value := getattr(wanted, name)) is not None and value < 1:
                raise InvalidRequestError(f"{name} must be positive, got {value}")
        self._pack = open_pack(selection)
        self.pack_manifest = "" if selection.choice is None else selection.choice.pack.manifest_json
        """What the pack says of itself, in JSON; empty on the CPU."""
        self.device_name = selection.info.name if selection.info else processor_name()
        resolved = resolve(os.fspath(model), offline=offline, progress=progress)
        self._engine = _engine.Engine.open(
            str(resolved.path),
            pack=self._pack,
            progress=progress and partial(progress, "loading weights"),
            **engine_fields(wanted),
        )
        self._session = _engine.Session(self._engine)
        self._assets = TextAssets.load(resolved.path)
        self._quoting = Quoting(self._assets.tokenizer)
        self._lock = threading.Lock()
        self._closed = False
        self.memory_plan = MemoryPlan.from_engine(self._engine.plan)
        self.info = _model_info(resolved.name, resolved.path, self._engine.info, self._assets.tensors)
        self.options = replace(wanted, device=selection.device, **self._engine.options)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives all memory back. Further calls raise InvalidRequestError."""
        with self._lock:
            if not self._closed:
                self._closed = True
                del self._session, self._engine, self._pack

    # --- text

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """Sampling the checkpoint recommends, by its names in generation_config.json; empty when there is none."""
        return self._assets.generation_defaults

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own chat template."""
        return self._assets.template

    def read_template(self, path: str | os.PathLike[str]) -> ChatTemplate:
        """A chat template from a Jinja file, with this model's special tokens."""
        return ChatTemplate.from_file(os.fspath(path), self._assets.tokenizer)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of text; control tokens written out in it are recognised."""
        return self._assets.tokenizer.encode(text)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of token ids, control tokens included."""
        return self._assets.tokenizer.decode(ids, skip_special=False)

    # --- generation

    @overload
    def generate(
        self, prompt: str | Sequence[int], sampling: Sampling | None = None, *, stream: Literal[False] = False
    ) -> Generation: ...
    @overload
    def generate(
        self, prompt: str | Sequence[int], sampling: Sampling | None = None, *, stream: Literal[True]
    ) -> Iterator[Chunk]: ...
    def generate(
        self, prompt: str | Sequence[int], sampling: Sampling | None = None, *, stream: bool = False
    ) -> Generation | Iterator[Chunk]:
        """Continues a prompt (text or token ids).

        With `stream` the result is an iterator of chunks that may be closed early; its last chunk carries the whole
        result. Ctrl-C raises KeyboardInterrupt and leaves the session usable.
        """
        chunks = self._generate(self.ids(prompt), sampling or Sampling())
        return chunks if stream else _last(chunks)

    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling | None = None,
        *,
        stream: Literal[False] = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        template: ChatTemplate | None = None,
    ) -> Generation: ...
    @overload
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling | None = None,
        *,
        stream: Literal[True],
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        template: ChatTemplate | None = None,
    ) -> Iterator[Chunk]: ...
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: Sampling | None = None,
        *,
        stream: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        template: ChatTemplate | None = None,
    ) -> Generation | Iterator[Chunk]:
        """Answers a conversation through the model's chat template (or `template`).

        `enable_thinking` reaches the template only when given. Control tokens are the template's alone: where messages
        or tools spell them, they are text. The rest is as in `generate`.
        """
        quoted, shown = self._quoting.messages(messages), self._quoting.values(tools)
        text = self.render(quoted, tools=shown, enable_thinking=enable_thinking, template=template)
        ids = np.asarray(self._assets.tokenizer.encode_marked(text), np.int32)
        chunks = self._generate(ids, sampling or Sampling())
        return chunks if stream else _last(chunks)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        template: ChatTemplate | None = None,
    ) -> str:
        """The prompt text of a conversation."""
        template = template or self._assets.template
        if template is None:
            raise UnsupportedError(f"{self.info.name} has no chat template; give one, or use generate()")
        return template.render(messages, tools=tools, enable_thinking=enable_thinking)

    def score(self, text_or_ids: str | Sequence[int]) -> list[float]:
        """Natural log probability of every token after the first, given the ones before it."""
        ids = self.ids(text_or_ids)
        with self._turn():
            return list(self._session.score(ids))

    def ids(self, prompt: str | Sequence[int]) -> Ids:
        """The tokens of a prompt, checked.

        Raises:
            InvalidRequestError: they are not tokens of this model.
        """
        ids = np.asarray(self.tokenize(prompt) if isinstance(prompt, str) else prompt)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise InvalidRequestError("a prompt must be text or a flat sequence of token ids")
        if ids.size and (ids.min() < 0 or ids.max() >= self.info.vocab):
            raise InvalidRequestError(f"token ids must be between 0 and {self.info.vocab - 1}")
        return ids.astype(np.int32)

    # --- parts, for a server that runs several timelines itself

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._assets.tokenizer

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens at which the model ends what it writes."""
        return self._assets.end_ids

    @property
    def engine(self) -> _engine.Engine:
        """The weights, and the plan of their memory."""
        return self._engine

    def sessions(self, n: int) -> list[_engine.Session]:
        """n timelines: this LLM's own, which it must not use meanwhile, and further ones. They share the weights and
        take turns on the device."""
        return [self._session, *(_engine.Session(self._engine) for _ in range(n - 1))]

    def sampler(self, sampling: Sampling) -> _engine.Sampler:
        """What chooses the tokens of one request.

        Raises:
            InvalidRequestError: an option is out of range.
        """
        _check(sampling)
        return self._sampler(sampling)

    def _generate(self, prompt: Ids, sampling: Sampling) -> Iterator[Chunk]:
        sampler = self.sampler(sampling)  # before the first chunk is asked for: bad options raise at once
        return self._stream(prompt, sampling, sampler)

    def _sampler(self, sampling: Sampling) -> _engine.Sampler:
        seed = self.options.seed if sampling.seed is None else sampling.seed
        return _engine.Sampler(self.info.vocab, **engine_fields(sampling) | {"seed": seed & SEED_MASK})

    def _stream(self, prompt: Ids, sampling: Sampling, sampler: _engine.Sampler) -> Iterator[Chunk]:
        context = self.options.context
        assert context is not None
        if len(prompt) > context:
            raise InvalidRequestError(
                f"the prompt has {len(prompt)} tokens; the context holds {context}. Load with a larger context"
            )
        ids = np.empty(context + 1, np.int32)  # the last sampled token may stand just outside the context
        ids[: len(prompt)] = prompt
        n = len(prompt)
        ends = set(sampling.stop_ids) | (set() if sampling.ignore_eos else set(self._assets.end_ids))
        decoder, stopper = StreamDecoder(self._assets.tokenizer), StopMatcher(sampling.stop)
        text: list[str] = []
        logprobs: list[TokenLogprob] = []
        decode_s = 0.0

        start = time.perf_counter()
        with self._turn():
            cached = self._session.sync(ids[:n])
        prefill_s = time.perf_counter() - start
        sampler.set_prompt(prompt)

        piece, new = "", 0
        while True:
            finish: FinishReason = "length"
            if n - len(prompt) == sampling.max_tokens or n > context:
                piece, new = _flush(decoder, stopper), 0
                break
            start = time.perf_counter()
            with self._turn():
                self._session.sync(ids[:n])  # one new row; more only if another caller used the session meanwhile
                token = self._session.sample(sampler)
                if sampling.logprobs is not None:
                    value, top = self._session.logprobs(token, sampling.logprobs)
                    logprobs.append(TokenLogprob(token, value, tuple(top)))
            decode_s += time.perf_counter() - start
            ids[n] = token
            n, new = n + 1, 1
            if token in ends:
                piece, finish = _flush(decoder, stopper), "stop"
                break
            piece, hit = stopper.push(decoder.push(token))
            if hit is not None:
                finish = "stop"
                break
            text.append(piece)
            yield Chunk(piece, (token,), tuple(logprobs[-1:]) or None)

        text.append(piece)
        generated = tuple(int(i) for i in ids[len(prompt) : n])
        result = Generation(
            text="".join(text),
            ids=generated,
            finish_reason=finish,
            usage=Usage(len(prompt), len(generated), cached),
            timings=Timings(prefill_s, decode_s, len(prompt) - cached, len(generated)),
            logprobs=tuple(logprobs) if sampling.logprobs is not None else None,
        )
        yield Chunk(
            piece, generated[len(generated) - new :], tuple(logprobs[-1:]) if new and logprobs else None, result
        )

    # --- session

    def reset(self) -> None:
        """Forgets what the session holds."""
        with self._turn():
            self._session.reset()

    def snapshot(self) -> bytes:
        """The session (tokens, KV cache, recurrent state) as bytes, for `restore` on the same model and settings."""
        with self._turn():
            return bytes(self._session.save())

    def restore(self, snapshot: bytes, *, where: str = "snapshot") -> None:
        """Replaces the session by a snapshot.

        Raises:
            FormatError: the bytes are damaged.
            UnsupportedError: they belong to another model, other settings, or a longer context.
        """
        with self._turn():
            self._session.load(snapshot, where)

    def save_session(self, path: str | os.PathLike[str]) -> None:
        """Writes `snapshot()` to a file, atomically."""
        data = self.snapshot()
        target = Path(path)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(target)
            except BaseException:
                Path(file.name).unlink()
                raise

    def load_session(self, path: str | os.PathLike[str]) -> None:
        """Restores a file that `save_session` wrote."""
        self.restore(Path(path).read_bytes(), where=os.fspath(path))

    # --- measurement

    @property
    def pack(self) -> str | None:
        """The kernel pack that computes; None on the CPU."""
        return None if self._pack is None else self._pack.target

    @property
    def kernels(self) -> str:
        """What computes: threads and instruction set, or the pack."""
        if self.pack is not None:
            return f"pack {self.pack}"
        return f"{self.options.threads} threads, {self.options.isa}"

    @property
    def device_info(self) -> _engine.gpu.DeviceInfo | None:
        """What the driver says of the device; None for the CPU."""
        return None if self._pack is None else self._pack.device

    def read_bandwidth(self) -> float:
        """GB/s at which this device reads memory, measured now: the ceiling of decoding."""
        if self._pack is not None:
            return _engine.gpu_ops.read_bandwidth(self._pack, BANDWIDTH_BYTES) / 1e9
        assert self.options.threads is not None  # an open LLM knows its number
        return _engine.read_bandwidth(self.options.threads, BANDWIDTH_BYTES)

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits [len(ids), vocab] after every one of these tokens, from an empty session."""
        tokens = self.ids(ids)
        rows = []
        with self._turn():
            self._session.reset()
            for at in range(0, len(tokens), LOGITS_CHUNK):
                chunk = tokens[at : at + LOGITS_CHUNK]
                rows.append(self._session.append(chunk)[0])
                self._session.commit(list(range(len(chunk))))
        return np.concatenate(rows)

    def bench_prefill(self, n_tokens: int) -> float:
        """Seconds to compute a prompt of n_tokens from an empty session."""
        ids = self._bench_ids(n_tokens)
        with self._turn():
            self._session.reset()
            start = time.perf_counter()
            self._session.sync(ids)
            return time.perf_counter() - start

    def bench_decode(
        self, n_tokens: int, depth: int, window: AbstractContextManager[object] | None = None
    ) -> list[float]:
        """Seconds of each of n_tokens greedy decode steps after `depth` tokens, entering `window` meanwhile."""
        ids = self._bench_ids(depth + n_tokens + 1)
        sampler, seconds = _engine.Sampler(self.info.vocab), []
        with self._turn():
            self._session.reset()
            if depth:
                self._session.sync(ids[:depth])
                ids[depth] = self._session.sample(sampler)
            with window or nullcontext():
                for n in range(depth + 1, depth + n_tokens + 1):
                    start = time.perf_counter()
                    self._session.sync(ids[:n])
                    ids[n] = self._session.sample(sampler)
                    seconds.append(time.perf_counter() - start)
        return seconds

    @property
    def decode_path(self) -> str:
        """How a GPU decodes: "graph", with what spoke against the megakernel, or that and its phases, a line each.
        Empty on the CPU, and for a graph that was wanted, before the first token."""
        return self._session.decode_path

    def decode_timelines(self, n_tokens: int, depth: int) -> list[tuple[list[StepRow], list[str]]]:
        """Of each of n_tokens decoded after `depth` tokens by the megakernel: (block, phase, task, began, waited, done)
        of its steps, in ns, and what each task is. Empty where something else decodes.

        Raises:
            UnsupportedError: the pack was built without LUCEBOX_TIMELINE.
        """
        timelines: list[tuple[list[StepRow], list[str]]] = []
        ids = self._bench_ids(depth + n_tokens + 2)
        sampler = _engine.Sampler(self.info.vocab)
        with self._turn():
            self._session.reset()
            for n in range(max(depth, 1), max(depth, 1) + n_tokens):
                self._session.sync(ids[:n])
                ids[n] = self._session.sample(sampler)  # the step with this token has begun
                timelines.append(self._session.timeline())
        return [timeline for timeline in timelines if timeline[0]]

    def bench_fill(self, depth: int) -> None:
        """Makes the session hold `depth` tokens, for `bench_append`."""
        with self._turn():
            self._session.reset()
            if depth:
                self._session.sync(self._bench_ids(depth))

    def bench_append(self, rows: int, repeats: int) -> float:
        """Seconds of an append of `rows` with the logits of each, which stay on the device: the mean of `repeats` that
        follow each other, each keeping its first row as verification would."""
        ids = self._bench_ids(rows)
        seconds = 0.0
        with self._turn():
            for _ in range(repeats):
                seconds += self._session.time_append(ids, rows)
                self._session.commit([0])
        return seconds / repeats

    def profile_prefill(self, n_tokens: int) -> list[KernelTimes]:
        """(kernel, launches, seconds) of each chunk of a prompt of n_tokens.

        Raises:
            UnsupportedError: the device is the CPU.
        """
        chunk = self.options.prefill_chunk
        assert chunk is not None
        return self._profile([min(chunk, n_tokens - at) for at in range(0, n_tokens, chunk)], 0)

    def profile_decode(self, n_tokens: int, depth: int) -> list[KernelTimes]:
        """(kernel, launches, seconds) of each of n_tokens steps after `depth` tokens, without choosing the token.

        Raises:
            UnsupportedError: the device is the CPU.
        """
        return self._profile([1] * n_tokens, depth)

    def _profile(self, appends: Sequence[int], depth: int) -> list[KernelTimes]:
        """Of appends that follow each other, the logits of the last row of each with it."""
        self.bench_fill(depth)
        times = []
        with self._turn():
            for rows in appends:
                times.append(self._session.profile_append(self._bench_ids(rows), 1))
                self._session.commit(list(range(rows)))
        return times

    def _bench_ids(self, n: int) -> Ids:
        return np.arange(n, dtype=np.int32) % self.info.vocab

    def _turn(self) -> threading.Lock:
        if self._closed:
            raise InvalidRequestError("this LLM was closed")
        return self._lock


def _check(sampling: Sampling) -> None:
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        raise InvalidRequestError(f"logprobs must be between 0 and {MAX_LOGPROBS}, got {sampling.logprobs}")
    if sampling.max_tokens is not None and sampling.max_tokens < 0:
        raise InvalidRequestError(f"max_tokens must not be negative, got {sampling.max_tokens}")
    if isinstance(sampling.stop, str) or not all(isinstance(s, str) and s for s in sampling.stop):
        raise InvalidRequestError("stop must be a tuple of strings that are not empty")


def _flush(decoder: StreamDecoder, stopper: StopMatcher) -> str:
    """What both still hold back at the end of a text."""
    piece, hit = stopper.push(decoder.finish())
    return piece if hit is not None else piece + stopper.finish()


def _last(chunks: Iterator[Chunk]) -> Generation:
    result = None
    for chunk in chunks:
        result = chunk.result
    assert result is not None  # the last chunk always carries it
    return result


def _model_info(name: str, path: Path, engine: Mapping[str, Any], tensors: Iterable[TensorInfo]) -> ModelInfo:
    mix: dict[str, int] = {}
    file_bytes = 0
    for tensor in tensors:
        mix[tensor.dtype] = mix.get(tensor.dtype, 0) + tensor.n_values
        file_bytes += tensor.bytes
    return ModelInfo(
        name=name,
        path=str(path),
        context_length=engine["max_context"],
        n_params=sum(mix.values()),
        file_bytes=file_bytes,
        quant_mix=mix,
        **{field: engine[field] for field in ENGINE_FIELDS},
    )
