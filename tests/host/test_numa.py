"""The NUMA node of a device, and the memory policy of a thread that allocates near one."""

from __future__ import annotations

from pathlib import Path

import pytest
from lucebox._kernels.driver import memory_policy_near, numa_node

ADDRESS = "0000:c1:00.0"


@pytest.mark.parametrize(
    ("text", "node"),
    [("1\n", 1), ("0\n", 0), ("-1\n", -1), ("", -1), ("node\n", -1), ("99999999999999999999\n", -1), ("1024\n", -1)],
)
def test_nodes(tmp_path: Path, text: str, node: int) -> None:
    (tmp_path / ADDRESS).mkdir()
    (tmp_path / ADDRESS / "numa_node").write_text(text)
    assert numa_node(ADDRESS, str(tmp_path)) == node
    assert numa_node(ADDRESS.upper(), str(tmp_path)) == node


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_no_device(tmp_path: Path, address: str) -> None:
    assert numa_node(address, str(tmp_path)) == -1


def test_a_policy_ends_with_its_allocation() -> None:
    """A kernel without policies has no effect, nor has a node that the machine lacks."""
    before = memory_policy_near(-1)
    preferred = memory_policy_near(0)
    assert preferred in ((0, 1) if before == 0 else (before,))
    memory_policy_near(1023)
    assert memory_policy_near(-1) == before
