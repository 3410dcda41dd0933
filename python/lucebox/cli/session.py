"""Shared by commands that load a model: opening it, the sampling of a conversation, and the status lines before and
after."""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lucebox.cli import console, options
from lucebox.cli.interrupts import importing
from lucebox.errors import CancelledError, InvalidRequestError
from lucebox.local_files import json_object
from lucebox.models.memory import ExpertPlan
from lucebox.options import EngineOptions, Sampling
from lucebox.results import Generation
from lucebox.sizes import show_size

if TYPE_CHECKING:
    from lucebox.api import LLM
    from lucebox.chat.template import ChatTemplate

__all__ = [
    "check_files",
    "fresh_seed",
    "interrupted",
    "keywords_of_chat",
    "open_model",
    "opening_line",
    "read_template",
    "recommended_sampling",
    "sampling_line",
    "show_notes",
    "summary",
]

interrupted = (KeyboardInterrupt, CancelledError)  # raised by Ctrl-C during a generation
SEED_BITS = 32  # short enough to type


@contextmanager
def open_model(args: argparse.Namespace, prefix_cache: str | int = 0, sessions: int = 1) -> Iterator[LLM]:
    """The model of a command, opened with its engine flags; shows progress bars while it loads.

    prefix_cache: its size, for a command with several prompts.
    sessions: that the KV cache is to have room for.
    """
    with importing():
        from lucebox.api import LLM
    with console.loading() as progress:
        flags = options.given(args, EngineOptions)
        flags["sessions"] = sessions
        flags["prefix_cache"] = prefix_cache  # overrides the flag of this name, which is for a server's slots
        llm = LLM(args.model, **flags, offline=args.offline, progress=progress)
    show_notes(llm)
    with llm:
        yield llm


def show_notes(llm: LLM) -> None:
    """Writes a line per GPU that could make the model faster, and per ignored part of the model's files."""
    for text in (*llm.unused_gpus, *llm.notes):
        console.note(f"note: {text}")


def check_files(*paths: str | None) -> None:
    """Checks that files named by flags can be read, before a model loads.

    Raises:
        InvalidRequestError: a file is absent or a folder.
    """
    for path in paths:
        if path is not None and (not Path(path).exists() or Path(path).is_dir()):  # a pipe is fine
            raise InvalidRequestError(f"{path} is not a file here")


def read_template(args: argparse.Namespace, llm: LLM) -> ChatTemplate | None:
    """The chat template of --template; None: the model's own."""
    return None if args.template is None else llm.read_template(args.template)


def keywords_of_chat(args: argparse.Namespace) -> dict[str, Any]:
    """The keywords of `LLM.chat` that the template reads.

    Raises:
        InvalidRequestError: --chat-template-kwargs is not a JSON object.
    """
    variables = None
    if args.chat_template_kwargs is not None:
        variables = json_object(args.chat_template_kwargs, "--chat-template-kwargs")
    return {
        "enable_thinking": args.thinking,
        "reasoning_effort": args.reasoning_effort,
        "chat_template_kwargs": variables,
    }


def recommended_sampling(llm: LLM, args: argparse.Namespace, template: ChatTemplate | None) -> tuple[Sampling, str]:
    """The default sampling of an answer with these flags, and its source."""
    keywords = keywords_of_chat(args)
    if keywords.pop("reasoning_effort") == "none":
        keywords["enable_thinking"] = False
    return llm.recommended_sampling(**keywords, template=template)


def fresh_seed(sampling: Sampling) -> Sampling:
    """The sampling with a random seed, unless it is greedy or has one."""
    if sampling.temperature == 0 or sampling.seed is not None:
        return sampling
    return replace(sampling, seed=secrets.randbits(SEED_BITS))


def sampling_line(sampling: Sampling, source: str = "") -> str:
    """The fields that differ from greedy decoding, and who recommends them: "temperature 0.7, seed 5 (lucebox)"."""
    shown = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "frequency_penalty",
             "presence_penalty", "penalty_window", "seed")  # fmt: skip
    values = [(name, getattr(sampling, name)) for name in shown if getattr(sampling, name) != getattr(Sampling(), name)]
    line = (
        ", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values)
        or "greedy"
    )
    if not source:
        return line
    if source.startswith("lucebox"):
        return f"{line} (the default of lucebox)"
    advisers = "the model's own files" if source.startswith("the model's own files") else "the makers of the model"
    return f"{line} (as {advisers} advise)"


def scorer_part(llm: LLM) -> str:
    if llm.compressor is None:
        return ""
    scorer = llm.compressor.scorer
    return f"scorer {scorer.name}{' (swapped with the model)' if scorer.is_swapped else ''}"


def experts_part(experts: ExpertPlan | None) -> str:
    if experts is None or not experts.host_bytes:
        return ""
    return f"{experts.slots} of {experts.experts} experts of each layer, {show_size(experts.host_bytes)} in host memory"


def opening_line(llm: LLM, sessions: int = 1) -> str:
    """One line about the model, its kernels and the memory with this many sessions, for the start of a command."""
    info, plan, links = llm.info, llm.memory_plan, llm.model.device.links
    parts = (
        f"{info.name}: {info.architecture}, {console.quantity(info.n_params)} parameters",
        f"{llm.options.device}, {llm.kernels}",
        f"link {', '.join(map(str, links))}" if links else "",
        f"{show_size(plan.mapped_bytes)} mapped" if plan.mapped_bytes else "",
        f"{show_size(plan.bytes_with(sessions))} of {show_size(plan.available_bytes)} free memory",
        f"context {plan.context}",
        experts_part(plan.experts),
        "" if llm.options.draft == "none" else f"draft {llm.draft_label}",
        llm.draft_reason,
        llm.model.path_reason,
        scorer_part(llm),
        f"block-sparse prompts ({llm.options.sparse_prefill:g})" if llm.options.sparse_prefill else "",
    )
    return " | ".join(part for part in parts if part)


def summary(result: Generation) -> str:
    """One line: `prompt 12 tokens (8 reused), 340.1 tok/s | answer 64 tokens, 160.2 tok/s | stop`. With drafts, the
    tokens per step follow the speed of the answer; a compressed prompt is `prompt 12 of 240 tokens`. With experts in
    host memory, the share of the experts that were on the device follows."""
    usage, timings = result.usage, result.timings
    reused = f" ({usage.cached_tokens} reused)" if usage.cached_tokens else ""
    original = "" if usage.compression is None else f" of {usage.compression.original_tokens}"
    copied = ""
    if usage.experts is not None:
        copied = (
            f" | {usage.experts.hit_rate:.1%} of experts on the device, {show_size(usage.experts.link_bytes)} copied"
        )
    per_step = f", {usage.tokens_per_step:.2f} tokens/step" if usage.drafts else ""
    speed = f", {timings.decode_tok_s:,.1f} tok/s" if timings.decode_tokens else ""
    return (
        f"prompt {usage.prompt_tokens}{original} tokens{reused}, {timings.prefill_tok_s:,.1f} tok/s"
        f" | answer {usage.completion_tokens} tokens{speed}{per_step}"
        f"{copied} | {result.finish_reason}"
    )
