"""Reasoning that a client must not see but sends back: carried in the field that its protocol keeps for that."""

from __future__ import annotations

import base64
import binascii

__all__ = ["keep_reasoning", "kept_reasoning"]

PREFIX = "lucebox:"


def keep_reasoning(text: str) -> str:
    """For a signature or encrypted_content. It is encoded, not secret."""
    return PREFIX + base64.b64encode(text.encode()).decode()


def kept_reasoning(value: str | None) -> str:
    """The text of one of ours; nothing of another's."""
    if value is None or not value.startswith(PREFIX):
        return ""
    try:
        return base64.b64decode(value[len(PREFIX) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
