"""The share of a prompt that compression keeps: a number, or a curve over the prompt's length."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lucebox.errors import InvalidRequestError

__all__ = ["KeepRatio"]

MAX_TOKENS = 1 << 31


@dataclass(frozen=True, slots=True)
class KeepRatio:
    """The share of the cuttable tokens to keep, 0 to 1: a constant, or piecewise linear in the length of the prompt in
    tokens, and constant outside the curve."""

    points: tuple[tuple[int, float], ...]
    """(tokens of the prompt, share), ascending."""

    @classmethod
    def parse(cls, text: str | float) -> KeepRatio:
        """Reads "0.05", or a curve "8000:0.5,32000:0.1,128000:0.05".

        Raises:
            InvalidRequestError: another form, a share outside (0, 1], or token counts that do not ascend.
        """
        points = []
        for item in str(text).split(","):
            tokens, colon, share = item.rpartition(":")
            try:
                points.append((int(tokens) if colon else 0, float(share)))
            except ValueError:
                raise InvalidRequestError(
                    f"a keep ratio is a share such as 0.05, or a curve TOKENS:SHARE,TOKENS:SHARE, got {text!r}"
                ) from None
        if any(abs(tokens) >= MAX_TOKENS for tokens, _ in points):
            raise InvalidRequestError(f"the token counts of a keep ratio must be below {MAX_TOKENS}, got {text!r:.80}")
        if not all(0 < share <= 1 for _, share in points):
            raise InvalidRequestError(f"the shares of a keep ratio must be above 0 and at most 1, got {text!r}")
        if any(a >= b for (a, _), (b, _) in pairwise(points)):
            raise InvalidRequestError(f"the token counts of a keep ratio must ascend, got {text!r}")
        return cls(tuple(points))

    def at(self, n_tokens: int) -> float:
        """The share for a prompt of n_tokens."""
        tokens, shares = zip(*self.points, strict=True)
        return float(np.interp(n_tokens, tokens, shares))
