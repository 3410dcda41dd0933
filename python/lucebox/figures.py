"""matplotlib figures. matplotlib is optional (`pip install matplotlib`), and imported only when a figure is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lucebox.errors import InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BAR_COLOR", "SPREAD_COLOR", "WAITING_COLOR", "check_plot", "new_figure", "save_figure"]

BAR_COLOR = "#3b6ea5"
SPREAD_COLOR = "#1d2733"
WAITING_COLOR = "#d5dae0"


def check_plot(path: Path) -> None:
    """Checks that a plot can be written, before minutes of measuring.

    Raises:
        UnsupportedError: matplotlib is not installed or does not know the file ending.
        InvalidRequestError: the folder is absent.
    """
    known = new_figure((1, 1)).canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in known:
        raise UnsupportedError(f"cannot write a plot to {path}: its ending must be one of {', '.join(sorted(known))}")
    if not path.parent.is_dir():
        raise InvalidRequestError(f"cannot write {path}: there is no folder {path.parent}")


def new_figure(figsize: tuple[float, float]) -> Figure:
    """A figure of this size in inches.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError("plots need matplotlib: pip install matplotlib") from error
    return Figure(figsize=figsize, layout="constrained")


def save_figure(figure: Figure, path: str | Path) -> None:
    """Writes a figure. The file ending chooses the format.

    Raises:
        UnsupportedError: matplotlib does not know the file ending.
    """
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise UnsupportedError(f"cannot write a plot to {path}: {error}") from error
