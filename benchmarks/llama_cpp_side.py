"""One measurement of llama.cpp through llama-cpp-python's low-level API; prints one JSON object.

compare_llama_cpp.py runs this under the interpreter that has llama-cpp-python, so it imports nothing else. It times
llama_decode alone: random token ids, no tokenizer, no sampler, logits of the last row only.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence

import llama_cpp as lc


class Peer:
    """A loaded model with one context; every call blocks until its result is ready."""

    def __init__(self, model: str, n_context: int, n_batch: int, n_threads: int) -> None:
        lc.llama_log_set(SILENT, None)
        lc.llama_backend_init()
        self.model = lc.llama_model_load_from_file(model.encode(), lc.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {model}")
        params = lc.llama_context_default_params()  # flash attention stays "auto", the KV cache f16
        params.n_ctx = n_context
        params.n_batch = params.n_ubatch = n_batch
        params.n_threads = params.n_threads_batch = n_threads
        self.context = lc.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"llama.cpp cannot make a context of {n_context} tokens for {model}")
        self.settings = {
            "flash_attn_type": int(params.flash_attn_type),  # -1 auto
            "type_k": int(params.type_k),
            "type_v": int(params.type_v),
            "n_ubatch": int(params.n_ubatch),
            "system_info": lc.llama_print_system_info().decode().strip(),
        }
        self.batch = lc.llama_batch_init(n_batch, 0, 1)
        self.n_batch = n_batch
        self.n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(self.model))
        self.pos = 0

    def reset(self) -> None:
        lc.llama_memory_clear(lc.llama_get_memory(self.context), True)
        self.pos = 0

    def decode(self, tokens: Sequence[int]) -> None:
        for start in range(0, len(tokens), self.n_batch):
            part = tokens[start : start + self.n_batch]
            for i, token in enumerate(part):
                self.batch.token[i] = token
                self.batch.pos[i] = self.pos + i
                self.batch.n_seq_id[i] = 1
                self.batch.seq_id[i][0] = 0
                self.batch.logits[i] = start + i == len(tokens) - 1
            self.batch.n_tokens = len(part)
            status = lc.llama_decode(self.context, self.batch)
            if status != 0:
                raise SystemExit(f"llama_decode returned {status} at position {self.pos}")
            self.pos += len(part)
        lc.llama_synchronize(self.context)


@lc.llama_log_callback
def SILENT(level: int, text: bytes, user_data: object) -> None:
    """Keeps llama.cpp's load messages off stderr."""


def prefill_s(peer: Peer, tokens: Sequence[int]) -> float:
    peer.reset()
    start = time.perf_counter()
    peer.decode(tokens)
    return time.perf_counter() - start


def decode_s(peer: Peer, prompt: Sequence[int], tokens: Sequence[int]) -> float:
    peer.reset()
    peer.decode(prompt)
    start = time.perf_counter()
    for token in tokens:
        peer.decode([token])
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--depth", type=int, default=128, help="tokens in the context before the first decoded one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=1, help="measured runs, after one that is not measured")
    args = parser.parse_args()

    peer = Peer(args.model, max(args.prefill, args.depth + args.decode) + 64, 512, args.threads)
    draw = random.Random(1)
    prompt = [draw.randrange(peer.n_vocab) for _ in range(args.prefill)]
    context = [draw.randrange(peer.n_vocab) for _ in range(args.depth)]
    generated = [draw.randrange(peer.n_vocab) for _ in range(args.decode)]

    prefill, decode = [], []
    for run in range(args.runs + 1):
        times = prefill_s(peer, prompt), decode_s(peer, context, generated)
        if run > 0:
            prefill.append(times[0])
            decode.append(times[1])
    print(
        json.dumps(
            {
                "engine": "llama.cpp",
                "version": lc.__version__,
                "settings": peer.settings,
                "prefill_tok_s": [args.prefill / s for s in prefill],
                "decode_tok_s": [args.decode / s for s in decode],
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
