"""Chat templates that try to take memory or time without bound. Refused templates stop within seconds."""

from __future__ import annotations

import json
import resource
import time
from typing import Any

import pytest
from lucebox.chat.template import ChatTemplate
from lucebox.errors import FormatError
from lucebox.text.spellings import MARK

pytestmark = pytest.mark.slow  # 25 s: each template spends its whole budget

MESSAGES = [{"role": "user", "content": "hi"}]
TEXT = "{% set A='" + "a" * 500 + "'*7000 %}"
ITEMS = "{% set L=range(99999)|list %}{% set L=L+L+L+L %}"


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def each(form: str, n: int = 600) -> str:
    return "".join(form.replace("#", str(i)) for i in range(1, n))


TEMPLATES = {
    "slices": TEXT + each("{% set b#=A[#:] %}"),
    "slices in a list": TEXT + "{% set L=[" + each("A[#:],") + "] %}",
    "slices in calls": TEXT + "{% macro m(x) %}{% endmacro %}" + each("{{ m(A[#:]) }}"),
    "slices in filters": TEXT + each("{% set b#=A[#:]|length %}"),
    "slices in concatenations": TEXT + each("{% set b#=A[#:] ~ 'b' %}"),
    "slices of lists": ITEMS + each("{% set b#=L[#:] %}"),
    "in": ITEMS + "{% if -1 in L %}{% endif %}" * 3000,
    "not in": ITEMS + "{% if 5 not in L[9:] %}{% endif %}" * 3000,
    "==": ITEMS + "{% set K=L+[1] %}{% set L=L+[2] %}" + "{% if K==L %}{% endif %}" * 3000,
    "<": ITEMS + "{% set K=L+[1] %}{% set L=L+[2] %}" + "{% if K<L %}{% endif %}" * 3000,
    "tests": ITEMS + "{% if -1 is in L %}{% endif %}" * 3000,
    "tests of items": ITEMS + "{% set x=L|select('in',L)|list %}",
    "max": ITEMS + "{% set x=L|max %}" * 3000,
    "sort": ITEMS + "{% set K=[L,L+[1]]*200 %}{% set x=K|sort %}",
    "count": ITEMS + "{% set x=L.count(-1) %}" * 3000,
    "rfind": TEXT + "{% set x=A.rfind('ab'+A[9:1700000]) %}",
    "rindex": TEXT + "{% set x=A.rindex('ab'+A[9:1700000]) %}",
    "rsplit": TEXT + "{% set x=A.rsplit('ab'+A[9:1700000]) %}",
    "rpartition": TEXT + "{% set x=A.rpartition('ab'+A[9:1700000]) %}",
    "strip": TEXT + "{% set x=A.strip('b'*800000+'a') %}",
    "lstrip": TEXT + "{% set x=A.lstrip('b'*800000+'a') %}",
    "trim": TEXT + "{% set x=A|trim('b'*800000+'a') %}",
    "format": "{% set f='%999d'*250000 %}{% set x=f % ((1,1,1,1,1,1,1,1,1,1)*25000) %}",
    "format method": "{% set f='{:999}'*230000 %}{% set x=f.format(*((1,1,1,1,1,1,1,1,1,1)*23000)) %}",
    "format filter": "{% set f='%999s'*250000 %}{% set x=f|format(*((1,1,1,1,1,1,1,1,1,1)*25000)) %}",
    "find": TEXT + "{% set x=A.find('b') %}" * 9000,
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_that_run_away(name: str) -> None:
    before, start = peak_mib(), time.process_time()
    with pytest.raises(FormatError, match="the template was stopped"):
        ChatTemplate(TEMPLATES[name], where="attack").render(MESSAGES)
    assert time.process_time() - start < 12
    assert peak_mib() - before < 256


def test_indented_json_of_deep_tools() -> None:
    """A client's tools and a harmless template: Python's encoder takes a step per value and level."""
    value: Any = list(range(1_000_000))
    for _ in range(300):
        value = [value]
    tool = {"type": "function", "function": {"name": "f", "parameters": {"x": value}}}
    start = time.process_time()
    with pytest.raises(FormatError, match="the template was stopped"):
        ChatTemplate("{{ tools|tojson(indent=4) }}", where="attack").render(MESSAGES, tools=[tool])
    assert time.process_time() - start < 10


@pytest.mark.parametrize("text", ["é", "\\é", "é\\\\", MARK, f"\\{MARK}{MARK}\\\\{MARK}é", f"\\\\u2425{MARK}", '"\n'])
def test_escaped_json_keeps_marks(text: str) -> None:
    escaped = ChatTemplate("{{ x|tojson(ensure_ascii=true) }}", where="attack").render(MESSAGES, x=text)
    assert escaped.replace(MARK, "").isascii()
    assert escaped.count(MARK) == text.count(MARK)
    assert json.loads(escaped) == text


def test_escaping_takes_no_step_per_character() -> None:
    start = time.process_time()
    template = ChatTemplate("{{ x|tojson(ensure_ascii=true)|length }}", where="attack")
    assert template.render(MESSAGES, x="é" * 1_900_000) == str(2 + 6 * 1_900_000)
    assert time.process_time() - start < 3
