"""Input items of OpenAI's responses, and their conversion to template messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter

from lucebox.chat.rendering import Message
from lucebox.generation.answer import Answer, Reasoning, Text, ToolCall
from lucebox.serve.errors import ApiError
from lucebox.serve.protocols.body import Body, Carried, ImagePart, Many, ResultPart, with_images
from lucebox.serve.protocols.encoded_reasoning import decode_reasoning
from lucebox.serve.protocols.response_ids import new_id
from lucebox.serve.protocols.seams import joined
from lucebox.serve.responses_store import size_of

__all__ = ["SUMMARY_HEAD", "InputItem", "Origin", "messages_of", "resolved", "stored_items", "turns_of"]

Origin: TypeAlias = tuple[str | None, str]
"""Namespace and name of a function."""


class TextPart(Carried):
    type: Literal["input_text", "output_text", "text", "summary_text", "reasoning_text"]
    text: str


class RefusalPart(Carried):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


class MessageItem(Carried):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Many[TextPart | RefusalPart | ImagePart]


class CallItem(Carried):
    type: Literal["function_call"]
    call_id: str
    name: str = Field(min_length=1, max_length=256)
    arguments: str
    namespace: str | None = None


class CallOutputItem(Carried):
    type: Literal["function_call_output"]
    call_id: str
    output: str | Many[TextPart | ResultPart]


class ReasoningItem(Carried):
    type: Literal["reasoning"]
    id: str | None = Field(None, description="Finds the text of a stored item if this one has none.")
    summary: Many[TextPart] | None = None
    content: Many[TextPart] | None = None
    encrypted_content: str | None = None


class CompactionItem(Carried):
    type: Literal["compaction", "compaction_summary"]
    encrypted_content: str


class ItemReference(Body):
    """An item of a stored response."""

    type: Literal["item_reference"] = "item_reference"
    id: str = Field(max_length=512)


InputItem = MessageItem | CallItem | CallOutputItem | ReasoningItem | CompactionItem | ItemReference
_ITEM: TypeAdapter[InputItem] = TypeAdapter(InputItem)

SUMMARY_HEAD = "Summary of the conversation so far:"
_PREFIXES = {  # of ids
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
    "compaction_summary": "cmp",
}


def resolved(
    items: Sequence[InputItem], find: Callable[[str], dict[str, Any] | None], max_bytes: int
) -> list[InputItem]:
    """The items, with the stored ones in place of the references to them, and of reasoning without text, which clients
    send back that drop the text.

    Raises:
        ApiError: an item is not stored, or the stored ones are together larger than a body may be.
    """
    found: dict[str, tuple[InputItem, int]] = {}
    result, n_bytes = [], 0
    for item in items:
        if (item_id := _stored_id(item)) is not None:
            if item_id not in found:
                if (stored := find(item_id)) is None and isinstance(item, ItemReference):
                    raise _unknown_item(item_id)
                found[item_id] = (item, 0) if stored is None else (_ITEM.validate_python(stored), size_of(stored))
            known, size = found[item_id]
            if isinstance(item, ReasoningItem) and not isinstance(known, ReasoningItem):
                known, size = item, 0
            item = known
            n_bytes += size
            if n_bytes > max_bytes:
                raise ApiError("too_large", f"the items that the input refers to have more than {max_bytes} bytes")
        result.append(item)
    return result


def _stored_id(item: InputItem) -> str | None:
    """The id of the stored item to read in place of this one; None if this one is complete."""
    if isinstance(item, ReasoningItem) and not (item.content or item.summary or item.encrypted_content):
        return item.id
    return item.id if isinstance(item, ItemReference) else None


def _unknown_item(item_id: str) -> ApiError:
    return ApiError(
        "not_found",
        f"Item with id {item_id!r} not found. Items are not persisted when `store` is set to false. Try again with "
        "`store` set to true, or remove this item from your input.",
        "input",
    )


def stored_items(sent: str | list[dict[str, Any]], id_tag: str) -> list[dict[str, Any]]:
    """The items of an input, each with an id by which later requests may refer to it."""
    if isinstance(sent, str):
        sent = [{"type": "message", "role": "user", "content": sent}]
    return [_stored(item, id_tag) for item in sent]


def _stored(item: dict[str, Any], id_tag: str) -> dict[str, Any]:
    result = dict(item)
    if not isinstance(item.get("id"), str):
        result["id"] = new_id(_PREFIXES[item["type"]], id_tag)
    if item["type"] == "message" and isinstance(text := item["content"], str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        result["content"] = [{"type": kind, "text": text}]
    return result


def messages_of(items: Sequence[InputItem], shown: Mapping[Origin, str] | None = None) -> list[Message]:
    """Template messages of the input items; consecutive reasoning, text and calls become one assistant message.

    shown: the names of functions that the model sees.

    Raises:
        ApiError: a compaction was made by another server.
    """
    names = shown or {}
    messages: list[Message] = []
    for i, item in enumerate(items):
        match item:
            case MessageItem():
                role = "system" if item.role == "developer" else item.role
                if role != "user" and any(isinstance(part, ImagePart) for part in item.content):
                    raise ApiError("invalid", f"images are not allowed in a {item.role} message", f"input.{i}.content")
                if role == "assistant":
                    _add_text(messages, "content", _text(item.content))
                else:
                    messages.append(with_images({"role": role}, item.content, f"input.{i}"))
            case ReasoningItem():
                plain = joined(part.text for part in (item.content or item.summary or []))
                if text := decode_reasoning(item.encrypted_content) or plain:
                    _add_text(messages, "reasoning_content", text)
            case CallItem():
                _add_call(messages, item.call_id, names.get((item.namespace, item.name), item.name), item.arguments)
            case CompactionItem():
                if not (text := decode_reasoning(item.encrypted_content)):
                    raise ApiError("invalid", "a compaction of the input was made by another server", "input")
                messages.append({"role": "user", "content": f"{SUMMARY_HEAD}\n\n{text}"})
            case CallOutputItem():
                result = {"role": "tool", "tool_call_id": item.call_id}
                messages.append(with_images(result, item.output, f"input.{i}"))
    return messages


def turns_of(answer: Answer) -> list[Message]:
    """The answer as messages for the conversation's next prompt, as `messages_of` would convert its output items."""
    messages: list[Message] = []
    for block in answer.blocks:
        match block:
            case Text(text):
                _add_text(messages, "content", text)
            case Reasoning(text):
                _add_text(messages, "reasoning_content", text)
            case ToolCall():
                _add_call(messages, block.id, block.name, block.arguments)
    return messages or [{"role": "assistant", "content": ""}]


def _add_text(messages: list[Message], key: str, text: str) -> None:
    """Adds text or reasoning to the last turn. After a call it begins a new message, because in the call's message the
    template would put it before the call."""
    if not messages or messages[-1]["role"] != "assistant" or "tool_calls" in messages[-1]:
        messages.append({"role": "assistant", "content": ""})
    messages[-1][key] = joined([messages[-1].get(key, ""), text])


def _add_call(messages: list[Message], call_id: str, name: str, arguments: str) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    messages[-1].setdefault("tool_calls", []).append(call)


def _text(content: str | Sequence[TextPart | RefusalPart | ImagePart]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if not isinstance(part, ImagePart))
