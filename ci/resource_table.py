"""Writes build/packs/resources.md: registers, shared memory and spills of every kernel of the packs in build/packs.
The manifest of each pack has the same numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from build_packs import PACKS, manifest

import targets

PAGE = PACKS / "resources.md"
Kernels = Mapping[str, dict[str, str | int]]  # one target's kernels by name

TEXT = """# Resources of every kernel

By `ci/resource_table.py`. A dash: the kernel is not in that pack.

## Registers of a thread

{registers}

## Shared memory of a block, in bytes, declared at compile time

{shared}

## Spills and stack

{spills}
"""


def packs() -> dict[str, list[Kernels]]:
    """For each GPU target, the kernels of each generation of its code, newest first."""
    found: dict[str, list[Kernels]] = {}
    for target in targets.load_all():
        if target.vendor == "sim":
            continue
        wheels = list(PACKS.glob(f"lucebox_{target.slug}-*.whl"))
        if not wheels:
            continue
        generations = manifest(wheels[0])["generations"]
        found[target.name] = [{kernel["name"]: kernel for kernel in one["kernels"]} for one in generations]
    return found


def page(packs: Mapping[str, list[Kernels]]) -> str:
    of = {target: generations[0] for target, generations in packs.items()}
    names = sorted({name for kernels in of.values() for name in kernels})
    spilling = [
        f"- `{name}` ({kernel['file']}) on {target}: {kernel['spill_bytes']} bytes spilled, "
        f"{kernel['stack_bytes']} bytes of stack"
        for target, generations in packs.items()
        for kernels in generations
        for name, kernel in kernels.items()
        if kernel["spill_bytes"] or kernel["stack_bytes"]
    ]

    def table(value: Callable[[dict[str, str | int]], str | int]) -> str:
        rows = [["kernel", *of], ["---"] + ["---:"] * len(of)]
        for name in names:
            cells = (value(kernels[name]) if name in kernels else "-" for kernels in of.values())
            rows.append([f"`{name}`", *map(str, cells)])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    return TEXT.format(
        registers=table(lambda kernel: kernel["registers"]),
        shared=table(lambda kernel: kernel["shared_bytes"]),
        spills="\n".join(spilling)
        or f"None: 0 bytes spilled and no stack in all {len(names)} kernels on these targets.",
    )


def main() -> int:
    found = packs()
    if not found:
        sys.exit(f"no pack in {PACKS}: run ci/build_packs.py")
    PAGE.write_text(page(found))
    print(PAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
