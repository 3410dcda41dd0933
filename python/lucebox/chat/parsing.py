"""The streaming output parser: a model's text to events of reasoning, text and tool calls.

A state machine reads one character at a time, so the events do not depend on how the text was cut into pieces. Text
that may begin a tag is withheld. White space before a call and around reasoning is dropped, because templates add it
again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto

from lucebox.chat.dialects import DIALECTS, ReaderType
from lucebox.chat.dialects.reader import Ahead, Arguments, CallReader, End, Name, Part
from lucebox.chat.json_text import Malformed
from lucebox.chat.profiles import Profile
from lucebox.chat.thinking import begins_open
from lucebox.chat.tools import Tool, ToolChoice, callable_tools
from lucebox.generation.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolEnd,
    ToolStart,
    Warning,
)

__all__ = ["OutputParser", "new_call_id"]


class _Mode(Enum):
    TEXT = auto()
    THINKING = auto()
    CALL = auto()
    DRAFT = auto()
    """Inside a call that was opened while thinking. It is a real call if the answer ends with it (some models forget
    the closing tag), and reasoning otherwise (others only plan the call)."""
    DRAFTED = auto()
    """After complete draft calls, still thinking."""
    CLOSED = auto()
    """After complete draft calls and the closing tag."""
    BROKEN = auto()
    """After a call that broke off: everything is text, because the call may have quoted others."""


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class OutputParser:
    """Parses one answer (events.Parser).

    tools: empty if the request has none. With tool_choice "none", calls stay text.
    thinking: separate reasoning from text; otherwise the tags stay in the text.
    prompt_text: the rendered prompt up to the answer; it may end with the opening tag of the reasoning.
    continues: the answer goes on in the middle of a text or of reasoning, so white space and tags at its beginning are
        part of it.
    warnings: notes on the request, emitted first.
    """

    def __init__(
        self,
        profile: Profile,
        tools: Sequence[Tool],
        tool_choice: ToolChoice,
        thinking: bool,
        prompt_text: str,
        *,
        continues: bool = False,
        warnings: Sequence[str] = (),
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
        initial_tags = tuple(filter(None, (*self._openers, *self._first, self._open, self._close)))
        self._text_tags = (tuple(self._openers), initial_tags)  # by _is_fresh: after text, at the beginning of text
        first_chars = {tag[0] for tag in initial_tags}
        self._no_tag = re.compile(f"[^{re.escape(''.join(first_chars))}]+" if first_chars else "(?s:.+)")
        self._new_id = new_id
        self._events: list[Event] = [Warning(text) for text in warnings]
        self._mode = _Mode.THINKING if tags and begins_open(tags, prompt_text) else _Mode.TEXT
        self._withheld = ""  # may become a tag
        self._space = ""  # white space, emitted only if text follows
        self._is_fresh = not continues  # only white space since the beginning, the last call or the end of thinking
        self._drops_space = self._mode is _Mode.THINKING or bool(tags)  # whether white space is dropped while _is_fresh
        self._reader: CallReader | None = None  # set inside a block of calls
        self._raw = ""  # text of the current block, to emit if it is no call
        self._started = False  # ToolStart was emitted, ToolEnd not yet
        self._begins = False  # the started call has no arguments yet
        self._unknown: str | None = None  # the tool of the current call, if it does not exist; the call becomes text
        self._is_dropping = False  # the last call of the block was of an unknown tool
        self._n_calls = 0
        self._ahead = Ahead.END
        self._drafts: list[Part] = []  # calls parsed while thinking

    def push(self, text: str) -> list[Event]:
        at = 0
        while at < len(text):
            plain = self._no_tag.match(text, at) if self._is_scanning and not self._withheld else None
            if plain:
                self._plain(plain[0])
                at = plain.end()
            else:
                self._push(text[at])
                at += 1
        return self._take_events()

    def finish(self) -> list[Event]:
        """Events of the withheld text, once no more text follows."""
        while self._reader is not None:
            self._end_block() if self._mode is _Mode.CALL else self._end_drafts()
        self._plain(self._withheld)
        self._withheld = ""
        if self._mode in (_Mode.TEXT, _Mode.BROKEN) and not (self._is_fresh and self._drops_space):
            self._emit(TextDelta(self._space))
        self._space = ""
        return self._take_events()

    @property
    def ends_with_call(self) -> bool:
        """Whether calls made while thinking become real calls if the answer ends here."""
        if self._mode is _Mode.DRAFT:
            return self._reader is not None and self._reader.may_end
        return self._mode is _Mode.DRAFTED and not self._withheld.strip()

    @property
    def _is_scanning(self) -> bool:
        return self._mode in (_Mode.TEXT, _Mode.THINKING, _Mode.BROKEN)

    def _push(self, char: str) -> None:
        if self._mode is _Mode.CALL:
            self._read_call(char)
        elif self._mode is _Mode.DRAFT:
            self._read_draft(char)
        elif self._mode in (_Mode.DRAFTED, _Mode.CLOSED):
            self._after_draft(char)
        elif self._mode is _Mode.BROKEN:
            self._plain(char)
        else:
            self._scan(char)

    # --- tags

    def _scan(self, char: str) -> None:
        self._withheld += char
        while self._withheld:
            tags = self._tags_thinking if self._mode is _Mode.THINKING else self._text_tags[self._is_fresh]
            if self._withheld in tags:
                tag, self._withheld = self._withheld, ""
                self._tag(tag)
                return
            if any(tag.startswith(self._withheld) for tag in tags):
                return
            first, self._withheld = self._withheld[0], self._withheld[1:]
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
            self._reader = self._draft_reader(tag)
        else:
            self._mode = _Mode.CALL
            self._raw, self._started = tag, False
            self._reader = {**self._first, **self._openers}[tag](self._tools)
            self._reader.ahead = self._ahead
            if tag in self._first:
                self._raw = ""
                self._read_call(tag)

    def _segment(self) -> None:
        """Begins a new segment of text, whose leading white space is dropped."""
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
        """Adds an event; merges consecutive deltas."""
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

    def _take_events(self) -> list[Event]:
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
        self._emit_parts(parts, self._reader.unread if self._reader.rest is None else self._reader.rest)
        if self._reader.rest is not None:
            self._leave_block(self._reader.rest)

    def _emit_parts(self, parts: Sequence[Part], beyond: str = "") -> None:
        """beyond: the end of self._raw that follows the last call."""
        for part in parts:
            if isinstance(part, Name) and part.name not in self._tools:
                self._unknown = part.name
            elif self._unknown is not None:
                if isinstance(part, End):
                    self._drop_unknown(beyond)
            elif isinstance(part, Name):
                self._space = ""
                self._started = self._begins = True
                self._is_dropping = False
                self._emit(ToolStart(self._n_calls, self._new_id(), part.name))
            elif isinstance(part, Arguments):
                self._begins = False
                self._emit(ToolArguments(self._n_calls, part.text))
            else:
                self._emit(ToolEnd(self._n_calls))
                self._n_calls += 1
                self._started = False
                self._raw = beyond

    def _drop_unknown(self, beyond: str = "") -> None:
        """Emits the call of an unknown tool as text, which is not scanned again: its values may quote calls."""
        name, raw = self._unknown or "", self._raw[: len(self._raw) - len(beyond)]
        self._unknown, self._raw, self._is_dropping = None, beyond, True
        self._emit(Warning(f"a tool call was emitted as text: there is no tool {name[:100]!r} to call"))
        self._plain(raw)

    def _leave_block(self, rest: str) -> None:
        """Ends a block of calls; `rest` is text that was read beyond it."""
        raw = self._raw[: len(self._raw) - len(rest)]
        self._reader, self._raw, self._mode = None, "", _Mode.TEXT
        if self._is_dropping:
            self._is_dropping = False
            self._plain(raw)
        else:
            self._segment()
        for char in rest:
            self._push(char)

    def _fail(self, reason: str) -> None:
        """Ends a malformed call. If its name is unknown, the call is text. If its name was emitted, the call is broken,
        and what follows is text. Otherwise its text is scanned again for calls."""
        reader, raw, self._reader, self._raw, self._mode = self._reader, self._raw, None, "", _Mode.TEXT
        assert reader is not None
        if self._started:
            self._break("", f"a malformed tool call was broken off: {reason}")
            self._plain(reader.unread)
        elif self._unknown is not None:
            self._raw, self._mode = raw, _Mode.BROKEN  # the call may quote others
            self._drop_unknown()
        else:
            self._emit(Warning(f"a malformed tool call was emitted as text: {reason}"))
            self._rescan(raw)

    def _rescan(self, raw: str) -> None:
        """Scans a failed block again: its first character is text, later ones may begin a tag."""
        self._plain(raw[0])
        for char in raw[1:]:
            self._push(char)

    def _break(self, held: str, warning: str) -> None:
        """Ends the started call as broken. Its arguments lack their last brace, so they are not valid JSON."""
        arguments = ("{" if self._begins else "") + held
        if arguments:
            self._emit(ToolArguments(self._n_calls, arguments))
        self._emit(ToolEnd(self._n_calls, is_broken=True))
        self._emit(Warning(warning))
        self._n_calls += 1
        self._started = False
        self._segment()
        self._mode = _Mode.BROKEN

    def _end_block(self) -> None:
        """Handles the end of the answer inside a block."""
        reader = self._reader
        assert reader is not None
        self._ahead = Ahead.CALL  # this reader has seen the end of the answer
        try:
            parts = reader.finish()
        except Malformed as error:
            self._fail(str(error))
            return
        self._emit_parts(parts, reader.rest or "")
        if reader.may_end:
            self._leave_block(reader.rest or "")
        elif self._started:
            self._break(reader.cut(), "the answer ended inside a tool call; its arguments are incomplete")
            self._reader, self._raw = None, ""
        else:
            self._fail("it is incomplete")

    # --- calls while thinking

    def _draft_reader(self, tag: str) -> CallReader:
        reader = self._openers[tag](self._tools)
        reader.ahead = Ahead.NONE  # the thinking goes on after a call that is only planned
        return reader

    def _read_draft(self, char: str) -> None:
        assert self._reader is not None
        self._raw += char
        if self._raw.endswith(self._close):  # arguments never contain the closing tag
            self._raw = self._raw.removesuffix(self._close)
            self._drop_drafts()
            self._tag(self._close)
            return
        try:
            parts = self._reader.push(char)
            if any(isinstance(part, Name) and part.name not in self._tools for part in parts):
                raise Malformed("there is no such tool")
            self._drafts += parts
        except Malformed:
            raw, self._raw = self._raw, ""
            self._drop_drafts()
            self._rescan(raw)
            return
        if self._reader.rest is not None:
            rest = self._reader.rest
            self._raw = self._raw[: len(self._raw) - len(rest)]
            self._mode = _Mode.DRAFTED
            for char in rest:
                self._push(char)

    def _after_draft(self, char: str) -> None:
        """Reads on after draft calls. Only white space, the closing tag or more calls keep them; other text makes
        them reasoning."""
        self._withheld += char
        tag, is_closed = self._withheld.lstrip(), self._mode is _Mode.CLOSED
        if tag == self._close and not is_closed:
            self._withheld, self._mode = "", _Mode.CLOSED
        elif tag in self._openers and not is_closed:
            self._raw, self._withheld, self._mode = self._raw + self._withheld, "", _Mode.DRAFT
            self._reader = self._draft_reader(tag)
        elif is_closed or not any(expected.startswith(tag) for expected in (*self._openers, self._close)):
            if not tag:
                return
            withheld, self._withheld = self._withheld, ""
            self._drop_drafts()
            if is_closed:
                self._tag(self._close)
            for char in withheld:
                self._push(char)

    def _drop_drafts(self) -> None:
        """Emits the draft calls as reasoning."""
        raw, self._reader, self._raw, self._drafts, self._mode = self._raw, None, "", [], _Mode.THINKING
        self._plain(raw)

    def _end_drafts(self) -> None:
        """Handles the end of the answer after or inside a draft call: complete drafts become calls."""
        assert self._reader is not None
        if self._mode is _Mode.DRAFT and not self._reader.may_end:
            self._drop_drafts()
            return
        drafts, self._drafts, self._reader, self._raw, self._withheld = self._drafts, [], None, "", ""
        self._mode = _Mode.TEXT
        self._segment()
        self._emit_parts(drafts)
