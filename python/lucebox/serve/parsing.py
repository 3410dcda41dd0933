"""A model's text to events, as it is written: reasoning, text and tool calls, in the order in which they come.

Text is read a character at a time, so the events do not depend on how it was cut. What may be the beginning of a tag
is held back, and white space before a call or around reasoning is left out, as templates put it there again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

from lucebox.serve.dialects import DIALECTS, ReaderType
from lucebox.serve.dialects.reader import Arguments, CallReader, Name, Part
from lucebox.serve.events import Event, ReasoningDelta, TextDelta, ToolArguments, ToolEnd, ToolStart, Warning
from lucebox.serve.json_text import Malformed
from lucebox.serve.profiles import Profile
from lucebox.serve.thinking import begins_open
from lucebox.serve.tools import Tool, ToolChoice, callable_tools

__all__ = ["OutputParser", "new_call_id"]


class _Mode(Enum):
    TEXT = auto()
    THINKING = auto()
    CALL = auto()
    DRAFT = auto()
    """A call while thinking. Models that forget to end their thinking mean it; others only plan it. It counts if the
    answer ends with it, and is reasoning otherwise."""
    DRAFTED = auto()
    """After drafts, all whole."""
    CLOSED = auto()
    """The same, and the thinking has been closed."""


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class OutputParser:
    """Reads one answer.

    tools: empty where the request has none. With tool_choice "none" calls stay text.
    thinking: split reasoning off; otherwise its tags stay in the text.
    prompt_text: the rendered prompt, which may have opened the thinking already.
    """

    def __init__(
        self,
        profile: Profile,
        tools: Sequence[Tool],
        tool_choice: ToolChoice,
        thinking: bool,
        prompt_text: str,
        *,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        dialect, tags = DIALECTS[profile.dialect], profile.thinking if thinking else None
        self.keeps_special = profile.keeps_special
        self._tools = {tool.name: tool.parameters for tool in callable_tools(tools, tool_choice)}
        self._max_calls = None if tool_choice.parallel else 1
        self._openers: Mapping[str, ReaderType] = dialect.openers if self._tools else {}
        self._first: Mapping[str, ReaderType] = dialect.first if self._tools else {}
        self._open, self._close = (tags.open, tags.close) if tags else ("", "")
        self._tags_thinking = (self._close, *self._openers)
        of_fresh_text = tuple(filter(None, (*self._openers, *self._first, self._open, self._close)))
        self._tags_of_text = (tuple(self._openers), of_fresh_text)  # after text, and where nothing stands before
        begins = {tag[0] for tag in of_fresh_text}
        self._no_tag = re.compile(f"[^{re.escape(''.join(begins))}]+" if begins else "(?s:.+)")
        self._new_id = new_id
        self._events: list[Event] = []
        self._mode = _Mode.THINKING if tags and begins_open(tags, prompt_text) else _Mode.TEXT
        self._held = ""  # may become a tag
        self._space = ""  # white space that what follows decides upon
        self._is_fresh = True  # nothing but white space since the beginning, the last call or the end of thinking
        self._drops_space = self._mode is _Mode.THINKING or bool(tags)
        self._reader: CallReader | None = None
        self._raw = ""  # of the block being read
        self._started = False  # the name of the call in it was given out
        self._n_calls = 0
        self._drafts: list[Part] = []

    def push(self, text: str) -> list[Event]:
        at = 0
        while at < len(text):
            run = self._no_tag.match(text, at) if self._is_scanning and not self._held else None
            if run:
                self._plain(run[0])
                at = run.end()
            else:
                self._push(text[at])
                at += 1
        return self._taken()

    def finish(self) -> list[Event]:
        """What is still held back, when no text follows."""
        while self._reader is not None:
            self._end_block() if self._mode is _Mode.CALL else self._end_drafts()
        self._plain(self._held)
        self._held = ""
        if self._mode is _Mode.TEXT and not (self._is_fresh and self._drops_space):
            self._emit(TextDelta(self._space))
        self._space = ""
        return self._taken()

    @property
    def _is_scanning(self) -> bool:
        return self._mode in (_Mode.TEXT, _Mode.THINKING)

    def _push(self, char: str) -> None:
        if self._mode is _Mode.CALL:
            self._read_call(char)
        elif self._mode is _Mode.DRAFT:
            self._read_draft(char)
        elif self._mode in (_Mode.DRAFTED, _Mode.CLOSED):
            self._after_draft(char)
        else:
            self._scan(char)

    # --- tags

    def _scan(self, char: str) -> None:
        self._held += char
        while self._held:
            tags = self._tags_thinking if self._mode is _Mode.THINKING else self._tags_of_text[self._is_fresh]
            if self._held in tags:
                tag, self._held = self._held, ""
                self._tag(tag)
                return
            if any(tag.startswith(self._held) for tag in tags):
                return
            first, self._held = self._held[0], self._held[1:]
            self._plain(first)

    def _tag(self, tag: str) -> None:
        if tag == self._open:
            self._mode = _Mode.THINKING
            self._segment()
        elif tag == self._close:
            self._mode = _Mode.TEXT
            self._segment()
        elif self._mode is _Mode.THINKING:
            self._mode = _Mode.DRAFT
            self._raw += tag
            self._reader = self._openers[tag](self._tools)
        else:
            self._mode = _Mode.CALL
            self._raw, self._started = tag, False
            self._reader = {**self._first, **self._openers}[tag](self._tools)
            if tag in self._first:
                self._raw = ""
                self._read_call(tag)

    def _segment(self) -> None:
        """Text begins anew: white space before it is left out."""
        self._is_fresh = self._drops_space = True
        self._space = ""

    # --- text

    def _plain(self, text: str) -> None:
        if self._is_fresh and self._drops_space:
            text = text.lstrip()
        body = text.rstrip()
        if not body:
            self._space += text
            return
        delta, self._space = self._space + body, text[len(body) :]
        self._is_fresh = False
        self._emit(ReasoningDelta(delta) if self._mode is _Mode.THINKING else TextDelta(delta))

    def _emit(self, event: Event) -> None:
        """Adds an event; deltas that follow each other become one."""
        last = self._events[-1] if self._events else None
        if isinstance(event, TextDelta | ReasoningDelta):
            if not event.text:
                return
            if type(last) is type(event):
                assert isinstance(last, TextDelta | ReasoningDelta)
                self._events[-1] = type(event)(last.text + event.text)
                return
        if isinstance(event, ToolArguments) and isinstance(last, ToolArguments):
            self._events[-1] = ToolArguments(event.index, last.delta + event.delta)
            return
        self._events.append(event)

    def _taken(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # --- calls

    def _read_call(self, char: str) -> None:
        assert self._reader is not None
        self._raw += char
        try:
            parts = self._reader.push(char)
            if self._n_calls == self._max_calls and any(isinstance(part, Name) for part in parts):
                raise Malformed("parallel_tool_calls is false, and this is a second call")
        except Malformed as error:
            self._fail(str(error))
            return
        self._give(parts)
        if self._reader.rest is not None:
            rest = self._reader.rest
            self._leave_block()
            for char in rest:
                self._push(char)

    def _give(self, parts: Sequence[Part]) -> None:
        for part in parts:
            if isinstance(part, Name):
                self._space = ""
                self._started = True
                self._emit(ToolStart(self._n_calls, self._new_id(), part.name))
            elif isinstance(part, Arguments):
                self._emit(ToolArguments(self._n_calls, part.text))
            else:
                self._emit(ToolEnd(self._n_calls))
                self._n_calls += 1
                self._started = False
                self._raw = ""

    def _leave_block(self) -> None:
        self._reader = None
        self._raw = ""
        self._mode = _Mode.TEXT
        self._segment()

    def _fail(self, reason: str) -> None:
        """Not a call after all: its text is text. What was read may hold another call, unless this one had begun."""
        raw, self._reader, self._raw, self._mode = self._raw, None, "", _Mode.TEXT
        self._emit(Warning(f"a malformed tool call was given out as text: {reason}"))
        if self._started:
            self._end_started()
            self._plain(raw)
        else:
            self._read_again(raw)

    def _read_again(self, raw: str) -> None:
        """The first character is no tag; those after it may begin one."""
        self._plain(raw[0])
        for char in raw[1:]:
            self._push(char)

    def _end_started(self) -> None:
        self._emit(ToolEnd(self._n_calls))
        self._n_calls += 1
        self._started = False
        self._segment()

    def _end_block(self) -> None:
        """The text ends within a block."""
        assert self._reader is not None
        if self._reader.may_end:
            self._leave_block()
        elif self._started:
            self._emit(Warning("the answer ended within a tool call, whose arguments are not whole"))
            self._end_started()
            self._leave_block()
        else:
            self._fail("it is not whole")

    # --- calls while thinking

    def _read_draft(self, char: str) -> None:
        assert self._reader is not None
        self._raw += char
        if self._raw.endswith(self._close):  # no arguments hold it
            self._raw = self._raw.removesuffix(self._close)
            self._drop_drafts()
            self._tag(self._close)
            return
        try:
            self._drafts += self._reader.push(char)
        except Malformed:
            raw, self._raw = self._raw, ""
            self._drop_drafts()
            self._read_again(raw)
            return
        if self._reader.rest is not None:
            rest = self._reader.rest
            self._raw = self._raw[: len(self._raw) - len(rest)]
            self._mode = _Mode.DRAFTED
            for char in rest:
                self._push(char)

    def _after_draft(self, char: str) -> None:
        """Only white space, the end of the thinking and further drafts leave the drafts what they may be: calls."""
        self._held += char
        tag, is_closed = self._held.lstrip(), self._mode is _Mode.CLOSED
        if tag == self._close and not is_closed:
            self._held, self._mode = "", _Mode.CLOSED
        elif tag in self._openers and not is_closed:
            self._raw, self._held, self._mode = self._raw + self._held, "", _Mode.DRAFT
            self._reader = self._openers[tag](self._tools)
        elif is_closed or not any(expected.startswith(tag) for expected in (*self._openers, self._close)):
            if not tag:
                return
            held, self._held = self._held, ""
            self._drop_drafts()
            if is_closed:
                self._tag(self._close)
            for char in held:
                self._push(char)

    def _drop_drafts(self) -> None:
        """They were only thought of."""
        raw, self._reader, self._raw, self._drafts, self._mode = self._raw, None, "", [], _Mode.THINKING
        self._plain(raw)

    def _end_drafts(self) -> None:
        """The text ends after or within a draft."""
        assert self._reader is not None
        if self._mode is _Mode.DRAFT and not self._reader.may_end:
            self._drop_drafts()
            return
        drafts, self._drafts, self._reader, self._raw, self._held = self._drafts, [], None, "", ""
        self._mode = _Mode.TEXT
        self._segment()
        self._give(drafts)
