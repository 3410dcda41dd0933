"""Conversations: templates and prompts on the way in; reasoning, tool calls and formats on the way out. No HTTP."""

from lucebox.chat.template import ChatTemplate

__all__ = ["ChatTemplate"]
