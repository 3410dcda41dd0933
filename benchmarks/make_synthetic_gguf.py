#!/usr/bin/env python3
"""Write a GGUF with the shape of a real model and random weights, for measuring speed without downloading anything; for
--type FP8 a checkpoint folder."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from lucebox.measure.local_routes import LocalRoutes
from lucebox.measure.synthetic import PRESETS, SHAPES, summary, write, write_sparse
from lucebox.measure.synthetic_checkpoint import write_fp8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, choices=sorted(SHAPES))
    parser.add_argument("--type", required=True, choices=[*sorted(PRESETS), "FP8"], dest="preset")
    parser.add_argument(
        "--out", type=Path, help="file, for FP8 folder, to write; without it only the sizes are printed"
    )
    parser.add_argument("--layers", type=int, help="layers to write, where that is not the model's own number")
    parser.add_argument("--mtp", action="store_true", help="with a prediction block behind the layers (qwen35)")
    parser.add_argument(
        "--local-routes", action="store_true", help="successive tokens share experts of a mixture as with text"
    )
    parser.add_argument("--sparse", action="store_true", help="all weights 0, no room on disk: for `lucebox inspect`")
    parser.add_argument("--template", type=Path, help="a chat template in Jinja, so that the model can chat")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    if args.layers is not None:
        shape = replace(shape, n_layers=args.layers)
    if args.mtp:
        if shape.architecture != "qwen35":
            parser.error(f"--mtp: {args.shape} has no prediction block; only qwen35 has one")
        shape = replace(shape, n_prediction_blocks=1)
    if args.local_routes and (args.sparse or args.preset == "FP8" or not shape.n_experts or shape.is_tied):
        parser.error("--local-routes is for a GGUF of a mixture that has a head of its own, without --sparse")
    if args.sparse and args.template:
        parser.error("--sparse writes no --template")
    if args.preset == "FP8":
        if not args.out or args.sparse or args.template:
            parser.error("--type FP8 needs --out and has no --sparse or --template")
        write_fp8(args.out, shape, args.seed)
        print(f"wrote {args.out}, {sum(file.stat().st_size for file in args.out.iterdir()) / 2**20:.1f} MiB")
        return 0
    print(summary(shape, args.preset, args.local_routes))
    if args.out:
        if args.sparse:
            write_sparse(args.out, shape, args.shape, args.preset)
        else:
            template = None if args.template is None else args.template.read_text()
            local = None
            if args.local_routes:
                rng = np.random.default_rng(args.seed)
                local = LocalRoutes(shape.hidden, shape.vocab, shape.n_experts, shape.n_used, rng)
            write(args.out, shape, args.shape, args.preset, args.seed, template, local)
        print(f"wrote {args.out}, {args.out.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
