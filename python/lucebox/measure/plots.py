"""Plots measurement reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lucebox.figures import BAR_COLOR, SPREAD_COLOR, WAITING_COLOR, new_figure, save_figure
from lucebox.measure.bench import Measurement, Profile, Report
from lucebox.measure.drafts import DraftReport
from lucebox.measure.power_sweep import PowerPoint
from lucebox.measure.quality import TypeReport
from lucebox.measure.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_bench_plot", "save_drafts_plot", "save_power_plot",
           "save_quality_plot", "save_timeline_plot"]  # fmt: skip


def save_bench_plot(report: Report, path: str | Path, profiles: Sequence[Profile] = ()) -> None:
    """Plots a bar for the median of every test, with whiskers over its runs, and a bar per kernel of each profile. The
    file ending chooses the format.

    Raises:
        UnsupportedError: matplotlib is not installed or does not know the file ending.
    """
    panels: list[tuple[int, Callable[[Axes], None]]] = []  # number of bars, and the function that draws them
    for test in ("prefill", "decode", "append", "parallel"):
        bars = [m for m in report.measurements if m.test == test]
        if bars:
            panels.append((len(bars), partial(_draw_test, report, bars)))
    panels += [(len(profile.times), partial(_draw_profile, profile)) for profile in profiles]

    n_bars = sum(n for n, _ in panels)
    figure = new_figure(figsize=(7 if not profiles else 9, 1.6 + 0.5 * n_bars))
    grid = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": [n for n, _ in panels]})
    for axes, (_, draw) in zip(grid[:, 0], panels, strict=True):
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.invert_yaxis()
    figure.suptitle(f"{report.model} on {report.device_name}, {report.kernels}", fontsize=10)
    save_figure(figure, path)


def save_power_plot(points: Sequence[PowerPoint], path: str | Path) -> None:
    """Plots tokens per second and per joule against the power limit, a line per model, device and test.

    Raises:
        UnsupportedError: matplotlib is not installed or does not know the file ending.
    """
    figure = new_figure(figsize=(7, 5.5))
    speed, economy = figure.subplots(2, 1, sharex=True)
    lines: dict[str, list[PowerPoint]] = {}
    for point in points:
        lines.setdefault(f"{point.model} on {point.device}, {point.test}", []).append(point)
    for label, line in lines.items():
        limits = [point.limit_w for point in line]
        speed.plot(limits, [point.tok_s for point in line], marker="o", label=label)
        economy.plot(limits, [point.tok_j for point in line], marker="o")
    for axes, quantity in ((speed, "tokens/s"), (economy, "tokens/J")):
        axes.set_ylabel(quantity)
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    economy.set_xlabel("power limit, W")
    speed.legend(fontsize=8, frameon=False)
    save_figure(figure, path)


def save_timeline_plot(timeline: Timeline, title: str, path: str | Path) -> None:
    """Plots a row per thread block of a decoded token: grey while it waits, the phase's colour while it works.

    Raises:
        UnsupportedError: matplotlib is not installed or does not know the file ending.
    """
    figure = new_figure(figsize=(16, 9))
    from matplotlib import colormaps
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    colors = colormaps["tab20"].colors  # type: ignore[attr-defined]
    kinds, names = timeline.kinds, timeline.names
    color_of = {kind.name: colors[i % len(colors)] for i, kind in enumerate(kinds)}
    axes = figure.subplots()
    bars, fills = [], []
    start = timeline.steps[:, 3].min()
    for block, phase, task, *times in timeline.steps.tolist():
        began, waited, done = ((time - start) / 1e3 for time in times)
        for begin, end, fill in ((began, waited, WAITING_COLOR), (waited, done, color_of[names[phase]])):
            if task and end > begin:
                bars.append([(begin, block), (end, block), (end, block + 0.9), (begin, block + 0.9)])
                fills.append(fill)
    axes.add_collection(PolyCollection(bars, facecolors=fills, linewidths=0))
    axes.set_xlim(0, timeline.us)
    axes.set_ylim(timeline.n_blocks, 0)
    axes.set_xlabel("us")
    axes.set_ylabel("block")
    axes.set_title(f"{title}: {timeline.label}, {timeline.us:,.1f} us", fontsize=10)
    patches = [
        Patch(color=color_of[kind.name], label=f"{kind.phases} x {kind.us:.1f} us: {kind.name}") for kind in kinds
    ]
    figure.legend(handles=[Patch(color=WAITING_COLOR, label="waiting"), *patches[:15]], loc="outside lower center",
                  ncols=2, fontsize=7, frameon=False)  # fmt: skip
    save_figure(figure, path)


def save_drafts_plot(reports: Sequence[DraftReport], path: str | Path) -> None:
    """Plots one row per report: plain and speculative speed of every prompt, the histogram of accepted lengths, and the
    time of each part of a step.

    Raises:
        UnsupportedError: matplotlib is not installed or does not know the file ending.
    """
    n_prompts = max(len(report.runs) for report in reports)
    figure = new_figure(figsize=(14, len(reports) * (1.6 + 0.4 * n_prompts)))
    grid = figure.subplots(len(reports), 3, squeeze=False, gridspec_kw={"width_ratios": [3, 2, 2]})
    for (speeds, lengths, parts), report in zip(grid, reports, strict=True):
        _draw_speeds(report, speeds)
        _draw_lengths(report, lengths)
        _draw_parts(report, parts)
        for axes in (speeds, lengths, parts):
            axes.spines[["top", "right"]].set_visible(False)
    first = reports[0]
    prompts = "replayed lengths" if first.replayed else f"{first.suite} prompts"
    title = f"{first.model} on {first.device_name}, {first.kernels}, draft {first.draft}, {prompts}"
    figure.suptitle(title, fontsize=10)
    save_figure(figure, path)


def save_quality_plot(reports: Sequence[TypeReport], path: str | Path) -> None:
    """Plots, per KV type from largest to smallest, the KL divergence of the text and the accuracy per document length.
    Panels without a measurement are omitted.

    Raises:
        UnsupportedError: matplotlib is not installed or does not know the file ending.
    """
    reports = sorted(reports, key=lambda report: -report.token_bytes)
    panels: list[Callable[[Axes], None]] = []
    if any(report.text for report in reports):
        panels.append(partial(_draw_divergence, reports))
    if any(report.recall for report in reports):
        panels.append(partial(_draw_recall, reports))
    figure = new_figure(figsize=(7, 1 + 3.2 * len(panels)))
    grid = figure.subplots(len(panels), 1, squeeze=False)
    sizes = {report.kv: report.token_bytes for report in reports}
    for axes, draw in zip(grid[:, 0], panels, strict=True):
        draw(axes)
        labels = [kv.replace("/", "/\n") + f"\n{size:g} B" for kv, size in sizes.items()]
        axes.set_xticks(range(len(reports)), labels, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    grid[-1, 0].set_xlabel("type of keys and values, bytes per token")
    first = reports[0]
    figure.suptitle(f"{first.model} on {first.device_name}, {first.kernels}", fontsize=10)
    save_figure(figure, path)


def _draw_divergence(reports: Sequence[TypeReport], axes: Axes) -> None:
    scores = [(x, report.text) for x, report in enumerate(reports) if report.text is not None]
    apart = [(x, text.kl) for x, text in scores if text.kl > 0]
    if apart:
        axes.set_yscale("log")
        axes.plot([x for x, _ in apart], [kl for _, kl in apart], "o", color=BAR_COLOR)
        axes.margins(y=0.2)
    for x, text in scores:
        axes.text(x, 0.97, f"{text.nll:.4f}", ha="center", fontsize=7, transform=axes.get_xaxis_transform())
    axes.set_xlim(-0.5, len(reports) - 0.5)
    axes.set_ylabel("mean KL from f16, nat")
    axes.set_title(f"NLL of {scores[0][1].n_tokens} tokens (numbers), and KL divergence", fontsize=9)


def _draw_recall(reports: Sequence[TypeReport], axes: Axes) -> None:
    lengths = list(dict.fromkeys(cell.length for cell in reports[0].recall))
    width = 0.8 / len(lengths)
    for i, length in enumerate(lengths):
        cells = [[cell for cell in report.recall if cell.length == length] for report in reports]
        shares = [sum(cell.right for cell in own) / sum(cell.asked for cell in own) for own in cells]
        places = [x + (i - (len(lengths) - 1) / 2) * width for x in range(len(reports))]
        n = sum(cell.asked for cell in cells[0])
        axes.bar(places, shares, width=0.9 * width, label=f"{length:,} tokens, {n} questions")
        for x, share, own in zip(places, shares, cells, strict=True):
            axes.text(x, share, f"{sum(cell.right for cell in own)}", ha="center", va="bottom", fontsize=7)
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("share of right answers")
    axes.legend(fontsize=8, framealpha=1, loc="lower left")


def _draw_speeds(report: DraftReport, axes: Axes) -> None:
    rows = range(len(report.runs))
    height = 0.38
    axes.barh([y - height / 2 for y in rows], [run.plain_tok_s for run in report.runs], height=height,
              color=WAITING_COLOR, label="plain")  # fmt: skip
    axes.barh([y + height / 2 for y in rows], [run.speculative_tok_s for run in report.runs], height=height,
              color=BAR_COLOR, label="speculative")  # fmt: skip
    for y, run in enumerate(report.runs):
        _write(axes, y + height / 2, f"{run.ratio:.2f}x", "white")
    axes.set_yticks(rows, [run.name for run in report.runs])
    axes.invert_yaxis()
    axes.set_xlabel(f"tokens/s at temperature {report.temperature:g}; mean ratio {report.ratio:.2f}")
    axes.legend(fontsize=8, frameon=False)


def _draw_lengths(report: DraftReport, axes: Axes) -> None:
    axes.bar(range(len(report.by_length)), report.by_length, color=BAR_COLOR)
    axes.set_xlabel(f"accepted tokens; {report.tokens_per_verify:.2f} tokens per verify")
    axes.set_ylabel("verifies")


def _draw_parts(report: DraftReport, axes: Axes) -> None:
    if report.parts is None:
        return
    times = report.parts.by_name
    axes.barh(list(times), list(times.values()), height=0.6, color=BAR_COLOR)
    for y, ms in enumerate(times.values()):
        _write(axes, y, f"{ms:.3f}", SPREAD_COLOR)
    axes.invert_yaxis()
    axes.set_xlabel(f"ms of a step's parts, {report.parts.rows:.1f} rows")


def _draw_test(report: Report, bars: Sequence[Measurement], axes: Axes) -> None:
    is_append = bars[0].test == "append"
    values = [m.ms if is_append else m.tok_s for m in bars]
    medians = [v.median for v in values]
    spread = [[v.median - v.min for v in values], [v.max - v.median for v in values]]
    axes.barh(
        [m.label for m in bars], medians, xerr=spread, height=0.6, color=BAR_COLOR, ecolor=SPREAD_COLOR, capsize=3
    )
    for y, measurement in enumerate(bars):
        _write(axes, y, _caption(report, measurement), "white")
    named = {"append": "ms of an append", "parallel": "tokens/s of sequences in parallel"}
    quantity = named.get(bars[0].test, f"{bars[0].test} tokens/s")
    axes.set_xlabel(f"{quantity} (median, whiskers min to max of {len(bars[0].seconds)} runs)")


def _draw_profile(profile: Profile, axes: Axes) -> None:
    axes.barh([time.kernel for time in profile.times], [1e3 * time.seconds for time in profile.times],
              height=0.6, color=BAR_COLOR)  # fmt: skip
    for y, time in enumerate(profile.times):
        _write(axes, y, f"{time.seconds / profile.seconds:.1%}", SPREAD_COLOR)
    axes.set_xlabel(f"{profile.label}: ms of each kernel by itself, {1e3 * profile.seconds:.3f} in all")


def _write(axes: Axes, y: float, text: str, color: str) -> None:
    axes.text(0.01, y, text, va="center", color=color, fontsize=8, transform=axes.get_yaxis_transform())


def _caption(report: Report, measurement: Measurement) -> str:
    share, ratio = report.share(measurement), report.of_one_row(measurement)
    if ratio is not None:
        return f"{measurement.ms.median:.3f} ms   {ratio:.2f} x one row"
    speed = f"{measurement.tok_s.median:,.1f}"
    return speed if share is None else f"{speed}   {measurement.gb_s:.1f} GB/s, {share:.0%} of read bandwidth"
