"""The served model: its names and limits, and the preparation of requests for the scheduler.

Preparation (template, tokenization, grammar) can take seconds, so the routes run it in worker threads.
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
    """A request's limits on its answer."""

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


class ServedModel:
    """Turns conversations and raw prompts into GenerationRequests. Safe to share between threads."""

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

    def resolve_name(self, requested: str | None) -> str:
        """The model name of the response: the requested one, because clients compare the two.

        Raises:
            ApiError: the name is neither this model's nor an alias.
        """
        if requested is None or requested in (self.name, self.llm.info.name):
            return requested or self.name
        if any(fnmatchcase(requested, alias) for alias in self._aliases):
            return requested
        raise ApiError(
            "not_found",
            f"The model {requested!r} does not exist; this server has {self.name!r}",
            "model",
            "model_not_found",
        )

    def count(self, conversation: Conversation) -> int:
        """The number of prompt tokens of a conversation.

        Raises:
            ApiError: the template refuses the conversation.
        """
        return len(_with_api_errors(lambda: self._prompt(conversation))[1])

    def chat(
        self,
        conversation: Conversation,
        sampling: Mapping[str, Any],
        limits: Limits,
        endpoint: str,
        n: int = 1,
        *,
        prediction: str = "",
    ) -> list[GenerationRequest]:
        """Requests for n answers to a conversation, which are likely to repeat the text of the prediction.

        Raises:
            ApiError: the prompt does not fit, or the conversation is invalid.
        """

        def make() -> list[GenerationRequest]:
            expected = self.llm.expected_ids(prediction)
            requests = self._chat(conversation, sampling, limits, endpoint, n)
            return [replace(request, prediction=expected) for request in requests] if prediction else requests

        return _with_api_errors(make)

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
        """Requests for n continuations of a raw prompt.

        Raises:
            ApiError: the prompt does not fit, or a parameter is invalid.
        """
        ids = _with_api_errors(lambda: self.llm.ids(prompt))
        if not len(ids):
            raise ApiError("invalid", "the prompt has no tokens", "prompt")
        base = Sampling(
            **{"temperature": 1.0, **sampling},
            max_tokens=self._max_answer_tokens(len(ids), limits.max_tokens),
            stop=limits.stop,
        )
        return [
            GenerationRequest(ids, each, endpoint=endpoint, scores_prompt=scores_prompt)
            for each in _with_api_errors(lambda: self._seeded(base, n))
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
        max_tokens = self._max_answer_tokens(len(ids), limits.max_tokens or profile.max_tokens)
        tags = profile.thinking if conversation.thinking.mode != "off" else None
        if tags is not None and text.rstrip().endswith(tags.close):
            tags = None  # the template has already closed the thinking
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

    def _max_answer_tokens(self, n_prompt: int, requested: int | None) -> int:
        """The requested length, clamped to --max-tokens and the room in the context.

        Raises:
            ApiError: the prompt fills the context.
        """
        room = self.context - n_prompt
        if room < 1:
            raise too_long(n_prompt, self.context)
        return min(n for n in (requested, self._max_tokens, room) if n is not None)

    def _seeded(self, base: Sampling, n: int) -> list[Sampling]:
        """n copies with consecutive seeds."""
        self.llm.sampler(base)  # checks the ranges
        seed = time.time_ns() if base.seed is None else base.seed
        return [replace(base, seed=seed + i) for i in range(n)]

    def _constraint(self, conversation: Conversation, tags: Thinking | None, prompt_text: str) -> Constraint | None:
        """The constraint of the answer; None leaves it free."""
        answer_format, choice = conversation.answer_format, conversation.tool_choice
        tools = callable_tools(conversation.tools, choice)
        if choice.mode == "required":
            grammar = tools_grammar(self.profile, conversation.tools, choice)
        elif answer_format is not None and tools:
            if answer_format.kind not in ("json_object", "json_schema"):
                message = f"a {answer_format.kind} cannot be combined with tools that may be called"
                raise ApiError("invalid", message, "response_format")
            grammar = json_or_tools_grammar(self.profile, conversation.tools, choice, answer_format.schema or None)
        elif answer_format is not None:
            grammar = _grammar(answer_format)
        else:
            is_strict = any(tool.strict for tool in tools)
            return StrictCalls(self._tokens(), self.profile, tools) if is_strict else None
        return TokenConstraint(self._tokens(), grammar, thinking=tags, prompt_text=prompt_text)

    def _tokens(self) -> GrammarTokens:
        with self._grammar_lock:
            if self._grammar_tokens is None:
                self._grammar_tokens = GrammarTokens(self.llm.tokenizer, self.llm.info.vocab, self.llm.end_ids)
            return self._grammar_tokens


def _grammar(answer_format: AnswerFormat) -> str:
    match answer_format.kind:
        case "regex":
            return regex_grammar(answer_format.text)
        case "grammar":
            return answer_format.text  # Lark
        case "json_object":
            return json_grammar()
    return json_grammar(answer_format.schema)


def _with_api_errors(make: Callable[[], T]) -> T:
    """The result of `make`; the library's exceptions become ApiErrors."""
    try:
        return make()
    except LuceboxError as error:
        raise from_lucebox(error) from error
