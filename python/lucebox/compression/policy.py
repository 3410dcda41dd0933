"""The compression policy: when to compress a prompt, and how much to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from lucebox.compression.keep_ratio import KeepRatio
from lucebox.errors import InvalidRequestError

if TYPE_CHECKING:
    from lucebox.options import EngineOptions

__all__ = ["CompressionRequest", "Mode", "Policy"]

Mode = Literal["off", "auto", "always"]


@dataclass(frozen=True, slots=True)
class CompressionRequest:
    """A request's overrides; None keeps the options of the LLM."""

    mode: Mode | None = None
    keep_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in (None, *get_args(Mode)):
            raise InvalidRequestError(f"the mode of compression is off, auto or always, got {self.mode!r}")
        if self.keep_ratio is not None:
            KeepRatio.parse(self.keep_ratio)

    @classmethod
    def parse(cls, given: Mapping[str, Any] | None) -> CompressionRequest | None:
        """The choices in a mapping with the keys mode and keep_ratio.

        Raises:
            InvalidRequestError: another key, or a value out of range.
        """
        if given is None:
            return None
        if not isinstance(given, Mapping) or not set(given) <= {"mode", "keep_ratio"}:
            raise InvalidRequestError(
                f'compression is {given!r}, expected {{"mode": "off" | "auto" | "always", "keep_ratio": 0.1}}'
            )
        return cls(given.get("mode"), given.get("keep_ratio"))


@dataclass(frozen=True, slots=True)
class Policy:
    mode: Mode
    threshold: int
    """Tokens from which "auto" compresses a prompt."""
    keep: KeepRatio
    uses_anchors: bool

    @classmethod
    def from_options(cls, options: EngineOptions) -> Policy:
        """The policy of an LLM.

        Raises:
            InvalidRequestError: the keep ratio is malformed.
        """
        mode, threshold = options.prefill_compression, options.prefill_threshold
        return cls(mode, threshold, KeepRatio.parse(options.prefill_keep_ratio), options.prefill_anchors)

    def of(self, request: CompressionRequest | None) -> Policy:
        """The policy with a request's overrides."""
        if request is None:
            return self
        keep = self.keep if request.keep_ratio is None else KeepRatio.parse(request.keep_ratio)
        return Policy(request.mode or self.mode, self.threshold, keep, self.uses_anchors)
