"""Chat templates: a conversation to the prompt text of a model."""

from lucebox.chat.template import ChatTemplate

__all__ = ["ChatTemplate"]
