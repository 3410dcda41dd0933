"""Prompt compression in the APIs: the request field, and the response fields and header that report what was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import Field

from lucebox.compression.policy import CompressionRequest, Mode
from lucebox.generation.request import Finished
from lucebox.results import PromptCompression
from lucebox.serve.protocols.body import Body

__all__ = ["Compressible", "compression_field", "compression_header", "compression_of", "wants_spans"]

HEADER = "lucebox-compression"


class Compression(Body):
    """Lossy compression of a request's long messages. What is left out follows the server's flags."""

    mode: Mode | None = Field(None, description='"auto" compresses prompts of --prefill-threshold tokens or more.')
    keep_ratio: float | None = Field(None, gt=0, le=1, description="Share of the tokens of long messages to keep.")
    spans: bool | None = Field(None, description="List the kept spans of every cut message in the answer.")


class Compressible(Body):
    """A request whose prompt may be compressed."""

    compression: Compression | None = Field(None, description="lucebox: lossy compression of the prompt.")


def compression_of(body: Compressible) -> CompressionRequest | None:
    wanted = body.compression
    return None if wanted is None else CompressionRequest(wanted.mode, wanted.keep_ratio)


def wants_spans(body: Compressible) -> bool:
    return body.compression is not None and body.compression.spans is True


def compression_field(finished: Finished, with_spans: bool) -> dict[str, Any]:
    """The response field `compression`; empty if spans were not requested or nothing was cut."""
    record = finished.usage.compression
    if record is None or not with_spans:
        return {}
    messages = [
        {"index": one.index, "characters": one.n_characters, "spans": [list(span) for span in one.spans]}
        for one in record.cut
    ]
    return {
        "compression": {
            "scorer": record.scorer,
            "keep_ratio": record.keep_ratio,
            "original_tokens": record.original_tokens,
            "kept_tokens": record.kept_tokens,
            "messages": messages,
        }
    }


def compression_header(records: Sequence[PromptCompression | None]) -> Mapping[str, str]:
    """The response header of a compressed prompt, which all answers of a request share."""
    record = next(iter(records), None)
    if record is None:
        return {}
    facts = f"kept={record.kept_tokens}, original={record.original_tokens}, keep-ratio={record.keep_ratio:g}"
    return {HEADER: f"{facts}, scorer={quote(record.scorer, safe='')}"}
