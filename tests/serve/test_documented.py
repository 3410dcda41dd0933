"""docs/server*.md list exactly the fields with an effect, the ignored fields and the flags of the code."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
from lucebox.serve.protocols.anthropic import MessagesRequest
from lucebox.serve.protocols.body import Body
from lucebox.serve.protocols.llama_cpp import CompletionRequest as LlamaCppCompletion
from lucebox.serve.protocols.ollama_bodies import ChatRequest as OllamaChat
from lucebox.serve.protocols.ollama_bodies import EmbedRequest, Options
from lucebox.serve.protocols.ollama_bodies import GenerateRequest as OllamaGenerate
from lucebox.serve.protocols.openai_chat import ChatRequest
from lucebox.serve.protocols.openai_completions import CompletionRequest
from lucebox.serve.protocols.openai_responses import ResponsesRequest
from lucebox.serve.protocols.router_fields import RouterFields
from lucebox.serve.settings import ServeSettings

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = "".join(page.read_text() for page in sorted(DOCS.glob("server*.md")))
TABLES = re.findall(r"(?:^\|.*\|\n)+", (DOCS / "server-api.md").read_text(), re.M)
FIELDS, IGNORED = TABLES[1:3]
COLUMNS = {
    "chat": ChatRequest,
    "completions": CompletionRequest,
    "responses": ResponsesRequest,
    "messages": MessagesRequest,
}
# Required fields, and fields with only one allowed value or none, which the prose names.
ELSEWHERE = {"model", "messages", "prompt", "input", "modalities", "truncation", "thread", *RouterFields.model_fields}


def names(text: str) -> set[str]:
    return {name.partition(".")[0] for name in re.findall(r"`([a-z0-9_.]+)`", text)}


def ignored(body: type[Body]) -> set[str]:
    extras = {name: info.json_schema_extra for name, info in body.model_fields.items()}
    return {name for name, extra in extras.items() if isinstance(extra, dict) and extra.get("x-ignored")}


@pytest.mark.parametrize("protocol", COLUMNS)
def test_fields(protocol: str) -> None:
    body, column = COLUMNS[protocol], [*COLUMNS].index(protocol) + 2
    cells = [row.split("|") for row in FIELDS.splitlines()]
    assert cells[0][column].strip() == protocol
    documented: set[str] = set()
    for row in cells[2:]:
        says_same = row[column].strip().startswith("the same")
        documented |= names(row[2] if says_same else "") | names(row[column])
    assert documented - {"allowed_tools", *FORMS} == set(body.model_fields) - ignored(body) - ELSEWHERE
    (line,) = [row for row in IGNORED.splitlines() if row.startswith(f"| {protocol} |")]
    assert names(line) - {"tools"} == ignored(body)


OTHERS = {
    "`/api/chat`": OllamaChat,
    "`/api/generate`": OllamaGenerate,
    "`options`": Options,
    "`/api/embed`": EmbedRequest,
    "`/completion`": LlamaCppCompletion,
}
REFUSED = {"suffix", "template", "context", "mirostat"}


def test_fields_of_other_servers() -> None:
    (table,) = [table for table in TABLES if "/api/chat` |" in table]
    rows = {cells[1].strip(): cells for row in table.splitlines()[2:] if (cells := row.split("|"))}
    assert rows.keys() == OTHERS.keys()
    previous: set[str] = set()
    for name, body in OTHERS.items():
        has_effect, no_effect = rows[name][2:4]
        previous = previous if no_effect.strip() == "the same" else names(no_effect)
        refused = REFUSED - names(no_effect)
        assert names(has_effect) | previous == body.model_fields.keys() - refused
        assert ignored(body) <= previous


FORMS = {"json_object", "json_schema", "regex", "grammar"}  # values of response_format.type


# Flags of the engine, and of routers.
OF_OTHERS = {
    "json",
    "context",
    "device",
    "kv-tokens",
    "threads",
    "draft",
    "memory-limit",
    "policy",
    "ray",
    "worker-urls",
}


def test_flags() -> None:
    documented = set(re.findall(r"--([a-z][a-z-]+)", TEXT)) - OF_OTHERS
    assert documented == {field.name.replace("_", "-") for field in fields(ServeSettings)}
