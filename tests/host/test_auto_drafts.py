"""The default drafter: what a start takes, and that it changes no token."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lucebox import LLM, OutOfMemoryError, Sampling
from lucebox.models import catalog
from lucebox.models.planning import plan_memory

OPTIONS: dict[str, Any] = {"context": 512, "threads": 1, "prefix_cache": 0}
PROMPTS = ("def fibonacci(n):\n", "class Stack:\n    def push(self, item):\n", "import os\nimport os\nimport os\n")
DFLASH = "tiny-hybrid-dflash.BF16.gguf+suffix"


@pytest.fixture(scope="module")
def costs_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The measured costs of all drafters, in a cache folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        catalog.fetch_drafter("tiny-hybrid")
        patch.setenv("LUCEBOX_CACHE", str(tmp_path_factory.mktemp("cache")))
        files = {}
        for name, draft in (("dflash", "tiny-hybrid+suffix"), ("mtp", "mtp+suffix"), ("suffix", "suffix")):
            with LLM("tiny-hybrid", draft=draft, **OPTIONS) as llm:
                assert llm.step_costs_file is not None and llm.step_costs_file.path.exists()
                files[name] = llm.step_costs_file.path
        yield files


@pytest.fixture
def only_pays(costs_files: dict[str, Path]) -> Callable[[str], None]:
    """Fakes costs: one draft model's drafts are free, the other's take the time of a thousand tokens."""

    def change(free: str) -> None:
        for name, path in costs_files.items():
            document = json.loads(path.read_text())
            costs = document["costs"]
            draft_ms = 0.0 if name in (free, "suffix") else 1e3 * costs["plain_ms"]
            costs |= {"draft_ms": draft_ms, "first_ms": draft_ms / 8}
            costs["append"] = [[rows, costs["plain_ms"] * 1.2] for rows in (2, 8, 64)]
            path.write_text(json.dumps(document))

    return change


def test_a_start_takes_the_first_drafter_that_may_pay(only_pays: Callable[[str], None]) -> None:
    model = DFLASH.removesuffix("+suffix")
    for free, label, reason in (
        ("dflash", DFLASH, ""),
        ("mtp", "mtp+suffix", f"{model} does not pay on this device"),
        ("none", "suffix", f"{model} and mtp do not pay on this device"),
    ):
        only_pays(free)
        with LLM("tiny-hybrid", **OPTIONS) as llm:
            assert llm.draft_label == label
            assert llm.draft_reason == reason


def test_a_drafter_that_does_not_fit_is_left_out(costs_files: dict[str, Path]) -> None:
    """auto opens whatever plain decoding opens."""
    plans = {
        draft: plan_memory("tiny-hybrid", draft=draft, device="cpu", context=512, threads=1).memory
        for draft in ("none", "suffix", "mtp+suffix")
    }
    need = {draft: plan.mapped_bytes + plan.total_bytes for draft, plan in plans.items()}
    assert need["none"] < need["suffix"] < need["mtp+suffix"]
    for label in ("suffix", "none"):
        options = OPTIONS | {"memory_limit": need[label]}
        assert plan_memory("tiny-hybrid", device="cpu", context=512, threads=1, memory_limit=need[label]).draft == label
        with LLM("tiny-hybrid", **options) as llm:
            assert llm.draft_label == label and "mtp+suffix does not fit in memory" in llm.draft_reason
            assert (llm.step_costs_file is None) == (label == "none")
    with pytest.raises(OutOfMemoryError):
        LLM("tiny-hybrid", **(OPTIONS | {"memory_limit": need["none"] - 1}))


@pytest.mark.first_case
@pytest.mark.parametrize("drafter", ["dflash", "mtp", "suffix"])
def test_the_default_writes_the_text_of_plain_decoding(only_pays: Callable[[str], None], drafter: str) -> None:
    """Greedy and sampled, with penalties and a stop string, over several requests of one session."""
    only_pays(drafter)
    samplings = (
        Sampling(max_tokens=64, ignore_eos=True),
        Sampling(max_tokens=40, temperature=0.8, top_p=0.9, repetition_penalty=1.1, seed=7),
        Sampling(max_tokens=40, stop=("return",)),
    )
    with LLM("tiny-hybrid", **OPTIONS) as llm, LLM("tiny-hybrid", draft="none", **OPTIONS) as plain:
        assert drafter in llm.draft_label
        drafts = []
        for prompt in PROMPTS:
            for sampling in samplings:
                fast, slow = llm.generate(prompt, sampling), plain.generate(prompt, sampling)
                assert fast.ids == slow.ids and fast.finish_reason == slow.finish_reason
                assert slow.usage.drafts is None and fast.usage.drafts is not None
                drafts.append(fast.usage.drafts)
        assert sum(one.verifies for one in drafts) > 0
