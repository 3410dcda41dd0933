"""Log probabilities of given labels as the next text of one prompt. The prompt is computed once, as for an answer. Then
labels of several tokens share passes as token trees; none of their tokens stays in the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lucebox import _engine
from lucebox.errors import InvalidRequestError
from lucebox.results import LabelScore
from lucebox.text import Ids

__all__ = ["MAX_LABELS", "Labels"]

MAX_LABELS = 1024
MAX_TREE_ROWS = 64

PROMPT_ROW = -1


@dataclass(slots=True)
class _Tree:
    """The tokens of some labels but for each label's last token. Labels with a common beginning share its rows."""

    ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    reads: list[tuple[int, int, int]] = field(default_factory=list)
    """(label, row, token): the row's logits give the probability of this token of the label."""

    def add(self, label: int, ids: Sequence[int], max_rows: int) -> bool:
        """Adds a label. False, and no change: its rows do not fit."""
        rows = {(parent, token): row for row, (parent, token) in enumerate(zip(self.parents, self.ids, strict=True))}
        path, new = [PROMPT_ROW], list[tuple[int, int]]()
        for token in ids[:-1]:
            key = path[-1], token
            if key not in rows:
                rows[key] = len(self.ids) + len(new)
                new.append(key)
            path.append(rows[key])
        if len(self.ids) + len(new) > max_rows:
            return False
        self.parents += [parent for parent, _ in new]
        self.ids += [token for _, token in new]
        self.reads += [(label, row, token) for row, token in zip(path, ids, strict=True)]
        return True


class Labels:
    """The labels of one request, and their log probabilities once the request is computed."""

    def __init__(self, labels: Sequence[Ids], room: int) -> None:
        """labels: ids [n_tokens] of each. room: maximum rows of a pass after the prompt.

        Raises:
            InvalidRequestError: there are no labels or too many, or one is empty or has too many tokens.
        """
        if not 1 <= len(labels) <= MAX_LABELS:
            raise InvalidRequestError(f"there are {len(labels)} labels, expected 1 to {MAX_LABELS}")
        self.labels = [label.tolist() for label in labels]
        self.logprobs: NDArray[np.float64] = np.zeros(len(labels))
        """[n_labels] natural log probability of all tokens of each label."""
        self._trees = [_Tree()]
        max_rows = max(0, min(room, MAX_TREE_ROWS))
        for i, ids in enumerate(self.labels):
            if not 1 <= len(ids) <= max_rows + 1:
                raise InvalidRequestError(f"label {i} has {len(ids)} tokens, expected 1 to {max_rows + 1}")
            if not self._trees[-1].add(i, ids, max_rows):
                self._trees.append(_Tree())
                self._trees[-1].add(i, ids, max_rows)

    @property
    def n_rows(self) -> int:
        """Rows that are computed after the prompt."""
        return sum(len(tree.ids) for tree in self._trees)

    def scores(self, text_of: Callable[[Ids], str]) -> tuple[LabelScore, ...]:
        """The results, in the order given. text_of: the text of ids."""
        shares = np.exp(self.logprobs - self.logprobs.max())
        shares /= shares.sum()
        return tuple(
            LabelScore(text_of(np.array(ids, np.int32)), tuple(ids), float(logprob), float(share))
            for ids, logprob, share in zip(self.labels, self.logprobs, shares, strict=True)
        )

    def prefill(self, session: _engine.Session, prompt: Iterator[int], n_prompt: int) -> Iterator[int]:
        """Computes the prompt, then the labels. Yields the number of tokens done, like `prompt`, which yields n_prompt
        once the session holds the logits of the prompt's last token."""
        for done in prompt:
            if done == n_prompt:
                break
            yield done
        last = session.logits()
        self.logprobs[:] = 0
        for tree in self._trees:
            rows = {PROMPT_ROW: (last, _log_sum(last))}
            if tree.ids:
                yield n_prompt
                logits, _ = session.append(np.array(tree.ids, np.int32), tree.parents)
                session.commit([])
                rows |= {row: (values, _log_sum(values)) for row, values in enumerate(logits)}
                n_prompt += len(tree.ids)
            for label, row, token in tree.reads:
                values, log_sum = rows[row]
                self.logprobs[label] += float(values[token]) - log_sum
        yield n_prompt


def _log_sum(logits: NDArray[np.float32]) -> float:
    """logits: [vocab]. Returns the logarithm of the sum of their exponentials."""
    values = logits.astype(np.float64)
    top = values.max()
    return float(top + np.log(np.exp(values - top).sum()))
