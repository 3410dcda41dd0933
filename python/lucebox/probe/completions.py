"""Checks of OpenAI's text completions."""

from __future__ import annotations

from lucebox.probe.client import CheckFunction, Client, require

__all__ = ["CHECKS"]


def answer(client: Client) -> str:
    body = {"model": client.model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}
    answer = client.request("/v1/completions", body).json()
    require(isinstance(answer["choices"][0]["text"], str), "no text")
    return repr(answer["choices"][0]["text"])


CHECKS: tuple[tuple[str, CheckFunction], ...] = (("answer", answer),)
