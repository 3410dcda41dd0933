"""Encodes reasoning as an opaque string that clients send back: Anthropic's signature, OpenAI's encrypted_content.

The string is base64, not encrypted. It restores reasoning that was not shown to the client.
"""

from __future__ import annotations

import base64
import binascii

__all__ = ["decode_reasoning", "encode_reasoning"]

PREFIX = "lucebox:"


def encode_reasoning(text: str) -> str:
    """The opaque string of a reasoning text."""
    return PREFIX + base64.b64encode(text.encode()).decode()


def decode_reasoning(value: str | None) -> str:
    """The reasoning text of an opaque string; empty if another server made the string."""
    if value is None or not value.startswith(PREFIX):
        return ""
    try:
        return base64.b64decode(value[len(PREFIX) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
