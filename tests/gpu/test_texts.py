"""A device computes the next pass of several sequences while the host emits the texts of the previous pass. If a text
ends its answer, the row that was already sent for it is dropped."""

from __future__ import annotations

import queue
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lucebox import LLM, Sampling
from lucebox.generation.answer import Answer
from lucebox.generation.request import Failed, GenerationRequest, Item, Sink
from lucebox.generation.scheduler import Scheduler
from lucebox.measure import synthetic
from lucebox.serve.metrics import Metrics
from lucebox.serve.observer import MetricsObserver

PROMPTS = [[7 * i + j for j in range(3 + i)] for i in range(3)]
WHOLE = Sampling(max_tokens=9, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "small.gguf"
    small = {"n_layers": 2, "attention_interval": 2, "hidden": 256, "ffn": 256, "n_key_heads": 2, "n_value_heads": 4}
    shape = replace(synthetic.SHAPES["qwen35-tiny"], vocab=1024, **small)
    synthetic.write(path, shape, "qwen35-tiny", "Q8_0", seed=1)
    return path


class Items(Sink):
    """A queue of the items."""

    def __init__(self) -> None:
        self.queue = queue.SimpleQueue[Item]()

    def put(self, item: Item) -> None:
        self.queue.put(item)


def text_of(items: Items) -> str:
    answer = Answer()
    while answer.finished is None:
        item = items.queue.get(timeout=60)
        assert not isinstance(item, Failed), item
        answer.take(item)
    return answer.text


@pytest.mark.slow  # 10 s; every day, tests/host/test_api_pages.py on the CPU
def test_answers_are_those_alone(on_pack: str, model: Path) -> None:
    options: dict[str, Any] = {"context": 64, "kv_tokens": 192, "prefill_chunk": 64, "sessions": 3}
    with LLM(str(model), device=on_pack, draft="none", batch_invariant=True, **options) as llm:
        assert llm.model.on_device
        stops = [llm.generate(prompt, WHOLE).text[4:7] for prompt in PROMPTS[:2]]
        sampling = replace(WHOLE, stop=tuple(stops))
        alone = [llm.generate(prompt, sampling) for prompt in PROMPTS]
        assert [one.stop_string is not None for one in alone] == [True, True, False]
        assert [one.ids for one in llm.generate(PROMPTS, sampling)] == [one.ids for one in alone]
        llm.reset()  # its sessions give their pages back
        metrics = Metrics()
        scheduler = Scheduler(llm.model, slots=3, observer=MetricsObserver(metrics, llm.info.name, lambda: None))
        scheduler.start_thread()
        try:
            for _ in range(2):  # the second time on sessions with dropped rows
                requests = [GenerationRequest(llm.ids(prompt), sampling, endpoint="test") for prompt in PROMPTS]
                sinks = [Items() for _ in PROMPTS]
                scheduler.submit(requests, sinks)
                assert [text_of(sink) for sink in sinks] == [one.text for one in alone]
            assert metrics.sequences.sum > metrics.sequences.total
        finally:
            scheduler.close()
