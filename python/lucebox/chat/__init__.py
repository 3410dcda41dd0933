"""Conversations to prompt text: chat templates."""

from lucebox.chat.template import ChatTemplate

__all__ = ["ChatTemplate"]
