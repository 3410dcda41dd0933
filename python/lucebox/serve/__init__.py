"""Serves a model over the HTTP APIs of OpenAI and Anthropic; needs `pip install 'lucebox[serve]'`.

app = create_app(lucebox.LLM("smollm2-135m"), ServeSettings())  # an ASGI app
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lucebox.serve.settings import ServeSettings

if TYPE_CHECKING:
    from lucebox.serve.app import create_app

__all__ = ["ServeSettings", "create_app"]


def __getattr__(name: str) -> Any:
    """Imports create_app on first use, so that ServeSettings needs no server libraries."""
    if name == "create_app":
        from lucebox.serve.app import create_app

        return create_app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
