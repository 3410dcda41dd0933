"""How a family's matrices are divided among shards: the table of each family, whole heads and blocks of 32, and the
shares of real models."""

from __future__ import annotations

from pathlib import Path

import pytest
from lucebox import _kernels
from lucebox.errors import UnsupportedError
from reference.gguf_files import Shape, write_model

SMALL = {"hidden": 64, "ffn": 256, "n_heads": 8, "n_kv_heads": 4, "head_dim": 32, "n_layers": 2}
SHAPES = {
    "llama": Shape("llama", **SMALL),
    "qwen3": Shape("qwen3", tied=True, **SMALL),
    "qwen35": Shape("qwen35", recurrent=(True, False), n_k_heads=4, n_v_heads=12, d_state=16, **SMALL),
}
ATTENTION = {
    "attn_q": ("rows", 32),
    "attn_k": ("rows", 32),
    "attn_v": ("rows", 32),
    "attn_output": ("columns", 32),
}
MLP = {"ffn_gate": ("rows", 32), "ffn_up": ("rows", 32), "ffn_down": ("columns", 32)}
WHOLE = {"token_embd": ("none", 1)}
HEAD = {"output": ("rows", 1)}
DELTA = {
    "attn_qkv": ("rows", 16),
    "attn_gate": ("rows", 16),
    "ssm_alpha": ("rows", 1),
    "ssm_beta": ("rows", 1),
    "ssm_out": ("columns", 16),
}
TABLES = {
    "llama": WHOLE | HEAD | ATTENTION | MLP,
    "qwen3": WHOLE | ATTENTION | MLP,
    "qwen35": WHOLE | HEAD | ATTENTION | {"attn_q": ("rows", 64)} | MLP | DELTA,  # q has a gate in each head
}


def total(ranges: list[tuple[int, int]]) -> int:
    return sum(count for _, count in ranges)


@pytest.mark.parametrize("n", [1, 2, 4])
@pytest.mark.parametrize("family", sorted(TABLES))
def test_the_table_of_a_family(family: str, n: int, tmp_path: Path) -> None:
    """Every matrix has its axis, and shards have equal parts of whole units that make up the matrix."""
    path = write_model(tmp_path / "model.gguf", SHAPES[family])
    seen = set()
    for name, n_out, n_in, axis, shards in _kernels.weights.matrix_shards(str(path), [1] * n):
        kind = name.removesuffix(".weight").split(".")[-1]
        seen.add(kind)
        wanted, unit = TABLES[family][kind]
        assert axis == wanted, name
        length = n_in if axis == "columns" else n_out
        if axis == "none":
            assert shards == [[(0, length)]] * n
            continue
        parts = sorted(part for ranges in shards for part in ranges)
        assert [first for first, _ in parts] == [sum(count for _, count in parts[:i]) for i in range(len(parts))]
        assert sum(count for _, count in parts) == length
        assert all(first % unit == 0 and count % unit == 0 for first, count in parts), (name, shards)
        if kind != "output":  # an odd vocabulary
            assert len({total(ranges) for ranges in shards}) == 1, (name, shards)
    assert seen == set(TABLES[family])


def test_a_shard_has_the_value_heads_of_its_key_heads(tmp_path: Path) -> None:
    """GGUF tiles them: value head j belongs to key head j % 4. Columns of ssm_out follow the rows of attn_gate."""
    path = write_model(tmp_path / "model.gguf", SHAPES["qwen35"])
    parts = {name: shards for name, _, _, _, shards in _kernels.weights.matrix_shards(str(path), [1, 1])}
    assert parts["blk.0.ssm_beta.weight"] == [[(0, 2), (4, 2), (8, 2)], [(2, 2), (6, 2), (10, 2)]]
    assert parts["blk.0.attn_gate.weight"][1] == [(32, 32), (96, 32), (160, 32)]
    assert parts["blk.0.ssm_out.weight"] == parts["blk.0.attn_gate.weight"]
    assert parts["blk.0.attn_qkv.weight"][0] == [(0, 32), (64, 32), (128, 32), (192, 32), (256, 32)]


@pytest.mark.parametrize(
    ("sections", "rows"),
    [
        ([(4, 6, 512, False)], {1: 12288, 2: 6144, 4: 3072, 8: 1536}),  # queries with gates: 24, 12, 6, 3 heads
        ([(4, 1, 256, False)], {1: 1024, 2: 512, 4: 256, 8: 256}),  # keys: at 8 each on two shards
        ([(4, 6, 256, False)], {1: 6144, 2: 3072, 4: 1536, 8: 768}),
        ([(16, 1, 128, False), (16, 1, 128, False), (16, 3, 128, True)], {1: 10240, 2: 5120, 4: 2560, 8: 1280}),
        ([(16, 3, 128, True)], {1: 6144, 2: 3072, 4: 1536, 8: 768}),
        ([(16, 3, 1, True)], {1: 48, 2: 24, 4: 12, 8: 6}),
        ([(544, 1, 32, False)], {1: 17408, 2: 8704, 4: 4352, 8: 2176}),  # feed-forward
        ([(248320, 1, 1, False)], {1: 248320, 2: 124160, 4: 62080, 8: 31040}),
        ([(256, 1, 512, False)], {2: 65536, 4: 32768, 8: 16384}),  # whole experts
    ],
)
def test_the_shares_of_a_27b_and_of_experts(sections: list[tuple[int, int, int, bool]], rows: dict[int, int]) -> None:
    for n, each in rows.items():
        shards = _kernels.weights.row_shards(sections, [1] * n)
        assert [total(ranges) for ranges in shards] == [each] * n


def test_shards_that_do_not_divide_the_heads() -> None:
    """Three shards have whole KV heads, the middle one two of four. Heads of one group go to several shards evenly or
    not at all."""
    assert _kernels.weights.row_shards([(4, 1, 10, False)], [1] * 3) == [[(0, 10)], [(10, 20)], [(30, 10)]]
    assert _kernels.weights.row_shards([(4, 6, 10, False)], [1] * 3) == [[(0, 60)], [(60, 120)], [(180, 60)]]
    assert _kernels.weights.row_shards([(2, 1, 10, False)], [1] * 4) == [[(0, 10)], [(0, 10)], [(10, 10)], [(10, 10)]]
    assert _kernels.weights.row_shards([(2, 4, 10, False)], [1] * 4) == [[(0, 20)], [(20, 20)], [(40, 20)], [(60, 20)]]
    for sections, n in (([(2, 3, 10, False)], 4), ([(2, 4, 10, False)], 3), ([(2, 3, 10, True)], 4)):
        with pytest.raises(UnsupportedError, match=f"{n} shards cannot divide"):
            _kernels.weights.row_shards(sections, [1] * n)


@pytest.mark.parametrize(
    ("groups", "shares", "parts"),
    [
        (4, [3, 1], [3, 1]),
        (16, [3, 1], [12, 4]),
        (16, [2, 1], [11, 5]),
        (544, [3, 1], [408, 136]),
        (4, [2, 1, 1], [2, 1, 1]),
        (5, [1000, 1, 1], [3, 1, 1]),  # every shard has one
        (3, [1, 1000, 1], [1, 1, 1]),
    ],
)
def test_uneven_shares_in_whole_groups(groups: int, shares: list[int], parts: list[int]) -> None:
    """Queries, keys and values of a head go to the same shard, whatever the shares."""
    for units in (1, 6):
        shards = _kernels.weights.row_shards([(groups, units, 32, False)], shares)
        assert [total(ranges) for ranges in shards] == [32 * units * part for part in parts]
    tiled = _kernels.weights.row_shards([(groups, 3, 32, True)], shares)
    assert [total(ranges) for ranges in tiled] == [96 * part for part in parts]


def test_uneven_shares_need_a_group_for_each_shard() -> None:
    with pytest.raises(UnsupportedError, match=r"2 shards have unequal shares and only 1 groups of heads"):
        _kernels.weights.row_shards([(1, 1, 32, False)], [3, 1])
