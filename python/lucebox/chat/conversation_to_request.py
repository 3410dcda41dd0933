"""Converts a conversation or a prompt into a generation request: token ids, sampling, parser, constraint and thinking
budget. Shared by `LLM` and the server.

Preparation can take seconds: the template is rendered, the prompt tokenised, the grammar compiled.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lucebox.chat.conversation import AnswerFormat, Conversation
from lucebox.chat.dialects import DIALECTS
from lucebox.chat.grammar_work import grammar_work
from lucebox.chat.harmony_parsing import HarmonyParser
from lucebox.chat.images import ImagePlaces, take_images
from lucebox.chat.json_text import respaced
from lucebox.chat.parsing import OutputParser, new_call_id
from lucebox.chat.presence import check_present
from lucebox.chat.profiles import Profile, Thinking, profile_for, with_fields
from lucebox.chat.prompt import BegunText, Prompt, begun_text, continues
from lucebox.chat.quoting import Quoting
from lucebox.chat.rendering import Message, for_template, with_broken_calls
from lucebox.chat.template import ChatTemplate
from lucebox.chat.thinking import (
    AFTER_CLOSE,
    ThinkingBudget,
    ThinkingRequest,
    begins_open,
    closing_text,
    template_effort,
    thinking_limit,
)
from lucebox.chat.tools import callable_tools
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.generation.events import Constraint
from lucebox.generation.loaded_model import LoadedModel
from lucebox.generation.request import SENDER, GenerationRequest, answer_room, prompt_requests
from lucebox.options import Sampling
from lucebox.results import PromptCompression
from lucebox.text.encoded_prompts import EncodedPrompts
from lucebox.text.spellings import unmarked

if TYPE_CHECKING:
    from lucebox.chat.constraints import GrammarTokens

__all__ = ["ChatModel", "Grammars", "Limits", "check_template_vars"]


RESERVED = (
    "self",
    "messages",
    "tools",
    "bos_token",
    "eos_token",
    "pad_token",
    "unk_token",
    "add_generation_prompt",
)
"""Variables of a template that no request may set."""


def check_template_vars(variables: Mapping[str, Any]) -> None:
    """Refuses variables that lucebox sets itself."""
    for name in RESERVED:
        if name in variables:
            raise InvalidRequestError(f"the template variable {name!r} is set by lucebox itself")


@dataclass(frozen=True, slots=True)
class Limits:
    """A request's limits on its answer."""

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()


class Grammars:
    """Compiles answer formats for one vocabulary. Building llguidance's table of a large vocabulary takes seconds,
    once."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model
        self._tokens: GrammarTokens | None = None
        self._lock = threading.Lock()

    def tokens(self) -> GrammarTokens:
        """llguidance's table of the vocabulary.

        Raises:
            UnsupportedError: llguidance is not installed.
        """
        try:
            from lucebox.chat.constraints import GrammarTokens
        except ModuleNotFoundError as error:
            if error.name != "llguidance":
                raise
            raise UnsupportedError("structured output needs llguidance; run: pip install llguidance") from error
        if not self._model.end_ids:
            raise UnsupportedError("the model has no end token, so an answer cannot be held to a format")
        with self._lock:
            if self._tokens is None:
                self._tokens = GrammarTokens(self._model.tokenizer, self._model.info.vocab, self._model.end_ids)
            return self._tokens

    def close(self) -> None:
        """Stops the process that checks grammars."""
        if self._tokens is not None:
            self._tokens.check.close()

    def constraint(
        self, answer_format: AnswerFormat, *, thinking: Thinking | None = None, prompt: Prompt | None = None
    ) -> Constraint:
        """Constrains an answer to a format, after its thinking and from the begun part of it."""
        tokens = self.tokens()
        from lucebox.chat.constraints import TokenConstraint, json_grammar, regex_grammar

        head, begun = ("", "") if prompt is None else (prompt.head, prompt.begun or "")
        match answer_format.kind:
            case "regex":
                grammar = regex_grammar(answer_format.text)
            case "grammar":
                grammar = answer_format.text  # Lark
            case "json_object":
                grammar, begun = json_grammar(), respaced(begun)
            case "json_schema":
                grammar, begun = json_grammar(answer_format.schema), respaced(begun)
        return TokenConstraint(tokens, grammar, thinking=thinking, prompt_text=head, begun=begun)


class ChatModel:
    """A model with a chat template and the profile of how to serve it. Safe to share between threads.

    template: replaces the model's own. profile: a JSON file that overrides fields of the model's profile.
    max_tokens: maximum of every answer. template_vars: variables of the template, for requests without their own.

    Raises:
        FormatError: the profile is malformed. InvalidRequestError: a variable is reserved.
    """

    def __init__(
        self,
        model: LoadedModel,
        grammars: Grammars,
        *,
        template: ChatTemplate | None = None,
        profile: str | Path | None = None,
        max_tokens: int | None = None,
        template_vars: Mapping[str, Any] | None = None,
    ) -> None:
        check_template_vars(template_vars or {})
        self._template_vars = dict(template_vars or {})
        self.model = model
        self.template = template or model.chat_template
        self.profile: Profile = profile_for(
            model.info.architecture,
            self.template,
            model.tokenizer,
            generation_defaults=model.generation_defaults,
            override=profile,
        )
        # Files list ids beyond the vocabulary too; and an answer must be able to end.
        known = [i for i in self.profile.forbidden if i < model.info.vocab and i not in model.end_ids]
        self.profile = replace(self.profile, forbidden=tuple(known))
        if profile is None and model.answer_tokens is not None:
            self.profile = replace(self.profile, max_tokens=min(self.profile.max_tokens, model.answer_tokens))
        thinking = self.profile.thinking
        self._quoting = Quoting(model.tokenizer, () if thinking is None else (thinking.open, thinking.close))
        self._encoded = EncodedPrompts(model.tokenizer)
        self._grammars = grammars
        self._max_tokens = max_tokens
        self._context = model.memory_plan.context

    def prompt(self, conversation: Conversation) -> Prompt:
        """The prompt of a conversation.

        Raises:
            InvalidRequestError, UnsupportedError: a message is malformed, the template refuses the conversation, or
                there is no template.
        """
        profile, thinking = self.profile, conversation.thinking
        if self.template is None:
            why = "".join(f" ({note})" for note in self.model.notes if "chat template" in note)
            name = self.model.info.name
            raise UnsupportedError(f"{name} has no chat template{why}; continue a prompt, or give a template")
        template = self.template
        check_template_vars(conversation.template_vars)
        variables = dict(self._template_vars)
        if (effort := template_effort(profile, thinking)) is not None:
            variables["reasoning_effort"] = effort
        variables |= self._quoting.values(conversation.template_vars)
        switch = profile.thinking.variable if profile.thinking else None
        if switch and thinking.mode != "default":
            variables[switch] = thinking.mode != "off"
        limit = self._max_prompt(conversation)
        bare, images = take_images(conversation.messages, reads_images=self.model.processor is not None)
        self.model.check_length(_contents(conversation.messages), limit)
        tools = callable_tools(conversation.tools, conversation.tool_choice)
        shown = self._quoting.values([tool.for_template() for tool in tools])
        messages = self._quoting.messages(with_broken_calls(profile, bare))
        messages, shown = for_template(profile, messages, shown)
        if not continues(conversation):
            text = template.render(messages, tools=shown, **variables)
            return self._tokenized(text, BegunText(text, ""), None, limit, ImagePlaces(text, images, self.model))

        def render(messages: list[Message], thinks: bool) -> str:
            on = {switch: True} if switch and thinks else {}
            return template.render(messages, tools=shown, add_generation_prompt=thinks, **{**variables, **on})

        found = begun_text(messages, profile.thinking, render)
        begun = "" if found.is_thought else unmarked(found.begun)
        text = found.head + found.begun
        return self._tokenized(text, found, begun, limit, ImagePlaces(text, images, self.model))

    def prompt_of_text(self, conversation: Conversation) -> Prompt:
        """The prompt of an answer that begins with its text: thinking is off, or ended without a thought
        where the template always begins it.

        Raises:
            InvalidRequestError, UnsupportedError: as prompt().
        """
        prompt = self.prompt(replace(conversation, thinking=ThinkingRequest("off")))
        tags = self.profile.thinking
        if tags is None or not begins_open(tags, prompt.head):
            return prompt
        closing = self.model.tokenizer.encode(f"\n{tags.close}{AFTER_CLOSE}", add_bos=False)
        return replace(prompt, ids=np.append(prompt.ids, np.asarray(closing, np.int32)))

    def _max_prompt(self, conversation: Conversation) -> int:
        """Tokens of the longest prompt that may be answered, perhaps compressed."""
        compressor, request = self.model.compressor, conversation.compression
        if compressor is None or compressor.policy.of(request).mode == "off":
            return self._context
        return compressor.max_tokens

    def _tokenized(self, text: str, found: BegunText, begun: str | None, limit: int, places: ImagePlaces) -> Prompt:
        self.model.check_length([text], limit)
        text = places.shown(text)
        ids, images = places.expand(self._encoded.ids(text, SENDER.get()), self.model)
        return Prompt(unmarked(text), ids, unmarked(places.shown(found.head)), begun, images)

    def requests(
        self,
        conversation: Conversation,
        sampling: Mapping[str, Any] | Sampling,
        limits: Limits,
        endpoint: str = "",
        n: int = 1,
    ) -> list[GenerationRequest]:
        """Requests for n answers. Sampling fields absent from a mapping take the model's defaults. limits.stop is for
        a mapping: a Sampling has its own stop strings.

        Raises:
            InvalidRequestError, UnsupportedError: as prompt(), the prompt does not fit, or an option is out of range.
        """
        conversation, prompt, compression = self._compressed(conversation, self.prompt(conversation))
        profile, tools, choice = self.profile, conversation.tools, conversation.tool_choice
        max_tokens = self.max_answer_tokens(
            len(prompt.ids), profile.max_tokens if limits.max_tokens is None else limits.max_tokens
        )
        tags = self._thinking_tags(conversation, prompt)
        if not isinstance(sampling, Sampling):
            defaults = profile.defaults(thinking=tags is not None, tools=bool(tools))
            sampling = with_fields(defaults, {**sampling, "stop": limits.stop})
        sampling = replace(sampling, max_tokens=max_tokens)
        limit = 0
        if tags is not None:
            tags = replace(tags, stop=closing_text(tags, self.model.tokenizer, max_tokens))
            n_closing = len(self.model.tokenizer.encode(tags.stop, add_bos=False))
            limit = thinking_limit(profile, conversation.thinking, max_tokens, n_closing)

        def parts() -> dict[str, Any]:
            constraint, warnings = self._constraint(conversation, tags, prompt)
            parser = (HarmonyParser if profile.dialect == "harmony" else OutputParser)(
                profile,
                tools,
                choice,
                profile.thinking is not None,
                prompt.head,
                continues=prompt.begun is not None,
                warnings=warnings,
                new_id=new_call_id,
            )
            budget = None
            if tags:
                # A required call or format begins after the thinking, so it would not constrain a call made while
                # thinking.
                is_free = choice.mode != "required" and conversation.answer_format is None
                budget = ThinkingBudget(
                    tags,
                    self.model.tokenizer,
                    prompt.head,
                    limit=limit,
                    end_ids=self.model.end_ids,
                    may_end=lambda: is_free and parser.ends_with_call,
                )
            fields: dict[str, Any] = {"endpoint": endpoint, "compression": compression, "images": prompt.images}
            return {"parser": parser, "constraint": constraint, "budget": budget, **fields}

        with grammar_work():
            return prompt_requests(self.model, prompt.ids, sampling, n, parts)

    def _compressed(
        self, conversation: Conversation, prompt: Prompt
    ) -> tuple[Conversation, Prompt, PromptCompression | None]:
        """The conversation after compression, its prompt, and the record of what was cut."""
        compressor, request = self.model.compressor, conversation.compression
        if compressor is None:
            if request is not None and request.mode in ("auto", "always"):
                raise UnsupportedError(
                    f"{self.model.info.name} was loaded without a scorer, so prompts cannot be compressed: load it "
                    "with prefill_drafter (--prefill-drafter MODEL)"
                )
            return conversation, prompt, None
        if prompt.images:
            if request is not None and request.mode == "always":
                raise UnsupportedError("compression: a conversation with images is not compressed")
            return conversation, prompt, None

        def count(messages: list[Message]) -> int:
            return len(self.prompt(replace(conversation, messages=messages)).ids)

        n_tokens = len(prompt.ids)
        found = compressor.cut(conversation.messages, n_tokens, count, request, SENDER.get(), check_present)
        if found is None:
            return conversation, prompt, None
        shorter = replace(conversation, messages=found.messages)
        kept = self.prompt(shorter)
        record = PromptCompression(found.scorer, found.keep_ratio, n_tokens, len(kept.ids), found.score_s, found.cut)
        return shorter, kept, record

    def constraint(self, answer_format: AnswerFormat) -> tuple[Constraint, list[str]]:
        """The constraint for the continuation of a raw prompt, and warnings about what it does not enforce.

        Raises:
            InvalidRequestError, UnsupportedError: the format cannot be compiled.
        """
        tokens = self._grammars.tokens()
        from lucebox.chat.held_schemas import held_format

        held, warnings = held_format(tokens.check, answer_format)
        return self._grammars.constraint(held), warnings

    def recommended_sampling(self, conversation: Conversation) -> Sampling:
        """The default sampling of an answer."""
        tags = None if self.template is None else self._thinking_tags(conversation, self.prompt(conversation))
        return self.profile.defaults(thinking=tags is not None, tools=bool(conversation.tools))

    def _thinking_tags(self, conversation: Conversation, prompt: Prompt) -> Thinking | None:
        """The tags around the reasoning of an answer; None if the answer does not think."""
        tags = self.profile.thinking
        if tags is not None and prompt.begun is not None:
            return tags if begins_open(tags, prompt.head) else None
        # The template may have closed the thinking already.
        is_closed = tags is None or conversation.thinking.mode == "off" or prompt.head.rstrip().endswith(tags.close)
        return None if is_closed else tags

    def max_answer_tokens(self, n_prompt: int, requested: int | None) -> int:
        """The requested length, clamped to this model's maximum and the room in the context.

        Raises:
            PromptTooLongError: the prompt does not fit in the context.
        """
        room = answer_room(n_prompt, self._context)
        return min(n for n in (requested, self._max_tokens, room) if n is not None)

    def _constraint(
        self, conversation: Conversation, tags: Thinking | None, prompt: Prompt
    ) -> tuple[Constraint | None, list[str]]:
        """The constraint of the answer, and warnings about what it does not enforce; None: unconstrained."""
        answer_format, choice = conversation.answer_format, conversation.tool_choice
        tools = callable_tools(conversation.tools, choice)
        is_strict = any(tool.strict for tool in tools)
        notes: list[str] = []
        if DIALECTS[self.profile.dialect].grammar is None:
            if choice.mode == "required":
                raise UnsupportedError(
                    f"tool_choice: calls of {self.model.info.name} cannot be required, because no grammar holds its "
                    f"format ({self.profile.dialect}); use tool_choice auto"
                )
            if tools and answer_format is not None:
                raise UnsupportedError(
                    f"response_format: an answer of {self.model.info.name} cannot be held to a format while it may "
                    'call tools; use tool_choice "none"'
                )
            if is_strict:
                is_strict = False
                notes = [f"strict: calls in the format {self.profile.dialect} are not held to their schemas"]
        if choice.mode != "required" and answer_format is None and not is_strict:
            return None, notes
        if any(opener in (prompt.begun or "") for opener in DIALECTS[self.profile.dialect].openers):
            raise InvalidRequestError("messages: the last one begins a tool call, which cannot be continued")
        tokens = self._grammars.tokens()
        from lucebox.chat.constraints import StrictCalls, TokenConstraint, json_or_tools_grammar, tools_grammar
        from lucebox.chat.held_schemas import held_format, held_tools

        dialect = DIALECTS[self.profile.dialect]
        if choice.mode != "required" and answer_format is None:
            strict, warnings = held_tools(tokens.check, [tool for tool in tools if tool.strict], dialect)
            held = {tool.name: tool for tool in strict}
            return StrictCalls(tokens, self.profile, [held.get(tool.name, tool) for tool in tools]), warnings
        tools, warnings = held_tools(tokens.check, tools, dialect)
        if choice.mode == "required":
            grammar = tools_grammar(self.profile, tools, choice)
            return TokenConstraint(tokens, grammar, thinking=tags, prompt_text=prompt.head), warnings
        assert answer_format is not None
        answer_format, unheld = held_format(tokens.check, answer_format)
        warnings += unheld
        if not tools:
            return self._grammars.constraint(answer_format, thinking=tags, prompt=prompt), warnings
        if answer_format.kind not in ("json_object", "json_schema"):
            raise InvalidRequestError(
                f"response_format: a {answer_format.kind} cannot be combined with tools that may be called"
            )
        grammar = json_or_tools_grammar(self.profile, tools, choice, answer_format.schema or None)
        begun = respaced(prompt.begun or "")
        return TokenConstraint(tokens, grammar, thinking=tags, prompt_text=prompt.head, begun=begun), warnings


def _contents(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The texts of messages that are not checked yet."""
    found = [message.get("content") for message in messages if isinstance(message, Mapping)]
    return [content for content in found if isinstance(content, str)]
