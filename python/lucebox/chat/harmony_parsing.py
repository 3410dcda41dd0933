"""The streaming parser of harmony: an answer's messages to events of reasoning, text and tool calls.

A state machine reads one character at a time, so the events do not depend on how the text was cut into pieces. Text
that may begin a control token is withheld.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import Enum, auto

from lucebox.chat.dialects.harmony import CHANNEL, ENDS, MESSAGE, START
from lucebox.chat.json_text import JsonScanner, Malformed
from lucebox.chat.profiles import Profile
from lucebox.chat.tools import Tool, ToolChoice, callable_tools
from lucebox.generation.events import Event, ReasoningDelta, TextDelta, ToolArguments, ToolEnd, ToolStart, Warning

__all__ = ["HarmonyParser"]

_RECIPIENT = re.compile(r"\bto=(\S+)")
_MAX_HEADER = 512  # characters; a longer header is text
_BREAK = "\n\n"  # between messages of one kind


class _Kind(Enum):
    TEXT = auto()
    THINKING = auto()
    CALL = auto()
    CALLED = auto()
    """After the arguments of a call."""
    DROPPED = auto()
    """A call that is text."""


class HarmonyParser:
    """Parses one answer (events.Parser). The arguments are OutputParser's.

    The answer begins in a header, because the prompt ends with `<|start|>assistant`. Text that begins otherwise, as an
    answer held to a format may, is text.
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
        new_id: Callable[[], str],
    ) -> None:
        self.keeps_special = profile.keeps_special
        self._names = frozenset(tool.name for tool in callable_tools(tools, tool_choice))
        self._max_calls = None if tool_choice.parallel else 1
        self._thinks = thinking
        self._new_id = new_id
        self._events: list[Event] = [Warning(text) for text in warnings]
        self._n_calls = 0
        self._last: type[Event] | None = None  # of the last text
        self._breaks = False  # a new message began since the last text
        self._withheld = ""  # may become a control token
        self._kind: _Kind | None = None  # None: in a header
        self._header = ""
        self._scanner = JsonScanner()
        self._has_arguments = False
        tail = prompt_text.rpartition(START)[2]
        if continues or MESSAGE in tail:
            self._kind = self._kind_of(tail.partition(MESSAGE)[0]) if MESSAGE in tail else _Kind.TEXT
        elif START in prompt_text:
            self._header = tail

    def push(self, text: str) -> list[Event]:
        for char in text:
            if self._kind is None:
                self._read_header(char)
            else:
                self._read_body(char)
        return self._take_events()

    def finish(self) -> list[Event]:
        """Events of the withheld text, once no more text follows."""
        if self._kind is None:
            self._drop_header()
        elif self._withheld:
            self._body(self._withheld)
        self._withheld = ""
        if self._kind is _Kind.CALL:
            self._break("the answer ended inside a tool call; its arguments are incomplete")
        return self._take_events()

    @property
    def ends_with_call(self) -> bool:
        """Whether the answer may end here, after a complete call."""
        return self._kind is _Kind.CALLED or (self._kind is None and not self._header and self._n_calls > 0)

    # --- headers

    def _read_header(self, char: str) -> None:
        self._header += char
        if self._header.endswith(MESSAGE):
            header, self._header = self._header.removesuffix(MESSAGE), ""
            self._breaks = True
            self._kind = self._kind_of(header)
        elif len(self._header) > _MAX_HEADER or not self._may_be_header():
            self._drop_header()

    def _may_be_header(self) -> bool:
        """Whether the text so far can be a header: role, channel, recipient and type, of one line."""
        own = self._header.lstrip()
        begun = any(tag.startswith(own[: len(tag)]) for tag in (START, CHANNEL, "assistant", "to="))
        return not own or (begun and "\n" not in own)

    def _drop_header(self) -> None:
        """Text where a header was expected is text of the answer."""
        header, self._header, self._kind = self._header, "", _Kind.TEXT
        own = header.removeprefix("assistant") if header.startswith("assistant") else header
        for char in own:
            self._read_body(char)

    def _kind_of(self, header: str) -> _Kind:
        if found := _RECIPIENT.search(header.replace("<|", " <|")):
            return self._begin_call(found[1].removeprefix("functions."), header)
        channel = header.partition(CHANNEL)[2].split("<", 1)[0].strip()
        return _Kind.THINKING if channel == "analysis" and self._thinks else _Kind.TEXT

    # --- bodies

    def _read_body(self, char: str) -> None:
        self._withheld += char
        while self._withheld:
            if self._withheld in (*ENDS, START, CHANNEL):
                tag, self._withheld = self._withheld, ""
                self._end_body(tag)
                return
            if any(tag.startswith(self._withheld) for tag in (*ENDS, START, CHANNEL)):
                return
            first, self._withheld = self._withheld[0], self._withheld[1:]
            self._body(first)

    def _end_body(self, tag: str) -> None:
        if self._kind is _Kind.CALL:
            self._break("a tool call ended before its arguments did")
        self._kind = None
        self._header = "" if tag in ENDS else tag

    def _body(self, text: str) -> None:
        if self._kind is _Kind.CALL:
            for i, char in enumerate(text):
                if self._kind is not _Kind.CALL:
                    return self._body(text[i:])
                self._argument(char)
        elif self._kind in (_Kind.TEXT, _Kind.DROPPED):
            self._emit_text(TextDelta, text)
        elif self._kind is _Kind.THINKING:
            self._emit_text(ReasoningDelta, text)
        elif not text.isspace():  # after the arguments
            self._kind = _Kind.TEXT
            self._breaks = True
            self._emit_text(TextDelta, text)

    def _emit_text(self, kind: type[TextDelta] | type[ReasoningDelta], text: str) -> None:
        if self._breaks and self._last is kind:
            text = _BREAK + text
        self._last, self._breaks = kind, False
        last = self._events[-1] if self._events else None
        if isinstance(last, TextDelta | ReasoningDelta) and type(last) is kind:
            self._events[-1] = kind(last.text + text)
        else:
            self._events.append(kind(text))

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # --- calls

    def _begin_call(self, name: str, header: str) -> _Kind:
        why = None
        if name not in self._names:
            why = f"there is no tool {name[:100]!r} to call"
        elif self._n_calls == self._max_calls:
            why = "parallel_tool_calls is false, and this is a second call"
        if why is not None:
            self._events.append(Warning(f"a tool call was emitted as text: {why}"))
            self._breaks = True
            self._emit_text(TextDelta, header[header.find(CHANNEL) :] + MESSAGE)
            return _Kind.DROPPED
        self._scanner, self._has_arguments = JsonScanner(), False
        self._events.append(ToolStart(self._n_calls, self._new_id(), name))
        self._last = None
        return _Kind.CALL

    def _argument(self, char: str) -> None:
        if not self._has_arguments:
            if char.isspace():
                return
            if char != "{":
                self._break("a malformed tool call was broken off: the arguments are not an object")
                self._emit_text(TextDelta, char)
                return
        try:
            piece = self._scanner.push(char)
        except Malformed as error:
            self._break(f"a malformed tool call was broken off: {error}")
            self._emit_text(TextDelta, char)
            return
        self._has_arguments = True
        self._give(piece or "")
        if self._scanner.done:
            self._events.append(ToolEnd(self._n_calls))
            self._n_calls += 1
            self._kind = _Kind.CALLED

    def _give(self, text: str) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, ToolArguments):
            self._events[-1] = ToolArguments(last.index, last.delta + text)
        elif text:
            self._events.append(ToolArguments(self._n_calls, text))

    def _break(self, warning: str) -> None:
        """Ends the started call as broken. Its arguments lack their last brace, so they are not valid JSON."""
        if not self._has_arguments:
            self._give("{")
        self._events += [ToolEnd(self._n_calls, is_broken=True), Warning(warning)]
        self._n_calls += 1
        self._kind = _Kind.TEXT
