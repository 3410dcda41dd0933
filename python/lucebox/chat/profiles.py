"""Profiles of model families: recommended sampling, limits, thinking and tool calls.

profiles.json lists the families; the first match applies. Sampling that the model's own files state comes before the
family's. A user's own file, one object of the same form, overrides single fields of both. The tool-call dialect, the
thinking tags and the template's support for tools and late system messages are read from the chat template, so a
fine-tune with another template is served correctly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lucebox.chat.dialects import DIALECTS, dialect_of, gemma4, harmony, mistral
from lucebox.chat.template import ChatTemplate
from lucebox.errors import FormatError, InvalidRequestError, UnsupportedError
from lucebox.models.generation_defaults import OwnSampling, own_sampling
from lucebox.options import Sampling
from lucebox.text import Tokenizer
from lucebox.text.tokenizer_json import read_json

__all__ = ["Profile", "Thinking", "profile_for", "with_fields"]

Values = Mapping[str, Any]
_EMPTY: Values = MappingProxyType({})

# Qwen's models are trained on this sentence (Qwen3 Technical Report, "Thinking Budget").
_STOP_THINKING = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.\n"
)

_HARMONY_AFTER = f"{harmony.START}assistant{harmony.ANSWER}"
_HARMONY_THINKING: Values = {
    "open": harmony.OPEN,
    "close": harmony.CLOSE,
    "stop": harmony.CLOSE + _HARMONY_AFTER,
    "variable": None,
    "after": _HARMONY_AFTER,
    "answer": harmony.ANSWER,
}
_MISTRAL_THINKING: Values = {
    "open": mistral.THINK,
    "close": mistral.THINK_END,
    "stop": _STOP_THINKING + mistral.THINK_END,
    "variable": None,
    "after": "",
}
_GEMMA4_THINKING = {
    "open": gemma4.THINK,
    "close": gemma4.THINK_END,
    "stop": _STOP_THINKING + gemma4.THINK_END,
    "after": "",
}


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a model marks its reasoning."""

    open: str = "<think>"
    close: str = "</think>"
    stop: str = _STOP_THINKING + "</think>\n\n"
    """Appended when the thinking budget is spent; contains the closing tag."""
    variable: str | None = "enable_thinking"
    """The template variable that turns thinking on and off; None if there is none."""
    after: str = "\n\n"
    """What follows the closing tag before the answer."""
    answer: str = ""
    """The header of the answer after thinking; an answer that does not think begins with it too. Empty: none."""


@dataclass(frozen=True, slots=True)
class Profile:
    name: str
    source: str = ""
    """Source of the values."""
    dialect: str = "hermes_json"
    """The model's format of tool calls."""
    thinking: Thinking | None = None
    """None if the model does not think."""
    sampling: Mapping[str, Values] = field(default_factory=dict)
    """Fields of Sampling for "plain", "thinking" and "tools" requests; the last applicable entry wins."""
    max_tokens: int = 16384
    """Default maximum length of an answer, in tokens. It stops a looping model from filling a long context if the model
    card recommends no length."""
    most_tokens: int = 16384
    """The longest answer the model card recommends, for the highest effort."""
    reply_tokens: int = 512
    """Tokens reserved for the reply after thinking."""
    effort: Mapping[str, int] = field(default_factory=dict)
    """Thinking tokens by effort tier; absent tiers follow from max_tokens and most_tokens."""
    effort_levels: tuple[str, ...] = ()
    """The values of the template's own variable reasoning_effort; empty if it has none."""
    takes_tools: bool = False
    """Whether the template writes the definitions of tools; otherwise rendering.py does."""
    takes_calls: bool = False
    """Whether the template writes calls and results of a request without tools; otherwise rendering.py does."""
    takes_calls_with_tools: bool = False
    """Whether the template writes calls and results of a request with tools."""
    takes_late_system: bool = True
    """Whether the template takes system messages after the first message."""
    stop: tuple[str, ...] = ()
    """Strings that end every answer, in addition to the request's."""
    forbidden: tuple[int, ...] = ()
    """Ids of tokens that no answer has, unless the request gives them a bias."""
    keeps_special: bool = False
    """Whether tags of the dialect or of thinking are control tokens, whose text the parser must see."""

    def defaults(self, *, thinking: bool, tools: bool) -> Sampling:
        """Default sampling parameters for fields absent from the request."""
        values = self.sampling.get("plain", _EMPTY)
        if thinking:
            values = self.sampling.get("thinking", values)
        if tools:
            values = self.sampling.get("tools", values)
        bias = dict.fromkeys(self.forbidden, FORBIDS)
        return Sampling(**values, stop=self.stop, logit_bias=bias)


def with_fields(sampling: Sampling, changes: Mapping[str, Any]) -> Sampling:
    """The sampling with single fields of a request. Its stop strings and token biases add to the model's."""
    merged = dict(changes)
    if "stop" in changes:
        merged["stop"] = tuple(dict.fromkeys([*sampling.stop, *changes["stop"]]))
    if "logit_bias" in changes:
        merged["logit_bias"] = {**sampling.logit_bias, **changes["logit_bias"]}
    return replace(sampling, **merged)


def profile_for(
    architecture: str,
    template: ChatTemplate | None,
    tokenizer: Tokenizer,
    *,
    generation_defaults: Values = _EMPTY,
    override: str | Path | None = None,
) -> Profile:
    """The profile of a model.

    generation_defaults: what the model's own files state (models/generation_defaults.py).
    override: the user's JSON file.

    Raises:
        FormatError: the file has unknown fields or values of the wrong type.
    """
    source = "" if template is None else template.sources["default"]
    families = json.loads(Path(__file__).with_name("profiles.json").read_text(encoding="utf-8"))
    values = next(family for family in families if _matches(family, architecture, source))
    values = {key: value for key, value in values.items() if key not in ("architectures", "template_has")}
    own = own_sampling(generation_defaults)
    values |= _with_own(values, own)
    switch = "enable_thinking" if "enable_thinking" in source else None
    if template is not None:
        values["effort_levels"] = _effort_levels(template)
    values |= {"dialect": dialect_of(source), "thinking": {"variable": switch} if "</think>" in source else None}
    if values["dialect"] == "harmony":
        values["thinking"] = _HARMONY_THINKING
    if values["dialect"] == "mistral" and mistral.THINK_END in source:
        values["thinking"] = _MISTRAL_THINKING
    if values["dialect"] == "gemma4" and gemma4.THINK_END in source:
        values["thinking"] = _GEMMA4_THINKING | {"variable": switch}
    if template is not None:
        values |= _template_capabilities(template)
    where = "profiles.json"
    if override is not None:
        where, user = str(override), read_json(Path(override))
        values = _merged(values, user)
    profile = _profile(values, where)
    tags = [*DIALECTS[profile.dialect].openers, *([profile.thinking.open] if profile.thinking else [])]
    if profile.dialect == "harmony":
        tags = [harmony.MESSAGE]
    ids = [tokenizer.id_of(tag) for tag in tags]
    return replace(profile, keeps_special=any(i is not None and tokenizer.is_special(i) for i in ids))


def _matches(family: Values, architecture: str, template: str) -> bool:
    return architecture in family.get("architectures", [architecture]) and all(
        text in template for text in family.get("template_has", ())
    )


def _merged(values: Values, user: Values) -> dict[str, Any]:
    """The family's fields, overridden by the user's; objects merge field by field."""
    merged = dict(values)
    for key, value in user.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


DEFAULT_SAMPLING: Values = {"temperature": 0.7, "top_p": 0.9}
DEFAULT_SOURCE = "lucebox: the model's makers recommend nothing"
OWN_SOURCE = "the model's own files"
_SAMPLING_FIELDS = frozenset(f.name for f in fields(Sampling)) - {"logit_bias", "stop", "stop_ids", "logprobs"}
FORBIDS = -100.0
_KINDS = {"str": str, "int": int, "bool": bool}
_ITEMS = {"tuple[str, ...]": str, "tuple[int, ...]": int}


def _profile(values: Values, where: str) -> Profile:
    checked = _checked(values, Profile, where)
    if checked["dialect"] not in DIALECTS:
        raise FormatError(f"{where}: dialect is {checked['dialect']!r}, expected one of {', '.join(DIALECTS)}")
    if isinstance(thinking := checked.get("thinking"), Mapping):
        tags = Thinking(**_checked(thinking, Thinking, f"{where}: thinking"))
        if tags.close not in tags.stop:
            raise FormatError(f"{where}: thinking.stop does not contain the closing tag {tags.close!r}")
        checked["thinking"] = tags
    for name, sampling in checked["sampling"].items():
        if not isinstance(sampling, Mapping) or not sampling.keys() <= _SAMPLING_FIELDS:
            raise FormatError(f"{where}: sampling.{name} has fields that Sampling does not have")
        if not all(isinstance(value, int | float) for value in sampling.values()):
            raise FormatError(f"{where}: sampling.{name} has values that are not numbers")
    for tier, tokens in checked.get("effort", {}).items():
        if not isinstance(tokens, int) or tokens < 1:
            raise FormatError(f"{where}: effort.{tier} is {tokens!r}, expected a number of tokens")
    return Profile(**checked)


def _checked(values: Values, kind: type[Profile] | type[Thinking], where: str) -> dict[str, Any]:
    known = {f.name: str(f.type) for f in fields(kind)}
    checked = dict(values)
    for key, value in values.items():
        if key not in known:
            raise FormatError(f"{where}: unknown field {key!r}; known fields are {', '.join(known)}")
        wanted = _KINDS.get(known[key])
        if wanted is not None and (not isinstance(value, wanted) or (wanted is int and isinstance(value, bool))):
            raise FormatError(f"{where}: {key} is {value!r}, expected {known[key]}")
        if known[key].startswith("Mapping") and not isinstance(value, Mapping):
            raise FormatError(f"{where}: {key} is {value!r}, expected an object")
        if item := _ITEMS.get(known[key]):
            if not isinstance(value, list | tuple) or not all(type(one) is item for one in value):
                raise FormatError(f"{where}: {key} is {value!r}, expected a list of {item.__name__}")
            checked[key] = tuple(value)
    return checked


def _with_own(values: Values, own: OwnSampling) -> dict[str, Any]:
    """The fields of a profile that the model's own files change."""
    changed: dict[str, Any] = {"stop": own.stop, "forbidden": tuple(sorted(own.forbidden))}
    if own.max_tokens is not None:
        longest = values.get("most_tokens", Profile.__dataclass_fields__["most_tokens"].default)
        changed |= {"max_tokens": own.max_tokens, "most_tokens": max(longest, own.max_tokens)}
    if own.is_whole:
        return changed | {"sampling": {"plain": own.fields}, "source": OWN_SOURCE}
    recommended, source = values["sampling"], values["source"]
    if not recommended["plain"]:
        recommended, source = {"plain": DEFAULT_SAMPLING}, DEFAULT_SOURCE
    if own.fields:
        recommended = {mode: {**entry, **own.fields} for mode, entry in recommended.items()}
        source = f"{OWN_SOURCE}, and for the rest: {source}"
    return changed | {"sampling": recommended, "source": source}


# --- capabilities of a template, found by rendering it

_MARK = "lucebox_probe"


def _template_capabilities(template: ChatTemplate) -> dict[str, Any]:
    """Renders small conversations that contain a marker, and checks whether the prompt contains it."""
    user = {"role": "user", "content": "u"}
    tool, other = (
        {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object"}}}
        for name in (_MARK, "f")
    )
    call = {"id": "c", "type": "function", "function": {"name": _MARK, "arguments": {}}}
    called = [
        user,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "r"},
        user,
    ]
    return {
        "takes_tools": _MARK in (_rendered(template, [user], tools=[tool]) or ""),
        "takes_calls": _MARK in (_rendered(template, called) or ""),
        "takes_calls_with_tools": _MARK in (_rendered(template, called, tools=[other]) or ""),
        "takes_late_system": _MARK in (_rendered(template, [user, {"role": "system", "content": _MARK}, user]) or ""),
    }


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Words for how long to think, in ascending order."""


def _effort_levels(template: ChatTemplate) -> tuple[str, ...]:
    """The efforts that the template tells apart: those it accepts if it refuses other words, else those it spells."""
    sources = "".join(template.sources.values())
    if "reasoning_effort" not in sources:
        return ()
    user = [{"role": "user", "content": "u"}]
    accepted = [word for word in EFFORTS if _rendered(template, user, reasoning_effort=word) is not None]
    if accepted and _rendered(template, user, reasoning_effort=_MARK) is None:
        return tuple(accepted)
    spelled = [word for word in EFFORTS if f"'{word}'" in sources or f'"{word}"' in sources]
    return tuple(spelled if len(spelled) > 1 else ("low", "medium", "high"))


def _rendered(template: ChatTemplate, messages: list[Any], **options: Any) -> str | None:
    try:
        return template.render(messages, **options)
    except (InvalidRequestError, FormatError, UnsupportedError):
        return None
