"""The results of a generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = [
    "Choice",
    "Chunk",
    "CutMessage",
    "DraftCounts",
    "ExpertCounts",
    "FinishReason",
    "Generation",
    "LabelScore",
    "PromptCompression",
    "Timings",
    "TokenLogprob",
    "ToolCall",
    "Usage",
]

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log probability of one token under the model (before temperature, penalties and filters)."""

    id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely (id, logprob), best first."""


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Counts of the drafted and accepted tokens of one request."""

    verifies: int
    """Trees of drafted tokens that the model verified, each in one step."""
    drafted_tokens: int
    accepted_tokens: int
    """Drafted tokens that are in the text: each saved a step."""
    by_length: tuple[int, ...]
    """[n] verifies that accepted n tokens, up to the longest."""

    @property
    def tokens_per_verify(self) -> float:
        """Mean tokens that a verify yields: the accepted ones, and the one sampled after them; 0 without a verify."""
        return 1 + self.accepted_tokens / self.verifies if self.verifies else 0.0


@dataclass(frozen=True, slots=True)
class ExpertCounts:
    """The hits and misses of a model whose experts are not all in device memory, over all passes that ran during a
    request, other requests' passes included. A pass counts an expert of a layer once, whatever rows choose it."""

    hits: int
    """Experts that were in device memory."""
    misses: int
    """Experts that were copied from host memory."""
    link_bytes: int
    """Bytes of these copies."""

    def __add__(self, more: ExpertCounts) -> ExpertCounts:
        return ExpertCounts(self.hits + more.hits, self.misses + more.misses, self.link_bytes + more.link_bytes)

    def __sub__(self, before: ExpertCounts) -> ExpertCounts:
        return ExpertCounts(self.hits - before.hits, self.misses - before.misses, self.link_bytes - before.link_bytes)

    @property
    def hit_rate(self) -> float:
        """Share of the experts that were in device memory; 1 before any pass."""
        return self.hits / (self.hits + self.misses) if self.misses else 1.0


@dataclass(frozen=True, slots=True)
class CutMessage:
    """A message whose content was cut."""

    index: int
    """Its position in the conversation in OpenAI's form: the system message and every tool result count."""
    spans: tuple[tuple[int, int], ...]
    """Characters [start, stop) of its content that stay, ascending and apart."""
    n_characters: int
    """Length of its content before."""
    content: str
    """Its content after."""


@dataclass(frozen=True, slots=True)
class PromptCompression:
    """The record of a compressed prompt."""

    scorer: str
    """The model that chose the parts to keep."""
    keep_ratio: float
    """The share of cuttable tokens that was asked for."""
    original_tokens: int
    """Tokens of the prompt as it was sent."""
    kept_tokens: int
    """Tokens of the prompt that was computed."""
    score_s: float
    """Seconds of the scorer; 0 where earlier turns had scored everything."""
    cut: tuple[CutMessage, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens reused from the session or the cache."""
    drafts: DraftCounts | None = None
    """None where the model was opened without drafts."""
    compression: PromptCompression | None = None
    """None where the prompt was computed as it was sent; else `prompt_tokens` are those that compression kept."""
    joules: float | None = None
    """Energy of the device while the request ran, in equal shares with the requests that ran at the same time. None
    where it cannot be read, for less than half a second, and outside a server."""
    experts: ExpertCounts | None = None
    """None where all experts of a mixture are in device memory, and for other models."""

    @property
    def tokens_per_step(self) -> float:
        """Generated tokens per step of the model: 1 where no drafted token was accepted."""
        accepted = self.drafts.accepted_tokens if self.drafts else 0
        return self.completion_tokens / max(1, self.completion_tokens - accepted)

    @property
    def tokens_per_joule(self) -> float | None:
        """Generated tokens per joule; None without `joules`."""
        return None if self.joules is None else self.completion_tokens / self.joules


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one request."""

    prefill_s: float
    """From the start to the first token, which the prompt's logits give."""
    decode_s: float
    """From the first token to the last."""
    prefill_tokens: int
    """Prompt tokens that were computed, not reused."""
    decode_tokens: int
    """Tokens after the first, the ones that decode_s is the time of."""

    @property
    def prefill_tok_s(self) -> float:
        """Prompt tokens that were computed, per second; 0 where none was."""
        return self.prefill_tokens / self.prefill_s if self.prefill_s > 0 else 0.0

    @property
    def decode_tok_s(self) -> float:
        """Tokens after the first per second; 0 where there are none."""
        return self.decode_tokens / self.decode_s if self.decode_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the answer makes."""

    id: str
    name: str
    arguments: str
    """JSON text of the arguments object."""
    is_broken: bool = False
    """The call was cut or is malformed: its arguments are not valid JSON, and it must not be run."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation."""

    text: str
    """The continuation, or the answer without its reasoning and tool calls."""
    ids: tuple[int, ...]
    """All generated token ids, an end token included."""
    finish_reason: FinishReason
    """"stop": an end token, a stop string or a stop id; "length": max_tokens; "cancelled": interrupted."""
    usage: Usage
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One per generated id, where Sampling.logprobs asks for them."""
    stop_string: str | None = None
    """The stop string that ended the text; None where something else did."""
    reasoning: str = ""
    """The reasoning before the answer of a chat, without its tags."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The calls of a chat with tools."""
    warnings: tuple[str, ...] = ()
    """Notes on the answer: a malformed call that stayed text, arguments cut off by max_tokens."""

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message, to append to the conversation."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self.tool_calls
            ]
        return message


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed generation. The last chunk carries the whole result."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    reasoning: str = ""
    """A piece of the reasoning of a chat; text and reasoning are both empty while a tool call is read."""
    result: Generation | None = field(default=None)


@dataclass(frozen=True, slots=True)
class LabelScore:
    """How likely a label is as the next text."""

    text: str
    """Of a label given as ids, their text."""
    ids: tuple[int, ...]
    logprob: float
    """Natural log probability of all its tokens, whatever follows them."""
    probability: float
    """Its share among the labels of the call."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of `LLM.choose`."""

    labels: tuple[LabelScore, ...]
    """In the order given."""
    usage: Usage
    """`prompt_tokens` counts the prompt, and the tokens of labels that were computed after it."""
    timings: Timings

    @property
    def best(self) -> LabelScore:
        """The most likely label; of equal ones, the first."""
        return max(self.labels, key=lambda label: label.logprob)

    @property
    def text(self) -> str:
        return self.best.text
