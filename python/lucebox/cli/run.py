"""`lucebox run`: streams the continuation of a prompt, or the answer to it, to stdout."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator

from lucebox.api import LLM
from lucebox.cli import console, options
from lucebox.cli.session import interrupted, open_model, opening_line, read_template, summary
from lucebox.options import Sampling
from lucebox.results import Chunk, FinishReason, Generation

DESCRIPTION = """Stream the continuation of PROMPT, or with --chat the answer to it.

Decoding is greedy by default. A continuation has at most 256 tokens unless --max-tokens is given; an answer ends at
the model's end token. Ctrl-C ends the text with exit code 130."""
JSON_HELP = "print one JSON object with text, ids, usage, timings and finish reason after the text has ended"

CONTINUATION_MAX_TOKENS = 256  # a continuation may never reach an end token


def add_parser(commands: options.Subparsers) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "run",
        usage="lucebox run MODEL [PROMPT] [flags]",
        help="stream the continuation of a prompt",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help='the text; "-" or no PROMPT reads stdin')
    parser.add_argument("--chat", action="store_true", help="send PROMPT as a user message through the chat template")
    options.add_chat(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the text")
    options.add_sampling(parser)
    options.add_engine(parser)
    return parser


def execute(args: argparse.Namespace) -> int:
    if not args.chat:
        for flag, value in (("--system", args.system), ("--template", args.template), ("--thinking", args.thinking)):
            if value is not None:
                args.parser.error(f"{flag} needs --chat")
    prompt = read_prompt(args.prompt)
    with open_model(args) as llm:
        if not args.quiet:
            console.note(opening_line(llm))
        pieces: list[str] = []
        ids: list[int] = []
        result: Generation | None = None
        try:
            for chunk in start(llm, prompt, args):
                pieces.append(chunk.text)
                ids += chunk.ids
                result = chunk.result or result
                if not args.json:
                    console.write(chunk.text)
        except interrupted:
            result = None

        reason: FinishReason = result.finish_reason if result else "cancelled"
        if args.json:
            console.print_json(
                {
                    "model": llm.info.name,
                    "text": "".join(pieces),
                    "ids": ids,
                    "finish_reason": reason,
                    "usage": result and result.usage,
                    "timings": result and with_rates(result),
                    "logprobs": result and result.logprobs,
                }
            )
        else:
            console.write("\n")
        if not args.quiet:
            console.note(summary(result) if result else "interrupted")
    return 130 if reason == "cancelled" else 0


def read_prompt(given: str | None) -> str:
    """The prompt argument, or stdin without its final newline."""
    if given is not None and given != "-":
        return given
    if sys.stdin.isatty():
        console.note("reading the prompt; end it with Ctrl-D on an empty line")
    return sys.stdin.read().removesuffix("\n")


def start(llm: LLM, prompt: str, args: argparse.Namespace) -> Iterator[Chunk]:
    flags = options.given(args, Sampling)
    if not args.chat:
        return llm.generate(prompt, Sampling(**{"max_tokens": CONTINUATION_MAX_TOKENS, **flags}), stream=True)
    messages = [{"role": "user", "content": prompt}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": args.system})
    template = read_template(args, llm)
    return llm.chat(messages, Sampling(**flags), stream=True, enable_thinking=args.thinking, template=template)


def with_rates(result: Generation) -> dict[str, float]:
    timings = result.timings
    return {
        **dataclasses.asdict(timings),
        "prefill_tok_s": timings.prefill_tok_s,
        "decode_tok_s": timings.decode_tok_s,
        "tokens_per_step": result.usage.tokens_per_step,
    }
