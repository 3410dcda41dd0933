"""Pictures of bench reports. matplotlib is an extra (`pip install "lucebox[plot]"`) and is imported only here."""

from __future__ import annotations

from pathlib import Path

from lucebox.bench import Measurement, Report
from lucebox.errors import UnsupportedError

__all__ = ["save_bench_plot"]

BAR_COLOR = "#3b6ea5"
SPREAD_COLOR = "#1d2733"


def save_bench_plot(report: Report, path: str | Path) -> None:
    """Write bars of median tokens/s with the spread of the runs; the file ending chooses the format.

    Raises:
        UnsupportedError: matplotlib is not installed or does not know the file ending.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError('plots need matplotlib: pip install "lucebox[plot]"') from error

    figure = Figure(figsize=(7, 1.6 + 0.5 * len(report.measurements)), layout="constrained")
    tests = [test for test in ("prefill", "decode") if any(m.test == test for m in report.measurements)]
    panels = figure.subplots(
        len(tests),
        1,
        squeeze=False,
        gridspec_kw={"height_ratios": [sum(m.test == test for m in report.measurements) for test in tests]},
    )
    for axes, test in zip(panels[:, 0], tests, strict=True):
        bars = [m for m in report.measurements if m.test == test]
        speeds = [m.tok_s for m in bars]
        medians = [s.median for s in speeds]
        spread = [[s.median - s.min for s in speeds], [s.max - s.median for s in speeds]]
        axes.barh(
            [m.label for m in bars], medians, xerr=spread, height=0.6, color=BAR_COLOR, ecolor=SPREAD_COLOR, capsize=3
        )
        for y, measurement in enumerate(bars):
            axes.text(
                0.01,
                y,
                _caption(report, measurement),
                va="center",
                color="white",
                fontsize=8,
                transform=axes.get_yaxis_transform(),
            )
        axes.set_xlabel(f"{test} tokens/s (median, whiskers min to max of {len(bars[0].seconds)} runs)")
        axes.spines[["top", "right"]].set_visible(False)
        axes.invert_yaxis()
    figure.suptitle(f"{report.model} on {report.device}, {report.kernels}", fontsize=10)
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise UnsupportedError(f"cannot write a plot to {path}: {error}") from error


def _caption(report: Report, measurement: Measurement) -> str:
    share = report.share(measurement)
    speed = f"{measurement.tok_s.median:,.1f}"
    return speed if share is None else f"{speed}   {measurement.gb_s:.1f} GB/s, {share:.0%} of read bandwidth"
