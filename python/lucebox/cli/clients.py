"""Coding agents: the files and environment variables that point each of them at a lucebox server, in a separate home.
The user's own configuration of the agent stays untouched."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CLIENTS", "Client", "Endpoint", "Setup"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The server, and the model it offers."""

    url: str
    """Address of the server, without /v1."""
    model: str
    context: int
    api_key: str = "none"
    """Clients require some key even where the server needs none."""

    @property
    def max_tokens(self) -> int:
        """Maximum tokens of an answer, which leaves room for prompts."""
        return max(256, min(32000, self.context // 4))


@dataclass(frozen=True, slots=True)
class Setup:
    """Files, variables and arguments to start a client with."""

    files: Mapping[str, str]
    """Content by path below the client's home."""
    variables: Mapping[str, str]
    """In a value that begins with "~/", "~" is the client's home."""
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    program: str
    package: str
    """Name on npm."""
    setup: Callable[[Endpoint], Setup]


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def _codex(to: Endpoint) -> Setup:
    text = json.dumps  # a JSON string is a TOML string
    lines = [
        f"model = {text(to.model)}",
        'model_provider = "lucebox"',
        f"model_context_window = {to.context}",
        f"model_auto_compact_token_limit = {to.context * 3 // 4}",
        'web_search = "disabled"',
        "check_for_update_on_startup = false",
        "",
        "[analytics]",
        "enabled = false",
        "",
        "[model_providers.lucebox]",
        'name = "lucebox"',
        f"base_url = {text(to.url + '/v1')}",
        'wire_api = "responses"',
        'env_key = "LUCEBOX_API_KEY"',
        "request_max_retries = 2",
        "stream_max_retries = 2",
        "stream_idle_timeout_ms = 600000",
    ]
    variables = {"CODEX_HOME": "~/", "LUCEBOX_API_KEY": to.api_key}
    return Setup({"config.toml": "\n".join(lines) + "\n"}, variables)


def _claude(to: Endpoint) -> Setup:
    models = {f"ANTHROPIC_DEFAULT_{size}_MODEL": to.model for size in ("OPUS", "SONNET", "HAIKU")}
    return Setup(
        {},
        {
            "CLAUDE_CONFIG_DIR": "~/",
            "ANTHROPIC_BASE_URL": to.url,
            "ANTHROPIC_AUTH_TOKEN": to.api_key,
            "ANTHROPIC_MODEL": to.model,
            **models,
            "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(to.context),  # for an unknown model it assumes a million
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(to.max_tokens),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
    )


def _opencode(to: Endpoint) -> Setup:
    name = f"lucebox/{to.model}"
    config = {
        "model": name,
        "small_model": name,
        "enabled_providers": ["lucebox"],
        "share": "disabled",
        "autoupdate": False,
        "provider": {
            "lucebox": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "lucebox",
                "options": {"baseURL": to.url + "/v1", "apiKey": to.api_key},
                "models": {to.model: {"limit": {"context": to.context, "output": to.max_tokens}}},
            }
        },
    }
    variables = {
        **{f"XDG_{kind.upper()}_HOME": f"~/{kind}" for kind in ("config", "data", "state", "cache")},
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    return Setup({"config/opencode/opencode.json": _json(config)}, variables)


def _pi(to: Endpoint) -> Setup:
    model = {"id": to.model, "reasoning": True, "contextWindow": to.context, "maxTokens": to.max_tokens}
    free = {"cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}}
    provider = {
        "baseUrl": to.url + "/v1",
        "api": "openai-completions",
        "apiKey": to.api_key,
        "models": [{**model, **free}],
    }
    variables = {"PI_CODING_AGENT_DIR": "~/", "PI_OFFLINE": "1"}
    files = {"models.json": _json({"providers": {"lucebox": provider}})}
    return Setup(files, variables, ("--provider", "lucebox", "--model", to.model))


CLIENTS = {
    client.name: client
    for client in (
        Client("codex", "codex", "@openai/codex", _codex),
        Client("claude", "claude", "@anthropic-ai/claude-code", _claude),
        Client("opencode", "opencode", "opencode-ai", _opencode),
        Client("pi", "pi", "@mariozechner/pi-coding-agent", _pi),
    )
}
