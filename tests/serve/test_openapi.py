"""Checks the server against its OpenAPI document with schemathesis: valid and invalid requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from running import Running, started

if TYPE_CHECKING:  # imported in the tests: every process of pytest reads every test file
    import schemathesis

EXAMPLES = [1, pytest.param(24, marks=pytest.mark.slow)]  # per operation: 1 takes 3 s, and 24 take 40 s


@pytest.fixture(scope="module")
def brief() -> Iterator[Running]:
    """A server with short answers."""
    with started("--max-tokens", "3", "--alias", "*") as running:
        yield running


@pytest.fixture(scope="module")
def document(brief: Running) -> schemathesis.BaseSchema:
    import schemathesis

    return schemathesis.openapi.from_url(f"{brief.url}/openapi.json")


@pytest.mark.parametrize("examples", EXAMPLES)
@pytest.mark.parametrize("name", [pytest.param("positive", marks=pytest.mark.slow), "negative"])  # 9 s
def test_every_operation(document: schemathesis.BaseSchema, name: str, examples: int) -> None:
    from schemathesis import GenerationMode

    mode = GenerationMode(name)
    operations = [result.ok() for result in document.get_all_operations()]
    assert len(operations) > 15
    for operation in operations:
        if mode.is_positive or operation.body:  # without a body there is no invalid request
            held_to_the_document(document, operation, mode, examples)


def is_valid(document: schemathesis.BaseSchema, operation: schemathesis.APIOperation, body: object) -> bool:
    """Whether a body is as the document says: what breaks one branch of a union may fit another."""
    content = document.raw_schema["paths"][operation.path][operation.method]["requestBody"]["content"]
    schema = {**document.raw_schema, **content["application/json"]["schema"]}
    return bool(jsonschema.Draft202012Validator(schema).is_valid(body))


def held_to_the_document(
    document: schemathesis.BaseSchema,
    operation: schemathesis.APIOperation,
    mode: schemathesis.GenerationMode,
    examples: int,
) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        negative_data_rejection,
        response_schema_conformance,
        status_code_conformance,
        unsupported_method,
    )

    checks = [
        not_a_server_error,
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
        unsupported_method,
    ]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
    def check(case: schemathesis.Case) -> None:
        fits = not mode.is_positive and is_valid(document, operation, case.body)
        case.call_and_validate(checks=checks if fits else [*checks, negative_data_rejection])

    check()
