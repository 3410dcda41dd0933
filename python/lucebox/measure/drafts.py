"""Plain and speculative decoding of the same prompts: speed, acceptance, and whether the tokens are the same.

The plain engine is opened without a drafter, so it has no drafting overhead. If both engines fit in memory, they
alternate prompt by prompt; otherwise they run one after the other. Each prompt runs once, because a suffix drafter
remembers its answer.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date
from itertools import takewhile
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from lucebox import _engine, _kernels
from lucebox.errors import FormatError, InvalidRequestError, OutOfMemoryError
from lucebox.measure.accepted_lengths import AcceptedLengths
from lucebox.measure.bench import arbitrary_ids
from lucebox.options import Sampling
from lucebox.results import DraftCounts, Generation
from lucebox.text import Ids

if TYPE_CHECKING:
    from lucebox.api import LLM

__all__ = [
    "TIE_NAT",
    "TIE_PROBABILITY",
    "WARM_UP_TOKENS",
    "Difference",
    "DraftReport",
    "PromptRun",
    "StepParts",
    "measure_drafts",
    "measure_replay",
    "save_runs",
]

SEED = 42  # for sampling and for replayed lengths
REPLAY = "replay"  # stands for a suite name
WARM_UP_TOKENS = 16
PART_TOKENS = 64  # decoded to time the parts of a step
# Two tokens tie if the margin is below these limits, except with batch_invariant. On a GPU, rounding depends on the
# rows computed together. Measured on an earlier CPU version with that property, 600 tokens of tiny-hybrid, 8-bit
# activations: the gap between the two likeliest tokens moved by up to 0.20 nat, the cumulative probability by up to
# 0.022. In f32 both moved by less than 0.0005.
TIE_NAT = 0.25
TIE_PROBABILITY = 0.03
CSV_COLUMNS = (
    "date", "model", "device", "draft", "budget", "suite", "temperature", "prompt", "prompt_tokens", "tokens",
    "plain_tok_s", "speculative_tok_s", "ratio", "verifies", "drafted", "accepted", "tokens_per_verify",
    "tokens_per_step", "same_tokens",
)  # fmt: skip

# Opens the model with this option `draft`.
OpenLLM = Callable[[str], "LLM"]
# Called with the name of the next prompt, the number of prompts done and their total number.
OnPrompt = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token at which speculative and plain decoding differ."""

    at: int
    """Index in the answer."""
    plain: int | None
    """Token id; None: the plain answer had ended."""
    speculative: int | None
    margin: float
    """How clearly the plain engine prefers its token: difference of log probabilities in nat if greedy; if sampled,
    distance of the uniform draw from the speculative token's share of [0, 1]."""
    is_tie: bool


@dataclass(frozen=True, slots=True)
class PromptRun:
    """One prompt, decoded both ways."""

    name: str
    prompt_tokens: int
    tokens: int
    """Generated tokens of the speculative answer."""
    plain_tok_s: float
    speculative_tok_s: float
    tokens_per_step: float
    drafts: DraftCounts
    difference: Difference | None
    """None: identical tokens."""

    @property
    def ratio(self) -> float:
        return self.speculative_tok_s / self.plain_tok_s


@dataclass(frozen=True, slots=True)
class StepParts:
    """Mean milliseconds of the parts of a step that verifies a draft. Measured in a separate run that synchronises
    after each part, so their sum exceeds a step of the other runs."""

    steps: int
    rows: float
    """Mean rows of a verified tree, including the root."""
    draft_ms: float
    tree_ms: float
    verify_ms: float
    walk_ms: float
    """Sampling along the tree, and the commit of the accepted rows."""

    @property
    def by_name(self) -> dict[str, float]:
        return {
            "draft": self.draft_ms, "tree": self.tree_ms, "verify": self.verify_ms, "walk and commit": self.walk_ms,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class DraftReport:
    """All prompts of one suite at one temperature. Means are over prompts."""

    model: str
    device: str
    device_name: str
    kernels: str
    draft: str
    draft_budget: int | None
    suite: str
    temperature: float
    runs: tuple[PromptRun, ...]
    parts: StepParts | None = None
    """None if no draft was verified."""
    replayed: tuple[AcceptedLengths, ...] = ()
    """The histogram of each run in replay mode. The generated texts are meaningless."""

    @property
    def plain_tok_s(self) -> float:
        return mean(run.plain_tok_s for run in self.runs)

    @property
    def speculative_tok_s(self) -> float:
        return mean(run.speculative_tok_s for run in self.runs)

    @property
    def ratio(self) -> float:
        return self.speculative_tok_s / self.plain_tok_s

    @property
    def tokens_per_verify(self) -> float:
        return mean(run.drafts.tokens_per_verify for run in self.runs)

    @property
    def tokens_per_step(self) -> float:
        return mean(run.tokens_per_step for run in self.runs)

    @property
    def by_length(self) -> tuple[int, ...]:
        """[n] number of verifies, over all prompts, that accepted n tokens."""
        sums = [0] * max(len(run.drafts.by_length) for run in self.runs)
        for run in self.runs:
            for n, verifies in enumerate(run.drafts.by_length):
                sums[n] += verifies
        return tuple(sums)

    @property
    def mismatches(self) -> tuple[PromptRun, ...]:
        """Runs whose tokens differ without a tie at the first difference."""
        return tuple(run for run in self.runs if run.difference is not None and not run.difference.is_tie)


def measure_drafts(
    open_llm: OpenLLM,
    draft: str,
    prompts: Sequence[tuple[str, Ids]],
    *,
    suite: str,
    max_tokens: int,
    temperature: float = 0.0,
    on_prompt: OnPrompt = lambda name, done, total: None,
) -> DraftReport:
    """Decodes up to max_tokens after each prompt (name, ids), without and with the drafter.

    Raises:
        InvalidRequestError: there is no drafter, no prompt, or a prompt does not fit in the context.
    """
    if draft == "none" or not prompts:
        raise InvalidRequestError("[bench] speculation needs a drafter and a prompt")
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, seed=SEED)

    def answers_of(*llms: LLM) -> list[list[Generation]]:
        """Returns the answers of each LLM. The LLMs alternate prompt by prompt."""
        for llm in llms:
            _warm_up(llm)
        answers: list[list[Generation]] = [[] for _ in llms]
        for done, (name, ids) in enumerate(prompts):
            on_prompt(name, done, len(prompts))
            for llm, own in zip(llms, answers, strict=True):
                own.append(_answer(llm, ids, sampling))
        return answers

    with ExitStack() as stack:
        speculative = stack.enter_context(open_llm(draft))
        if speculative.options.draft == "none":
            raise InvalidRequestError(f"[bench] no drafter of {draft!r} can be used: {speculative.draft_reason}")
        report = _report(speculative, suite, temperature)
        try:
            plain = stack.enter_context(open_llm("none"))
        except OutOfMemoryError:
            (fast,) = answers_of(speculative)
            parts = _time_parts(speculative, prompts[0][1], sampling)
            stack.close()
            plain = stack.enter_context(open_llm("none"))
            (slow,) = answers_of(plain)
        else:
            slow, fast = answers_of(plain, speculative)
            parts = _time_parts(speculative, prompts[0][1], sampling)
        runs = [
            _prompt_run(name, ids, one, other, _difference(plain, ids, one.ids, other.ids, temperature))
            for (name, ids), one, other in zip(prompts, slow, fast, strict=True)
        ]
    return replace(report, runs=tuple(runs), parts=parts)


def measure_replay(
    open_llm: OpenLLM,
    draft: str,
    ids: Ids,
    histograms: Sequence[AcceptedLengths],
    *,
    max_tokens: int,
    on_prompt: OnPrompt = lambda name, done, total: None,
) -> DraftReport:
    """Decodes max_tokens after ids, plainly and with a drafter whose acceptance is sampled from a histogram. Drafting
    and verifying run at full cost; the tokens are meaningless. One run per histogram that matches the kind of drafter;
    if none matches, one per histogram.

    Raises:
        InvalidRequestError: there is no drafter, or the tokens do not fit in the context.
    """
    if draft == "none":
        raise InvalidRequestError("[bench] speculation needs a drafter")
    sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
    with open_llm("none") as plain:
        _warm_up(plain)
        slow = _answer(plain, ids, sampling)
    runs = []
    with open_llm(draft) as speculative:
        _warm_up(speculative)
        kind = speculative.engine.draft_kind
        chosen = tuple(one for one in histograms if one.drafter in (None, kind)) or tuple(histograms)
        for done, histogram in enumerate(chosen):
            on_prompt(histogram.name, done, len(chosen))
            with speculative.locked_session() as session:
                _kernels.SessionProbe(session).replay(histogram.by_length, SEED)
            fast = _answer(speculative, ids, sampling)
            runs.append(_prompt_run(histogram.name, ids, slow, fast, None))
        parts = _time_parts(speculative, ids, sampling)
        return replace(_report(speculative, REPLAY, 0.0), runs=tuple(runs), parts=parts, replayed=chosen)


def _time_parts(llm: LLM, ids: Ids, sampling: Sampling) -> StepParts | None:
    """Times the parts of the steps of a short answer, which leaves what drafts showed as it was."""
    experience = llm.engine.draft_experience
    if llm.engine.outputs is not None:
        llm.engine.outputs.clear()  # they include the answer to this prompt
    with llm.locked_session() as session:
        before = session.draft_counts
        _kernels.SessionProbe(session).time_parts(True)
    _answer(llm, ids, replace(sampling, max_tokens=min(PART_TOKENS, sampling.max_tokens or PART_TOKENS)))
    with llm.locked_session() as session:
        probe = _kernels.SessionProbe(session)
        after, seconds = session.draft_counts, probe.part_seconds
        probe.time_parts(False)
    llm.engine.draft_experience = experience
    steps = after["verified"] - before["verified"]
    if steps == 0:
        return None
    times = {f"{part}_ms": 1e3 * value / steps for part, value in seconds.items()}
    return StepParts(steps=steps, rows=1 + (after["drafted"] - before["drafted"]) / steps, **times)


def _report(speculative: LLM, suite: str, temperature: float) -> DraftReport:
    """A report without runs."""
    return DraftReport(
        model=speculative.info.name,
        device=speculative.options.device,
        device_name=speculative.device_name,
        kernels=speculative.kernels,
        draft=speculative.draft_label,
        draft_budget=speculative.options.draft_budget,
        suite=suite,
        temperature=temperature,
        runs=(),
    )


def _warm_up(llm: LLM) -> None:
    """Leaves what drafts showed as it was: of arbitrary tokens, they show nothing."""
    experience = llm.engine.draft_experience
    _answer(llm, arbitrary_ids(llm, WARM_UP_TOKENS), Sampling(max_tokens=WARM_UP_TOKENS, ignore_eos=True))
    llm.engine.draft_experience = experience


def _answer(llm: LLM, ids: Ids, sampling: Sampling) -> Generation:
    llm.reset()
    prompt: list[int] = ids.tolist()
    return llm.generate(prompt, sampling)


def _prompt_run(name: str, ids: Ids, slow: Generation, fast: Generation, difference: Difference | None) -> PromptRun:
    assert fast.usage.drafts is not None
    return PromptRun(
        name=name,
        prompt_tokens=len(ids),
        tokens=len(fast.ids),
        plain_tok_s=slow.timings.decode_tok_s,
        speculative_tok_s=fast.timings.decode_tok_s,
        tokens_per_step=fast.usage.tokens_per_step,
        drafts=fast.usage.drafts,
        difference=difference,
    )


def _difference(
    plain: LLM, prompt: Ids, slow: Sequence[int], fast: Sequence[int], temperature: float
) -> Difference | None:
    if slow == fast:
        return None
    at = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(slow, fast, strict=False)))
    if at == min(len(slow), len(fast)):
        return Difference(at, _item(slow, at), _item(fast, at), math.inf, is_tie=False)
    whole = np.concatenate([prompt, np.asarray(slow, np.int32)])
    with plain.locked_session() as session:
        session.reset()
        for n in range(len(prompt), len(prompt) + at + 1):  # row by row, as in plain decoding
            session.sync(whole[:n])
        logits = session.logits().astype(np.float64)
    may_tie = not plain.options.batch_invariant
    if temperature == 0:
        margin = float(logits[slow[at]] - logits[fast[at]])
        return Difference(at, slow[at], fast[at], margin, may_tie and margin < TIE_NAT)
    # The draw falls into the plain token's interval. The margin is its distance from the speculative token's interval.
    ends = np.cumsum(np.exp((logits - logits.max()) / temperature))
    draw = _engine.uniform_draw(SEED, at) * ends[-1]
    begin, end = ends[fast[at]] - np.exp((logits[fast[at]] - logits.max()) / temperature), ends[fast[at]]
    margin = float(max(begin - draw, draw - end, 0) / ends[-1])
    return Difference(at, slow[at], fast[at], margin, may_tie and margin < TIE_PROBABILITY)


def _item(ids: Sequence[int], at: int) -> int | None:
    return ids[at] if at < len(ids) else None


def save_runs(file: Path, report: DraftReport) -> None:
    """Appends a row per prompt to a CSV file, and creates the file if it is missing.

    Raises:
        FormatError: the file has other columns.
    """
    is_new = not file.exists()
    if not is_new and file.read_text().partition("\n")[0].split(",") != list(CSV_COLUMNS):
        raise FormatError(f"{file} has other columns than {', '.join(CSV_COLUMNS)}; name a new file")
    common = (
        date.today().isoformat(), report.model, report.device_name, report.draft, report.draft_budget or "",
        report.suite, report.temperature,
    )  # fmt: skip
    with file.open("a", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        if is_new:
            writer.writerow(CSV_COLUMNS)
        for run in report.runs:
            drafts = run.drafts
            writer.writerow(
                [
                    *common, run.name, run.prompt_tokens, run.tokens, f"{run.plain_tok_s:.2f}",
                    f"{run.speculative_tok_s:.2f}", f"{run.ratio:.3f}", drafts.verifies, drafts.drafted_tokens,
                    drafts.accepted_tokens, f"{drafts.tokens_per_verify:.3f}", f"{run.tokens_per_step:.3f}",
                    run.difference is None,
                ]
            )  # fmt: skip
