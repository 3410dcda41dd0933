"""`lucebox chat`: a conversation in the terminal, or one message per line of piped input."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lucebox.api import LLM
from lucebox.cli import console, options
from lucebox.cli.recommended import recommended_sampling
from lucebox.cli.session import interrupted, open_model, opening_line, read_template, summary
from lucebox.errors import InvalidRequestError, LuceboxError
from lucebox.options import Sampling
from lucebox.results import Generation

DESCRIPTION = """Talk with a model. A line that starts with / is a command; /help lists them.

Ctrl-C stops an answer; Ctrl-D or /exit leaves. Piped input is read as one message per line. Answers go to stdout,
everything else to stderr. Sampling starts from the model's own recommendation (generation_config.json or the GGUF
file), else temperature 0.7 and top-p 0.9; flags and /set change it."""
JSON_HELP = "print one JSON object per answer, one per line"

PROMPT = "> "


def add_parser(commands: options.Subparsers) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "chat",
        usage="lucebox chat MODEL [flags]",
        help="talk with a model",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_model(parser)
    options.add_chat(parser)
    options.add_sampling(parser)
    options.add_engine(parser)
    return parser


def execute(args: argparse.Namespace) -> int:
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    with open_model(args) as llm:
        recommended, source = recommended_sampling(llm)
        sampling = dataclasses.replace(recommended, **options.given(args, Sampling))
        chat = Chat(llm, sampling, args)
        if is_interactive:
            console.note(f"{opening_line(llm)}\nsampling: {source}; /help lists the commands, Ctrl-D leaves")
        read = LineReader(is_interactive)
        while (line := read()) is not None:
            try:
                if line.startswith("/"):
                    if not chat.command(line):
                        break
                elif line:
                    chat.answer(line)
            except (LuceboxError, OSError) as error:
                if not is_interactive:
                    raise
                console.error(str(error))
    return 0


class LineReader:
    """Lines of input, None at the end. In a terminal with editing and history."""

    def __init__(self, is_interactive: bool) -> None:
        self._is_interactive = is_interactive
        if is_interactive:
            with suppress(ImportError):  # Windows: its console has both
                import readline  # noqa: F401  gives input() editing and history

    def __call__(self) -> str | None:
        while True:
            try:
                if self._is_interactive:
                    return input(PROMPT).strip()
                line = sys.stdin.readline()
                return line.strip() if line else None
            except EOFError:
                console.note("")
                return None
            except KeyboardInterrupt:
                if not self._is_interactive:
                    raise
                console.note("")  # discard the typed line


class Chat:
    """The messages so far, and the options of the next answer."""

    def __init__(self, llm: LLM, sampling: Sampling, args: argparse.Namespace) -> None:
        self.llm = llm
        self.sampling = sampling
        self.args = args
        self.template = read_template(args, llm)
        self.system: str | None = args.system
        self.turns: list[dict[str, str]] = []  # alternately user and assistant
        self.last: Generation | None = None
        self.commands: dict[str, Callable[[str], None]] = {
            "help": self.help,
            "reset": self.reset,
            "system": self.set_system,
            "undo": self.undo,
            "save": self.save,
            "load": self.load,
            "set": self.set_option,
            "stats": self.stats,
        }

    @property
    def messages(self) -> list[dict[str, str]]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return system + self.turns

    def answer(self, text: str) -> None:
        """Streams the answer to a user message. After Ctrl-C, the text so far stays in the conversation."""
        question = {"role": "user", "content": text}
        pieces: list[str] = []
        self.last = None
        stream = self.llm.chat(
            [*self.messages, question],
            self.sampling,
            stream=True,
            enable_thinking=self.args.thinking,
            template=self.template,
        )
        try:
            for chunk in stream:
                pieces.append(chunk.text)
                self.last = chunk.result or self.last
                if not self.args.json:
                    console.write(chunk.text)
        except interrupted:
            pass
        content = "".join(pieces)
        self.turns += [question, {"role": "assistant", "content": content}]
        if self.args.json:
            last = self.last
            reason = last.finish_reason if last else "cancelled"
            answer = {"content": content, "finish_reason": reason, "usage": last and last.usage}
            console.print_json(answer | {"timings": last and last.timings})
        else:
            console.write("\n")
            if self.last is None:
                console.note("interrupted")

    def command(self, line: str) -> bool:
        """Executes a /command; False: it ends the conversation."""
        name, _, rest = line[1:].partition(" ")
        if name in ("exit", "quit"):
            return False
        if name not in self.commands:
            raise InvalidRequestError(f"no command /{name}; /help lists them")
        self.commands[name](rest.strip())
        return True

    def help(self, _: str) -> None:
        """list the commands"""
        for name, act in self.commands.items():
            console.note(f"/{name:8} {act.__doc__}")
        console.note("/exit     leave")

    def reset(self, _: str) -> None:
        """forget the conversation; the system message stays"""
        self.turns.clear()
        self.llm.reset()

    def set_system(self, text: str) -> None:
        """TEXT: replace the system message from the next answer on; no TEXT removes it"""
        self.system = text or None

    def undo(self, _: str) -> None:
        """take back the last message and its answer"""
        if not self.turns:
            raise InvalidRequestError("there is nothing to take back")
        del self.turns[-2:]

    def save(self, path: str) -> None:
        """FILE: write the conversation as JSON"""
        if not path:
            raise InvalidRequestError("/save needs a file name")
        text = json.dumps({"model": self.llm.info.name, "messages": self.messages}, ensure_ascii=False, indent=2)
        Path(path).expanduser().write_text(text + "\n", encoding="utf-8")
        console.note(f"saved {len(self.messages)} messages to {path}")

    def load(self, path: str) -> None:
        """FILE: continue a conversation written by /save"""
        if not path:
            raise InvalidRequestError("/load needs a file name")
        self.system, self.turns = read_conversation(Path(path).expanduser())
        console.note(f"loaded {len(self.messages)} messages from {path}")

    def set_option(self, text: str) -> None:
        """NAME=VALUE: change a sampling option; without it, show all options"""
        if not text:
            for field in dataclasses.fields(Sampling):
                console.note(f"{field.name} = {getattr(self.sampling, field.name)!r}")
            return
        name, separator, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not separator:
            raise InvalidRequestError(f"expected /set NAME=VALUE, got {text!r}")
        parsed = options.parse_field(Sampling, name, value.strip())
        self.sampling = dataclasses.replace(self.sampling, **{name: parsed})

    def stats(self, _: str) -> None:
        """tokens and speed of the last answer"""
        console.note(summary(self.last) if self.last else "no answer has finished yet")


def read_conversation(path: Path) -> tuple[str | None, list[dict[str, str]]]:
    """The system message and the turns of a saved conversation.

    Raises:
        InvalidRequestError: the file has no conversation.
    """
    try:
        messages: Any = json.loads(path.read_text(encoding="utf-8"))["messages"]
        turns = [{"role": str(m["role"]), "content": str(m["content"])} for m in messages]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequestError(f"{path} does not hold a saved conversation: {error!r}") from error
    system = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else None
    expected = ["user", "assistant"] * (len(turns) // 2)
    found = [turn["role"] for turn in turns]
    if found != expected:
        raise InvalidRequestError(f"{path}: expected user and assistant messages in turn, found {', '.join(found)}")
    return system, turns
