"""Anchors: chunks that repeat words of the question. They come first whatever their scores are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lucebox.compression.scores import CHUNK, ChunkScore
from lucebox.generation import Ids

__all__ = ["anchored"]

GRAM = 4  # tokens that must match
TIERS = ((1024, 2, 8), (2048, 4, 16), (1 << 62, 8, 32))
"""(chunks of the text, below; chunks kept on either side of a match; matches of a gram that tells nothing, above)"""


def anchored(chunks: Sequence[ChunkScore], ids: Ids, question: Ids) -> tuple[ChunkScore, ...]:
    """The chunks of a text with token ids [n_tokens]; those near a run of GRAM tokens of the question [n_question] get
    1 added to their scores, which puts them before all others. Runs that occur often do not count."""
    _, radius, max_hits = next(tier for tier in TIERS if len(chunks) < tier[0])
    is_near = np.zeros(len(chunks), bool)
    n_places = len(ids) - GRAM + 1
    for gram in {tuple(question[at : at + GRAM]) for at in range(len(question) - GRAM + 1)} if n_places > 0 else ():
        matches = np.all([ids[i : i + n_places] == gram[i] for i in range(GRAM)], axis=0)
        hits = np.flatnonzero(matches) // CHUNK
        if len(hits) <= max_hits:
            for hit in hits:
                is_near[max(0, hit - radius) : hit + radius + 1] = True
    return tuple(
        replace(chunk, score=chunk.score + 1) if near else chunk for chunk, near in zip(chunks, is_near, strict=True)
    )
