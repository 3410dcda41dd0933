"""`LLM`: a model loaded on a device, with text in and text out. Below it the engine works on token ids only."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from lucebox.drafters import draft_label, resolve_draft
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.generation import CollectedText, DecodeLoop, End, Ids
from lucebox.hub import Progress
from lucebox.machine import processor_name
from lucebox.memory import MemoryPlan
from lucebox.options import EngineOptions, Sampling, check_options, engine_fields
from lucebox.resolve import resolve
from lucebox.results import Chunk, Generation, Timings, TokenLogprob, Usage
from lucebox.text import Tokenizer

__all__ = ["LLM", "ModelInfo"]

MAX_LOGPROBS = 20  # as in the OpenAI API
SEED_MASK = (1 << 64) - 1
LOGITS_CHUNK = 16  # rows of logits per append
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


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The loaded model."""

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
    """The output head shares the embedding table."""
    context_length: int
    """Maximum context of the model, in tokens."""
    n_params: int
    file_bytes: int
    """Bytes of all tensors."""
    bytes_per_token: int
    """Bytes of weights read per decoded token."""
    quant_mix: Mapping[str, int]
    """Number of values per tensor type."""


class LLM:
    """A model and one session on it.

    `model` is a path (a GGUF file or a folder of safetensors), a hub id ("org/name" or "org/name:quant") or a catalog
    name. `options` are the fields of `EngineOptions`. Calls from several threads take turns token by token.

    Raises:
        ModelNotFoundError, HubError: the model cannot be found or fetched.
        FormatError, UnsupportedError: the file is damaged, or the engine cannot run it.
        OutOfMemoryError: the memory plan does not fit; the message has the numbers.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        offline: bool = False,
        progress: Progress | None = None,
        **options: Any,
    ) -> None:
        wanted = check_options(EngineOptions(**options))
        selection = resolve_device(wanted.device, wanted.pack)
        self.device_reason = "; ".join(selection.report)
        self._pack = open_pack(selection)
        self._pack_name = None if self._pack is None else self._pack.target
        if selection.choice is not None:
            self._pack_name = selection.choice.pack.name  # of a variant, more than the target
        self.pack_manifest = "" if selection.choice is None else selection.choice.pack.manifest_json
        """The manifest of the pack, JSON; empty on the CPU."""
        self.code = None if selection.choice is None else str(selection.choice.code.compiler)
        """The compiler of the pack's code that the driver loads: "nvcc 13.0.88"; None on the CPU."""
        self.device_name = selection.info.name if selection.info else processor_name()
        resolved = resolve(os.fspath(model), offline=offline, progress=progress)
        draft = resolve_draft(wanted.draft, resolved, offline=offline, progress=progress)
        self._engine = _engine.Engine.open(
            str(resolved.path),
            pack=self._pack,
            progress=progress and partial(progress, "loading weights"),
            **engine_fields(replace(wanted, draft=draft)),
        )
        self._session = _engine.Session(self._engine)
        self._assets = TextAssets.load(resolved.path)
        self._quoting = Quoting(self._assets.tokenizer)
        self._lock = threading.Lock()
        self._closed = False
        self.memory_plan = MemoryPlan.from_engine(self._engine.plan)
        self.info = _model_info(resolved.name, resolved.path, self._engine.info, self._assets.tensors)
        self.options = replace(wanted, device=selection.device, **self._engine.options)
        # The engine's 0 stands for None.
        self.options = replace(
            self.options,
            draft_budget=self.options.draft_budget or None,
            memory_limit=self.options.memory_limit or None,
        )

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees all memory. Further calls raise InvalidRequestError."""
        with self._lock:
            if not self._closed:
                self._closed = True
                del self._session, self._engine, self._pack

    # --- text

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """Sampling recommended by the checkpoint, by the names of generation_config.json; empty without any."""
        return self._assets.generation_defaults

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own chat template."""
        return self._assets.template

    def read_template(self, path: str | os.PathLike[str]) -> ChatTemplate:
        """A chat template from a Jinja file, with this model's special tokens."""
        return ChatTemplate.from_file(os.fspath(path), self._assets.tokenizer)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of text; control tokens spelled in it are recognised."""
        return self._assets.tokenizer.encode(text)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of token ids, control tokens included."""
        return self._assets.tokenizer.decode(ids, skip_special=False)

    # --- generation

    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        stream: Literal[False] = False,
        prediction: str = "",
    ) -> Generation: ...
    @overload
    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        stream: Literal[True],
        prediction: str = "",
    ) -> Iterator[Chunk]: ...
    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: Sampling | None = None,
        *,
        stream: bool = False,
        prediction: str = "",
    ) -> Generation | Iterator[Chunk]:
        """Continues a prompt (text or token ids).

        `prediction` is text that the answer is likely to repeat, wholly or in parts: the suffix drafter drafts from it.

        With `stream` the result is an iterator of chunks, which may be closed early. The last chunk carries the whole
        result. Ctrl-C raises KeyboardInterrupt and leaves the session usable.
        """
        chunks = self._generate(self.ids(prompt), sampling or Sampling(), prediction)
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
        prediction: str = "",
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
        prediction: str = "",
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
        prediction: str = "",
    ) -> Generation | Iterator[Chunk]:
        """Answers a conversation through the model's chat template (or `template`).

        `enable_thinking` is passed to the template only when given. Only the template can write control tokens; where
        messages or tools spell one, it stays text. Otherwise as `generate`.
        """
        quoted, shown = self._quoting.messages(messages), self._quoting.values(tools)
        text = self.render(quoted, tools=shown, enable_thinking=enable_thinking, template=template)
        ids = np.asarray(self._assets.tokenizer.encode_marked(text), np.int32)
        chunks = self._generate(ids, sampling or Sampling(), prediction)
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
        with self.locked_session() as session:
            return list(session.score(ids))

    def ids(self, prompt: str | Sequence[int]) -> Ids:
        """The token ids of a prompt, checked.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        ids = np.asarray(self.tokenize(prompt) if isinstance(prompt, str) else prompt)
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise InvalidRequestError("a prompt must be text or a flat sequence of token ids")
        if ids.size and (ids.min() < 0 or ids.max() >= self.info.vocab):
            raise InvalidRequestError(f"token ids must be between 0 and {self.info.vocab - 1}")
        return ids.astype(np.int32)

    # --- parts, for the server, which runs several sessions itself

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._assets.tokenizer

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The end tokens of the model."""
        return self._assets.end_ids

    @property
    def engine(self) -> _engine.Engine:
        """The weights and the memory plan."""
        return self._engine

    def sessions(self, n: int) -> list[_engine.Session]:
        """n sessions: this LLM's own, which the LLM must not use meanwhile, and new ones. They share the weights and
        take turns on the device."""
        return [self._session, *(_engine.Session(self._engine) for _ in range(n - 1))]

    def sampler(self, sampling: Sampling) -> _engine.Sampler:
        """The sampler of one request.

        Raises:
            InvalidRequestError: an option is out of range.
        """
        _check(sampling)
        seed = self.options.seed if sampling.seed is None else sampling.seed
        return _engine.Sampler(self.info.vocab, **engine_fields(sampling) | {"seed": seed & SEED_MASK})

    def expected_ids(self, prediction: str) -> Ids:
        """The token ids of text that an answer is likely to repeat. No answer is longer than the context."""
        ids = self._assets.tokenizer.encode(prediction, special=False, add_bos=False)
        return np.asarray(ids[: self.options.context], np.int32)

    def _generate(self, prompt: Ids, sampling: Sampling, prediction: str) -> Iterator[Chunk]:
        sampler = self.sampler(sampling)  # here, not in the iterator: bad options raise at once
        return self._stream(prompt, sampling, sampler, self.expected_ids(prediction))

    def _stream(self, prompt: Ids, sampling: Sampling, sampler: _engine.Sampler, expected: Ids) -> Iterator[Chunk]:
        context = self.options.context
        assert context is not None
        if len(prompt) > context:
            raise InvalidRequestError(
                f"the prompt has {len(prompt)} tokens; the context holds {context}. Load with a larger context"
            )
        room = context + 1 - len(prompt)  # the last sampled token may stand just outside the context
        max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        output = CollectedText(sampling.stop)
        loop = DecodeLoop(self, prompt, sampling, sampler, output, max_tokens=max_tokens)

        start = time.perf_counter()
        with self.locked_session() as session:
            session.expect(expected)
            cached = session.sync(prompt)
        prefill_s, decode_s = time.perf_counter() - start, 0.0

        end: End | None = None
        while end is None:
            n_shown = len(output.pieces)
            ids: tuple[int, ...] = ()
            logprobs: tuple[TokenLogprob, ...] | None = None
            if loop.is_full:
                end = loop.cut()
            else:
                start = time.perf_counter()
                with self.locked_session() as session:
                    end = loop.step(session)
                decode_s += time.perf_counter() - start
                ids, logprobs = (loop.last_id,), tuple(output.logprobs[-1:]) or None
            text = "".join(output.pieces[n_shown:])
            if end is None:
                yield Chunk(text, ids, logprobs)

        with self.locked_session() as session:
            loop.remember(session)
        result = Generation(
            text="".join(output.pieces),
            ids=loop.ids,
            finish_reason="length" if end.reason == "length" else "stop",
            usage=Usage(len(prompt), loop.n_generated, cached, loop.drafts),
            timings=Timings(prefill_s, decode_s, len(prompt) - cached, loop.n_generated),
            logprobs=tuple(output.logprobs) if sampling.logprobs is not None else None,
        )
        yield Chunk(text, ids, logprobs, result)

    # --- session

    @contextmanager
    def locked_session(self) -> Iterator[_engine.Session]:
        """The session, locked against other threads."""
        if self._closed:
            raise InvalidRequestError("this LLM was closed")
        with self._lock:
            yield self._session

    def reset(self) -> None:
        """Empties the session."""
        with self.locked_session() as session:
            session.reset()

    def snapshot(self) -> bytes:
        """The session (tokens, KV cache, recurrent state) as bytes, for `restore` with the same model and settings."""
        with self.locked_session() as session:
            return bytes(session.save())

    def restore(self, snapshot: bytes, *, where: str = "snapshot") -> None:
        """Replaces the session by a snapshot.

        Raises:
            FormatError: the bytes are damaged.
            UnsupportedError: the snapshot has another model, other settings, or a longer context.
        """
        with self.locked_session() as session:
            session.load(snapshot, where)

    def save_session(self, path: str | os.PathLike[str]) -> None:
        """Writes `snapshot()` to a file, atomically."""
        data = self.snapshot()
        destination = Path(path)
        with tempfile.NamedTemporaryFile(dir=destination.parent, prefix=destination.name, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(destination)
            except BaseException:
                Path(file.name).unlink()
                raise

    def load_session(self, path: str | os.PathLike[str]) -> None:
        """Restores a file written by `save_session`."""
        self.restore(Path(path).read_bytes(), where=os.fspath(path))

    # --- measurement

    @property
    def pack(self) -> str | None:
        """The name of the kernel pack: its target ("sm_90"), or a variant ("sm_86_laptop"); None on the CPU."""
        return self._pack_name

    @property
    def loaded_pack(self) -> _engine.gpu.Pack | None:
        """The pack on its device, for measurements; None on the CPU."""
        return self._pack

    @property
    def kernels(self) -> str:
        """The kernels: "8 threads, avx512" or "pack sm_90 by nvcc 13.0.88"."""
        if self.pack is not None:
            return f"pack {self.pack} by {self.code}"
        return f"{self.options.threads} threads, {self.options.isa}"

    @property
    def draft_label(self) -> str:
        """The drafter: "none", "suffix", "mtp+suffix", "drafter.gguf"."""
        return draft_label(self.options.draft)

    @property
    def device_info(self) -> _engine.gpu.DeviceInfo | None:
        """The driver's description of the device; None on the CPU."""
        return None if self._pack is None else self._pack.device

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """[len(ids), vocab] logits after each of these tokens, from an empty session."""
        tokens = self.ids(ids)
        rows = []
        with self.locked_session() as session:
            session.reset()
            for at in range(0, len(tokens), LOGITS_CHUNK):
                chunk = tokens[at : at + LOGITS_CHUNK]
                rows.append(session.append(chunk)[0])
                session.commit(list(range(len(chunk))))
        return np.concatenate(rows)

    @property
    def decode_path(self) -> str:
        """How a GPU decodes: "graph" with the reason against the megakernel, or the megakernel with one line per phase.
        Empty on the CPU. With decode_path="graph", empty before the first token."""
        return self._session.decode_path


def _check(sampling: Sampling) -> None:
    if sampling.logprobs is not None and not 0 <= sampling.logprobs <= MAX_LOGPROBS:
        raise InvalidRequestError(f"logprobs must be between 0 and {MAX_LOGPROBS}, got {sampling.logprobs}")
    if sampling.max_tokens is not None and sampling.max_tokens < 0:
        raise InvalidRequestError(f"max_tokens must not be negative, got {sampling.max_tokens}")
    if isinstance(sampling.stop, str) or not all(isinstance(s, str) and s for s in sampling.stop):
        raise InvalidRequestError("stop must be a tuple of strings that are not empty")


def _last(chunks: Iterator[Chunk]) -> Generation:
    result = None
    for chunk in chunks:
        result = chunk.result
    assert result is not None  # the last chunk carries it
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
