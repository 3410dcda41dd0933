"""Coding agents and other clients: the files and environment variables that point each of them at a lucebox server, in
a separate home. The user's own configuration of the agent stays untouched."""

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
    """As the variables."""


@dataclass(frozen=True, slots=True)
class Client:
    name: str
    program: str
    install: str
    """Command that installs it."""
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


def _cline(to: Endpoint) -> Setup:
    settings = {
        "provider": "openai-compatible",
        "apiKey": to.api_key,
        "model": to.model,
        "baseUrl": to.url + "/v1",
        "contextWindow": to.context,
        "maxTokens": to.max_tokens,
    }
    provider = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    providers = {
        "version": 1,
        "lastUsedProvider": "openai-compatible",
        "modes": {},
        "providers": {"openai-compatible": provider},
    }
    variables = {"CLINE_DIR": "~/", "CLINE_DATA_DIR": "~/data"}
    return Setup({"data/settings/providers.json": _json(providers)}, variables)


def _continue(to: Endpoint) -> Setup:
    model = {
        "name": to.model,
        "provider": "openai",
        "model": to.model,
        "apiBase": to.url + "/v1",
        "apiKey": to.api_key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {"contextLength": to.context, "maxTokens": to.max_tokens},
    }
    config = {"name": "lucebox", "version": "1.0.0", "schema": "v1", "models": [model]}
    variables = {"CONTINUE_GLOBAL_DIR": "~/", "CONTINUE_CLI_ENABLE_TELEMETRY": "0"}
    return Setup({"config.yaml": _json(config)}, variables, ("--config", "~/config.yaml"))  # JSON is YAML


def _hermes(to: Endpoint) -> Setup:
    provider = {
        "api": to.url + "/v1",
        "api_key": to.api_key,
        "default_model": to.model,
        "transport": "chat_completions",
        "models": {to.model: {"context_length": to.context}},
    }
    config = {
        "model": {
            "default": to.model,
            "provider": "lucebox",
            "context_length": to.context,
            "max_tokens": to.max_tokens,
        },
        "providers": {"lucebox": provider},
    }
    return Setup({"config.yaml": _json(config)}, {"HERMES_HOME": "~/"})


def _openclaw(to: Endpoint) -> Setup:
    model = {
        "id": to.model,
        "name": to.model,
        "reasoning": True,
        "input": ["text"],
        "contextWindow": to.context,
        "maxTokens": to.max_tokens,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {
        "baseUrl": to.url + "/v1",
        "apiKey": to.api_key,
        "api": "openai-completions",
        "models": [model],
    }
    config = {
        "models": {"mode": "merge", "providers": {"lucebox": provider}},
        "agents": {"defaults": {"model": {"primary": f"lucebox/{to.model}"}, "workspace": "."}},
    }
    return Setup({"openclaw.json": _json(config)}, {"OPENCLAW_STATE_DIR": "~/", "OPENCLAW_HOME": "~/"})


def _aider(to: Endpoint) -> Setup:
    name = f"openai/{to.model}"
    limits = {"max_input_tokens": to.context, "max_output_tokens": to.max_tokens, "max_tokens": to.max_tokens}
    metadata = {name: {**limits, "input_cost_per_token": 0, "output_cost_per_token": 0, "mode": "chat"}}
    metadata[name]["litellm_provider"] = "openai"
    return Setup(
        {"models.json": _json(metadata)},
        {
            "OPENAI_API_BASE": to.url + "/v1",
            "OPENAI_API_KEY": to.api_key,
            "AIDER_MODEL": name,
            "AIDER_MODEL_METADATA_FILE": "~/models.json",
            "AIDER_INPUT_HISTORY_FILE": "~/input.history",
            "AIDER_CHAT_HISTORY_FILE": "~/chat.history.md",
            "AIDER_SHOW_MODEL_WARNINGS": "false",
            "AIDER_CHECK_UPDATE": "false",
            "AIDER_ANALYTICS": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "true",
        },
    )


def _goose(to: Endpoint) -> Setup:
    developer = {"type": "builtin", "name": "developer", "enabled": True, "timeout": 300}
    return Setup(
        {"config/config.yaml": _json({"extensions": {"developer": developer}})},  # JSON is YAML
        {
            "GOOSE_PATH_ROOT": "~/",
            "GOOSE_PROVIDER": "openai",
            "GOOSE_MODEL": to.model,
            "GOOSE_CONTEXT_LIMIT": str(to.context),
            "GOOSE_MAX_TOKENS": str(to.max_tokens),
            "GOOSE_DISABLE_KEYRING": "true",  # else a key in the user's keyring wins
            "OPENAI_HOST": to.url,
            "OPENAI_BASE_PATH": "v1/chat/completions",
            "OPENAI_API_KEY": to.api_key,
        },
    )


def _zed(to: Endpoint) -> Setup:
    model = {
        "name": to.model,
        "max_tokens": to.context,
        "max_output_tokens": to.max_tokens,
        "capabilities": {"tools": True, "images": False, "parallel_tool_calls": True, "prompt_cache_key": False},
    }
    settings = {
        "language_models": {"openai_compatible": {"lucebox": {"api_url": to.url + "/v1", "available_models": [model]}}},
        "agent": {"default_model": {"provider": "lucebox", "model": to.model}},
        "telemetry": {"diagnostics": False, "metrics": False},
        "auto_update": False,
    }
    variables = {"LUCEBOX_API_KEY": to.api_key}  # named after the provider
    # Without --foreground it would return before it has read its home.
    return Setup({"config/settings.json": _json(settings)}, variables, ("--foreground", "--user-data-dir", "~/"))


def _open_webui(to: Endpoint) -> Setup:
    variables = {
        "DATA_DIR": "~/",
        "OPENAI_API_BASE_URL": to.url + "/v1",
        "OPENAI_API_KEY": to.api_key,
        "DEFAULT_MODELS": to.model,
        "ENABLE_OLLAMA_API": "false",
        "WEBUI_AUTH": "false",  # it listens on this machine only
        "CORS_ALLOW_ORIGIN": "http://127.0.0.1:8080;http://localhost:8080",
        "WEBUI_SECRET_KEY": "none: there are no accounts",  # else it writes one into the working directory
        "OFFLINE_MODE": "true",
        "BYPASS_EMBEDDING_AND_RETRIEVAL": "true",
    }
    return Setup({}, variables, ("serve", "--host", "127.0.0.1"))


GOOSE = "https://github.com/block/goose/releases/download/stable/download_cli.sh"
CLIENTS = {
    client.name: client
    for client in (
        Client("codex", "codex", "npm install -g @openai/codex", _codex),
        Client("claude", "claude", "npm install -g @anthropic-ai/claude-code", _claude),
        Client("opencode", "opencode", "npm install -g opencode-ai", _opencode),
        Client("pi", "pi", "npm install -g @mariozechner/pi-coding-agent", _pi),
        Client("cline", "cline", "npm install -g cline", _cline),
        Client("continue", "cn", "npm install -g @continuedev/cli", _continue),
        Client("openclaw", "openclaw", "npm install -g openclaw", _openclaw),
        Client("hermes", "hermes", "uv tool install hermes-agent", _hermes),
        Client("aider", "aider", "uv tool install aider-chat", _aider),
        Client("goose", "goose", f"curl -fsSL {GOOSE} | bash", _goose),
        Client("zed", "zed", "curl -f https://zed.dev/install.sh | sh", _zed),
        Client("open-webui", "open-webui", "uv tool install open-webui", _open_webui),
    )
}
