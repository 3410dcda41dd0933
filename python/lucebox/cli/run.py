"""`lucebox run`: streams the continuation of a prompt, or the answer to it, to stdout."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lucebox.cli import console, options
from lucebox.cli.session import (
    check_files,
    fresh_seed,
    interrupted,
    keywords_of_chat,
    open_model,
    opening_line,
    read_template,
    recommended_sampling,
    sampling_line,
    summary,
)
from lucebox.errors import InvalidRequestError
from lucebox.local_files import json_object, read_text
from lucebox.options import EngineOptions, Sampling
from lucebox.results import Chunk, FinishReason, Generation

if TYPE_CHECKING:
    from lucebox.api import LLM
    from lucebox.generation.reader import PromptProgress

DESCRIPTION = """Stream the continuation of PROMPT, or with --chat the answer to it.

A continuation is greedy by default and has at most 256 tokens unless --max-tokens is given. An answer is sampled as
the model's makers recommend, with a fresh seed, which is printed; it ends at the model's end token. Ctrl-C ends the
text with exit code 130."""
JSON_HELP = "print one JSON object with text, ids, usage, timings and finish reason after the text has ended"


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "run",
        usage="lucebox run MODEL [PROMPT] [flags]",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser)
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", help='the text; "-" or no PROMPT reads stdin')
    parser.add_argument(
        "--image",
        metavar="FILE",
        action="append",
        default=[],
        help="an image before PROMPT: PNG, JPEG or WebP; implies --chat. May be given more than once.",
    )
    parser.add_argument("--chat", action="store_true", help="send PROMPT as a user message through the chat template")
    options.add_chat(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print only the text")
    form = parser.add_argument_group("form of the text", "one of them; needs llguidance").add_mutually_exclusive_group()
    form.add_argument("--json-object", action="store_true", help="any JSON object")
    form.add_argument("--json-schema", metavar="FILE", help="JSON that follows the schema in this file")
    form.add_argument("--regex", metavar="TEXT", help="a text that this regular expression matches as a whole")
    form.add_argument("--grammar", metavar="FILE", help="a text of the Lark grammar in this file")
    options.add_sampling(parser)
    options.add_engine(parser)
    return parser


def execute(args: argparse.Namespace) -> int:
    args.chat = args.chat or bool(args.image)
    check_files(*args.image)
    if not args.chat:
        for name in ("system", "template", "thinking", "reasoning_effort", "chat_template_kwargs"):
            if getattr(args, name) is not None:
                args.parser.error(f"--{name.replace('_', '-')} needs --chat")
        if hasattr(args, "prefill_compression"):
            args.parser.error("--prefill-compression needs --chat: only the messages of conversations are compressed")
    check_files(args.template)
    given = options.given(args, Sampling)
    Sampling(**given).check()  # before a model loads
    EngineOptions(**options.given(args, EngineOptions))
    chat_keywords = keywords_of_chat(args)
    form = response_format(args)
    prompt = read_prompt(args.prompt)
    with open_model(args) as llm:
        template = read_template(args, llm)
        sampling, source = Sampling(**given), ""
        if args.chat:
            from lucebox.chat.profiles import with_fields

            recommended, source = recommended_sampling(llm, args, template)
            sampling = with_fields(recommended, given)
        sampling = fresh_seed(sampling)
        if not args.quiet:
            console.note(opening_line(llm))
            if sampling.temperature or args.chat:
                console.note(f"sampling: {sampling_line(sampling, source)}")
        ids: list[int] = []
        pieces: list[str] = []
        result: Generation | None = None
        was_reasoning = False
        try:
            with console.reading() as on_prompt:
                keywords = {**chat_keywords, "template": template}
                for chunk in start(llm, prompt, sampling, args, keywords, form, on_prompt):
                    pieces.append(chunk.text)
                    ids += chunk.ids
                    result = chunk.result or result
                    if args.quiet and not args.json:
                        console.write(chunk.text)
                    elif not args.json:
                        was_reasoning = console.write_chunk(chunk, was_reasoning)
        except interrupted:
            result = None

        reason: FinishReason = result.finish_reason if result else "cancelled"
        if args.json:
            console.print_json(
                {
                    "model": llm.info.name,
                    "text": "".join(pieces),
                    "reasoning": result.reasoning if result else "",
                    "ids": ids,
                    "finish_reason": reason,
                    "stop_string": result and result.stop_string,
                    "seed": sampling.seed if sampling.temperature else None,
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


def response_format(args: argparse.Namespace) -> Mapping[str, Any] | None:
    """The form that a flag asks for, as the API takes it.

    Raises:
        InvalidRequestError: a file cannot be read, or its schema is not a JSON object.
    """
    if args.json_object:
        return {"type": "json_object"}
    if args.regex is not None:
        return {"type": "regex", "regex": args.regex}
    if args.grammar is not None:
        return {"type": "grammar", "grammar": read_text(args.grammar)}
    if args.json_schema is None:
        return None
    schema = json_object(read_text(args.json_schema), args.json_schema)
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def read_prompt(given: str | None) -> str:
    """The prompt argument, or stdin without its final newline."""
    if given is not None and given != "-":
        if any("\udc80" <= char <= "\udcff" for char in given):  # how Python marks bytes that it cannot decode
            raise InvalidRequestError("PROMPT is not UTF-8 text; give it in the terminal's encoding, or through stdin")
        return given
    if console.stdin_is_terminal():
        console.note("reading the prompt; end it with Ctrl-D on an empty line")
    return console.read_stdin().removesuffix("\n")


def start(
    llm: LLM,
    prompt: str,
    sampling: Sampling,
    args: argparse.Namespace,
    keywords: dict[str, Any],
    form: Mapping[str, Any] | None,
    on_prompt: PromptProgress,
) -> Iterator[Chunk]:
    if not args.chat:
        return llm.generate(prompt, sampling, stream=True, response_format=form, on_prompt=on_prompt)
    images = [{"type": "image", "image": file} for file in args.image]
    content = [*images, {"type": "text", "text": prompt}] if images else prompt
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if args.system is not None:
        messages.insert(0, {"role": "system", "content": args.system})
    return llm.chat(messages, sampling, stream=True, response_format=form, on_prompt=on_prompt, **keywords)


def with_rates(result: Generation) -> dict[str, float]:
    timings = result.timings
    return {
        **dataclasses.asdict(timings),
        "prefill_tok_s": timings.prefill_tok_s,
        "decode_tok_s": timings.decode_tok_s,
        "tokens_per_step": result.usage.tokens_per_step,
    }
