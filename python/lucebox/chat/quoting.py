"""Quotes callers' texts for a chat template: control tokens and tags that they spell stay text (text/spellings.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lucebox.chat.messages import checked_messages
from lucebox.errors import InvalidRequestError
from lucebox.text.spellings import Spellings
from lucebox.text.tokenizer import Tokenizer

__all__ = ["Quoting"]

# Not quoted in assistant messages: earlier answers contain these tags, which are tokens in some vocabularies.
_OWN_TAGS = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>"})


class Quoting:
    """Quotes the control tokens and tags of one vocabulary.

    own_tags: further tags that the model writes in its answers; they stay as they are in assistant messages.
    """

    def __init__(self, tokenizer: Tokenizer, own_tags: Iterable[str] = ()) -> None:
        tokens = tokenizer.template_tokens
        self._all = Spellings(tokens)
        self._not_own = Spellings(tokens - _OWN_TAGS - {*own_tags})

    def messages(self, messages: object) -> list[dict[str, Any]]:
        """Checked messages, every spelling of a control token marked.

        Raises:
            InvalidRequestError: a message is malformed; the text names it.
        """
        return [
            self._quoted(message, self._not_own if message["role"] == "assistant" else self._all)
            for message in checked_messages(messages)
        ]

    def values(self, values: Any) -> Any:
        """Tools or template variables, every spelling of a control token marked.

        Raises:
            InvalidRequestError: the values are nested too deeply.
        """
        return self._quoted(values, self._all)

    def _quoted(self, value: Any, spellings: Spellings) -> Any:
        try:
            return _marked(value, spellings)
        except RecursionError:
            raise InvalidRequestError("the messages or tools have values that are nested too deeply") from None


def _marked(value: Any, spellings: Spellings) -> Any:
    if isinstance(value, str):
        return spellings.marked(value)
    if isinstance(value, dict | Mapping):  # the check for an abstract class is slow
        return {_marked(key, spellings): _marked(item, spellings) for key, item in value.items()}
    if isinstance(value, list | Sequence) and not isinstance(value, bytes):
        return [_marked(item, spellings) for item in value]
    return value
