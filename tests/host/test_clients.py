"""Setups of coding agents, and what `lucebox launch` makes of them. The agents themselves are not needed here."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from lucebox.cli import main
from lucebox.cli.clients import CLIENTS, Endpoint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TO = Endpoint("http://127.0.0.1:8000", 'odd "name"', 40000, "a key")
MODELS = {"data": [{"id": "small", "context_length": 2048}, {"id": "large", "context_length": 65536}]}


class Models(BaseHTTPRequestHandler):
    """Only the list of models, which is all that launch asks for."""

    def do_GET(self) -> None:
        text = json.dumps(MODELS if self.path == "/v1/models" else {}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_codex() -> None:
    setup = CLIENTS["codex"].setup(TO)
    config = tomllib.loads(setup.files["config.toml"])
    provider = config["model_providers"][config["model_provider"]]
    assert config["model"] == TO.model and config["model_context_window"] == 40000
    assert provider["base_url"] == "http://127.0.0.1:8000/v1" and provider["wire_api"] == "responses"
    assert setup.variables[provider["env_key"]] == "a key"


def test_claude() -> None:
    variables = CLIENTS["claude"].setup(TO).variables
    assert variables["ANTHROPIC_BASE_URL"] == TO.url  # it adds /v1 itself
    assert [value for name, value in variables.items() if name.endswith("_MODEL")] == [TO.model] * 4
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "40000"
    assert variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "10000"


@pytest.mark.parametrize(
    ("client", "file"),
    [
        ("opencode", "config/opencode/opencode.json"),
        ("pi", "models.json"),
        ("cline", "data/settings/providers.json"),
        ("continue", "config.yaml"),
        ("openclaw", "openclaw.json"),
        ("hermes", "config.yaml"),
    ],
)
def test_json_settings(client: str, file: str) -> None:
    setup = CLIENTS[client].setup(TO)
    text = setup.files[file]
    json.loads(text)
    for value in ('"http://127.0.0.1:8000/v1"', "40000", "10000", '"a key"', json.dumps(TO.model)):
        assert value in text, value


def test_aider() -> None:
    setup = CLIENTS["aider"].setup(TO)
    (limits,) = json.loads(setup.files["models.json"]).values()
    assert setup.variables["AIDER_MODEL"] == f"openai/{TO.model}" and limits["max_input_tokens"] == 40000
    assert setup.variables["OPENAI_API_BASE"] == "http://127.0.0.1:8000/v1"


def test_goose() -> None:
    variables = CLIENTS["goose"].setup(TO).variables
    assert f"{variables['OPENAI_HOST']}/{variables['OPENAI_BASE_PATH']}" == "http://127.0.0.1:8000/v1/chat/completions"
    limits = [variables[f"GOOSE_{name}"] for name in ("MODEL", "CONTEXT_LIMIT", "MAX_TOKENS")]
    assert limits == [TO.model, "40000", "10000"]
    assert variables["OPENAI_API_KEY"] == "a key"


def test_zed() -> None:
    setup = CLIENTS["zed"].setup(TO)
    settings = json.loads(setup.files["config/settings.json"])
    chosen = settings["agent"]["default_model"]
    provider = settings["language_models"]["openai_compatible"][chosen["provider"]]
    assert provider["api_url"] == "http://127.0.0.1:8000/v1"
    (model,) = provider["available_models"]
    assert (model["name"], model["max_tokens"], model["max_output_tokens"]) == (chosen["model"], 40000, 10000)
    assert setup.variables[f"{chosen['provider'].upper()}_API_KEY"] == "a key"


def test_arguments_name_the_home(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for home, expected in (([], "$home"), (["--home", str(tmp_path)], str(tmp_path))):
        as_json = ["--json"] if home else []
        assert main(["launch", "continue", "--url", url, "--print", *home, *as_json]) == 0
        assert f"{expected}/config.yaml" in capsys.readouterr().out


@pytest.mark.parametrize("client", CLIENTS)
def test_print_starts_nothing(client: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["launch", client, "--url", f"{url}/v1/", "--model", "large", "--print", "--json", "--", "-x", "y"]) == 0
    )
    shown = json.loads(capsys.readouterr().out)
    assert shown["command"][0] == CLIENTS[client].program and shown["command"][-2:] == ["-x", "y"]
    text = json.dumps([shown["variables"], shown["files"]])
    assert url in text and "large" in text and "~" not in text


@pytest.mark.parametrize("client", CLIENTS)
def test_starts_the_agent_in_its_home(client: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of the agent's name that writes down how it was started."""
    agent = tmp_path / "bin" / CLIENTS[client].program
    agent.parent.mkdir()
    agent.write_text(f'#!/bin/sh\nenv > {tmp_path}/variables\necho "$@" > {tmp_path}/arguments\nexit 7\n')
    agent.chmod(0o755)
    monkeypatch.setenv("PATH", str(agent.parent), prepend=":")
    home = tmp_path / "home"
    assert main(["launch", client, "--url", url, "--home", str(home), "--", "one", "two words"]) == 7
    setup = CLIENTS[client].setup(Endpoint(url, "small", 2048))
    variables = dict(line.split("=", 1) for line in (tmp_path / "variables").read_text().splitlines() if "=" in line)
    for name, value in setup.variables.items():
        assert variables[name] == (str(home / value[2:]) if value.startswith("~/") else value), name
    assert (tmp_path / "arguments").read_text().endswith("one two words\n")
    for name, text in setup.files.items():
        assert (home / name).read_text() == text


def test_what_is_missing_is_said(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["launch", "pi", "--url", url + "/elsewhere"]) == 1
    assert "does not list its models" in capsys.readouterr().err
    assert main(["launch", "pi", "--url", "http://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == "lucebox: error: http://127.0.0.1:1: Connection refused\n"
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["launch", "pi", "--url", url]) == 1
    assert "npm install -g @mariozechner/pi-coding-agent" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["launch", "pi", "--nonsense", "--", "x"])
