"""OpenAI's text completions."""

from __future__ import annotations

from lucebox.probe.asking import Asked, CheckFunction, need

__all__ = ["CHECKS"]


def answer(server: Asked) -> str:
    body = {"model": server.model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    answer = server.ask("/v1/completions", body).json()
    need(isinstance(answer["choices"][0]["text"], str), "no text")
    return repr(answer["choices"][0]["text"])


CHECKS: tuple[tuple[str, CheckFunction], ...] = (("answer", answer),)
