"""Plots a compressed prompt: the scores over the text, and the kept spans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lucebox.compression.pieces import Span
from lucebox.compression.scores import ChunkScore
from lucebox.figures import BAR_COLOR, WAITING_COLOR, new_figure, save_figure

__all__ = ["save_scores_plot"]


def save_scores_plot(
    path: str | Path, chunks: Sequence[ChunkScore], spans: Sequence[Span], n_characters: int, title: str
) -> None:
    """Writes the score of every chunk over the characters of the prompt, on a logarithmic scale, with the kept spans
    shaded. The file ending chooses the format.

    Raises:
        UnsupportedError: matplotlib is not installed or does not know the file ending.
    """
    figure = new_figure(figsize=(9, 3))
    axes = figure.subplots()
    edges = [chunk.start for chunk in chunks] + [n_characters]
    axes.stairs([chunk.score for chunk in chunks], edges, color=BAR_COLOR, baseline=None)
    for start, stop in spans:
        axes.axvspan(start, stop, color=WAITING_COLOR, zorder=0)
    axes.set_yscale("log")
    axes.set_xlim(0, n_characters)
    axes.set_xlabel("character of the prompt; kept spans are shaded")
    axes.set_ylabel("mean attention weight")
    axes.set_title(title)
    save_figure(figure, path)
