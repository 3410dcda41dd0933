"""Compares drafted and concurrent answers with plain ones, bit by bit, with batch_invariant on a GPU.

batch_invariant_gpu.py --device cuda --tokens 10000 models/tiny-hybrid/lucebox_tiny/tiny-hybrid.Q8_0.gguf=mtp ...

A case is MODEL=DRAFT, DRAFT as for the option `draft`. For every case, greedy and sampled, the plain answers to the
built-in prompts, one at a time, are compared with concurrent answers, and with drafted answers of each budget, alone
and concurrent. The ids and the log probabilities of the chosen and of the likeliest token must be equal. Exits
with 1 if any differs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from lucebox import LLM, Generation, Sampling
from lucebox.measure.prompts import BUILT_IN, encode, load_prompts

BUDGETS = (0, 1, 2, 3, 5, 8, 16, 31)  # 0: the planner's
N_TOKENS, SESSIONS = 200, 8  # of an answer; concurrent ones


def answers(llm: LLM, prompts: list[list[int]], sampling: Sampling, together: bool) -> Iterator[Generation]:
    if together:
        yield from llm.generate(prompts, sampling)
        return
    for prompt in prompts:
        yield llm.generate(prompt, sampling)


def first_difference(want: Generation, got: Generation) -> int | None:
    assert want.logprobs is not None and got.logprobs is not None
    at = next((i for i, (a, b) in enumerate(zip(want.logprobs, got.logprobs, strict=False)) if a != b), None)
    return min(len(want.ids), len(got.ids)) if at is None and want.ids != got.ids else at


def check(case: str, device: str, pack: str | None, n_tokens: int, kv: str) -> int:
    model, _, draft = case.rpartition("=")
    options: dict[str, Any] = {
        "device": device,
        "pack": pack,
        "context": 2048,
        "kv": kv,
        "sessions": SESSIONS,
        "batch_invariant": True,
    }
    failures = 0
    with LLM(model, draft="none", **options) as plain:
        texts = [encode(prompt, plain.model.assets.tokenizer, None) for prompt in load_prompts(BUILT_IN)]
        rng = np.random.default_rng(0)
        prompts: list[list[int]] = [text.tolist() for text in texts]
        while len(prompts) * N_TOKENS < n_tokens:  # cut at random places
            own = prompts[int(rng.integers(len(texts)))]
            prompts.append(own[: int(rng.integers(1, len(own) + 1))])
        samplings = [
            Sampling(max_tokens=N_TOKENS, ignore_eos=True, logprobs=1, temperature=t, seed=5) for t in (0, 0.8)
        ]
        wanted = [list(answers(plain, prompts, sampling, False)) for sampling in samplings]
        failures += compare(f"{case} without drafts", plain, prompts, samplings, wanted, True)
    for budget in BUDGETS:
        with LLM(model, draft=draft, draft_budget=budget or None, **options) as llm:
            for together in (False, True):
                failures += compare(f"{case} budget {budget}", llm, prompts, samplings, wanted, together)
    return failures


def compare(
    label: str, llm: LLM, prompts: list[list[int]], samplings: list[Sampling], wanted: list[list[Generation]],
    together: bool,
) -> int:  # fmt: skip
    failures = 0
    for sampling, want in zip(samplings, wanted, strict=True):
        start = time.perf_counter()
        got = list(answers(llm, prompts, sampling, together))
        seconds = time.perf_counter() - start
        at = [first_difference(a, b) for a, b in zip(want, got, strict=True)]
        different = sum(one is not None for one in at)
        failures += different
        n = sum(len(one.ids) for one in got)
        drafts = [one.usage.drafts for one in got if one.usage.drafts is not None]
        accepted = sum(one.accepted_tokens for one in drafts)
        way = "together" if together else "alone"
        where = f", first at {min(one for one in at if one is not None)}" if different else ""
        print(f"{label}, T = {sampling.temperature}, {way}: {n} tokens in {seconds:.1f} s, {accepted} accepted, "
              f"{different} of {len(at)} answers differ{where}", flush=True)  # fmt: skip
    return failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="MODEL=DRAFT")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--pack", help="name of the pack; default: the device's")
    parser.add_argument("--tokens", type=int, default=10_000, help="of each kind of sampling")
    parser.add_argument("--kv", default="f16")
    given = parser.parse_args()
    return int(sum(check(case, given.device, given.pack, given.tokens, given.kv) for case in given.cases) > 0)


if __name__ == "__main__":
    sys.exit(main())
