"""Collects the items of one generation into an answer, for non-streaming responses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from lucebox.generation.embedding import Embedding
from lucebox.generation.events import ReasoningDelta, TextDelta, ToolArguments, ToolEnd, ToolStart, Warning
from lucebox.generation.labels import Labels
from lucebox.generation.request import Embedded, Finished, Item, PromptToken, Scored, Started
from lucebox.results import TokenLogprob

__all__ = ["Answer", "Block", "Reasoning", "Text", "ToolCall"]


@dataclass(slots=True)
class Text:
    text: str
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(slots=True)
class Reasoning:
    text: str


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str = ""
    is_broken: bool = False
    """As ToolEnd.is_broken."""


Block: TypeAlias = Text | Reasoning | ToolCall


@dataclass(slots=True)
class Answer:
    """Content blocks in the order of generation, with logprobs, warnings and the generation's results."""

    blocks: list[Block] = field(default_factory=list)
    prompt: list[PromptToken] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    embedding: Embedding | None = None
    labels: Labels | None = None
    started: Started | None = None
    finished: Finished | None = None

    def take(self, item: Item) -> None:
        match item:
            case TextDelta(text):
                self._continue(Text, text)
                texts = [block for block in self.blocks if isinstance(block, Text)]
                texts[-1].logprobs += self.logprobs[sum(len(block.logprobs) for block in texts) :]
            case ReasoningDelta(text):
                self._continue(Reasoning, text)
            case ToolStart(_, id, name):
                self.blocks.append(ToolCall(id, name))
            case ToolArguments(index, delta):
                self.calls[index].arguments += delta
            case ToolEnd(index, is_broken):
                self.calls[index].is_broken = is_broken
            case Warning(text):
                self.warnings.append(text)
            case PromptToken():
                self.prompt.append(item)
            case TokenLogprob():
                self.logprobs.append(item)
            case Embedded(embedding):
                self.embedding = embedding
            case Scored(labels):
                self.labels = labels
            case Started():
                self.started = item
            case Finished():
                self.finished = item

    @property
    def text(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, Text))

    @property
    def reasoning(self) -> str:
        return "".join(block.text for block in self.blocks if isinstance(block, Reasoning))

    @property
    def calls(self) -> list[ToolCall]:
        return [block for block in self.blocks if isinstance(block, ToolCall)]

    @property
    def may_run(self) -> bool:
        """Whether the answer has calls, all of them complete."""
        return bool(self.calls) and not any(call.is_broken for call in self.calls)

    def _continue(self, kind: type[Text] | type[Reasoning], text: str) -> None:
        if self.blocks and isinstance(last := self.blocks[-1], kind):
            last.text += text
        else:
            self.blocks.append(kind(text))
