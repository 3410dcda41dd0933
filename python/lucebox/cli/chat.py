"""`lucebox chat`: a conversation in the terminal, or one message per line of piped input."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
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
    show_notes,
    summary,
)
from lucebox.errors import InvalidRequestError, LuceboxError
from lucebox.images import image_of
from lucebox.local_files import json_object, read_text
from lucebox.names import did_you_mean
from lucebox.options import EngineOptions, Sampling
from lucebox.results import Generation

if TYPE_CHECKING:
    from lucebox.api import LLM

DESCRIPTION = """Talk with a model. A line that starts with a known /command is one; /help lists them.

A message of several lines: paste it, end lines with \\, or put it between lines of \"\"\", where / begins no command.
Ctrl-C stops an answer; Ctrl-D or /exit leaves. Piped input is read as one message per line. Answers go to stdout,
everything else to stderr. Sampling is what the model's files state, else what its makers recommend, else temperature
0.7 and top-p 0.9; flags and /set change it. The seed is fresh each time and printed; the answers of a conversation
count up from it."""
JSON_HELP = "print one JSON object per answer, one per line"

PROMPT = "> "
MORE = ". "
QUOTES = '"""'
HISTORY_LINES = 1000
LEAVE = ("exit", "quit")


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "chat",
        usage="lucebox chat MODEL [flags]",
        help=about,
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
    is_interactive = console.stdin_is_terminal() and sys.stdout.isatty()
    check_files(args.template)
    given = options.given(args, Sampling)
    Sampling(**given).check()  # before a model loads
    EngineOptions(**options.given(args, EngineOptions))
    keywords_of_chat(args)
    with open_model(args, EngineOptions().prefix_cache) as llm, LineReader(is_interactive) as read:
        chat = Chat(llm, given, args)
        if is_interactive:
            console.note(
                f"{opening_line(llm)}\nsampling: {chat.sampling_note}\n/help lists the commands, Ctrl-D leaves"
            )
        failed = False
        while True:
            is_command = False
            try:
                line = read()
                if line is None:
                    break
                is_command = chat.is_command(line)
                if is_command and not chat.command(line.text):
                    break
                if line.text and not is_command:
                    chat.answer(line.text)
            except interrupted:  # Ctrl-C before an answer has begun, or a second time
                if not is_interactive:
                    raise
                console.note("interrupted")
            except (LuceboxError, OSError) as error:
                if not is_interactive and not is_command:
                    raise
                console.error(str(error))
                failed = True
    return 1 if failed and not is_interactive else 0


@dataclass(frozen=True, slots=True)
class Line:
    """A message or a command."""

    text: str
    is_quoted: bool = False
    """Whether it stood between quotation marks, so that it is no command."""


class LineReader:
    """Messages and commands of the input, None at the end. In a terminal with editing, pasted text as one message, and
    the history of earlier runs."""

    def __init__(self, is_interactive: bool) -> None:
        self._is_interactive = is_interactive
        self._readline: Any = None

    def __enter__(self) -> LineReader:
        if self._is_interactive:
            with suppress(ImportError):  # Windows: its console edits lines
                import readline

                self._readline = readline
                readline.parse_and_bind("set enable-bracketed-paste on")
                with suppress(OSError):
                    if history_file().is_file():  # a pipe would wait for a writer
                        readline.read_history_file(history_file())
        return self

    def __exit__(self, *_: object) -> None:
        if self._readline is not None:
            with suppress(OSError):  # a read-only home: no history
                file = history_file()
                file.parent.mkdir(parents=True, exist_ok=True)
                file.touch(mode=0o600)
                self._readline.set_history_length(HISTORY_LINES)
                self._readline.write_history_file(file)

    def __call__(self) -> Line | None:
        while True:
            try:
                if not self._is_interactive:
                    piped = console.read_line()
                    return None if piped is None else Line(piped.strip())
                line = input(PROMPT).rstrip()
                if line.lstrip().startswith(QUOTES):
                    return Line(self._quoted(line.lstrip()), is_quoted=True)
                if not line.endswith("\\"):
                    return Line(line.strip())
                while line.endswith("\\"):
                    line = line[:-1] + "\n" + input(MORE).rstrip()
                return Line(line)
            except (EOFError, OSError):  # Ctrl-D, or the terminal is gone
                if not self._is_interactive:
                    raise
                console.note("")
                return None
            except KeyboardInterrupt:
                if not self._is_interactive:
                    raise
                console.note("")  # discard what was typed

    def _quoted(self, first: str) -> str:
        """The lines between two quotation marks of three."""
        lines = [first.removeprefix(QUOTES)]
        while not lines[-1].rstrip().endswith(QUOTES):
            lines.append(input(MORE))
        lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
        return "\n".join(lines).strip("\n")


def history_file() -> Path:
    """Lines typed in earlier runs, readable by their user alone."""
    from lucebox.cache import cache_folder

    return cache_folder() / "chat_history"


class Chat:
    """The messages so far, and the options of the next answer."""

    def __init__(self, llm: LLM, given: dict[str, Any], args: argparse.Namespace) -> None:
        self.llm = llm
        self.args = args
        self.template = read_template(args, llm)
        from lucebox.chat.profiles import with_fields

        recommended, source = recommended_sampling(llm, args, self.template)
        self.sampling = fresh_seed(with_fields(recommended, given))
        self.sampling_note = sampling_line(self.sampling, source)
        self.system: str | None = args.system
        self.turns: list[dict[str, Any]] = []  # alternately user and assistant
        self.last: Generation | None = None
        self.n_answers = 0
        self.images: list[dict[str, Any]] = []  # of the next message
        self.commands: dict[str, Callable[[str], None]] = {
            "help": self.help,
            "reset": self.reset,
            "system": self.set_system,
            "undo": self.undo,
            "regenerate": self.regenerate,
            "save": self.save,
            "load": self.load,
            "image": self.add_image,
            "set": self.set_option,
            "stats": self.stats,
            "status": self.status,
        }

    @property
    def messages(self) -> list[dict[str, Any]]:
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return system + self.turns

    def answer(self, content: str | list[dict[str, Any]]) -> None:
        """Streams the answer to a user message. After Ctrl-C, the text so far stays in the conversation."""
        if self.images and isinstance(content, str):
            content = [*self.images, {"type": "text", "text": content}]
        question = {"role": "user", "content": content}
        pieces: list[str] = []
        self.last = None
        seed = self.sampling.seed
        sampling = dataclasses.replace(self.sampling, seed=None if seed is None else seed + self.n_answers)
        self.n_answers += 1
        was_reasoning = False
        try:
            with console.reading() as on_prompt:
                for chunk in self.llm.chat(
                    [*self.messages, question],
                    sampling,
                    stream=True,
                    template=self.template,
                    on_prompt=on_prompt,
                    **keywords_of_chat(self.args),
                ):
                    pieces.append(chunk.text)
                    self.last = chunk.result or self.last
                    if not self.args.json:
                        was_reasoning = console.write_chunk(chunk, was_reasoning)
        except interrupted:
            pass
        content = "".join(pieces)
        message = self.last.message if self.last else {"role": "assistant", "content": content}
        self.turns += [question, message]
        self.images = []
        if self.args.json:
            last = self.last
            reason = last.finish_reason if last else "cancelled"
            answer = {"content": content, "reasoning": last.reasoning if last else "", "finish_reason": reason}
            console.print_json(answer | {"usage": last and last.usage, "timings": last and last.timings})
        else:
            console.write("\n")
            if self.last is None:
                console.note("interrupted")

    def is_command(self, line: Line) -> bool:
        """Whether a line is a known command. Paths and comments of code are text, and so is what is quoted.

        Raises:
            InvalidRequestError: the line is one word that is nearly a command.
        """
        words = line.text.split(None, 1)
        if line.is_quoted or not words or not words[0].startswith("/"):
            return False
        name = words[0][1:].lower()
        known = [*self.commands, *LEAVE]
        if name in known:
            return True
        if len(words) == 1 and name.isalpha() and (meant := did_you_mean(name, known)):
            raise InvalidRequestError(f"no command /{name}{meant} A text goes between lines of {QUOTES}")
        return False

    def command(self, text: str) -> bool:
        """Executes a known /command; False: it ends the conversation."""
        name, *rest = text[1:].split(None, 1)
        if name.lower() in LEAVE:
            return False
        self.commands[name.lower()]("".join(rest).strip())
        return True

    def help(self, _: str) -> None:
        """list the commands"""
        for name, act in self.commands.items():
            console.note(f"/{name:10} {act.__doc__}")
        console.note("/exit       leave")

    def reset(self, _: str) -> None:
        """forget the conversation; the system message stays"""
        self.turns.clear()
        self.images = []
        self.llm.reset()

    def set_system(self, text: str) -> None:
        """TEXT: replace the system message from the next answer on; no TEXT removes it"""
        self.system = text or None

    def undo(self, _: str) -> None:
        """take back the last message and its answer"""
        if not self.turns:
            raise InvalidRequestError("there is nothing to take back")
        del self.turns[-2:]

    def regenerate(self, _: str) -> None:
        """answer the last message again, with the next seed"""
        if not self.turns:
            raise InvalidRequestError("there is no answer to write again")
        question = self.turns[-2]["content"]
        del self.turns[-2:]
        self.answer(question)

    def save(self, path: str) -> None:
        """FILE: write the conversation as JSON"""
        if not path:
            raise InvalidRequestError("/save needs a file name")
        if any(isinstance(turn["content"], list) for turn in self.turns):
            raise InvalidRequestError("a conversation with images cannot be saved")
        text = json.dumps({"model": self.llm.info.name, "messages": self.messages}, ensure_ascii=False, indent=2)
        Path(path).expanduser().write_text(text + "\n", encoding="utf-8")
        console.note(f"saved {len(self.messages)} messages to {path}")

    def load(self, path: str) -> None:
        """FILE: continue a conversation written by /save"""
        if not path:
            raise InvalidRequestError("/load needs a file name")
        self.system, self.turns = read_conversation(Path(path).expanduser())
        console.note(f"loaded {len(self.messages)} messages from {path}")

    def add_image(self, path: str) -> None:
        """FILE: send an image (PNG, JPEG or WebP) with the next message"""
        if not path:
            raise InvalidRequestError("/image needs a file name")
        image = image_of(path, "/image")
        self.images.append({"type": "image", "image": image.data})
        console.note(f"{path} goes with the next message")

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
        changed = dataclasses.replace(self.sampling, **{name: parsed})
        changed.check()
        self.sampling = fresh_seed(changed)

    def stats(self, _: str) -> None:
        """tokens and speed of the last answer"""
        console.note(summary(self.last) if self.last else "no answer has finished yet")

    def status(self, _: str) -> None:
        """the model, its device and memory, and GPUs that could make it faster"""
        console.note(f"{opening_line(self.llm)}\nsampling: {sampling_line(self.sampling)}")
        show_notes(self.llm)


def read_conversation(path: Path) -> tuple[str | None, list[dict[str, Any]]]:
    """The system message and the turns of a saved conversation.

    Raises:
        InvalidRequestError: the file has no conversation.
    """
    try:
        messages: Any = json_object(read_text(path), str(path))["messages"]
        kept = ("role", "content", "reasoning_content")
        turns = [{key: str(m[key]) for key in kept if key in m or key != "reasoning_content"} for m in messages]
    except (KeyError, TypeError) as error:
        raise InvalidRequestError(f"{path} does not hold a saved conversation: {error!r}") from error
    system = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else None
    expected = ["user", "assistant"] * (len(turns) // 2)
    found = [turn["role"] for turn in turns]
    if found != expected:
        raise InvalidRequestError(f"{path}: expected user and assistant messages in turn, found {', '.join(found)}")
    return system, turns
