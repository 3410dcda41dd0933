"""Drives Open WebUI as its page does. `python open_webui.py PROMPT LAUNCH...` starts it with a command, adds a tool
that reads, edits and tests the project in the working directory, sends the prompt, and prints the answer."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import httpx

START_S, ANSWER_S = 240, 240
TOOL = '''
import subprocess, sys
from pathlib import Path

PROJECT = Path({folder!r})

class Tools:
    def read_file(self, name: str) -> str:
        """Reads a file of the project.
        :param name: the file's name
        """
        return (PROJECT / name).read_text()

    def edit_file(self, name: str, old: str, new: str) -> str:
        """Replaces a text in a file of the project.
        :param name: the file's name
        :param old: the text
        :param new: its replacement
        """
        text = (PROJECT / name).read_text()
        (PROJECT / name).write_text(text.replace(old, new))
        return "edited"

    def run_test(self, name: str) -> str:
        """Runs a test of the project.
        :param name: the test's file
        """
        return subprocess.run([sys.executable, name], cwd=PROJECT, capture_output=True, text=True).stdout
'''


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def wait_until_it_serves(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    for _ in range(START_S):
        assert process.poll() is None, "Open WebUI ended"
        try:
            if client.get("/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    raise TimeoutError(f"Open WebUI did not start within {START_S} s")


def posted(client: httpx.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
    return dict(answer.json())


def answer_to(client: httpx.Client, prompt: str) -> str:
    user, assistant = str(uuid.uuid4()), str(uuid.uuid4())
    (model,) = client.get("/api/models").json()["data"]
    message = {"id": user, "parentId": None, "role": "user", "content": prompt, "models": [model["id"]]}
    sent = {
        "model": model["id"],
        "messages": [{"role": "user", "content": prompt}],
        "stream": True,
        "tool_ids": ["project"],
        "session_id": "page",
        "id": assistant,
        "parent_id": None,
        "user_message": message,
        "params": {"function_calling": "native"},
        "background_tasks": {"title_generation": True},
    }
    chat = posted(client, "/api/chat/completions", sent)["chat_id"]
    for _ in range(ANSWER_S):
        found = client.get(f"/api/v1/chats/{chat}").json()["chat"]["history"]["messages"][assistant]
        if found.get("done"):
            return str(found)
        time.sleep(1)
    raise TimeoutError(f"no answer within {ANSWER_S} s: {found}")


def main() -> None:
    prompt, *launch = sys.argv[1:]
    port = free_port()
    process = subprocess.Popen([*launch, "--", "--port", str(port)])  # round_trip.py ends it
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        wait_until_it_serves(client, process)
        token = posted(client, "/api/v1/auths/signin", {"email": "", "password": ""})["token"]
        client.headers["authorization"] = f"Bearer {token}"
        content = TOOL.format(folder=str(Path.cwd()))
        tool = {"id": "project", "name": "project", "content": content, "meta": {"description": "The project"}}
        posted(client, "/api/v1/tools/create", tool)
        print(answer_to(client, prompt), flush=True)


if __name__ == "__main__":
    main()
