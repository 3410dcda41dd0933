"""`LLM`: a model loaded on a device, with text in and text out. Below it the engine works on token ids only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.answering import Answering, PromptProgress, answer_together
from lucebox.assets import TextAssets
from lucebox.asynchronous import last_of, stream_in_thread
from lucebox.chat.messages import checked_messages
from lucebox.chat.template import ChatTemplate
from lucebox.compression.compressor import Compressor
from lucebox.compression.loading import load_scorer, options_beside, plan_of_scorer
from lucebox.compression.policy import CompressionRequest, Policy
from lucebox.compression.scorer import Lender, Scorer
from lucebox.devices import open_pack, resolve_device
from lucebox.drafters import draft_label, resolve_drafts
from lucebox.embedding import Embedder, Embedding, Pooling
from lucebox.errors import FormatError, InvalidRequestError, OutOfMemoryError, UnsupportedError
from lucebox.generation import Ids
from lucebox.hub import Progress
from lucebox.machine import processor_name
from lucebox.memory import MemoryPlan
from lucebox.model_info import model_info
from lucebox.options import EngineOptions, Sampling, SamplingFields, check_names, engine_fields
from lucebox.resolve import resolve
from lucebox.results import Chunk, Generation
from lucebox.serve.chat_model import ChatModel, Grammars, Limits
from lucebox.serve.conversation import Conversation, answer_format_of, tool_choice_of, tools_of
from lucebox.serve.rendering import with_broken_calls
from lucebox.serve.request import GenerationRequest
from lucebox.serve.thinking import ThinkingRequest
from lucebox.session_pool import SessionPool
from lucebox.sizes import parse_size
from lucebox.step_costs import StepCostsFile
from lucebox.text import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lucebox.options import EngineFields

__all__ = ["LLM", "ChatOptions", "GenerateOptions", "Messages", "Prompt"]

Prompt: TypeAlias = str | Sequence[int]
"""Text, or token ids."""
Messages: TypeAlias = Sequence[Mapping[str, Any]]
"""A conversation in OpenAI's form: role, content, tool_calls, tool_call_id, reasoning_content."""

DEFAULT_SESSIONS = 4
CONTINUATION_MAX_TOKENS = 256  # a continuation may never reach an end token
MAX_ANSWERS = 1024  # all requests of a call are made before the first is answered
SEED_MASK = (1 << 64) - 1
LOGITS_CHUNK = 16  # rows of logits per append


class GenerateOptions(SamplingFields, total=False):
    """The keywords of `LLM.generate`."""

    prediction: str
    response_format: Mapping[str, Any] | None
    on_prompt: PromptProgress | None


class ChatOptions(GenerateOptions, total=False):
    """The keywords of `LLM.chat`."""

    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any]
    enable_thinking: bool | None
    template: ChatTemplate | None
    compression: Mapping[str, Any] | None


class LLM:
    """A model, and the sessions that its generations use.

    `model` is a path (a GGUF file or a folder of safetensors), a hub id ("org/name" or "org/name:quant") or a catalog
    name. `options` are the fields of `EngineOptions`.

    Calls from several threads, and streams of one thread, run side by side: each has a session of its own, up to the
    option `sessions`, and they take turns on the device token by token. A prompt reuses what was computed before where
    that gives the same bits as a fresh computation, so equal requests give equal ids; on a GPU one at a time and with
    `draft="none"`, or with `batch_invariant=True`, since drafts and other generations change which rows are computed
    together, and with them the last bits.

    An LLM belongs to the process that loaded it: after a fork, calls in the child raise InvalidRequestError.

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
        **options: Unpack[EngineFields],
    ) -> None:
        check_names(EngineOptions, options)
        wanted = EngineOptions(**options)
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
        if not isinstance(model, str | bytes | os.PathLike):
            raise InvalidRequestError(f"model is {type(model).__name__}, expected a path or a name")
        resolved = resolve(os.fsdecode(model), offline=offline, progress=progress)
        self.step_costs_file: StepCostsFile | None = None
        """The measured costs of a step with drafts, kept for the next start; None without a drafter."""
        self.draft_reason = ""
        """The drafters that `draft="auto"` left out, and why."""
        draft = "none" if wanted.batch_invariant and wanted.draft == "auto" else wanted.draft
        drafts = resolve_drafts(draft, resolved, offline=offline, progress=progress)
        place = plan_of_scorer(wanted, resolved.path, drafts, offline=offline, progress=progress)
        scorer: Scorer | None = None
        try:
            if place is not None and not place.is_swapped:
                scorer = load_scorer(wanted, offline=offline, progress=progress)
            self._open_with_one_of(drafts, resolved.path, options_beside(wanted, scorer), progress)
            self._assets = TextAssets.load(resolved.path)
            if place is not None and place.is_swapped:
                assert self._pack is not None  # the CPU swaps nothing
                lender = Lender(self._engine, self._pack)
                scorer = load_scorer(wanted, offline=offline, progress=progress, lender=lender)
        except BaseException:
            if scorer is not None:
                scorer.close()
            raise
        self._process = os.getpid()
        self._closed = False
        self.info = model_info(resolved.name, resolved.path, self._engine.info, self._assets.tensors)
        came_to = dict(self._engine.options)
        for name in ("draft_budget", "memory_limit"):
            came_to[name] = came_to[name] or None  # the engine's 0
        self.options = replace(wanted, device=selection.device, **came_to)
        self._grammars = Grammars(self)
        self._chat_model: ChatModel | None = None
        self._embedder: Embedder | None = None
        self.compressor: Compressor | None = None
        """Cuts long prompts; None without a scorer."""
        if scorer is not None:
            policy = Policy.from_options(wanted)
            context = self.memory_plan.context
            self.compressor = Compressor(scorer, self._assets.tokenizer, policy, context=context)

    def __repr__(self) -> str:
        if self._closed:
            return f"<lucebox.LLM {self.info.name}, closed>"
        return (
            f"<lucebox.LLM {self.info.name}: {self.info.architecture}, context {self.memory_plan.context}, "
            f"{self.options.device}, {self.kernels}>"
        )

    def _open_with_one_of(
        self, drafts: Sequence[str], path: Path, options: EngineOptions, progress: Progress | None
    ) -> None:
        """Opens the engine with the first drafter that fits and may pay on this device; the last one has to do."""
        left_out = []
        for draft in drafts:
            try:
                self._open(draft, path, options, progress)
            except (FormatError, OutOfMemoryError, UnsupportedError) as error:
                if draft == drafts[-1]:
                    raise
                why = "does not fit in memory" if isinstance(error, OutOfMemoryError) else f"cannot be used ({error})"
                left_out.append(f"{draft_label(draft)} {why}")
                continue
            if draft == drafts[-1] or self._engine.draft_may_pay:
                break
            self._pool.cache.close()
            del self._pool, self._engine
            left_out.append(f"{draft_label(draft)} does not pay on this device")
        self.draft_reason = "; ".join(left_out)

    def _open(self, draft: str, path: Path, options: EngineOptions, progress: Progress | None) -> None:
        self._engine = _engine.Engine.open(
            str(path),
            pack=self._pack,
            progress=progress and partial(progress, "loading weights"),
            **engine_fields(replace(options, draft=draft)),
        )
        self.memory_plan = MemoryPlan.from_engine(self._engine.plan)
        with self._step_costs(draft):
            n_sessions = min(options.sessions or DEFAULT_SESSIONS, self.memory_plan.max_sessions)
            cache_bytes = parse_size(options.prefix_cache)
            self._pool = SessionPool(self._engine, n_sessions, cache_bytes, on_device=self._pack is not None)

    @contextmanager
    def _step_costs(self, draft: str) -> Iterator[None]:
        """The first session measures what a step costs, unless an earlier start on this device has."""
        if draft == "none":
            self.step_costs_file = None
            yield
            return
        kernels = "" if self.pack is None else f"{self.pack} {self.code} {self.pack_manifest}"
        self.step_costs_file = StepCostsFile(self._engine, draft_label(draft), self.device_name, kernels)
        known = self.step_costs_file.read()
        if known is not None:
            self._engine.step_costs = known
        yield
        if known is None and self._engine.step_costs is not None:
            self.step_costs_file.write(self._engine.step_costs)

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees all memory, once no stream is unfinished. Further calls raise InvalidRequestError."""
        if not self._closed and self._process == os.getpid():
            self._grammars.close()
            with self._pool.turn:
                self._closed = True
                self._pool.cache.close()
                del self._pool, self._engine, self._pack
            if self.compressor is not None:
                self.compressor.scorer.close()

    # --- text

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """Sampling recommended by the checkpoint, by the names of generation_config.json; empty without any."""
        return self._assets.generation_defaults

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own chat template."""
        return self._assets.template

    @property
    def notes(self) -> tuple[str, ...]:
        """Parts of the model's files that were set aside, a sentence each: a template that is not Jinja, recommended
        sampling out of range."""
        return self._assets.notes

    def read_template(self, path: str | os.PathLike[str]) -> ChatTemplate:
        """A chat template from a Jinja file, with this model's special tokens."""
        return ChatTemplate.from_file(os.fspath(path), self._assets.tokenizer)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of text; control tokens spelled in it are recognised."""
        return self._assets.tokenizer.encode(text)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of token ids, control tokens included.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        return self._assets.tokenizer.decode(self.ids(list(ids)).tolist(), skip_special=False)

    # --- generation

    @overload
    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        stream: Literal[False] = False,
        n: None = None,
        **options: Unpack[GenerateOptions],
    ) -> Generation: ...
    @overload
    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        stream: Literal[True],
        n: None = None,
        **options: Unpack[GenerateOptions],
    ) -> Iterator[Chunk]: ...
    @overload
    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        stream: Literal[False] = False,
        n: int,
        **options: Unpack[GenerateOptions],
    ) -> list[Generation]: ...
    @overload
    def generate(
        self,
        prompt: list[str] | list[list[int]],
        sampling: Sampling | None = None,
        *,
        stream: Literal[False] = False,
        n: int | None = None,
        **options: Unpack[GenerateOptions],
    ) -> list[Generation]: ...
    def generate(
        self,
        prompt: Prompt | list[str] | list[list[int]],
        sampling: Sampling | None = None,
        *,
        stream: bool = False,
        n: int | None = None,
        prediction: str = "",
        response_format: Mapping[str, Any] | None = None,
        on_prompt: PromptProgress | None = None,
        **fields: Unpack[SamplingFields],
    ) -> Generation | list[Generation] | Iterator[Chunk]:
        """Continues a prompt: text, or token ids [n_tokens]. Greedy unless told otherwise, at most 256 tokens.

        sampling: how tokens are chosen; `fields` (max_tokens=64, temperature=0.7, ...) set single ones, over it.
        stream: an iterator of chunks, which may be closed early. The last chunk carries the whole result.
        n: a list of that many results, 1 to 1024, with consecutive seeds. A list of prompts gives a list of results,
            those of a prompt after each other.
        prediction: text that the answer is likely to repeat, wholly or in parts: the suffix drafter drafts from it.
        response_format: holds the text to a form, as the server does: {"type": "json_object"}, {"type": "json_schema",
            "json_schema": {"schema": {...}}}, {"type": "regex", "regex": "..."}, {"type": "grammar", "grammar": "..."}.
        on_prompt: called with (tokens computed, tokens of the prompt) at its start and after each chunk of it.

        Ctrl-C raises KeyboardInterrupt and leaves the LLM usable.

        Raises:
            InvalidRequestError: an option is out of range, or the prompt is empty or longer than the context.
            UnsupportedError: response_format is given, and llguidance is not installed.
        """
        prompts = _as_prompts(prompt)
        several = n is not None or prompts is not None
        if stream and several:
            raise InvalidRequestError("a stream has one prompt and one answer: leave n away, and give one prompt")
        base = _with_fields(sampling, fields)
        requests = [
            request
            for one in ([cast(Prompt, prompt)] if prompts is None else prompts)
            for request in self._continuations(self.ids(one), base, prediction, response_format, 1 if n is None else n)
        ]
        answerings = [Answering(self, request, on_prompt) for request in requests]
        if stream:
            return answerings[0].stream()
        return answer_together(self, answerings) if several else _last(answerings[0].stream())

    @overload
    def chat(
        self,
        messages: Messages,
        sampling: Sampling | None = None,
        *,
        stream: Literal[False] = False,
        n: None = None,
        **options: Unpack[ChatOptions],
    ) -> Generation: ...
    @overload
    def chat(
        self,
        messages: Messages,
        sampling: Sampling | None = None,
        *,
        stream: Literal[True],
        n: None = None,
        **options: Unpack[ChatOptions],
    ) -> Iterator[Chunk]: ...
    @overload
    def chat(
        self,
        messages: Messages,
        sampling: Sampling | None = None,
        *,
        stream: Literal[False] = False,
        n: int,
        **options: Unpack[ChatOptions],
    ) -> list[Generation]: ...
    def chat(
        self,
        messages: Messages,
        sampling: Sampling | None = None,
        *,
        stream: bool = False,
        n: int | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        enable_thinking: bool | None = None,
        template: ChatTemplate | None = None,
        compression: Mapping[str, Any] | None = None,
        prediction: str = "",
        response_format: Mapping[str, Any] | None = None,
        on_prompt: PromptProgress | None = None,
        **fields: Unpack[SamplingFields],
    ) -> Generation | list[Generation] | Iterator[Chunk]:
        """Answers a conversation through the model's chat template (or `template`), as the server does.

        sampling: None is the sampling that the model's makers recommend (`recommended_sampling`); `fields` set single
            ones.
        tools, tool_choice: in OpenAI's form. The result has the calls in `tool_calls`.
        enable_thinking: switches reasoning on or off. The result has it in `reasoning`.
        compression: this conversation's own choices over the options prefill_*: {"mode": "off" | "auto" | "always",
            "keep_ratio": 0.1}. The result has what was kept in `usage.compression`.
        stream, n, prediction, response_format, on_prompt: as in `generate`.

        Only the template can write control tokens; where messages or tools spell one, it stays text.

        Raises:
            InvalidRequestError: as `generate`, or a message or tool is malformed, or the template refuses them.
            UnsupportedError: there is no chat template, it has no switch for the thinking asked for, or there is no
                scorer for the compression asked for.
        """
        model = self.chat_model(template)
        conversation = self._conversation(model, messages, tools, tool_choice, enable_thinking, response_format)
        conversation.compression = CompressionRequest.parse(compression)
        wanted = _with_fields(sampling, fields)
        if stream and n is not None:
            raise InvalidRequestError("a stream has one answer: leave n away")
        _check_n(n)
        seed = self.options.seed if wanted.seed is None else wanted.seed
        requests = model.requests(
            conversation,
            {**_values(fields), "seed": seed} if sampling is None else replace(wanted, seed=seed),
            Limits(wanted.max_tokens, wanted.stop),
            n=1 if n is None else n,
        )
        expected = self.expected_ids(prediction)
        answerings = [Answering(self, replace(one, prediction=expected), on_prompt) for one in requests]
        if stream:
            return answerings[0].stream()
        return _last(answerings[0].stream()) if n is None else answer_together(self, answerings)

    def agenerate(
        self, prompt: Prompt, sampling: Sampling | None = None, **options: Unpack[GenerateOptions]
    ) -> Coroutine[Any, Any, Generation]:
        """`generate` for asyncio. Cancelling the task stops the generation after its token or prefill chunk."""
        return last_of(self.astream(prompt, sampling, **options))

    def astream(
        self, prompt: Prompt, sampling: Sampling | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncIterator[Chunk]:
        """`generate(..., stream=True)` for asyncio: an asynchronous iterator. Leaving it stops the generation."""
        return stream_in_thread(lambda: self.generate(prompt, sampling, stream=True, **options))

    def achat(
        self, messages: Messages, sampling: Sampling | None = None, **options: Unpack[ChatOptions]
    ) -> Coroutine[Any, Any, Generation]:
        """`chat` for asyncio, cancelled as `agenerate`."""
        return last_of(self.astream_chat(messages, sampling, **options))

    def astream_chat(
        self, messages: Messages, sampling: Sampling | None = None, **options: Unpack[ChatOptions]
    ) -> AsyncIterator[Chunk]:
        """`chat(..., stream=True)` for asyncio."""
        return stream_in_thread(lambda: self.chat(messages, sampling, stream=True, **options))

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        template: ChatTemplate | None = None,
    ) -> str:
        """The prompt text of a conversation, as `chat` computes it."""
        model = self.chat_model(template)
        return model.prompt(self._conversation(model, messages, tools, "auto", enable_thinking, None))[0]

    def recommended_sampling(
        self, *, enable_thinking: bool | None = None, template: ChatTemplate | None = None
    ) -> tuple[Sampling, str]:
        """The sampling of a chat that says nothing else, and its source: a document of the model's makers, the
        checkpoint, or lucebox."""
        model = self.chat_model(template)
        hello = [{"role": "user", "content": "Hello"}]
        conversation = self._conversation(model, hello, None, "auto", enable_thinking, None)
        return model.recommended_sampling(conversation), model.profile.source

    def chat_model(self, template: ChatTemplate | None = None) -> ChatModel:
        """How conversations with this model are rendered and read, with its own template or another one."""
        if template is not None:
            return ChatModel(self, self._grammars, template=template)
        if self._chat_model is None:
            self._chat_model = ChatModel(self, self._grammars)
        return self._chat_model

    def _conversation(
        self,
        model: ChatModel,
        messages: Messages,
        tools: Sequence[Mapping[str, Any]] | None,
        tool_choice: str | Mapping[str, Any],
        enable_thinking: bool | None,
        response_format: Mapping[str, Any] | None,
    ) -> Conversation:
        variables: dict[str, Any] = {}
        thinking = model.profile.thinking
        if enable_thinking is not None and (thinking is None or thinking.variable is None):
            source = "" if model.template is None else "".join(model.template.sources.values())
            if "enable_thinking" in source:
                variables["enable_thinking"] = enable_thinking
            elif enable_thinking or thinking is not None:
                raise UnsupportedError(
                    f"the chat template of {self.info.name} cannot switch thinking {'on' if enable_thinking else 'off'}"
                )
        return Conversation(
            messages=[dict(message) for message in checked_messages(with_broken_calls(model.profile, messages))],
            tools=tools_of(tools),
            tool_choice=tool_choice_of(tool_choice),
            thinking=ThinkingRequest("default" if enable_thinking is None else "on" if enable_thinking else "off"),
            answer_format=answer_format_of(response_format),
            template_vars=variables,
        )

    def _continuations(
        self, prompt: Ids, sampling: Sampling, prediction: str, response_format: Mapping[str, Any] | None, n: int
    ) -> list[GenerationRequest]:
        context = self.memory_plan.context
        if not len(prompt):
            raise InvalidRequestError("the prompt has no tokens")
        if len(prompt) > context:
            raise InvalidRequestError(
                f"the prompt has {len(prompt)} tokens; the context holds {context}. Load with a larger context"
            )
        _check_n(n)
        room = context + 1 - len(prompt)  # the last sampled token may stand just outside the context
        wanted = CONTINUATION_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens
        self.sampler(sampling)  # here, not in the iterator: bad options raise at once
        seed = self.options.seed if sampling.seed is None else sampling.seed
        expected, answer_format = self.expected_ids(prediction), answer_format_of(response_format)
        return [
            GenerationRequest(
                prompt,
                replace(sampling, seed=seed + i, max_tokens=min(wanted, room)),
                constraint=None if answer_format is None else self._grammars.constraint(answer_format),
                prediction=expected,
            )
            for i in range(n)
        ]

    def score(self, text_or_ids: str | Sequence[int]) -> list[float]:
        """[n_tokens - 1] natural log probability of every token after the first, given the ones before it.

        Raises:
            InvalidRequestError: there are fewer than two tokens, or more than the context holds.
        """
        ids = self.ids(text_or_ids)
        with self.locked_session() as session:
            session.reset()  # prefixes may hold the pages that it has
            with self.pool.turn_of(session, len(ids)):
                return list(session.score(ids))

    def embed(
        self,
        text: Prompt | list[str] | list[list[int]],
        *,
        pooling: Pooling | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
    ) -> NDArray[np.float32]:
        """[hidden] the embedding of a text, or [n_texts, hidden] those of a list of texts.

        pooling: None is the model's own: the mean of its rows, the first ("cls") or the last one.
        normalize: scales the vector to length 1, so that a dot product is the cosine.
        dimensions: only the first ones, for models trained so.

        Raises:
            UnsupportedError: the model is not made for embeddings, and no pooling is given.
            InvalidRequestError: a text has no token or more than the context, or an option is out of range.
        """
        embedder = self.embedder
        chosen = embedder.choose(pooling)
        texts = _as_prompts(text)
        one_by_one = [embedder.ids(one) for one in ([cast(Prompt, text)] if texts is None else texts)]
        embedding = Embedding(one_by_one, chosen)
        pool = self.pool
        with pool.session(lambda free: free[0]) as session:
            prefill, done = embedding.prefill(session), 0
            while done < embedding.n_tokens:
                with pool.turn_of(session, max(map(len, one_by_one))):
                    done = next(prefill)
        rows = [pooler.vector(normalize=normalize, dimensions=dimensions) for pooler in embedding.poolers]
        return rows[0] if texts is None else np.stack(rows)

    @property
    def embedder(self) -> Embedder:
        """How the model embeds text."""
        if self._embedder is None:
            self._embedder = Embedder(self)
        return self._embedder

    def ids(self, prompt: str | Sequence[int]) -> Ids:
        """The token ids of a prompt, checked.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        ids = np.asarray(self.tokenize(prompt) if isinstance(prompt, str) else prompt)
        if ids.ndim == 1 and ids.dtype.kind == "O" and all(isinstance(i, int) for i in ids):  # beyond 64 bits
            raise InvalidRequestError(f"token ids must be between 0 and {self.info.vocab - 1}")
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
        return tuple(i for i in self._assets.end_ids if i < self.info.vocab)

    @property
    def engine(self) -> _engine.Engine:
        """The weights and the memory plan."""
        return self._engine

    def sessions(self, n: int) -> list[_engine.Session]:
        """n sessions: this LLM's own, which the LLM must not use meanwhile, and new ones. They share the weights and
        take turns on the device."""
        return [self._pool.free[0], *(_engine.Session(self._engine) for _ in range(n - 1))]

    def sampler(self, sampling: Sampling) -> _engine.Sampler:
        """The sampler of one request.

        Raises:
            InvalidRequestError: an option is out of range.
        """
        seed = self.options.seed if sampling.seed is None else sampling.seed
        return _engine.Sampler(self.info.vocab, **engine_fields(sampling) | {"seed": seed & SEED_MASK})

    def expected_ids(self, prediction: str) -> Ids:
        """The token ids of text that an answer is likely to repeat. No answer is longer than the context."""
        ids = self._assets.tokenizer.encode(prediction, special=False, add_bos=False)
        return np.asarray(ids[: self.options.context], np.int32)

    # --- session

    def check_usable(self) -> None:
        """Checks that this process may use the LLM.

        Raises:
            InvalidRequestError: it was closed, or this process is a fork of the one that loaded it.
        """
        if self._closed:
            raise InvalidRequestError("this LLM was closed")
        if self._process != os.getpid():
            raise InvalidRequestError(
                f"this LLM was loaded in process {self._process}, and this process {os.getpid()} is a fork of it, "
                "without its threads and GPU context: load the LLM after the fork, or start processes by spawn"
            )

    @contextmanager
    def locked_session(self) -> Iterator[_engine.Session]:
        """The free session that was used last, locked against other threads."""
        self.check_usable()
        with self._pool.session(lambda free: free[-1]) as session, self._pool.turn:
            yield session

    @property
    def pool(self) -> SessionPool:
        """The sessions."""
        self.check_usable()
        return self._pool

    def reset(self) -> None:
        """Empties the sessions that no stream uses, and the prefix cache."""
        self.check_usable()
        self._pool.reset()

    def snapshot(self) -> bytes:
        """The session used last (tokens, KV cache, recurrent state) as bytes, for `restore` with the same model and
        settings."""
        with self.locked_session() as session:
            return bytes(session.save())

    def restore(self, snapshot: bytes, *, where: str = "snapshot") -> None:
        """Replaces the session used last by a snapshot.

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
        if not len(tokens):
            raise InvalidRequestError("there are no tokens to compute logits after")
        rows = []
        with self.locked_session() as session:
            session.reset()
            with self.pool.turn_of(session, len(tokens)):
                for at in range(0, len(tokens), LOGITS_CHUNK):
                    chunk = tokens[at : at + LOGITS_CHUNK]
                    rows.append(session.append(chunk)[0])
                    session.commit(list(range(len(chunk))))
        return np.concatenate(rows)

    @property
    def decode_path(self) -> str:
        """How a GPU decodes: "graph" with the reason against the megakernel, or the megakernel with one line per phase.
        Empty on the CPU. With decode_path="graph", empty before the first token."""
        return self.pool.latest.decode_path


def _check_n(n: int | None) -> None:
    if n is not None and (not isinstance(n, int) or not 1 <= n <= MAX_ANSWERS):
        raise InvalidRequestError(f"n must be a whole number from 1 to {MAX_ANSWERS}, got {n!r}; call again for more")


def _with_fields(sampling: Sampling | None, fields: SamplingFields) -> Sampling:
    if sampling is not None and not isinstance(sampling, Sampling):
        raise InvalidRequestError(f"sampling must be a Sampling or None, got {sampling!r}")
    return replace(sampling or Sampling(), **_values(fields))


def _values(fields: SamplingFields) -> dict[str, Any]:
    check_names(Sampling, fields)
    return {**fields}


def _as_prompts(prompt: Prompt | list[str] | list[list[int]]) -> list[Prompt] | None:
    """The prompts of a list of prompts; None for one prompt."""
    if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not prompt:
        return None
    return cast("list[Prompt]", list(prompt)) if isinstance(prompt[0], str | Sequence | np.ndarray) else None


def _last(chunks: Iterator[Chunk]) -> Generation:
    result = None
    for chunk in chunks:
        result = chunk.result
    assert result is not None  # the last chunk carries it
    return result
