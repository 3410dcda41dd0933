"""Random schemas of tools, as pydantic and zod write them: a forced call validates, or a warning names the keyword."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union
from uuid import UUID

import numpy as np
import pytest
from answers import HELD_DIALECTS, parser, read
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import FormatChecker, ValidationError
from jsonschema.validators import validator_for
from lucebox import _engine
from lucebox.chat.constraints import TokenConstraint, tools_grammar
from lucebox.chat.dialects import DIALECTS
from lucebox.chat.held_schemas import held_tools
from lucebox.chat.profiles import Profile
from lucebox.chat.tools import Tool, ToolChoice
from pydantic import BaseModel, Field, create_model
from test_constraints import allows, tokens

ZOD = json.loads((Path(__file__).parent / "schemas" / "zod.json").read_text())
CLOSERS = ['"', '<|"|>', "]", "}", "\n</parameter>\n", "@a.bc", "://a.bc"]
MAX_TOKENS = 800


def forced_call(schema: Mapping[str, Any], dialect: str, seed: int) -> tuple[Any, list[str]]:
    """The arguments of a call from random logits, and the warnings."""
    (tool,), warnings = held_tools(tokens().check, [Tool("put", parameters=schema)], DIALECTS[dialect])
    grammar = tools_grammar(Profile("x", dialect=dialect), [tool], ToolChoice("required", parallel=False))
    text = answer(TokenConstraint(tokens(), grammar), np.random.default_rng(seed))
    ((kind, _, arguments),) = read(text, parser(dialect, tools=[tool]))
    assert kind == "call"
    return json.loads(arguments), warnings


def answer(constraint: TokenConstraint, rng: np.random.Generator) -> str:
    """A random answer. Every few tokens it closes a string or a list, without which it would hardly end."""
    tokenizer, sampler, ids = tokens().tokenizer, _engine.Sampler(tokens().vocab, temperature=1.0), list[int]()
    closers = [tokenizer.encode(text, add_bos=False) for text in CLOSERS]
    while not constraint.done:
        assert len(ids) < MAX_TOKENS, tokenizer.decode(ids)
        if rng.random() < len(ids) / MAX_TOKENS:
            for token in closers[rng.integers(len(closers))]:
                if constraint.done or not allows(constraint, token):
                    break
                ids.append(token)
                constraint.accept(token)
            continue
        sampler.set_mask(constraint.mask())
        ids.append(sampler.sample(rng.normal(0, 3, tokens().vocab).astype(np.float32)))
        constraint.accept(ids[-1])
    return tokenizer.decode(ids)


def check(schema: Mapping[str, Any], dialect: str, seed: int) -> None:
    arguments, warnings = forced_call(schema, dialect, seed)
    validator = validator_for(schema)(schema, format_checker=FormatChecker())
    for error in validator.iter_errors(arguments):
        named = any(keyword in warning for keyword in keywords_of(error) for warning in warnings)
        assert named, (error.message, arguments, warnings)


def keywords_of(error: ValidationError) -> Iterator[str]:
    """The keyword of an error, and those of the alternatives that it tried."""
    yield str(error.validator)
    for inner in error.context or ():
        yield from keywords_of(inner)


@pytest.mark.first_case
@pytest.mark.parametrize("dialect", HELD_DIALECTS)
def test_zod(dialect: str) -> None:
    for seed, made in enumerate(ZOD):
        check(made["schema"], dialect, seed)


class Level(Enum):
    LOW = "low"
    HIGH = "high"


class Leaf(BaseModel):
    kind: Literal["leaf"]
    weight: Annotated[float, Field(ge=0, le=9)]


class Branch(BaseModel):
    kind: Literal["branch"]
    left: Optional[Branch] = None  # noqa: UP045  pydantic resolves the text
    level: Level


SIMPLE = st.sampled_from(
    [
        bool,
        Annotated[int, Field(ge=-5, le=40)],
        Annotated[int, Field(multiple_of=5, ge=0, le=100)],
        Annotated[str, Field(max_length=6)],
        Annotated[str, Field(pattern="^[a-f]{2,4}$")],
        str,
        UUID,
        date,
        datetime,
        Decimal,
        Path,
        Level,
        Literal["one", 2, None],
        Leaf,
        Branch,
        Annotated[Leaf | Branch, Field(discriminator="kind")],
    ]
)
TYPES = st.recursive(
    SIMPLE,
    lambda inner: st.one_of(
        inner.map(lambda kind: Annotated[list[kind], Field(max_length=2)]),
        inner.map(lambda kind: Annotated[dict[str, kind], Field(max_length=2)]),
        inner.map(lambda kind: kind | None if isinstance(kind, type) else Optional[kind]),  # noqa: UP045
        st.tuples(inner, inner).map(lambda kinds: tuple[kinds]),
        st.tuples(inner, inner).map(lambda kinds: Union[kinds]),  # noqa: UP007
    ),
    max_leaves=4,
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TYPES, min_size=1, max_size=3), st.sampled_from(sorted(HELD_DIALECTS)), st.integers(0, 99))
def test_pydantic(kinds: list[Any], dialect: str, seed: int) -> None:
    fields: Any = {f"field {i}": (kind, ... if i % 2 == 0 else None) for i, kind in enumerate(kinds)}
    check(create_model("Put", **fields).model_json_schema(), dialect, seed)
