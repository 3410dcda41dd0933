"""Shared by commands that load a model: opening it, and the status lines before and after."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from lucebox.api import LLM
from lucebox.chat.template import ChatTemplate
from lucebox.cli import console, options
from lucebox.errors import CancelledError
from lucebox.options import EngineOptions
from lucebox.results import Generation

__all__ = ["interrupted", "open_model", "opening_line", "read_template", "summary"]

interrupted = (KeyboardInterrupt, CancelledError)  # raised by Ctrl-C during a generation


@contextmanager
def open_model(args: argparse.Namespace) -> Iterator[LLM]:
    """The model of a command, opened with its engine flags; shows progress bars while it loads."""
    with console.loading() as progress:
        llm = LLM(args.model, **options.given(args, EngineOptions), offline=args.offline, progress=progress)
    with llm:
        yield llm


def read_template(args: argparse.Namespace, llm: LLM) -> ChatTemplate | None:
    """The chat template of --template; None: the model's own."""
    return None if args.template is None else llm.read_template(args.template)


def opening_line(llm: LLM) -> str:
    """One line about the model, its kernels and its memory, for the start of a command."""
    info, plan = llm.info, llm.memory_plan
    parts = (
        f"{info.name}: {info.architecture}, {console.quantity(info.n_params)} parameters",
        f"{llm.options.device}, {llm.kernels}",
        f"{console.size(plan.mapped_bytes)} mapped" if plan.mapped_bytes else "",
        f"{console.size(plan.total_bytes)} of {console.size(plan.available_bytes)} free memory",
        f"context {plan.context}",
        "" if llm.options.draft == "none" else f"draft {llm.draft_label}",
    )
    return " | ".join(part for part in parts if part)


def summary(result: Generation) -> str:
    """One line: `prompt 12 tokens (8 reused), 340.1 tok/s | answer 64 tokens, 160.2 tok/s | stop`. With drafts, the
    tokens per step follow the speed of the answer."""
    usage, timings = result.usage, result.timings
    reused = f" ({usage.cached_tokens} reused)" if usage.cached_tokens else ""
    per_step = f", {usage.tokens_per_step:.2f} tokens/step" if usage.drafts else ""
    return (
        f"prompt {usage.prompt_tokens} tokens{reused}, {timings.prefill_tok_s:,.1f} tok/s"
        f" | answer {usage.completion_tokens} tokens, {timings.decode_tok_s:,.1f} tok/s{per_step}"
        f" | {result.finish_reason}"
    )
