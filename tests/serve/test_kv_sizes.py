"""What /status says of memory, for every type of stored keys and values."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from lucebox import LLM, _engine
from lucebox.serve.app import create_app
from lucebox.serve.settings import ServeSettings
from running import MODEL

PROMPT = {"prompt": "Once upon a time there was a dog. " * 30, "max_tokens": 1}
CONTEXT, PAGE_TOKENS, HEAD_DIM = 512, 64, 256
TABLE_BYTES = 1024  # of pages, padded
SNAPSHOTS = 2  # of the recurrent state in a prompt of 361 tokens


def status_after_a_request(kv: str) -> tuple[dict[str, Any], int]:
    """/status, and the attention layers times KV heads of the model."""

    async def ask(app: object) -> Any:
        transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
            await client.post("/v1/completions", json=PROMPT)
            return (await client.get("/status")).json()

    with LLM(MODEL, context=CONTEXT, prefill_chunk=64, threads=1, kv=kv, draft="none", sessions=1) as llm:
        app = create_app(llm, ServeSettings(slots=1))
        try:
            info = llm.info
            return asyncio.run(ask(app)), (info.n_layers - info.n_recurrent_layers) * info.n_kv_heads
        finally:
            app.state.server.close()


EVERYDAY = {"f16", "tq3_0", "q8_0/wht4"}


@pytest.mark.first_case
@pytest.mark.parametrize(
    "kv",
    [
        pytest.param(kv, marks=[] if kv in EVERYDAY else pytest.mark.slow)  # 0.4 s each
        for kv in (*_engine.kv_types(), "q8_0/wht4")
    ],
)
def test_status(kv: str) -> None:
    status, heads = status_after_a_request(kv)
    k, v = kv.split("/") if "/" in kv else (kv, kv)
    token_bytes = heads * (_engine.kv_slot_bytes(k, HEAD_DIM) + _engine.kv_slot_bytes(v, HEAD_DIM))
    sizes = {entry["name"]: entry["bytes"] for entry in status["memory"]["entries"]}
    assert sizes["KV cache"] == CONTEXT * token_bytes and sizes["page table"] == TABLE_BYTES
    assert status["kv_pages"]["total"] == CONTEXT // PAGE_TOKENS > status["kv_pages"]["free"]
    prefixes = status["prefix_cache"]
    whole_pages = prefixes["prompt_tokens"] // PAGE_TOKENS * PAGE_TOKENS
    assert prefixes["memory_bytes"] == whole_pages * token_bytes + SNAPSHOTS * sizes["recurrent state"]
