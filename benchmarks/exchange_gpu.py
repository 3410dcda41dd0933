"""All-reduces between devices of one host, in a graph: their time by the number of rows, peer to peer and through host
memory.

exchange_gpu.py --pack build/sm_90/pack/lucebox_sm90                  the devices 0 and 1, rows of 5120 values
exchange_gpu.py --pack FOLDER --devices 0 1 2 3 --hidden 2048 --csv out.csv
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from lucebox import _engine
from lucebox._kernels.ops import RankExchange
from lucebox.errors import UnsupportedError
from matvec_gpu import commit, load

ROWS = (1, 2, 4, 8, 16, 22, 64, 256, 1024, 2048)
MAX_VALUES = 1 << 22  # of an exchange; longer ones go in parts
LONG = 256  # rows from which a graph has fewer exchanges
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Row:
    date: str
    commit: str
    pack: str
    device: str
    link: str
    rows: int
    values: int
    us: float
    command: str


def measure(packs: list[_engine.gpu.Pack], link: str, hidden: int, rows: list[int], n_runs: int) -> list[Row]:
    exchange = RankExchange(packs, min(hidden * max(rows), MAX_VALUES), TIMEOUT_S, link)
    where = " + ".join(pack.device.name for pack in packs)
    found = []
    for n in rows:
        us = exchange.time_us(hidden * n, 128 if n < LONG else 16, n_runs)
        print(f"{exchange.links:<20} {n:5} rows {hidden * n:9} values {us:9.2f} us", flush=True)
        found.append(Row(date.today().isoformat(), commit(), packs[0].target, where, exchange.links, n, hidden * n,
                         round(us, 2), " ".join(sys.argv)))  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", type=Path, required=True, help="folder of the pack, with manifest.json")
    parser.add_argument("--devices", type=int, nargs="+", default=[0, 1], help="the ranks, as indices of devices")
    parser.add_argument("--hidden", type=int, default=5120, help="values of a row (5120)")
    parser.add_argument("--rows", type=int, nargs="+", default=[*ROWS], help="rows of an exchange")
    parser.add_argument("--runs", type=int, default=5, help="timed runs of each graph (5)")
    parser.add_argument("--csv", type=Path, help="where the table goes")
    options = parser.parse_args()
    packs = [load(options.pack, index)[0] for index in options.devices]
    rows = []
    for link in ("peer", "host"):
        try:
            rows += measure(packs, link, options.hidden, options.rows, options.runs)
        except UnsupportedError as error:
            print(f"not measured: {error}", file=sys.stderr)
    if options.csv and rows:
        with options.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(rows[0])))
            writer.writeheader()
            writer.writerows(map(asdict, rows))


if __name__ == "__main__":
    main()
