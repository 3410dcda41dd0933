"""Timeline of a decoded token in the megakernel: when each thread block waited and worked, per phase, with totals per
kind of phase, as an HTML page."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine, _kernels
from lucebox.errors import UnsupportedError
from lucebox.measure.bench import arbitrary_ids

if TYPE_CHECKING:
    from lucebox.api import LLM

__all__ = ["CONTEXT", "PhaseKind", "Timeline", "as_numbers", "measure_timeline", "save_timeline_page", "table"]

N_TOKENS = 9  # tokens recorded; the one of median duration is shown
CONTEXT = N_TOKENS + 1  # tokens of context needed beyond `depth`
BLOCK, PHASE, TASK, BEGAN, WAITED, DONE = range(6)
StepRow = tuple[int, int, int, int, int, int]  # columns; the last three in ns
Us = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PhaseKind:
    """Phases of a token with the same work; times are means per phase."""

    name: str
    phases: int
    us: float
    """From the end of the previous phase to the end of this one."""
    first_us: float
    """From the end of the previous phase until the first block has its inputs; negative: that block did not wait."""
    last_us: float
    """From the end of the previous phase until the last block has its inputs."""
    work_us: float
    """Time of the slowest block."""
    working: float
    """Share of the blocks' time spent working; each block's time starts when it finished the previous phase."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One decoded token."""

    label: str
    tasks: tuple[str, ...]
    steps: NDArray[np.int64]
    """[n, 6]: block, phase, task, and the times in ns when the block began, had its inputs, and was done."""

    @property
    def us(self) -> float:
        return float(self.steps[:, DONE].max() - self.steps[:, BEGAN].min()) / 1e3

    @property
    def n_blocks(self) -> int:
        return int(self.steps[:, BLOCK].max()) + 1

    @property
    def names(self) -> list[str]:
        """The names of each phase's tasks."""
        of_phase: list[dict[int, None]] = [{} for _ in range(int(self.steps[:, PHASE].max()) + 1)]
        for phase, task in np.unique(self.steps[:, [PHASE, TASK]], axis=0):
            if task != 0:  # 0: no work for the block
                of_phase[phase][int(task)] = None
        return [", ".join(dict.fromkeys(self.tasks[task] for task in tasks)) for tasks in of_phase]

    @property
    def kinds(self) -> list[PhaseKind]:
        """Kinds of phases, largest total time first."""
        phases = self._phases()
        names = self.names
        kinds = []
        for name in dict.fromkeys(names):
            of_kind = phases[[phase for phase, other in enumerate(names) if other == name]]
            kinds.append(PhaseKind(name, len(of_kind), *(float(value) for value in of_kind.mean(axis=0))))
        return sorted(kinds, key=lambda kind: -kind.phases * kind.us)

    def _phases(self) -> Us:
        """[phases, 5]: the fields of PhaseKind, starting with `us`."""
        rows = []
        before = self.steps[:, BEGAN].min()
        ends = np.full(self.n_blocks, before)
        for phase in range(int(self.steps[:, PHASE].max()) + 1):
            steps = self.steps[self.steps[:, PHASE] == phase]
            seen = np.full(self.n_blocks, np.iinfo(np.int64).max)  # set by each block's first step
            np.minimum.at(seen, steps[:, BLOCK], steps[:, WAITED])
            end, first, last = steps[:, DONE].max(), seen.min(), seen.max()
            work = np.bincount(steps[:, BLOCK], weights=(steps[:, DONE] - steps[:, WAITED]).astype(float))
            start = ends.copy()
            np.maximum.at(ends, steps[:, BLOCK], steps[:, DONE])
            share = work.sum() / max((ends - start).sum(), 1)
            rows.append([(end - before) / 1e3, (first - before) / 1e3, (last - before) / 1e3, work.max() / 1e3, share])
            before = end
        return np.array(rows)


def measure_timeline(llm: LLM, depth: int) -> Timeline:
    """Records N_TOKENS after `depth` tokens, one launch each; returns the one of median duration.

    Raises:
        UnsupportedError: the megakernel does not decode this model, or its pack has no time stamps; says why.
    """
    if llm.loaded_pack is None:
        raise UnsupportedError("a timeline shows the megakernel, which needs a GPU; the device is the CPU")
    timelines = _decode_timelines(llm, N_TOKENS, depth)
    if not timelines:
        raise UnsupportedError(
            f"a timeline shows the megakernel; this model is decoded by the {llm.decode_path} "
            "(--path megakernel forces the megakernel)"
        )
    label = "a token" + (f" @{depth}" if depth else "")
    made = [Timeline(label, tuple(tasks), np.array(steps, np.int64)) for steps, tasks in timelines]
    return sorted(made, key=lambda timeline: timeline.us)[len(made) // 2]


def _decode_timelines(llm: LLM, n_tokens: int, depth: int) -> list[tuple[list[StepRow], list[str]]]:
    """For each of n_tokens that the megakernel decodes after `depth` tokens: its steps, and the name of each task.
    Empty if the megakernel does not decode this model.

    Raises:
        UnsupportedError: the pack was built without LUCEBOX_TIMELINE.
    """
    timelines = []
    ids = arbitrary_ids(llm, depth + n_tokens + 2)
    sampler = _engine.Sampler(llm.info.vocab)
    with llm.locked_session() as session:
        session.reset()
        for n in range(max(depth, 1), max(depth, 1) + n_tokens):
            session.sync(ids[:n])
            ids[n] = session.sample(sampler)  # the next step, which consumes this token, has been launched
            timelines.append(_kernels.SessionProbe(session).step_timeline())
    return [(steps, tasks) for steps, tasks in timelines if steps]


def as_numbers(timeline: Timeline) -> dict[str, object]:
    return {"label": timeline.label, "us": timeline.us, "kinds": [asdict(kind) for kind in timeline.kinds]}


def save_timeline_page(timeline: Timeline, title: str, path: Path) -> None:
    """Writes a self-contained HTML page: a row per block, and a table of the kinds of phases."""
    names, kinds = timeline.names, timeline.kinds
    of_kind = {kind.name: i for i, kind in enumerate(kinds)}
    steps = timeline.steps[timeline.steps[:, TASK] != 0]
    start = timeline.steps[:, BEGAN].min()
    data = {
        "us": timeline.us,
        "blocks": timeline.n_blocks,
        "tasks": timeline.tasks,
        "kinds": [kind.name for kind in kinds],
        "phases": [of_kind[name] for name in names],
        "steps": np.concatenate([steps[:, :BEGAN], steps[:, BEGAN:] - start], axis=1).tolist(),
    }
    text = (files("lucebox.measure") / "timeline.html").read_text()
    for mark, value in {
        "@TITLE@": html.escape(f"{title}: {timeline.label}, {timeline.us:,.1f} us"),
        "@ROWS@": "\n".join(_table_row(i, kind) for i, kind in enumerate(kinds)),
        "@DATA@": json.dumps(data, separators=(",", ":")).replace("</", "<\\/"),
    }.items():
        text = text.replace(mark, value)
    path.write_text(text)


def table(kinds: Sequence[PhaseKind]) -> list[list[str]]:
    """A row of cells per kind: name, number of phases, us in total, and the times of one phase."""
    return [
        [
            kind.name,
            str(kind.phases),
            f"{kind.phases * kind.us:.1f}",
            *(f"{us:.2f}" for us in (kind.us, kind.first_us, kind.last_us, kind.work_us)),
            f"{kind.working:.0%}",
        ]
        for kind in kinds
    ]


def _table_row(index: int, kind: PhaseKind) -> str:
    name, *values = table([kind])[0]
    cells = "".join(f"<td>{value}</td>" for value in values)
    return f'<tr><th><i data-kind="{index}"></i>{html.escape(name)}</th>{cells}</tr>'
