"""Anchors: places where the text repeats words of the question. They are kept first, whatever their scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lucebox.compression.scores import CHUNK, ScoredText
from lucebox.text import Ids

__all__ = ["anchored"]

GRAM = 4  # tokens that must match
# (upper bound of the text's length in chunks; chunks around a match that count as anchors; most matches of an n-gram)
TIERS = ((1024, 2, 8), (2048, 4, 16), (1 << 62, 8, 32))


def anchored(scored: ScoredText, body: Ids, question: Ids) -> ScoredText:
    """The text with 1 added to the scores near anchors, which puts them before all others.

    An anchor is an n-gram of GRAM tokens of the question [n_question] that occurs in the body [n_body], the leading
    tokens of the text. Frequent n-grams do not count (TIERS).
    """
    n_chunks = -(-len(scored.ids) // CHUNK)
    _, radius, max_hits = next(tier for tier in TIERS if n_chunks < tier[0])
    is_near = np.zeros(len(scored.ids), bool)
    n_places = max(0, len(body) - GRAM + 1)
    for gram in {tuple(question[at : at + GRAM]) for at in range(len(question) - GRAM + 1)}:
        hits = np.flatnonzero(np.all([body[i : i + n_places] == gram[i] for i in range(GRAM)], axis=0))
        for hit in hits if len(hits) <= max_hits else ():
            chunk = hit // CHUNK
            is_near[max(0, chunk - radius) * CHUNK : (chunk + radius + 1) * CHUNK] = True
    return replace(scored, scores=scored.scores + is_near)
