"""The prompt of a conversation, and where its answer begins: anew, or inside an answer that the caller has begun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lucebox import _engine
from lucebox.chat.conversation import Conversation
from lucebox.chat.profiles import Thinking
from lucebox.chat.rendering import Message
from lucebox.errors import InvalidRequestError
from lucebox.text import Ids

__all__ = ["BegunText", "Prompt", "begun_text", "continues"]


@dataclass(frozen=True, slots=True)
class Prompt:
    text: str
    ids: Ids
    """[n_tokens]; only the template writes control tokens."""
    head: str
    """The text up to the answer, or up to the begun part of it. It shows whether the answer begins inside reasoning."""
    begun: str | None = None
    """The begun part of the answer, without reasoning; None: the answer begins anew."""
    images: tuple[_engine.EncodedImage, ...] = ()
    """Images of the conversation, in order. `ids` has a run of ids for each."""


@dataclass(frozen=True, slots=True)
class BegunText:
    """A rendered conversation that ends inside its last message."""

    head: str
    begun: str
    is_thought: bool = False
    """Whether the begun text is reasoning."""


def continues(conversation: Conversation) -> bool:
    """Whether the conversation ends with an assistant message, which the answer continues.

    Raises:
        InvalidRequestError: that message is a tool call, which needs its result first, or has no text.
    """
    last = conversation.messages[-1] if conversation.messages else {}
    if last.get("role") != "assistant":
        return False
    if last.get("tool_calls"):
        raise InvalidRequestError("messages: the last one calls a tool, and no message has the result")
    content = last.get("content")
    if not isinstance(content, str) or not content.strip():
        raise InvalidRequestError("messages: the last one is an assistant's without text to continue")
    return True


def begun_text(
    messages: list[Message], tags: Thinking | None, render: Callable[[list[Message], bool], str]
) -> BegunText:
    """The rendered conversation up to the end of its last message, without the template's end of turn.

    render: renders messages; True adds the head of an answer that thinks.

    Raises:
        InvalidRequestError: the template changes the last message, or does not let an answer think.
    """
    answer = str(messages[-1]["content"])
    if tags is not None and answer.lstrip().startswith(tags.open) and tags.close not in answer:
        return _begun_thought(render(messages[:-1], True), answer.lstrip(), tags)
    text = render(messages, False)
    begun = answer if tags is None else answer.rpartition(tags.close)[2]
    if body := begun.strip():
        at = text.rfind(body)
    else:  # the message ends with its reasoning
        assert tags is not None
        at = text.rfind(tags.close) + len(tags.close)
    if at < 0 or not text[:at]:
        raise InvalidRequestError(
            "messages: this model's template changes answers, so the last one cannot be continued"
        )
    return BegunText(text[:at], body + begun[len(begun.rstrip()) :])  # templates trim messages


def _begun_thought(head: str, answer: str, tags: Thinking) -> BegunText:
    """An answer whose reasoning is begun: the template writes the opening tag, or the answer does."""
    if head.rstrip().endswith(tags.close):
        raise InvalidRequestError(
            "messages: the last one begins to think, but this model's template closes the thinking before it"
        )
    thought = answer[len(tags.open) :]
    if head.rstrip().endswith(tags.open):
        return BegunText(head.rstrip(), thought, is_thought=True)
    return BegunText(head + tags.open, thought, is_thought=True)
