"""Mutated vocabularies and chat templates: an error from the tree in lucebox.errors or a result, in bounded time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from lucebox.chat import ChatTemplate
from lucebox.errors import LuceboxError
from lucebox.text import Tokenizer
from text_data import DATA, small_vocabulary

N_CASES = 300
ODD_VALUES: list[object] = [
    None, True, -1, 0, 2**31, 2**64, 1.5, float("nan"), "", " ", "a", "\ud800", "\x00", "é" * 500, b"x", [], [1], {},
    [["a"]], "a b", " a", "a ", "Ġ", "<0x41>", "<0xZZ>", "<|end|>", 10**30,
]  # fmt: skip


def mutate_vocabulary(rng: random.Random) -> dict[str, object]:
    metadata = small_vocabulary()
    metadata["tokenizer.ggml.pre"] = rng.choice(["gpt-2", "smollm", "qwen2", "qwen35", "llama-bpe"])
    for _ in range(rng.randint(1, 4)):
        key = rng.choice(list(metadata))
        value = metadata[key]
        if isinstance(value, list) and value and rng.random() < 0.85:
            edits: list[Callable[[list[object]], object]] = [
                lambda v: v.__setitem__(rng.randrange(len(v)), rng.choice(ODD_VALUES)),
                lambda v: v.__setitem__(rng.randrange(len(v)), rng.choice(v)),
                lambda v: v.insert(rng.randrange(len(v)), rng.choice(v)),
                lambda v: v.pop(rng.randrange(len(v))),
                lambda v: v.reverse(),
                lambda v: v.extend(v),
                lambda v: v.append("x" * rng.choice([1, 1000, 100_000])),
            ]
            rng.choice(edits)(value)
        elif rng.random() < 0.2:
            del metadata[key]
        else:
            metadata[key] = rng.choice(ODD_VALUES)
    return metadata


PIECES = [
    "{% for m in messages %}", "{% endfor %}", "{% if m %}", "{% endif %}", "{{ m }}", "{{ messages }}", "{{ ns.x }}",
    "{% set ns = namespace(x='ab') %}", "{% set ns.x = ns.x ~ ns.x %}", "{% set ns.x = [ns.x, ns.x] %}",
    "{% set ns.x = ns %}", "{% for i in range(9999) %}", "{% macro f(x) %}", "{% endmacro %}", "{{ f(f) }}",
    "{{ 'a' * 99999999 }}", "{{ 9 ** 9 ** 9 }}", "{{ ns.x | tojson }}", "{{ ns.x | join(ns.x) }}",
    "{{ ns.x | replace('a', ns.x) }}", "{{ '%9s' % ns.x }}", "{% break %}", "{{ messages[::-1] }}",
    "{{ x.__class__ }}", "{% block b %}", "{% endblock %}", "{{ self.b() }}", "{{ loop(m) }}", "{%", "}}",
    "{% set x %}", "{% endset %}", "{{ x + x }}", "{{ ns | string | length }}", "{% call f(1) %}", "{% endcall %}",
    "{#", "(", "'", "{% filter upper %}", "{% endfilter %}", "{{ ns.x | map('string') | list }}",
    "{{ ns.x | batch(9) | list }}", "{{ dict(a=ns) }}",
]  # fmt: skip
PUBLISHED = [path.read_text() for path in sorted((DATA / "templates").glob("*.jinja"))]


def mutate_template(rng: random.Random) -> str:
    text = rng.choice([*PUBLISHED, "".join(rng.choices(PIECES, k=rng.randint(2, 12)))])
    for _ in range(rng.randint(0, 4)):
        at, end = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        end = min(end, at + rng.choice([0, 1, 20, 400]))
        text = text[:at] + rng.choice([*PIECES, "", text[at:end] * 2, chr(rng.randrange(1, 0x500))]) + text[end:]
    return text


@pytest.mark.parametrize("part", range(3))
def test_vocabularies(part: int) -> None:
    n_refused = 0
    for seed in range(part * N_CASES // 3, (part + 1) * N_CASES // 3):
        metadata = mutate_vocabulary(random.Random(seed))
        began = time.process_time()
        try:
            tokenizer = Tokenizer.from_gguf(metadata, "fuzz.gguf")
            ids = tokenizer.encode("hello <|end|> <tool>\n é 🙂 12345")
            tokenizer.decode(ids)
        except LuceboxError:
            n_refused += 1
        assert time.process_time() - began < 10, f"seed {seed}"
    assert 0 < n_refused < N_CASES // 3


@pytest.mark.first_case
@pytest.mark.parametrize("part", range(3))
def test_templates(part: int) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "<think>\na</think>b"}]
    n_refused = 0
    for seed in range(part * N_CASES // 3, (part + 1) * N_CASES // 3):
        text = mutate_template(random.Random(seed))
        began = time.process_time()
        try:
            ChatTemplate(text, where="fuzz").render(messages * 2, tools=[{"name": "f"}])
        except LuceboxError:
            n_refused += 1
        assert time.process_time() - began < 25, f"seed {seed}"
    assert 0 < n_refused < N_CASES // 3
