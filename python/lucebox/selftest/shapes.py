"""Shapes of the ops' cases: one list for the self-test and for the tests of the CPU and of devices."""

from __future__ import annotations

from itertools import product

__all__ = [
    "BIASES",
    "BLOCK_CONVS",
    "CHAINS",
    "CONVOLUTIONS",
    "COPIES",
    "EXCHANGES",
    "GATHERS",
    "LAYER_NORMS",
    "MIXTURES",
    "NORMS",
    "PATCHES",
    "PRODUCTS",
    "RECURRENCES",
    "RINGS",
    "ROPES",
    "ROUTES",
    "SELECTIONS",
    "SWIGLUS",
    "TOP_TOKENS",
    "VISION_HEADS",
]

# Boundaries of vectors, warps and thread blocks, and widths of real models.
_DIMS = (1, 7, 15, 16, 17, 33, 63, 64, 65, 127, 128, 129, 256, 576, 896, 1024, 1037, 3584, 4096)

# rows, heads, dim. On the simulator, short heads take a thread block each with 5 rows, and a warp each with 7 rows.
NORMS = (*product((5, 7), (3,), _DIMS), (1, 1, 5120), (2, 7, 128))

# rows, dim
SWIGLUS = ((1, 17408), (67, 33), *((5, dim) for dim in _DIMS))

# rows, heads, dim, n_pairs: rotation of a whole head and of a part, and values outside all pairs.
ROPES = (
    *((9, 3, *pairs) for pairs in ((2, 1), (8, 1), (24, 7), (25, 7), (64, 32), (80, 20), (128, 64), (256, 32))),
    (1, 24, 128, 64),
    (3, 1, 66, 33),
)

# Vision: rows and width of a norm; rows, heads, head_dim and padded head_dim of attention; rows and columns of an image
# in patches of a size, and how many of them form a side of a block.
LAYER_NORMS = ((1, 4), (5, 192), (7, 1152), (3, 4100))
VISION_HEADS = ((5, 3, 64, 64), (70, 2, 72, 128), (9, 1, 4, 8), (3, 16, 72, 72))
PATCHES = ((4, 6, 16, 2), (1, 5, 14, 1), (6, 3, 4, 3))
# rows, patches of a row, width
POOLS = ((1, 9, 4), (5, 4, 768), (31, 9, 1152))

# rows, experts, chosen
ROUTES = ((1, 1, 1), (3, 7, 2), (5, 33, 8), (9, 128, 8), (1, 256, 8), (67, 512, 16))

# rows, chosen, experts, blocks of a row of x and of act(); plain weights have `odd` values more in both: below, at and
# above a tile of 32 outputs, one expert for all rows, and both tiles of grouped products
MIXTURES = ((9, 1, 1, 1, 1, 1), (1, 8, 16, 2, 1, 0), (5, 3, 7, 1, 2, 31), (20, 2, 4, 3, 1, 8), (22, 2, 2, 1, 1, 31))

# rows, dim
BIASES = ((1, 1), (3, 33), (70, 2880))

# values: as words, and as rows, in one and in several thread blocks
EXCHANGES = (4, 5120, 16384, 16388)

# rows, width
GATHERS = ((1, 1), (1, 40_000), (3, 31))

# rows, dim, first column, columns
COPIES = ((1, 1, 0, 1), (3, 7, 5, 13), (70, 64, 64, 192), (2, 1024, 1024, 4100))

# rows, dim, rows of the ring, first row, first column, columns
RINGS = (
    (1, 5, 4, 7, 2, 8),
    (3, 8, 4, 2, 4, 12),
    (4, 16, 4, 9, 2, 19),
    (1, 64, 8, 13, 0, 64),
    (1, 1024, 128, 300, 4, 1028),
)

# rows, vocab: one slice and several, logits in vectors of four and one by one, slices without a token, and fewer logits
# than a slice has threads.
TOP_TOKENS = ((1, 8), (3, 9), (2, 1023), (7, 1025), (5, 2048), (1, 2049), (2, 4100), (3, 9003), (63, 1000), (1, 32003))

# rows, taps, dim, group
BLOCK_CONVS = ((1, 3, 5, 5), (2, 3, 12, 1), (16, 3, 64, 16), (15, 8, 66, 6), (16, 4, 1280, 20), (7, 1, 24, 8))

# rows, candidates, blocks of a table's row
SELECTIONS = ((1, 1, 1), (7, 4, 1), (15, 8, 2), (63, 3, 1))

# key heads, value heads, dk, dv: head sizes of every kernel; the last two of models, and of a chain on matrix units.
RECURRENCES = ((2, 6, 32, 64), (1, 2, 40, 24), (2, 4, 8, 88), (1, 2, 128, 128), (2, 4, 128, 32))

# A recurrence, rows of an append: around chunks, pairs of rows and kernels of few rows.
CHAINS = (
    *((RECURRENCES[0], rows) for rows in (1, 2, 5, 6, 7, 33, 63)),
    *((RECURRENCES[1], rows) for rows in (2, 17)),
    *((RECURRENCES[2], rows) for rows in (32, 64)),
    *((RECURRENCES[3], rows) for rows in (2, 16, 22, 63)),
    *((RECURRENCES[4], rows) for rows in (25, 32)),
)

# channels, taps
CONVOLUTIONS = tuple(product((1, 17, 70), (2, 3, 4, 8)))

# By the values of a weight block: n_out, blocks of a row. Rows that end within tiles, vectors, warps and panels.
PRODUCTS = {
    1: ((1, 1), (3, 33), (2, 255), (5, 256), (3, 257), (33, 896), (50, 576), (7, 4096)),
    32: ((1, 1), (2, 3), (3, 5), (33, 28), (50, 18), (16, 48), (7, 128)),
    256: ((1, 1), (2, 3), (3, 5), (33, 4), (50, 6), (5, 9), (7, 16)),
}
