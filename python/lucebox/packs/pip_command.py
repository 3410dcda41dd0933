"""A pip command as data: messages show it, `lucebox doctor --fix` runs it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PipCommand"]


@dataclass(frozen=True, slots=True)
class PipCommand:
    """`pip` and these words."""

    words: tuple[str, ...]

    def __str__(self) -> str:
        """As a shell takes it: pip install "lucebox[sm90]"."""
        return " ".join(["pip", *(f'"{word}"' if "[" in word else word for word in self.words)])

    def from_index(self, url: str | None) -> PipCommand:
        """The command with this package index in place of pip's own; None leaves it as it is."""
        if url is None or self.words[0] != "install":
            return self
        return PipCommand(("install", "--index-url", url, *self.words[1:]))
