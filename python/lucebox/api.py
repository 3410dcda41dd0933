"""`LLM`: a model loaded on a device, with text in and text out. Below it the engine works on token ids only."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, overload

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.chat.conversation import Conversation, answer_format_of, tool_choice_of, tools_of
from lucebox.chat.conversation_to_request import ChatModel, Grammars, Limits
from lucebox.chat.images import with_markers
from lucebox.chat.messages import checked_messages
from lucebox.chat.template import ChatTemplate
from lucebox.chat.template_settings import TemplateSettings
from lucebox.compression.compressor import Compressor
from lucebox.compression.policy import CompressionRequest
from lucebox.compression.scorer import Scorer
from lucebox.errors import InvalidRequestError
from lucebox.generation.asynchronous import last_of, stream_in_thread
from lucebox.generation.embedding import Pooling
from lucebox.generation.loading import load_model
from lucebox.generation.prefix_cache import PrefixCache
from lucebox.generation.reader import ChunkStream, PromptProgress, answers_of
from lucebox.generation.request import GenerationRequest, embedding_request, label_request, prompt_requests
from lucebox.generation.scheduler import Scheduler
from lucebox.generation.sessions import SessionPool
from lucebox.models.hub import Progress
from lucebox.option_fields import SamplingFields
from lucebox.options import EngineOptions, Sampling, check_names
from lucebox.regular_files import open_regular
from lucebox.results import Choice, Chunk, Generation
from lucebox.sizes import parse_size
from lucebox.text import Ids, Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lucebox.option_fields import EngineFields

__all__ = ["LLM", "ChatOptions", "GenerateOptions", "Messages", "Prompt"]

# Text, or token ids.
Prompt: TypeAlias = str | Sequence[int]
# A conversation in OpenAI's form: role, content, tool_calls, tool_call_id, reasoning_content.
Messages: TypeAlias = Sequence[Mapping[str, Any]]

CONTINUATION_MAX_TOKENS = 256  # a continuation may never reach an end token
MAX_ANSWERS = 1024  # a call builds all its requests before the first is answered
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
    reasoning_effort: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    template: ChatTemplate | None
    compression: Mapping[str, Any] | None


class LLM:
    """A model, and the sessions that its generations use.

    `model` is a path (a GGUF file or a folder of safetensors), a hub id ("org/name" or "org/name:quant") or a catalog
    name. `options` are the fields of `EngineOptions`.

    Calls from several threads, and streams of one thread, run concurrently. Each has its own session, up to the option
    `sessions`; one pass over the weights computes a token of each. A prompt reuses a cached prefix only if the bits
    equal a fresh computation, so equal requests give equal ids. On a GPU this holds for one request at a time with
    `draft="none"`, or with `batch_invariant=True`: drafts and concurrent generations change the batch of rows, and with
    it the last bits.

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
        _scorer: Scorer | None = None,
        _kept: _engine.KeptWeights | None = None,
        **options: Unpack[EngineFields],
    ) -> None:
        """_scorer: see load_model's shared_scorer; _kept: its kept."""
        check_names(EngineOptions, options)
        if not isinstance(model, str | bytes | os.PathLike):
            raise InvalidRequestError(f"model is {type(model).__name__}, expected a path or a name")
        wanted = EngineOptions(**options)
        self.model = load_model(
            os.fsdecode(model), wanted, offline=offline, progress=progress, shared_scorer=_scorer, kept=_kept
        )
        """The loaded model, shared by everything that generates with it."""
        self._scheduler = Scheduler(self.model, cache=self._new_cache(parse_size(wanted.prefix_cache)))
        self._grammars = Grammars(self.model)
        self._chat_model: ChatModel | None = None
        self.info = self.model.info
        self.options = self.model.options
        self.memory_plan = self.model.memory_plan
        self.pack_manifest = self.model.device.pack_manifest
        """The manifest of the pack, JSON; empty on the CPU."""
        self.code = self.model.device.code
        """The compiler of the pack's code that the driver loads, "nvcc 13.0.88"; None on the CPU."""
        self.step_costs_file = self.model.step_costs_file
        """The file of measured costs of a speculative step, reused by the next start; None without a drafter."""
        self.device_name = self.model.device.chip
        self.device_reason = self.model.device.reason
        """Why this device and pack were chosen."""
        self.unused_gpus = self.model.device.unused_gpus
        """One line per GPU that could make the model faster, with the command that installs its pack."""
        self.draft_reason = self.model.draft_reason
        """The drafters that `draft="auto"` left out, and why."""

    def __repr__(self) -> str:
        if self.model.is_closed:
            return f"<lucebox.LLM {self.info.name}, closed>"
        return (
            f"<lucebox.LLM {self.info.name}: {self.info.architecture}, context {self.memory_plan.context}, "
            f"{self.options.device}, {self.kernels}>"
        )

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Frees all memory, once no stream is unfinished. Further calls raise InvalidRequestError."""
        if not self.model.is_closed and not self.model.is_forked:
            self._grammars.close()
            self._scheduler.close(error=InvalidRequestError("this LLM was closed"))
            with self._scheduler.driver.alone():
                self.model.close()

    # --- text

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """Sampling recommended by the checkpoint, by the names of generation_config.json; empty without any."""
        return self.model.generation_defaults

    @property
    def compressor(self) -> Compressor | None:
        """Cuts long prompts; None without a scorer."""
        return self.model.compressor

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own chat template."""
        return self.model.chat_template

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence per ignored part of the model's files: a template that is not Jinja, recommended sampling out of
        range; and why experts are copied slowly."""
        return self.model.notes

    def read_template(self, path: str | os.PathLike[str]) -> ChatTemplate:
        """A chat template from a Jinja file, with this model's special tokens."""
        return ChatTemplate.from_file(os.fspath(path), self.tokenizer)

    def tokenize(self, text: str) -> list[int]:
        """Token ids of text; control tokens spelled in it are recognised."""
        return self.tokenizer.encode(text)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of token ids, control tokens included.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        return self.model.detokenize(ids)

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
        """Continues a prompt: text, or token ids [n_tokens]. By default greedy, and at most 256 tokens.

        sampling: how tokens are chosen; `fields` (max_tokens=64, temperature=0.7, ...) override single fields of it.
        stream: an iterator of chunks, which may be closed early. The last chunk carries the whole result.
        n: returns a list of n results, 1 to 1024, with consecutive seeds. A list of prompts gives a list of results,
            grouped by prompt.
        prediction: text that the answer is likely to repeat, wholly or in parts: the suffix drafter drafts from it.
        response_format: constrains the text to a format, as in the server: {"type": "json_object"}, {"type":
            "json_schema", "json_schema": {"schema": {...}}}, {"type": "regex", "regex": "..."}, {"type": "grammar",
            "grammar": "..."}.
        on_prompt: called with (tokens computed, tokens of the prompt) at the start of prefill and after each chunk.

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
            for request in self._continuations(
                self.model.prompt_ids(one), base, prediction, response_format, 1 if n is None else n
            )
        ]
        return self._run(requests, on_prompt, stream=stream, several=several)

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
        reasoning_effort: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        template: ChatTemplate | None = None,
        compression: Mapping[str, Any] | None = None,
        prediction: str = "",
        response_format: Mapping[str, Any] | None = None,
        on_prompt: PromptProgress | None = None,
        **fields: Unpack[SamplingFields],
    ) -> Generation | list[Generation] | Iterator[Chunk]:
        """Answers a conversation through the model's chat template (or `template`), as the server does.

        messages: in OpenAI's form. The content of a user's message may have images among its parts: {"type": "image",
            "image": a path, the bytes of a file, or a Pillow image}, or {"type": "image_url", "image_url": {"url":
            "data:image/png;base64,..."}}.
        sampling: None is the sampling that the model's makers recommend (`recommended_sampling`); `fields` override
            single fields.
        tools, tool_choice: in OpenAI's form. The result has the calls in `tool_calls`.
        enable_thinking: switches reasoning on or off. The result has it in `reasoning`.
        reasoning_effort: how long to reason: "none", "minimal", "low", "medium", "high", "xhigh" or "max". It limits
            the tokens, and reaches a template that has levels of its own as the nearest of them.
        chat_template_kwargs: further variables of the template, such as {"preserve_thinking": True}.
        compression: overrides the options prefill_* for this conversation: {"mode": "off" | "auto" | "always",
            "keep_ratio": 0.1}. `usage.compression` of the result says what was kept.
        stream, n, prediction, response_format, on_prompt: as in `generate`.

        Only the template can write control tokens; a control token spelled in messages or tools stays text.

        Raises:
            InvalidRequestError: as `generate`, or a message or tool is malformed, or the template refuses them.
            UnsupportedError: there is no chat template, it cannot switch thinking or take an effort as requested, or
                compression is requested without a scorer.
        """
        model = self.chat_model(template)
        settings = TemplateSettings(enable_thinking, reasoning_effort, chat_template_kwargs)
        conversation = self._conversation(model, messages, settings, tools, tool_choice, response_format)
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
        expected = self.model.expected_ids(prediction)
        requests = [replace(one, prediction=expected) for one in requests]
        return self._run(requests, on_prompt, stream=stream, several=n is not None)

    def agenerate(
        self, prompt: Prompt, sampling: Sampling | None = None, **options: Unpack[GenerateOptions]
    ) -> Coroutine[Any, Any, Generation]:
        """`generate` for asyncio. Cancelling the task stops the generation after the current token or prefill chunk."""
        return last_of(self.astream(prompt, sampling, **options))

    def astream(
        self, prompt: Prompt, sampling: Sampling | None = None, **options: Unpack[GenerateOptions]
    ) -> AsyncIterator[Chunk]:
        """`generate(..., stream=True)` for asyncio: an asynchronous iterator. Leaving it stops the generation."""
        return stream_in_thread(lambda: cast(ChunkStream, self.generate(prompt, sampling, stream=True, **options)))

    def achat(
        self, messages: Messages, sampling: Sampling | None = None, **options: Unpack[ChatOptions]
    ) -> Coroutine[Any, Any, Generation]:
        """`chat` for asyncio, cancelled as `agenerate`."""
        return last_of(self.astream_chat(messages, sampling, **options))

    def astream_chat(
        self, messages: Messages, sampling: Sampling | None = None, **options: Unpack[ChatOptions]
    ) -> AsyncIterator[Chunk]:
        """`chat(..., stream=True)` for asyncio."""
        return stream_in_thread(lambda: cast(ChunkStream, self.chat(messages, sampling, stream=True, **options)))

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        reasoning_effort: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        template: ChatTemplate | None = None,
    ) -> str:
        """The prompt text of a conversation, as `chat` computes it."""
        model = self.chat_model(template)
        settings = TemplateSettings(enable_thinking, reasoning_effort, chat_template_kwargs)
        return model.prompt(self._conversation(model, messages, settings, tools)).text

    def recommended_sampling(
        self,
        *,
        enable_thinking: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        template: ChatTemplate | None = None,
    ) -> tuple[Sampling, str]:
        """The default sampling of a chat, and its source: the model's own files, a document of its makers, or
        lucebox."""
        model = self.chat_model(template)
        hello = [{"role": "user", "content": "Hello"}]
        settings = TemplateSettings(enable_thinking, None, chat_template_kwargs)
        conversation = self._conversation(model, hello, settings)
        return model.recommended_sampling(conversation), model.profile.source

    def chat_model(self, template: ChatTemplate | None = None) -> ChatModel:
        """Renders conversations and parses answers of this model, with its own template or another one."""
        if template is not None:
            return ChatModel(self.model, self._grammars, template=template)
        if self._chat_model is None:
            self._chat_model = ChatModel(self.model, self._grammars)
        return self._chat_model

    def _conversation(
        self,
        model: ChatModel,
        messages: Messages,
        settings: TemplateSettings,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] = "auto",
        response_format: Mapping[str, Any] | None = None,
    ) -> Conversation:
        thinking, variables = settings.read(model, self.info.name)
        return Conversation(
            messages=checked_messages(with_markers(messages), keeps_broken=True),
            tools=tools_of(tools),
            tool_choice=tool_choice_of(tool_choice),
            thinking=thinking,
            answer_format=answer_format_of(response_format),
            template_vars=variables,
        )

    def _continuations(
        self, prompt: Ids, sampling: Sampling, prediction: str, response_format: Mapping[str, Any] | None, n: int
    ) -> list[GenerationRequest]:
        _check_n(n)
        seed = self.options.seed if sampling.seed is None else sampling.seed
        max_tokens = CONTINUATION_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens
        expected, answer_format = self.model.expected_ids(prediction), answer_format_of(response_format)

        def parts() -> dict[str, Any]:
            constraint = None if answer_format is None else self._grammars.constraint(answer_format)
            return {"constraint": constraint, "prediction": expected}

        return prompt_requests(self.model, prompt, replace(sampling, seed=seed, max_tokens=max_tokens), n, parts)

    def _run(
        self, requests: list[GenerationRequest], on_prompt: PromptProgress | None, *, stream: bool, several: bool
    ) -> Generation | list[Generation] | Iterator[Chunk]:
        if stream:
            return ChunkStream(self._scheduler, requests[0], on_prompt, self.model.check_usable)
        self.model.check_usable()
        answers = answers_of(self._scheduler, requests, on_prompt)
        return answers if several else answers[0]

    def score(self, text_or_ids: str | Sequence[int]) -> list[float]:
        """[n_tokens - 1] natural log probability of every token after the first, given the ones before it.

        Raises:
            InvalidRequestError: there are fewer than two tokens, or more than the context holds.
        """
        ids = self.ids(text_or_ids)
        with self._empty_session(len(ids)) as session:
            return list(session.score(ids))

    def choose(
        self,
        prompt: Prompt | Messages,
        labels: Sequence[Prompt],
        *,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        template: ChatTemplate | None = None,
    ) -> Choice:
        """How likely each label is as the next text: to classify, rate or route in one pass, without sampling.

        prompt: text, token ids, or a conversation whose answer would begin with a label, without reasoning.
        labels: texts or token ids, each tokenized alone; up to 1024. Give spaces as they would follow the prompt.
        chat_template_kwargs, template: as in `chat`, for a conversation.

        Raises:
            InvalidRequestError: the prompt is empty or does not fit, a label is empty or longer than 65 tokens (less
                where a prefill chunk or the room in the context is smaller), or the template refuses the conversation.
            UnsupportedError: there is no chat template.
        """
        self.model.check_usable()
        if len(prompt) and isinstance(prompt[0], Mapping):
            model = self.chat_model(template)
            settings = TemplateSettings(None, None, chat_template_kwargs)
            found = model.prompt_of_text(self._conversation(model, cast(Messages, prompt), settings))
            request = label_request(self.model, found.ids, labels, images=found.images)
        elif chat_template_kwargs is not None or template is not None:
            raise InvalidRequestError("chat_template_kwargs and template need a conversation, not a prompt")
        else:
            request = label_request(self.model, self.model.prompt_ids(cast(Prompt, prompt)), labels)
        (answer,) = answers_of(self._scheduler, [request])
        assert request.labels is not None
        return Choice(request.labels.scores(self.detokenize), answer.usage, answer.timings)

    def embed(
        self,
        text: Prompt | list[str] | list[list[int]],
        *,
        pooling: Pooling | None = None,
        prompt_name: str | None = None,
        normalize: bool = True,
        dimensions: int | None = None,
    ) -> NDArray[np.float32]:
        """[hidden] the embedding of a text, or [n_texts, hidden] the embeddings of a list of texts.

        pooling: None is the model's own, else "mean", "cls" (the first row), "last", "max", "weightedmean" or
            "mean_sqrt_len". Dense modules of the model follow either.
        prompt_name: the prompt of the model's files to put before each text, such as "query" or "document"; None is
            the model's default prompt, usually none. Ids have no prompt.
        normalize: scales the vector to length 1, so that a dot product is the cosine.
        dimensions: keep only this many leading dimensions, for models trained for truncation (Matryoshka).

        Raises:
            UnsupportedError: the model is not made for embeddings, and no pooling is given.
            InvalidRequestError: a text has no token or more than the context, an option is out of range, or the model
                has no such prompt.
        """
        self.model.check_usable()
        texts = _as_prompts(text)
        all_texts = [cast(Prompt, text)] if texts is None else texts
        request = embedding_request(self.model, all_texts, pooling, prompt_name)
        answers_of(self._scheduler, [request])
        assert request.embedding is not None
        rows = [one.vector(normalize=normalize, dimensions=dimensions) for one in request.embedding.poolers]
        return rows[0] if texts is None else np.stack(rows)

    def ids(self, prompt: str | Sequence[int]) -> Ids:
        """The token ids of a prompt, checked.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        return self.model.ids(prompt)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.model.tokenizer

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The end tokens of the model."""
        return self.model.end_ids

    def sampler(self, sampling: Sampling) -> _engine.Sampler:
        """The sampler of one request.

        Raises:
            InvalidRequestError: an option is out of range.
        """
        return self.model.sampler(sampling)

    @property
    def engine(self) -> _engine.Engine:
        """The weights."""
        return self.model.engine

    # --- sessions

    @contextmanager
    def locked_session(self) -> Iterator[_engine.Session]:
        """The free session that was used last, locked against other threads."""
        self.model.check_usable()
        with self._scheduler.session() as session:
            yield session

    @contextmanager
    def locked_sessions(self, n: int) -> Iterator[list[_engine.Session]]:
        """n free sessions, created on demand, locked against other threads."""
        self.model.check_usable()
        with self._scheduler.driver.alone():
            self.pool.make(n)
            yield self.pool.free[-n:]

    @contextmanager
    def _empty_session(self, n_tokens: int) -> Iterator[_engine.Session]:
        """A locked session with pages of the KV cache for n_tokens."""
        with self.locked_session() as session:
            session.reset()  # cached prefixes may share its pages
            self._scheduler.take_pages(session, n_tokens)
            yield session

    @property
    def pool(self) -> SessionPool:
        """The sessions."""
        self.model.check_usable()
        return self.model.sessions

    def reset(self) -> None:
        """Empties the sessions that no stream uses, and the prefix cache."""
        self.model.check_usable()
        self._scheduler.use_cache(self._new_cache(self.prefix_cache.stats().memory_budget_bytes))

    @property
    def prefix_cache(self) -> PrefixCache:
        """The computed prefixes of prompts."""
        return self._scheduler.cache

    def _new_cache(self, n_bytes: int) -> PrefixCache:
        return PrefixCache(n_bytes, engine=self.model.engine if self.model.on_device else None)

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
        with open_regular(Path(path)) as file:
            self.restore(file.read(), where=os.fspath(path))

    # --- measurement

    @property
    def pack(self) -> str | None:
        """The name of the kernel pack: its target ("sm_90"), or a variant ("sm_86_laptop"); None on the CPU."""
        return self.model.device.pack_name

    @property
    def loaded_pack(self) -> _engine.gpu.Pack | None:
        """The pack on its device, for measurements; None on the CPU."""
        return self.model.device.pack

    @property
    def kernels(self) -> str:
        """The kernels: "8 threads, avx512" or "pack sm_90 by nvcc 13.0.88"."""
        return self.model.kernels

    @property
    def draft_label(self) -> str:
        """The drafter: "none", "suffix", "mtp+suffix", "drafter.gguf"."""
        return self.model.draft_label

    @property
    def device_info(self) -> _engine.gpu.DeviceInfo | None:
        """The device's properties as the driver reports them; None on the CPU."""
        return self.model.device_info

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """[len(ids), vocab] logits after each of these tokens, from an empty session."""
        tokens = self.ids(ids)
        if not len(tokens):
            raise InvalidRequestError("there are no tokens to compute logits after")
        rows = []
        with self._empty_session(len(tokens)) as session:
            n_rows = min(LOGITS_CHUNK, session.prefill_chunk)
            for at in range(0, len(tokens), n_rows):
                chunk = tokens[at : at + n_rows]
                rows.append(session.append(chunk)[0])
                session.commit(list(range(len(chunk))))
        return np.concatenate(rows)

    @property
    def decode_path(self) -> str:
        """How a GPU decodes: "graph" and why the megakernel is not used, or the megakernel with one line per phase.
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
