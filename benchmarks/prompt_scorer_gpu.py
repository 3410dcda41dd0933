"""A prompt scorer on a GPU: its kernels for the last chunk of a long prompt, and the whole prompt.

prompt_scorer_gpu.py --pack build/sm_90/pack/lucebox_sm90                       kernels, Qwen3-0.6B's heads
prompt_scorer_gpu.py --pack FOLDER --model qwen3-0.6b.gguf --tokens 131072      the whole prompt, dense and sparse

make_synthetic_gguf.py writes a model of random weights, whose attention is almost even: alpha then selects most blocks
or few, and says nothing of a real model. --keep sets the selected blocks of the kernels' rows; without a value kernels
are not timed.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from lucebox import _engine
from matvec_gpu import load


def time_kernels(pack: _engine.gpu.Pack, tokens: int, rows: int, keep: float) -> None:
    heads, kv_heads, head_dim = 16, 8, 128
    n_selected = max(1, int(keep * tokens / 128))
    got = _engine.gpu_ops.time_scorer(pack, rows, heads, kv_heads, head_dim, tokens - rows, n_selected)
    read = tokens * kv_heads * head_dim * 2 * 2  # K of f16, in two passes
    print(f"{tokens} tokens, the last {rows} rows, {n_selected} of {tokens // 128} blocks")
    for name in ("dense", "sparse", "means", "select", "scores"):
        print(f"  {name:7} {got[name] * 1e6:9.1f} us")
    print(f"  dense {got['flops'] / got['dense'] / 1e12:.0f} TFLOP/s; scores {read / got['scores'] / 1e9:.0f} GB/s")


def time_prompt(pack: _engine.gpu.Pack, model: Path, tokens: int, layers: list[int], alphas: list[float]) -> None:
    ids = np.random.default_rng(0).integers(0, 1000, tokens, dtype=np.int32)
    for alpha in alphas:
        scorer = _engine.PromptScorer.open(
            str(model), pack, context=tokens, kv="f16", score_rows=8, prefill_sparse_alpha=alpha
        )
        seconds = []
        for _ in range(3):
            start = time.perf_counter()
            scores = scorer.score(ids, layers)
            seconds.append(time.perf_counter() - start)
        assert np.isfinite(scores).all()
        plan = scorer.plan["total_bytes"] / 2**30
        print(f"{model.name}: {tokens} tokens, alpha {alpha:g}: {min(seconds):.3f} s of {len(seconds)}, {plan:.2f} GiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--rows", type=int, default=2048, help="of the last chunk")
    parser.add_argument("--keep", type=float, nargs="*", default=[0.05, 0.1, 0.25, 1.0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--layers", type=int, nargs="*", default=[], help="scored layers; none: all with attention")
    parser.add_argument("--alpha", type=float, nargs="+", default=[0.0, 0.9], help="0: dense")
    args = parser.parse_args()
    pack, _ = load(args.pack, args.device)
    for keep in args.keep:
        time_kernels(pack, args.tokens, args.rows, keep)
    if args.model:
        time_prompt(pack, args.model, args.tokens, args.layers, args.alpha)


if __name__ == "__main__":
    main()
