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
from attention_gpu import cache_fields, random_slots
from lucebox import _engine, _kernels
from matvec_gpu import load

BLOCK, QUERIES = 128, 128  # keys of a block; queries of a KV head of a query block
SCORED_ROWS = 8


def time_kernels(pack: _engine.gpu.Pack, tokens: int, rows: int, keep: float) -> None:
    heads, kv_heads, head_dim = 16, 8, 128
    n_selected = max(1, int(keep * tokens / 128))
    n_past, scale, n_blocks = tokens - rows, 1 / head_dim, -(-tokens // BLOCK)
    rows_of_block = QUERIES // (heads // kv_heads)
    n_query_blocks = -(-rows // rows_of_block)
    cache = cache_fields("f16", kv_heads, head_dim, 0, tokens, n_past)
    q = random_slots("f32", np.random.default_rng(1), rows, heads, dim=head_dim)
    # Each query block reads n_selected evenly spaced blocks of those that its last row sees.
    lists = np.zeros((n_query_blocks, kv_heads, 2 + n_blocks), np.int32)
    for i, of_heads in enumerate(lists):
        n_seen = (n_past + min(rows, (i + 1) * rows_of_block) - 1) // BLOCK + 1
        n = min(n_seen, n_selected)
        of_heads[:, 0] = n
        of_heads[:, 1 : 1 + n] = np.linspace(0, n_seen - 1, n).astype(np.int32) if n > 1 else n_seen - 1
    no_means = np.zeros((kv_heads, head_dim, n_blocks), np.float32)
    keys = {**cache, "v_pages": cache["k_pages"]}
    of_all = {**keys, "n_past": 0, "rows": tokens, "means": no_means}
    [([got_means], _)] = _kernels.ops.run([("key_means", [of_all], [])], pack)
    scores = np.zeros((SCORED_ROWS, tokens), np.float32)

    def timed(op: str, **fields: object) -> dict[str, float]:
        result: dict[str, float] = _kernels.ops.time([(op, [fields], [])], pack, replays=3, tries=4)
        return result

    attention = {"q": q, "scale": scale, "first_slot": 0, "window": 0, **cache}
    tail = {"q": q[-SCORED_ROWS:], "first_row": rows - SCORED_ROWS, "scale": scale, "scores": scores}
    choice = {"q": q, "means": got_means["means"], "n_past": n_past, "scale": scale, "alpha": 0.5, "blocks": lists}
    dense = timed("attention", **attention)
    got = {
        "dense": dense["seconds"],
        "sparse": timed("attention", **attention, blocks=lists)["seconds"],
        "means": timed("key_means", **keys, rows=rows, means=no_means)["seconds"],
        "select": timed("select_blocks", **choice)["seconds"],
        "scores": timed("key_scores", **keys, **tail)["seconds"],
    }
    read = tokens * kv_heads * head_dim * 2 * 2  # K of f16, in two passes
    print(f"{tokens} tokens, the last {rows} rows, {n_selected} of {tokens // 128} blocks")
    for name in ("dense", "sparse", "means", "select", "scores"):
        print(f"  {name:7} {got[name] * 1e6:9.1f} us")
    print(f"  dense {dense['flops'] / got['dense'] / 1e12:.0f} TFLOP/s; scores {read / got['scores'] / 1e9:.0f} GB/s")


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
