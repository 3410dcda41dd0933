"""Token ids of long prompts. A prompt that begins like an earlier one, such as the next turn of a conversation, is
encoded from its first difference on: text after a separator (Tokenizer.separators) does not depend on the text before
it, so the whole text has the same ids."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lucebox.errors import InvalidRequestError
from lucebox.text.ids import Ids
from lucebox.text.tokenizer import Tokenizer

__all__ = ["EncodedPrompts"]

MIN_CHARS = 1 << 12
"""Shorter prompts are encoded in about a millisecond."""
MAX_CHARS = 1 << 23
"""Characters of all kept prompts, which take about 50 MB: eight conversations of 256K tokens."""
NO_ENDS: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Prompt:
    text: str
    ids: Ids
    ends: NDArray[np.int64]
    n_ids: NDArray[np.int64]
    """ends, n_ids: [n_separators] characters and ids up to the end of each separator."""
    sender: str

    def n_shared(self, text: str) -> int:
        """How many separators the part has that begins both texts."""
        low, high, same = 0, len(self.ends), 0
        while low < high:
            middle = (low + high) // 2
            end = int(self.ends[middle])
            if self.text[same:end] == text[same:end]:
                low, same = middle + 1, end
            else:
                high = middle
        return low

    def shared_chars(self, n_shared: int) -> int:
        return int(self.ends[n_shared - 1]) if n_shared else 0


class EncodedPrompts:
    """The latest prompts of a model, with their ids. Safe to share between threads. Only prompts of one sender are
    compared, because the time of an answer would tell what others sent."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._latest: list[_Prompt] = []
        self._lock = threading.Lock()

    def ids(self, text: str, sender: str = "") -> Ids:
        """`Tokenizer.encode_marked` of a rendered chat template [n_tokens].

        Raises:
            InvalidRequestError: as encode_marked.
        """
        if len(text) < MIN_CHARS:
            return np.asarray(self._tokenizer.encode_marked(text), np.int32)
        with self._lock:
            earlier = [one for one in self._latest if one.sender == sender]
        shared = [(one, one.n_shared(text)) for one in earlier]
        known, n = max(shared, key=lambda pair: pair[0].shared_chars(pair[1]), default=(None, 0))
        prompt = self._continued(known, n, text) if known is not None and n > 0 else self._encoded(text, sender)
        # It takes the place of prompts that it shares the most of.
        replaced = {id(one) for one, n in shared if 4 * one.shared_chars(n) >= 3 * len(one.text)}
        with self._lock:
            self._latest = [one for one in self._latest if id(one) not in replaced] + [prompt]
            while sum(len(one.text) for one in self._latest) > MAX_CHARS:
                del self._latest[0]
        return prompt.ids

    def _continued(self, known: _Prompt, n: int, text: str) -> _Prompt:
        """The prompt of a text that shares n separators with a known one."""
        end, n_ids = int(known.ends[n - 1]), int(known.n_ids[n - 1])
        try:
            rest = self._encoded(text[end:], known.sender)
        except InvalidRequestError:
            return self._encoded(text, known.sender)  # the error has the place in the whole text
        return _Prompt(
            text,
            np.concatenate([known.ids[:n_ids], rest.ids]),
            np.concatenate([known.ends[:n], rest.ends + end]),
            np.concatenate([known.n_ids[:n], rest.n_ids + n_ids]),
            known.sender,
        )

    def _encoded(self, text: str, sender: str) -> _Prompt:
        ids = np.asarray(self._tokenizer.encode_marked(text), np.int32)
        separators = self._tokenizer.separators(set(ids.tolist()))
        places = np.flatnonzero(np.isin(ids, list(separators)))
        if sum(map(text.count, separators.values())) != len(places):  # another token has part of a spelling
            return _Prompt(text, ids, NO_ENDS, NO_ENDS, sender)
        ends, end = [], 0
        for i in ids[places].tolist():
            end = text.index(separators[i], end) + len(separators[i])
            ends.append(end)
        return _Prompt(text, ids, np.array(ends, np.int64), places + 1, sender)
