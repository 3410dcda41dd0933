"""Response parts shared by several protocols: usage, timings, log probabilities, comments."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from lucebox.generation.request import Finished, Progress, PromptToken
from lucebox.results import TokenLogprob
from lucebox.serve.errors import ApiError
from lucebox.serve.protocols.body import Body, Ignored
from lucebox.text import Tokenizer

__all__ = [
    "DONE",
    "LogprobWriter",
    "StreamOptions",
    "TextOffsets",
    "comment",
    "energy",
    "original_tokens",
    "predictions",
    "timings",
    "usage",
    "usage_so_far",
    "wants_progress",
    "wants_usage",
]


MIN_LOGPROB = -9999.0  # represents minus infinity, which JSON lacks
DONE = b"data: [DONE]\n\n"


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = Field(None, description="Usage so far in every chunk, as vLLM does.")
    include_obfuscation: Ignored = None


def wants_usage(options: StreamOptions | None) -> bool:
    return options is not None and options.include_usage is True


def wants_progress(options: StreamOptions | None) -> bool:
    """Whether every chunk is to have the usage so far.

    Raises:
        ApiError: without usage at the end.
    """
    if options is None or not options.continuous_usage_stats:
        return False
    if not options.include_usage:
        name = "stream_options.continuous_usage_stats"
        raise ApiError("invalid", "continuous_usage_stats needs include_usage", name)
    return True


def usage_so_far(progress: Progress | None) -> dict[str, int] | None:
    if progress is None:
        return None
    prompt, completion = progress.prompt_tokens, progress.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def usage(finished: Sequence[Finished], n: int) -> dict[str, Any]:
    """Usage of several answers, n consecutive ones per prompt. A prompt counts once. Its cached tokens are its first
    answer's, because the other answers reuse the prompt that the first one computed."""
    prompt = sum(f.usage.prompt_tokens for f in finished[::n])
    completion = sum(f.usage.completion_tokens for f in finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(f.usage.cached_tokens for f in finished[::n]),
            **original_tokens(finished[0], "original_tokens"),
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum(f.reasoning_tokens for f in finished),
            **predictions(finished),
        },
        **energy(finished),
    }


def original_tokens(finished: Finished, name: str) -> dict[str, int]:
    """Token count of the prompt before compression, under this name; empty if nothing was cut."""
    record = finished.usage.compression
    return {} if record is None else {name: record.original_tokens}


def energy(finished: Sequence[Finished]) -> dict[str, float]:
    """lucebox's own fields of usage: joules, and generated tokens per joule; empty if an answer's energy is unknown."""
    known = [f.usage.joules for f in finished if f.usage.joules is not None]
    if len(known) < len(finished):
        return {}
    tokens, joules = sum(f.usage.completion_tokens for f in finished), sum(known)
    return {"energy_joules": round(joules, 3), "tokens_per_joule": round(tokens / joules, 4)}


def predictions(finished: Sequence[Finished]) -> dict[str, int]:
    """Accepted and rejected drafted tokens, under OpenAI's names for predicted outputs."""
    drafts = [f.usage.drafts for f in finished if f.usage.drafts is not None]
    drafted, accepted = sum(d.drafted_tokens for d in drafts), sum(d.accepted_tokens for d in drafts)
    return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": drafted - accepted}


def timings(finished: Finished) -> dict[str, float]:
    """lucebox's own field: times in milliseconds and speeds; with drafts, their counts too."""
    times, usage = finished.timings, finished.usage
    result: dict[str, float] = {
        "queue_ms": round(1e3 * finished.queue_s, 2),
        "prefill_ms": round(1e3 * times.prefill_s, 2),
        "decode_ms": round(1e3 * times.decode_s, 2),
        "prefill_tokens_per_second": round(times.prefill_tok_s, 2),
        "decode_tokens_per_second": round(times.decode_tok_s, 2),
    }
    if usage.compression is not None:
        result["compression_ms"] = round(1e3 * usage.compression.score_s, 2)
    if usage.drafts is not None:
        result |= {
            "verifies": usage.drafts.verifies,
            "drafted_tokens": usage.drafts.drafted_tokens,
            "accepted_tokens": usage.drafts.accepted_tokens,
            "tokens_per_step": round(usage.tokens_per_step, 3),
        }
    return result


def comment(text: str) -> bytes:
    """A server-sent comment, which clients skip."""
    return b": " + " ".join(text.split()).encode("utf-8", "replace") + b"\n\n"


class TextOffsets:
    """The positions of an answer's tokens in its text. A token that continues a character has the position of that
    character."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_chars = 0

    def push(self, data: bytes) -> int:
        start = self._n_chars
        self._n_chars += len(self._decoder.decode(data))
        return start


class LogprobWriter:
    """Formats log probabilities with the text of their tokens, and with token ids if the protocol has them."""

    def __init__(self, tokenizer: Tokenizer, *, with_ids: bool = False) -> None:
        self._tokenizer = tokenizer
        self._with_ids = with_ids

    def chat(self, tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return [
            {**self._entry(t.id, t.logprob), "top_logprobs": [self._entry(id, value) for id, value in t.top]}
            for t in tokens
        ]

    def completion(self, tokens: Sequence[PromptToken | TokenLogprob], offsets: TextOffsets) -> dict[str, Any]:
        """The first token of a prompt has no log probability: null."""
        return {
            "tokens": [self._text(t.id) for t in tokens],
            "token_logprobs": [None if t.logprob is None else max(t.logprob, MIN_LOGPROB) for t in tokens],
            "top_logprobs": [
                None if t.logprob is None else {self._text(id): max(value, MIN_LOGPROB) for id, value in t.top}
                for t in tokens
            ],
            "text_offset": [offsets.push(self._tokenizer.token_bytes(t.id)) for t in tokens],
        }

    def _text(self, token_id: int) -> str:
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def _entry(self, token_id: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token_id)
        entry = {"token": data.decode("utf-8", "replace"), "logprob": max(logprob, MIN_LOGPROB), "bytes": list(data)}
        return {"id": token_id, **entry} if self._with_ids else entry
