"""Finds a model's chat template and renders it."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import jinja2

from lucebox.chat.messages import checked_messages, checked_tools
from lucebox.chat.sandbox import MeteredEnvironment, RaisedByTemplate, RunawayError, metered, weigh
from lucebox.errors import FormatError, InvalidRequestError
from lucebox.regular_files import foreign_content, read_regular
from lucebox.text.tokenizer import Tokenizer
from lucebox.text.tokenizer_json import read_optional_json

__all__ = ["ChatTemplate"]

_MAX_SOURCE = 1 << 18  # the longest published template known here has 20,000 characters
_DEFAULT, _WITH_TOOLS = "default", "tool_use"
# Conversations with the probe in the message of a role, which show whether a template writes the text of that role.
_PROBE = "lucebox_probe"
_PROBE_SHARE = 0.05  # of the budget of a rendering
_USER = {"role": "user", "content": "u"}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}
_CONVERSATIONS: Mapping[str, Sequence[Mapping[str, object]]] = {
    "user": [{"role": "user", "content": _PROBE}],
    "system": [{"role": "system", "content": _PROBE}, _USER],
    "assistant": [_USER, {"role": "assistant", "content": _PROBE}, _USER],
    "tool": [
        _USER,
        {"role": "assistant", "content": "a", "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": _PROBE},
        _USER,
    ],
}


class ChatTemplate:
    """Renders messages to the prompt format a model was trained on. Safe to share between threads.

    source: Jinja text, or several texts by name. "tool_use" renders requests with tools, "default" all others.
    where: names the template's origin in errors.
    tokens: texts of special tokens by the template's variable: bos_token, eos_token, pad_token, unk_token.

    Raises:
        FormatError: the template does not parse; the message has the line.
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        where: str,
        tokens: Mapping[str, str] | None = None,
    ) -> None:
        sources = {_DEFAULT: source} if isinstance(source, str) else dict(source)
        if _DEFAULT not in sources:
            raise FormatError(f"{where}: templates {', '.join(map(ascii, sources))}, expected one named 'default'")
        self.where = where
        self.sources: Mapping[str, str] = sources
        """Jinja text by template name."""
        self._templates = {name: _compiled(text, where) for name, text in sources.items()}
        self._tokens = dict(tokens or {})
        self._roles: dict[str, frozenset[str]] = {}

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object], where: str, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template in the metadata of a GGUF file; None without one."""
        key = "tokenizer.chat_template"
        found: dict[str, object] = {_DEFAULT: metadata[key]} if key in metadata else {}
        found |= {name[len(key) + 1 :]: text for name, text in metadata.items() if name.startswith(key + ".")}
        if not found:
            return None
        return cls(
            {name: _string(text, f"{where}: {key} ({name})") for name, text in found.items()},
            where=f"{where}: {key}",
            tokens=_special_tokens(tokenizer),
        )

    @classmethod
    def from_folder(cls, folder: str | Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a model folder; None without one.

        The first of: chat_template.jinja with the named ones of additional_chat_templates, tokenizer_config.json,
        chat_template.json.
        """
        tokens = _special_tokens(tokenizer)
        file = Path(folder, "chat_template.jinja")
        named = sorted(Path(folder, "additional_chat_templates").glob("*.jinja"))
        if file.is_file():
            sources = {_DEFAULT: _read_source(file)} | {path.stem: _read_source(path) for path in named}
            return cls(sources, where=str(file), tokens=tokens)
        for name in ("tokenizer_config.json", "chat_template.json"):
            config = Path(folder, name)
            value = read_optional_json(config).get("chat_template")
            if value is not None:
                where = f"{config}: chat_template"
                return cls(_named_templates(value, where), where=where, tokens=tokens)
        return None

    @classmethod
    def from_file(cls, path: str | Path, tokenizer: Tokenizer | None = None) -> ChatTemplate:
        """A user's own template; the tokenizer supplies the special tokens."""
        tokens = None if tokenizer is None else _special_tokens(tokenizer)
        return cls(_read_source(Path(path)), where=str(path), tokens=tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        **template_vars: object,
    ) -> str:
        """The prompt text of a conversation.

        enable_thinking: set in the template only when not None, because some templates tell "not set" from False.
        template_vars: further variables of this model's template.

        Raises:
            InvalidRequestError: the messages are malformed, or the template refuses them.
            FormatError: the template fails or exceeds its budget; the message has the line.
        """
        name = _WITH_TOOLS if tools and _WITH_TOOLS in self._templates else _DEFAULT
        checked = checked_messages(messages)
        variables: dict[str, object] = {
            **self._tokens,
            "messages": checked,
            "tools": checked_tools(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        if enable_thinking is not None:
            variables["enable_thinking"] = enable_thinking
        if clash := sorted(variables.keys() & template_vars.keys()):
            raise InvalidRequestError(f"template variable {clash[0]!r} is set by lucebox itself")
        variables |= {"documents": None, **template_vars}
        try:
            text = self._rendered(name, variables)
        except _StoppedError:
            raise
        except (FormatError, InvalidRequestError):
            if not self._part_roles(name):
                raise
        else:
            if _has_texts(text, checked) or not self._part_roles(name):
                return text
        return self._rendered(name, {**variables, "messages": _as_parts(checked, self._part_roles(name))})

    def _rendered(self, name: str, variables: dict[str, object], *, share: float = 1.0) -> str:
        try:
            with metered(weigh(variables), share):
                return self._templates[name].render(variables)
        except RaisedByTemplate as error:
            raise InvalidRequestError(f"the chat template refuses these messages: {error.message}") from None
        except RunawayError as error:
            raise _StoppedError(f"{self.where}{_line(error)}: the template was stopped: {error.message}") from None
        except Exception as error:
            # Template code can raise any exception.
            raise FormatError(f"{self.where}{_line(error)}: {type(error).__name__}: {_brief(error)}") from error

    def _part_roles(self, name: str) -> frozenset[str]:
        """The roles whose content a template reads only as a list of parts; it would skip the text otherwise."""
        if name not in self._roles:
            roles = [role for role in _CONVERSATIONS if not self._shows(name, role, is_parts=False)]
            self._roles[name] = frozenset(role for role in roles if self._shows(name, role, is_parts=True))
        return self._roles[name]

    def _shows(self, name: str, role: str, *, is_parts: bool) -> bool:
        """Whether the prompt of a small conversation has the text of the message of this role."""
        messages = checked_messages([{**message} for message in _CONVERSATIONS[role]])
        roles = frozenset({role, "user"} if is_parts else ())
        variables = {**self._tokens, "messages": _as_parts(messages, roles), "add_generation_prompt": True}
        try:
            return _PROBE in self._rendered(name, {**variables, "tools": None, "documents": None}, share=_PROBE_SHARE)
        except (FormatError, InvalidRequestError):
            return False


class _StoppedError(FormatError):
    """The template exceeded its budget."""


def _has_texts(prompt: str, messages: Sequence[Mapping[str, object]]) -> bool:
    """Whether a prompt has the texts of all messages but the assistant's, which templates may shorten."""
    at = 0  # nearly always, the texts are in the order of the messages
    for message in messages:
        if message["role"] != "assistant":
            text = str(message["content"]).strip()
            if (found := prompt.find(text, at)) < 0 and text not in prompt:
                return False
            at = max(at, found)
    return True


def _as_parts(messages: list[dict[str, object]], roles: frozenset[str]) -> list[dict[str, object]]:
    """The messages, the content of these roles as a list of text parts."""
    if not roles:
        return messages
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}] if message["content"] else []}
        if message["role"] in roles
        else message
        for message in messages
    ]


def _compiled(text: str, where: str) -> jinja2.Template:
    if len(text) > _MAX_SOURCE:
        raise FormatError(f"{where}: a chat template of {len(text)} characters, expected at most {_MAX_SOURCE}")
    try:
        return MeteredEnvironment().from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise FormatError(f"{where}, line {error.lineno}: {_brief(error)}") from None
    except (RecursionError, MemoryError, SyntaxError, ValueError) as error:
        # Jinja does not check the nesting limits of Python's compiler.
        raise FormatError(f"{where}: too deeply nested to compile: {type(error).__name__}") from None


def _line(error: Exception) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return f", line {lines[-1]}" if lines else ""


def _brief(error: Exception) -> str:
    text = error.message if isinstance(error, jinja2.TemplateError) and error.message else str(error)
    return text if len(text) <= 300 else text[:300] + "..."


def _read_source(path: Path) -> str:
    try:
        data = read_regular(path, 4 * _MAX_SOURCE)
        if other := foreign_content(data):
            raise FormatError(f"{path}: not a template: {other}")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text at byte {error.start}") from None


def _named_templates(value: object, where: str) -> str | dict[str, str]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise FormatError(f"{where} is {type(value).__name__}, expected text or a list of named templates")
    named = {}
    for i, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise FormatError(f"{where}[{i}] is {type(entry).__name__}, expected an object with name and template")
        name = _string(entry.get("name"), f"{where}[{i}].name")
        named[name] = _string(entry.get("template"), f"{where}[{i}].template")
    return named


def _string(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"{where} is {type(value).__name__}, expected text")
    return value


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    ids = {
        "bos_token": tokenizer.bos_id,
        "eos_token": tokenizer.eos_ids[0] if tokenizer.eos_ids else None,
        "pad_token": tokenizer.pad_id,
        "unk_token": tokenizer.unk_id,
    }
    return {name: tokenizer.token(token_id) for name, token_id in ids.items() if token_id is not None}
