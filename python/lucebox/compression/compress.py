"""`compress`: selects the parts of a long prompt that a scorer ranks highest, for use without a target."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from lucebox.compression.anchors import anchored
from lucebox.compression.keep_ratio import KeepRatio
from lucebox.compression.pieces import Span, TokenCounts
from lucebox.compression.regions import cuttable
from lucebox.compression.scorer import Scorer
from lucebox.compression.scores import ChunkScore, ScoredText
from lucebox.compression.selection import joined, merged, select
from lucebox.errors import InvalidRequestError

__all__ = ["CompressedPrompt", "compress", "spans_to_keep"]


@dataclass(frozen=True, slots=True)
class CompressedPrompt:
    """A prompt and its kept parts."""

    prompt: str
    """The original text."""
    spans: tuple[Span, ...]
    """Kept characters [start, stop) of the prompt, ascending and disjoint."""
    chunks: tuple[ChunkScore, ...]
    """[ceil(total_tokens / 32)] the scores, in prompt order."""
    text: str
    """The compressed text: the spans, with a space where a cut would join words."""
    kept_tokens: int
    """Tokens of the spans, in the scorer's vocabulary."""
    total_tokens: int
    """Tokens of the prompt, in the scorer's vocabulary."""
    scorer: str

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Plots the scores over the prompt, with the kept spans shaded. The file ending chooses the format.

        Raises:
            UnsupportedError: matplotlib is not installed or does not know the file ending.
            InvalidRequestError: the folder is absent.
        """
        from lucebox.compression.plot import save_scores_plot
        from lucebox.figures import check_plot

        check_plot(Path(path))
        kept, total = self.kept_tokens, self.total_tokens
        title = f"{kept:,} of {total:,} tokens kept ({kept / total:.1%}), scored by {self.scorer}"
        save_scores_plot(Path(path), self.chunks, self.spans, len(self.prompt), title)


def spans_to_keep(scored: ScoredText, count: TokenCounts, ratio: float) -> tuple[Span, ...]:
    """The spans to keep of a text that ends with its question: head, tail, and this share of the tokens between
    them."""
    whole = len(scored.text)
    region = cuttable(scored.text, (0, whole), count, has_question=True)
    kept = select(scored, [region], count, int(ratio * count(region)))
    return tuple(merged([(0, region[0]), *kept, (region[1], whole)]))


def compress(
    prompt: str, *, scorer: str | os.PathLike[str] | Scorer, keep: str | float = 0.1, anchors: bool = False
) -> CompressedPrompt:
    """Keeps the parts of a prompt that the question at its end attends to. Lossy.

    The head (32 tokens at most) and the tail (96 tokens or more) stay whole; between them compress() keeps lines, or
    sentences of long lines.

    scorer: a model as `Scorer` takes it, loaded for this call, or a loaded `Scorer`.
    keep: the share of tokens between head and tail to keep, above 0 and at most 1, or a curve "TOKENS:SHARE,...".
    anchors: keeps parts first that repeat four consecutive tokens of the question.

    Raises:
        InvalidRequestError: the prompt is empty, or keep is out of range.
        ModelNotFoundError, HubError, FormatError, UnsupportedError, OutOfMemoryError: the scorer cannot be loaded.
    """
    ratio = KeepRatio.parse(keep)
    if not isinstance(prompt, str) or not prompt:
        raise InvalidRequestError("there is no prompt to compress: expected a text that is not empty")
    if not isinstance(scorer, Scorer):
        with Scorer(scorer) as loaded:
            return compress(prompt, scorer=loaded, keep=keep, anchors=anchors)
    scored = scorer.score(prompt)
    ranked = anchored(scored, *scorer.body_and_question(scored)) if anchors else scored
    count, n_tokens = TokenCounts(scored.starts), len(scored.ids)
    spans = spans_to_keep(ranked, count, ratio.at(n_tokens))
    text, kept_tokens = joined(prompt, spans), sum(map(count, spans))
    return CompressedPrompt(prompt, spans, scored.chunks(), text, kept_tokens, n_tokens, scorer.name)
