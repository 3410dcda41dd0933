"""The model a server answers with: its names and limits, and requests made ready for the scheduler.

Requests are made ready in worker threads: long prompts and grammars take their time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np

from lucebox.api import LLM
from lucebox.chat.quoting import Quoting
from lucebox.errors import LuceboxError
from lucebox.options import Sampling
from lucebox.serve.constraints import (
    GrammarTokens,
    StrictCalls,
    TokenConstraint,
    json_grammar,
    json_or_tools_grammar,
    regex_grammar,
    tools_grammar,
)
from lucebox.serve.conversation import AnswerFormat, Conversation
from lucebox.serve.errors import ApiError, from_lucebox, too_long
from lucebox.serve.events import Constraint
from lucebox.serve.parsing import OutputParser
from lucebox.serve.profiles import Profile, Thinking, profile_for
from lucebox.serve.rendering import for_template
from lucebox.serve.request import GenerationRequest, Ids
from lucebox.serve.settings import ServeSettings
from lucebox.serve.thinking import ThinkingBudget, thinking_limit
from lucebox.serve.tools import callable_tools
from lucebox.text.spellings import unmarked

__all__ = ["Limits", "ServedModel"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request says of its answer's length."""

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


class ServedModel:
    """See the head of this file."""

    def __init__(self, llm: LLM, settings: ServeSettings) -> None:
        self.llm = llm
        self.name = settings.model_name or llm.info.name
        self.created = int(time.time())
        self.context = llm.memory_plan.context
        self.profile: Profile = profile_for(
            llm.info.architecture,
            llm.chat_template,
            llm.tokenizer,
            generation_defaults=llm.generation_defaults,
            override=settings.profile,
        )
        thinking = self.profile.thinking
        self._quoting = Quoting(llm.tokenizer, () if thinking is None else (thinking.open, thinking.close))
        self._aliases = settings.alias
        self._max_tokens = settings.max_tokens
        self._grammar_tokens: GrammarTokens | None = None
        self._grammar_lock = threading.Lock()

    def named(self, asked: str | None) -> str:
        """The name to answer under: the one asked for, as clients compare it with theirs.

        Raises:
            ApiError: it is neither this model's name nor an alias.
        """
        if asked is None or asked in (self.name, self.llm.info.name):
            return asked or self.name
        if any(fnmatchcase(asked, alias) for alias in self._aliases):
            return asked
        raise ApiError(
            "not_found",
            f"The model {asked!r} does not exist; this server has {self.name!r}",
            "model",
            "model_not_found",
        )

    def count(self, conversation: Conversation) -> int:
        """Tokens of a conversation's prompt.

        Raises:
            ApiError: the template refuses it.
        """
        return len(_reported(lambda: self._prompt(conversation))[1])

    def chat(
        self, conversation: Conversation, sampling: Mapping[str, Any], limits: Limits, endpoint: str, n: int = 1
    ) -> list[GenerationRequest]:
        """n answers to a conversation.

        Raises:
            ApiError: it does not fit, or something in it is wrong.
        """
        return _reported(lambda: self._chat(conversation, sampling, limits, endpoint, n))

    def complete(
        self,
        prompt: str | Sequence[int],
        sampling: Mapping[str, Any],
        limits: Limits,
        endpoint: str,
        n: int = 1,
        *,
        scores_prompt: bool = False,
    ) -> list[GenerationRequest]:
        """n continuations of a text.

        Raises:
            ApiError: it does not fit, or something in it is wrong.
        """
        ids = _reported(lambda: self.llm.ids(prompt))
        if not len(ids):
            raise ApiError("invalid", "the prompt has no tokens", "prompt")
        base = Sampling(
            **{"temperature": 1.0, **sampling}, max_tokens=self._length(len(ids), limits.max_tokens), stop=limits.stop
        )
        return [
            GenerationRequest(ids, each, endpoint=endpoint, scores_prompt=scores_prompt)
            for each in _reported(lambda: self._seeded(base, n))
        ]

    def _prompt(self, conversation: Conversation) -> tuple[str, Ids]:
        template, profile, thinking = self.llm.chat_template, self.profile, conversation.thinking
        if template is None:
            raise ApiError("invalid", f"{self.name} has no chat template; only /v1/completions can be used")
        variables = self._quoting.values(conversation.template_vars)
        if profile.thinking and profile.thinking.variable and thinking.mode != "default":
            variables[profile.thinking.variable] = thinking.mode != "off"
        tools = callable_tools(conversation.tools, conversation.tool_choice)
        shown = self._quoting.values([tool.for_template() for tool in tools])
        messages, shown = for_template(profile, self._quoting.messages(conversation.messages), shown)
        text = template.render(messages, tools=shown, **variables)
        return unmarked(text), np.asarray(self.llm.tokenizer.encode_marked(text), np.int32)

    def _chat(
        self, conversation: Conversation, sampling: Mapping[str, Any], limits: Limits, endpoint: str, n: int
    ) -> list[GenerationRequest]:
        text, ids = self._prompt(conversation)
        profile, tools, choice = self.profile, conversation.tools, conversation.tool_choice
        max_tokens = self._length(len(ids), limits.max_tokens or profile.max_tokens)
        tags = profile.thinking if conversation.thinking.mode != "off" else None
        if tags is not None and text.rstrip().endswith(tags.close):
            tags = None  # the template has closed it
        base = replace(
            profile.defaults(thinking=tags is not None, tools=bool(tools)),
            **sampling,
            max_tokens=max_tokens,
            stop=limits.stop,
        )
        limit = thinking_limit(profile, conversation.thinking, max_tokens) if tags else 0
        return [
            GenerationRequest(
                ids,
                each,
                OutputParser(profile, tools, choice, profile.thinking is not None, text),
                self._constraint(conversation, tags, text),
                ThinkingBudget(tags, self.llm.tokenizer, text, limit=limit, end_ids=self.llm.end_ids) if tags else None,
                endpoint,
            )
            for each in self._seeded(base, n)
        ]

    def _length(self, n_prompt: int, asked: int | None) -> int:
        """Tokens the answer may have.

        Raises:
            ApiError: the prompt leaves no room for one.
        """
        room = self.context - n_prompt
        if room < 1:
            raise too_long(n_prompt, self.context)
        return min(n for n in (asked, self._max_tokens, room) if n is not None)

    def _seeded(self, base: Sampling, n: int) -> list[Sampling]:
        self.llm.sampler(base)  # refuses what is out of range
        seed = time.time_ns() if base.seed is None else base.seed
        return [replace(base, seed=seed + i) for i in range(n)]

    def _constraint(self, conversation: Conversation, tags: Thinking | None, prompt_text: str) -> Constraint | None:
        """What the answer is held to; None: nothing."""
        asked, choice = conversation.answer_format, conversation.tool_choice
        tools = callable_tools(conversation.tools, choice)
        if choice.mode == "required":
            grammar = tools_grammar(self.profile, conversation.tools, choice)
        elif asked is not None and tools:
            if asked.kind not in ("json_object", "json_schema"):
                raise ApiError("invalid", f"a {asked.kind} cannot be had while tools may be called", "response_format")
            grammar = json_or_tools_grammar(self.profile, conversation.tools, choice, asked.schema or None)
        elif asked is not None:
            grammar = _form(asked)
        else:
            is_strict = any(tool.strict for tool in tools)
            return StrictCalls(self._tokens(), self.profile, tools) if is_strict else None
        return TokenConstraint(self._tokens(), grammar, thinking=tags, prompt_text=prompt_text)

    def _tokens(self) -> GrammarTokens:
        with self._grammar_lock:
            if self._grammar_tokens is None:
                self._grammar_tokens = GrammarTokens(self.llm.tokenizer, self.llm.info.vocab, self.llm.end_ids)
            return self._grammar_tokens


def _form(asked: AnswerFormat) -> str:
    match asked.kind:
        case "regex":
            return regex_grammar(asked.text)
        case "grammar":
            return asked.text  # Lark
        case "json_object":
            return json_grammar()
    return json_grammar(asked.schema)


def _reported(make: Callable[[], T]) -> T:
    try:
        return make()
    except LuceboxError as error:
        raise from_lucebox(error) from error
