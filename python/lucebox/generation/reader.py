"""Answers for callers in this process: complete, or as streams of chunks that are computed as they are read."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator

from lucebox.generation.answer import Answer
from lucebox.generation.events import ReasoningDelta, TextDelta
from lucebox.generation.request import Failed, Finished, GenerationRequest, Item, Sink
from lucebox.generation.scheduler import Scheduler
from lucebox.generation.sequence import Sequence
from lucebox.results import Chunk, Generation, TokenLogprob, ToolCall

__all__ = ["ChunkStream", "PromptProgress", "answers_of"]

# Called with the number of computed tokens of the prompt and with its length.
PromptProgress = Callable[[int, int], None]

MAX_UNREAD = 2  # chunks of a stream; beyond that, other threads' turns do not compute it further


class _Reader(Sink):
    """Collects the chunks and the result of one answer. One thread puts, another thread takes."""

    def __init__(
        self, request: GenerationRequest, news: list[None], *, keeps_chunks: bool, keeps_progress: bool
    ) -> None:
        """news: gets an entry for every progress report and for an error."""
        self.chunks: deque[Chunk] = deque()
        self.progress: deque[tuple[int, int]] = deque()
        self.result: Generation | None = None
        self.error: Exception | None = None
        self._has_logprobs = request.sampling.logprobs is not None
        self._news = news
        self._keeps_chunks = keeps_chunks
        self._keeps_progress = keeps_progress
        self._answer = Answer()
        self._items: list[Item] = []  # of the token in progress
        self._n_ids = 0  # ids already in chunks

    @property
    def is_full(self) -> bool:
        return len(self.chunks) >= MAX_UNREAD

    def put(self, item: Item) -> None:
        if isinstance(item, Failed):
            self.error = item.error
            self._news.append(None)
        elif isinstance(item, Finished):
            self._end_chunk(item.ids[self._n_ids :], item)
        else:
            self._items.append(item)

    def prefilled(self, done: int, total: int) -> None:
        if self._keeps_progress:
            self.progress.append((done, total))
            self._news.append(None)

    def end_token(self, id: int) -> None:
        self._end_chunk((id,), None)

    def report(self, on_prompt: PromptProgress) -> None:
        while self.progress:
            on_prompt(*self.progress.popleft())

    def _end_chunk(self, ids: tuple[int, ...], finished: Finished | None) -> None:
        items, self._items = self._items, []
        self._n_ids += len(ids)
        for item in items:
            self._answer.take(item)
        result = None if finished is None else self._generation(finished)
        if self._keeps_chunks:
            text = "".join(item.text for item in items if isinstance(item, TextDelta))
            reasoning = "".join(item.text for item in items if isinstance(item, ReasoningDelta))
            logprobs = tuple(item for item in items if isinstance(item, TokenLogprob)) or None
            self.chunks.append(Chunk(text, ids, logprobs, reasoning, result))
        self.result = result

    def _generation(self, finished: Finished) -> Generation:
        answer = self._answer
        return Generation(
            text=answer.text,
            ids=finished.ids,
            finish_reason="length" if finished.reason == "length" else "stop",
            usage=finished.usage,
            timings=finished.timings,
            logprobs=tuple(answer.logprobs) if self._has_logprobs else None,
            stop_string=finished.stop_string,
            reasoning=answer.reasoning,
            tool_calls=tuple(ToolCall(call.id, call.name, call.arguments, call.is_broken) for call in answer.calls),
            warnings=tuple(answer.warnings),
        )


def answers_of(
    scheduler: Scheduler, requests: list[GenerationRequest], on_prompt: PromptProgress | None = None
) -> list[Generation]:
    """The answers, in request order. This thread drives the scheduler unless another thread does."""
    news: list[None] = []
    readers = [_Reader(request, news, keeps_chunks=False, keeps_progress=on_prompt is not None) for request in requests]
    left = deque(readers)  # readers not known to be finished

    def is_ready() -> bool:
        while left and left[0].result is not None:
            left.popleft()
        return not left or bool(news)

    sequences = scheduler.submit(requests, readers)
    try:
        while left:
            scheduler.driver.run_until(is_ready)
            news.clear()
            for reader in readers:
                if on_prompt is not None:
                    reader.report(on_prompt)
                if reader.error is not None:
                    raise reader.error
    finally:
        scheduler.withdraw(sequences)
    return [reader.result for reader in readers if reader.result is not None]


class ChunkStream(Iterator[Chunk]):
    """The chunks of one answer; the last chunk carries the result. The answer begins at the first `next`, and pauses
    while MAX_UNREAD chunks are unread."""

    def __init__(
        self,
        scheduler: Scheduler,
        request: GenerationRequest,
        on_prompt: PromptProgress | None,
        check_usable: Callable[[], None],
    ) -> None:
        """check_usable: raises if the model may no longer be used."""
        self._scheduler = scheduler
        self._request = request
        self._on_prompt = on_prompt
        self._check_usable = check_usable
        self._news: list[None] = []
        self._reader = _Reader(request, self._news, keeps_chunks=True, keeps_progress=on_prompt is not None)
        self._sequence: Sequence | None = None
        self._is_over = self._is_cancelled = False

    def __next__(self) -> Chunk:
        if self._is_over:
            raise StopIteration
        try:
            return self._next()
        except BaseException:
            self.close()
            raise

    def _next(self) -> Chunk:
        self._check_usable()
        reader = self._reader
        if self._sequence is None:
            (self._sequence,) = self._scheduler.submit([self._request], [reader])
            if self._is_cancelled:
                self.cancel()
        while not reader.chunks:
            if reader.error is not None:
                raise reader.error
            self._scheduler.driver.run_until(lambda: bool(reader.chunks or self._news))
            self._news.clear()
            if self._on_prompt is not None:
                reader.report(self._on_prompt)
        was_full = reader.is_full
        chunk = reader.chunks.popleft()
        if was_full:
            self._scheduler.driver.notify()
        self._is_over = chunk.result is not None
        return chunk

    def cancel(self) -> None:
        """Thread-safe: makes `next` raise CancelledError after the current token or prefill chunk."""
        self._is_cancelled = True
        if self._sequence is not None:
            self._scheduler.cancel(self._sequence)

    def close(self) -> None:
        """Ends the answer and frees its session."""
        self._is_over = True
        if self._sequence is not None and not self._sequence.is_over:
            self._scheduler.withdraw([self._sequence])

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.close()
