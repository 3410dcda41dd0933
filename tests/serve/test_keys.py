"""What the requests of one API key leave behind does not serve those of another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from lucebox import LLM
from lucebox.serve.app import create_app
from lucebox.serve.settings import ServeSettings
from running import MODEL

PROMPT = {"prompt": "Once upon a time there was a dog. " * 30, "max_tokens": 1}


def cached_tokens(senders: str, folder: Path | None, slots: int = 1) -> list[int]:
    """The cached tokens of a server's requests, each with one of the keys "a" and "b"."""

    async def ask(app: object) -> list[int]:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
            answers = [
                await client.post("/v1/completions", json=PROMPT, headers={"x-api-key": sender}) for sender in senders
            ]
        return [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]

    settings = ServeSettings(slots=slots, api_key=("a", "b"), prefix_cache_dir=str(folder) if folder else None)
    with LLM(MODEL, context=512, prefill_chunk=64, threads=1) as llm:
        app = create_app(llm, settings)
        try:
            return asyncio.run(ask(app))
        finally:
            app.state.server.close()


@pytest.mark.parametrize("slots", [1, 2])
def test_prefixes_of_one_key_are_not_reused_by_another(slots: int) -> None:
    """The number of cached tokens and the time to the first one would tell what the other key sent."""
    first, again, other, back, other_again = cached_tokens("aabab", None, slots)
    assert first == other == 0 < again == back == other_again


def test_prefixes_keep_their_key_over_a_restart(tmp_path: Path) -> None:
    assert cached_tokens("a", tmp_path) == [0]
    other, own = cached_tokens("ba", tmp_path)
    assert other == 0 < own
