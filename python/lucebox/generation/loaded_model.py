"""`LoadedModel`: a model's engine on a device, its sessions and its text assets, shared by everything that
generates."""

from __future__ import annotations

import os
import weakref
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from lucebox import _engine
from lucebox.chat.template import ChatTemplate
from lucebox.errors import InvalidRequestError, LuceboxError, UnsupportedError
from lucebox.generation.embedding import Embedder
from lucebox.generation.errors import PromptTooLongError
from lucebox.generation.sessions import SessionPool
from lucebox.images import ImageSource, Processor
from lucebox.models.assets import TextAssets
from lucebox.models.drafters import Drafters
from lucebox.models.memory import MemoryPlan
from lucebox.models.model_info import ModelInfo
from lucebox.options import EngineOptions, Sampling, engine_fields
from lucebox.results import ExpertCounts
from lucebox.text import Ids, Tokenizer
from lucebox.text.length import BYTES_PER_TOKEN, tokens_beyond

if TYPE_CHECKING:
    from lucebox.compression.compressor import Compressor
    from lucebox.models.expert_profile import ExpertProfile
    from lucebox.models.step_costs import StepCostsFile

__all__ = ["LoadedDevice", "LoadedModel"]

SEED_MASK = (1 << 64) - 1
DETOKENIZED = 1 << 12  # ids that are checked together, while no other thread runs


@dataclass(frozen=True, slots=True)
class Link:
    """How values get from one device of a model to the next, or, of a tensor split, among all of them."""

    path: str
    """"peer", or "host: ..." with the reason."""
    row_us: float
    """Microseconds of one row: of a hand-over until the host sees its end, or of an all-reduce in a graph."""

    def __str__(self) -> str:
        return f"{self.path} ({self.row_us:.1f} us per row)"


@dataclass(frozen=True, slots=True)
class LoadedDevice:
    """The device of a model, and the kernels on it."""

    name: str
    """As in the option `device`, resolved: "cpu", "cuda:0", or "cuda:0,cuda:1" for a model divided among devices."""
    chip: str
    """The name of the GPU or processor."""
    reason: str
    """Why this device and pack were chosen."""
    unused_gpus: tuple[str, ...]
    """One line per GPU that could make the model faster, and what to do."""
    pack: _engine.gpu.Pack | None
    """None on the CPU."""
    pack_name: str | None
    """The pack's target ("sm_90"), or a variant ("sm_86_laptop")."""
    pack_manifest: str
    """The manifest of the pack, JSON; empty on the CPU."""
    code: str | None
    """The compiler of the pack's code that the driver loads: "nvcc 13.0.88"; None on the CPU."""
    others: tuple[LoadedDevice, ...] = ()
    """Further devices among which the model may be divided. The fields above but `name` are the first device's."""
    draft: LoadedDevice | None = None
    """The device of the draft model, if it has one of its own."""
    vision: LoadedDevice | None = None
    """The device of the vision tower, if it has one of its own."""
    links: tuple[Link, ...] = ()

    @property
    def kernels(self) -> str:
        """Identifies the packs' kernels; empty on the CPU."""
        own = "" if self.pack_name is None else f"{self.pack_name} {self.code} {self.pack_manifest}"
        drafts = [] if self.draft is None else [f"drafts: {self.draft.chip} {self.draft.kernels}"]
        return " ".join([own, *(other.kernels for other in self.others), *drafts])

    def as_planned(self, plan: MemoryPlan, split: str, links: Sequence[Link]) -> LoadedDevice:
        """The devices that an engine with this plan uses: all of them, or the first alone."""
        if self.draft is not None:
            if not plan.parts:
                return replace(self, draft=None)
            way = f"draft model on {self.draft.name}, rows to it: {links[0]}"
            return replace(self, reason=f"{self.reason}; {self.draft.reason}; {way}", links=tuple(links))
        if not self.others:
            return self
        if not plan.parts:
            return replace(self, others=())
        what, sent = ("layers", "rows") if split in ("auto", "layer") else ("a part of every layer", "sums")
        ways = f"{what} on {plan.place}, {sent} between them: {', '.join(map(str, links))}"
        return replace(
            self,
            name=plan.place,
            chip=" + ".join([self.chip, *(other.chip for other in self.others)]),
            reason="; ".join([self.reason, *(other.reason for other in self.others), ways]),
            links=tuple(links),
        )


def _save(process: int, file: StepCostsFile | None, profile: ExpertProfile | None, engine: _engine.Engine) -> None:
    """A model that ends. A fork of its process knows no more than the process."""
    if process != os.getpid():
        return
    if file is not None and engine.draft_experience:
        file.save(engine)
    if profile is not None:
        with suppress(LuceboxError):  # a device that failed
            profile.save(engine)


class LoadedModel:
    """The engine with its sessions, the text assets of its files, and the resolved options."""

    def __init__(
        self,
        *,
        engine: _engine.Engine,
        sessions: SessionPool,
        device: LoadedDevice,
        assets: TextAssets,
        info: ModelInfo,
        options: EngineOptions,
        drafters: Drafters,
        memory_plan: MemoryPlan,
        step_costs_file: StepCostsFile | None,
        expert_profile: ExpertProfile | None,
        draft_reason: str,
        path_reason: str,
        compressor: Compressor | None,
        processor: Processor | None,
        answer_tokens: int | None,
    ) -> None:
        self._engine: _engine.Engine | None = engine
        self._process = os.getpid()
        self.sessions = sessions
        self.device = device
        self.assets = assets
        self.info = info
        self.options = options
        self.drafters = drafters
        self.memory_plan = memory_plan
        self.step_costs_file = step_costs_file
        """The file of measured costs of a speculative step and of what drafts showed, reused by the next start; None
        without a drafter."""
        is_learning = step_costs_file is not None or expert_profile is not None
        self._save = (
            weakref.finalize(self, _save, self._process, step_costs_file, expert_profile, engine)
            if is_learning
            else None
        )
        self.draft_reason = draft_reason
        """The drafters that `draft="auto"` left out, and why."""
        self.path_reason = path_reason
        """Why `decode_path="auto"` is a graph where the target's rule is the megakernel; empty otherwise."""
        self.compressor = compressor
        """Cuts long prompts; None without a scorer."""
        self.processor = processor
        """Makes the pixels that the vision tower reads; None without a tower."""
        self.answer_tokens = answer_tokens
        """The catalog's length of an answer where nobody says another; None: the profile's."""
        self.on_device = device.pack is not None
        """Whether a GPU computes asynchronously: the next pass may be sent before texts are emitted, and prefixes keep
        their KV pages on the device."""
        self.max_groups = engine.n_stages if drafters.draft_model is None else 1
        """Groups of sequences whose passes are in flight at the same time: one per device that has layers. With a draft
        model one, because the last device computes a draft after the passes that it has been sent."""
        self._embedder: Embedder | None = None

    @property
    def is_closed(self) -> bool:
        return self._engine is None

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that loaded the model."""
        return self._process != os.getpid()

    def check_usable(self) -> None:
        """Checks that this process may use the model.

        Raises:
            InvalidRequestError: it was closed, or this process is a fork of the one that loaded it.
        """
        if self.is_closed:
            raise InvalidRequestError("this LLM was closed")
        if self.is_forked:
            raise InvalidRequestError(
                f"this LLM was loaded in process {self._process}, and this process {os.getpid()} is a fork of it, "
                "without its threads and GPU context: load the LLM after the fork, or start processes by spawn"
            )

    def close(self) -> None:
        """Saves what drafts and experts showed, and frees the engine and its sessions. No one may still hold them."""
        if self._save is not None:
            self._save()
        self._engine = None
        self.sessions.close()
        self.device = replace(self.device, pack=None, others=(), draft=None)
        if self.compressor is not None:
            self.compressor.close()

    @property
    def engine(self) -> _engine.Engine:
        """The weights and the memory plan."""
        self.check_usable()
        assert self._engine is not None
        return self._engine

    # --- text

    @property
    def tokenizer(self) -> Tokenizer:
        return self.assets.tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        return self.assets.template

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The end tokens of the model."""
        return tuple(i for i in self.assets.end_ids if i < self.info.vocab)

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """Sampling recommended by the checkpoint, by the names of generation_config.json; empty without any."""
        return self.assets.generation_defaults

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence per ignored part of the model's files: a template that is not Jinja, recommended sampling out of
        range; and why experts are copied slowly."""
        experts = self.memory_plan.experts
        slow = None if experts is None else experts.note
        return self.assets.notes if slow is None else (*self.assets.notes, slow)

    def detokenize(self, ids: Iterable[int]) -> str:
        """Text of token ids, control tokens included.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        left = iter(ids)
        batches = iter(lambda: list(islice(left, DETOKENIZED)), [])
        return self.tokenizer.decode(chain.from_iterable(map(self._in_vocabulary, batches)), skip_special=False)

    def _in_vocabulary(self, ids: list[int]) -> array[int]:
        # Not by NumPy: it releases the GIL so often and so briefly that threads which wait for the GIL never get it.
        try:
            known = array("q", ids)
        except TypeError:
            raise InvalidRequestError("token ids must be integers") from None
        except OverflowError:
            known = array("q", [-1])
        if min(known) < 0 or max(known) >= self.info.vocab:
            raise InvalidRequestError(f"token ids must be between 0 and {self.info.vocab - 1}")
        return known

    def prompt_ids(self, prompt: str | Sequence[int]) -> Ids:
        """ids() of a prompt that must fit the context: a longer text is refused before it is tokenized.

        Raises:
            InvalidRequestError: as `ids`, or a text is longer than the context.
        """
        if isinstance(prompt, str):
            self.check_length([prompt])
        return self.ids(prompt)

    def ids(self, prompt: str | Sequence[int]) -> Ids:
        """The token ids of a text, or ids, checked.

        Raises:
            InvalidRequestError: an id is outside the vocabulary.
        """
        ids = np.asarray(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        if ids.ndim == 1 and ids.dtype.kind == "O" and all(isinstance(i, int) for i in ids):  # beyond 64 bits
            raise InvalidRequestError(f"token ids must be between 0 and {self.info.vocab - 1}")
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            raise InvalidRequestError("a prompt must be text or a flat sequence of token ids")
        if ids.size and (ids.min() < 0 or ids.max() >= self.info.vocab):
            raise InvalidRequestError(f"token ids must be between 0 and {self.info.vocab - 1}")
        return ids.astype(np.int32)

    def check_length(self, texts: Iterable[str], limit: int | None = None) -> None:
        """Refuses texts before they are tokenized, if they are surely longer than the limit, by default the context.

        Raises:
            PromptTooLongError: they are; it has the tokens that were counted.
        """
        context = self.memory_plan.context
        if (n := tokens_beyond(self.tokenizer, texts, context if limit is None else limit)) is not None:
            raise PromptTooLongError(n, context)

    def expected_ids(self, prediction: str) -> Ids:
        """The token ids of text that an answer is likely to repeat, truncated to the context."""
        context = self.memory_plan.context
        text = prediction[: BYTES_PER_TOKEN * context]
        return np.asarray(self.tokenizer.encode(text, special=False, add_bos=False)[:context], np.int32)

    def ids_to_embed(self, text: str | Sequence[int], prompt: str = "") -> Ids:
        """The token ids of a text after a prompt, with the end token that the model expects; ids stay as they are.

        Raises:
            InvalidRequestError: there is no token, or there are more than the context holds.
        """
        ids = self.embedder.ended(self.prompt_ids(prompt + text)) if isinstance(text, str) else self.ids(text)
        context = self.memory_plan.context
        if not 1 <= len(ids) <= context:
            raise InvalidRequestError(f"a text to embed has 1 to {context} tokens (the context), got {len(ids)}")
        return ids

    @property
    def embedder(self) -> Embedder:
        if self._embedder is None:
            self._embedder = Embedder(self.info, self.tokenizer.appended)
        return self._embedder

    def encode_image(self, source: ImageSource, sender: str = "") -> _engine.EncodedImage:
        """The image as rows of the prompt, computed unless an equal image of the sender is still in memory.

        Raises:
            UnsupportedError: the model has no vision tower, or Pillow is not installed.
            InvalidRequestError: the image is damaged, too large, or of another format.
        """
        if self.processor is None:
            raise UnsupportedError(
                f"{source.where}: {self.info.name} was loaded without a vision tower, so it reads only text; images "
                "need a checkpoint of Qwen3.5 or Gemma 4 with its tower, or a GGUF file with its mmproj beside it "
                "(--mmproj FILE)"
            )
        key = f"{sender} {source.key}"  # response time must not reveal that another sender has sent the image
        return self.engine.find_image(key) or self.engine.encode_image(key, self.processor.pixels(source))

    # --- decoding

    def expert_counts(self) -> ExpertCounts | None:
        """Hits, misses and copies of experts in all passes so far; None if all experts are in device memory."""
        experts = self.memory_plan.experts
        return ExpertCounts(*self.engine.expert_counts) if experts is not None and experts.host_bytes else None

    def sampler(self, sampling: Sampling) -> _engine.Sampler:
        """The sampler of one request.

        Raises:
            InvalidRequestError: an option is out of range.
        """
        seed = self.options.seed if sampling.seed is None else sampling.seed
        return _engine.Sampler(self.info.vocab, **engine_fields(sampling) | {"seed": seed & SEED_MASK})

    @property
    def kernels(self) -> str:
        """The kernels: "8 threads, avx512" or "pack sm_90 by nvcc 13.0.88"."""
        if self.device.pack_name is not None:
            return f"pack {self.device.pack_name} by {self.device.code}"
        return f"{self.options.threads} threads, {self.options.isa}"

    @property
    def draft_label(self) -> str:
        """The drafter: "none", "suffix", "mtp+suffix", "drafter.gguf"."""
        return self.drafters.label

    @property
    def device_info(self) -> _engine.gpu.DeviceInfo | None:
        """The device's properties as the driver reports them; None on the CPU."""
        return None if self.device.pack is None else self.device.pack.device
