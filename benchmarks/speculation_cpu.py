"""Processor time of the default drafter against plain decoding, on the six built-in prompts of `lucebox bench`.

speculation_cpu.py MODEL [--draft DRAFT] [-n TOKENS] [-r ROUNDS] [--temperature X]

Both engines take turns prompt by prompt, so other load on the machine falls on both. Processor time gives the cost of a
token on a busy machine too; the engine chooses its widths by wall time. Each round has new engines, because the suffix
drafter remembers its answers. Times are of decoding, without the prompt.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import numpy as np
from lucebox import LLM, Generation, Sampling, _engine
from lucebox.assets import TextAssets
from lucebox.resolve import resolve
from lucebox.suites import BUILT_IN, encode, load_prompts
from lucebox.text import Ids

OPTIONS = {"device": "cpu", "context": 1024, "threads": 1, "prefix_cache": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("-n", "--tokens", type=int, default=256)
    parser.add_argument("-r", "--rounds", type=int, default=3)
    parser.add_argument("--temperature", type=float, default=0)
    args = parser.parse_args()

    assets = TextAssets.load(resolve(args.model).path)
    prompts = [(one.name, encode(one, assets.tokenizer, assets.template)) for one in load_prompts(BUILT_IN, 6)]
    sampling = Sampling(max_tokens=args.tokens, temperature=args.temperature, seed=42)
    ratios: dict[str, list[float]] = {name: [] for name, _ in prompts}
    results: dict[str, Generation] = {}
    for _ in range(args.rounds):
        with (
            LLM(args.model, draft="none", **OPTIONS) as plain,
            LLM(args.model, draft=args.draft, **OPTIONS) as drafting,
        ):
            label = drafting.draft_label
            for llm in (plain, drafting):
                warm_up(llm, prompts[0][1][:16])
            for name, ids in prompts:
                (slow, expected), (fast, results[name]) = answer(plain, ids, sampling), answer(drafting, ids, sampling)
                assert results[name].ids == expected.ids, f"{name}: other tokens than plain decoding's"
                ratios[name].append(slow / fast)
    print(f"{args.model}, draft {label}, {args.rounds} rounds; plain time over time with drafts")
    for name, values in ratios.items():
        usage = results[name].usage
        print(
            f"{name:10} {usage.completion_tokens:4} tokens  {median(values):.2f} ({min(values):.2f} to "
            f"{max(values):.2f})  {usage.tokens_per_step:.2f} tokens/step"
        )
    print(f"{'median':10} {median(median(values) for values in ratios.values()):18.2f}")


def warm_up(llm: LLM, ids: Ids) -> None:
    """Decodes a few tokens, and verifies a tree: the first one finds cold memory."""
    answer(llm, ids, Sampling(max_tokens=8, ignore_eos=True))
    if llm.options.draft == "none":
        return
    with llm.locked_session() as session:
        session.reset()
        session.sync(ids)
        token = session.sample(_engine.Sampler(llm.info.vocab))
        session.suggest(ids[:7], list(range(-1, 6)))
        session.sync(np.append(ids, np.int32(token)))


def answer(llm: LLM, ids: Ids, sampling: Sampling) -> tuple[float, Generation]:
    """Processor seconds after the first chunk, and the result."""
    llm.reset()
    start, result = 0.0, None
    for chunk in llm.generate(ids.tolist(), sampling, stream=True):
        start = start or time.process_time()
        result = chunk.result
    assert result is not None
    return time.process_time() - start, result


if __name__ == "__main__":
    main()
