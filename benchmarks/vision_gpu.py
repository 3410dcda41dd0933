"""Times the vision tower of a large model on a GPU: a synthetic projector of its shape with random BF16 weights, before
tiny-vl. Wall clock from pixels in host memory to rows in host memory, the median over images of one size.

vision_gpu.py --pack build/sm_90/pack/lucebox_sm90                  27 layers of 1152, images of 1024 rows and others
vision_gpu.py --pack FOLDER --layers 27 --width 1152 --heads 16 --ffn 4304 --sides 1024x1024 2048x2048 --check

--check compares the rows of a 256 x 256 image with the CPU's.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from lucebox import _engine
from lucebox.models import catalog
from matvec_gpu import load
from numpy.typing import NDArray

ALIGNMENT = 32
F32, BF16 = 0, 30  # GGUF's numbers of the types
HIDDEN = 256  # of tiny-vl


def tensors(layers: int, width: int, ffn: int) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Name, shape (innermost axis last) and whether it is a matrix."""
    yield from ((f"v.patch_embd.weight{frame}", (width, 3, 16, 16), False) for frame in ("", ".1"))
    yield "v.patch_embd.bias", (width,), False
    yield "v.position_embd.weight", (48 * 48, width), False
    products = {"attn_qkv": (3 * width, width), "attn_out": (width, width), "ffn_up": (ffn, width)}
    products["ffn_down"] = (width, ffn)
    named = {f"v.blk.{i}.{name}": shape for i in range(layers) for name, shape in products.items()}
    named |= {"mm.0": (4 * width, 4 * width), "mm.2": (HIDDEN, 4 * width)}
    for name, shape in named.items():
        yield f"{name}.weight", shape, True
        yield f"{name}.bias", shape[:1], False
    norms = [f"v.blk.{i}.ln{n}" for i in range(layers) for n in (1, 2)]
    for name in (*norms, "v.post_ln"):
        yield from ((f"{name}.{part}", (width,), False) for part in ("weight", "bias"))


def value(item: Any) -> bytes:
    """A GGUF value after its type: string, uint32 or float32."""
    if isinstance(item, str):
        return struct.pack("<IQ", 8, len(item)) + item.encode()
    return struct.pack("<If", 6, item) if isinstance(item, float) else struct.pack("<II", 4, item)


def write(path: Path, layers: int, width: int, heads: int, ffn: int) -> None:
    rng = np.random.default_rng(1)
    metadata = {"general.architecture": "clip", "clip.projector_type": "qwen3vl_merger"}
    sizes = {"block_count": layers, "embedding_length": width, "attention.head_count": heads}
    sizes |= {"feed_forward_length": ffn, "patch_size": 16, "projection_dim": HIDDEN, "spatial_merge_size": 2}
    fields: dict[str, Any] = {**metadata, **{f"clip.vision.{name}": size for name, size in sizes.items()}}
    fields["clip.vision.attention.layer_norm_epsilon"] = 1e-6
    every = list(tensors(layers, width, ffn))
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(every), len(fields))
    for name, item in fields.items():
        head += struct.pack("<Q", len(name)) + name.encode() + value(item)
    offset, counts = 0, []
    for name, shape, is_matrix in every:
        counts.append(int(np.prod(shape)))
        head += struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *shape[::-1]) + struct.pack("<IQ", BF16 if is_matrix else F32, offset)
        offset += -(-counts[-1] * (2 if is_matrix else 4) // ALIGNMENT) * ALIGNMENT
    with path.open("wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for (_, shape, is_matrix), n in zip(every, counts, strict=True):
            values = rng.normal(0, shape[-1] ** -0.5, n).astype(np.float32)
            data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes() if is_matrix else values.tobytes()
            file.write(data + bytes(-len(data) % ALIGNMENT))


def opened(mmproj: Path, pack: _engine.gpu.Pack | None, **options: Any) -> _engine.Engine:
    model = str(catalog.fetch("tiny-vl", offline=True))
    return _engine.Engine.open(model, pack=pack, mmproj=str(mmproj), context=512, **options)


def pixels(rng: np.random.Generator, sides: str) -> NDArray[np.uint8]:
    height, width = map(int, sides.split("x"))
    return rng.integers(0, 256, (height, width, 3), np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=27)
    parser.add_argument("--width", type=int, default=1152)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--ffn", type=int, default=4304)
    parser.add_argument("--sides", nargs="+", default=["256x256", "512x512", "1024x1024", "2048x2048"])
    parser.add_argument("--images", type=int, default=9, help="timed images of each size")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    (pack, info), rng = load(args.pack, 0), np.random.default_rng(0)
    print(info.name)
    with tempfile.TemporaryDirectory() as folder:
        mmproj = Path(folder) / "mmproj.gguf"
        write(mmproj, args.layers, args.width, args.heads, args.ffn)
        engine = opened(mmproj, pack)
        for name, size, *_ in engine.plan["entries"]:
            if name in ("vision tower", "image buffers"):
                print(f"{name}: {size / 2**20:.0f} MiB")
        if args.check:
            rgb = pixels(rng, "256x256")
            rows, expected = (one.encode_image("check", rgb).rows for one in (engine, opened(mmproj, None)))
            difference = np.sqrt(np.mean((rows - expected) ** 2)) / expected.std()
            print(f"256x256: differs from the CPU by {difference:.2e} of the standard deviation")
        for sides in args.sides:
            times = []
            for i in range(args.images + 2):
                rgb = pixels(rng, sides)
                start = time.perf_counter()
                n_rows = len(engine.encode_image(f"{sides} {i}", rgb).rows)
                times.append(time.perf_counter() - start)
            print(
                f"{sides}: {n_rows} rows, {1e3 * statistics.median(times[2:]):.2f} ms, best {1e3 * min(times):.2f} ms"
            )


if __name__ == "__main__":
    main()
