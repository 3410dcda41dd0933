"""`LLM` on a device: requests are repeatable, each stream has its session, and embeddings are rows of the final norm.
Two threads take as long as running the same work in turn."""

from __future__ import annotations

import numpy as np
import pytest
from lucebox import LLM
from text_data import TINY_HYBRID

LONG = "The small dog sat by the sea. " * 10  # more than a page


@pytest.mark.slow  # 15 s: a real model on the simulator
def test_requests_streams_and_embeddings_on_a_device(on_pack: str) -> None:
    with LLM(str(TINY_HYBRID), device=on_pack, context=256, prefill_chunk=64, sessions=2, draft="none") as llm:
        first = llm.generate(LONG, max_tokens=3)
        other = llm.generate("x = 1", max_tokens=3)
        again = llm.generate(LONG, max_tokens=3)
        assert again.ids == first.ids and again.usage.cached_tokens >= 64
        streams = [llm.generate(prompt, max_tokens=3, stream=True) for prompt in (LONG, "x = 1")]
        results = [chunk.result for chunk in list(zip(*streams, strict=True))[-1]]
        assert [result and result.ids for result in results] == [first.ids, other.ids]

        ids = llm.ids(LONG)[:64]
        with llm.locked_session() as session:
            session.reset()
            taps = session.append(ids, taps=[llm.info.n_layers])[1][0]
            np.testing.assert_array_equal(session.hidden(ids), taps)
