"""The clients that round_trip.py runs: how each starts without a terminal, and how its tools are called in the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from task import FILES, PROMPT, RIGHT, SAID, TEST, WRONG, Step

MEND = "The sign is wrong."
PATCH = f"*** Begin Patch\n*** Update File: calc.py\n@@\n-{WRONG}\n+{RIGHT}\n*** End Patch"


@dataclass(frozen=True)
class Trial:
    name: str
    arguments: tuple[str, ...]
    steps: Callable[[str], tuple[Step, ...]]
    """The model's answers, for the path of calc.py."""
    overflow: str
    """The client's message for a prompt that is too long; empty: that turn is not tried."""
    has_tools: bool = True
    driver: str = ""
    """A program beside this file that starts the client and talks to it; empty: the client runs by itself."""


Call = tuple[str, Mapping[str, Any]]
"""A tool of the client, and its arguments."""


def calls(read: Call, edit: Call, test: Call) -> tuple[Step, ...]:
    """Answers that call three tools, and the last one."""
    done = Step(f"The test passes: {SAID}.")
    return Step("I read the file first.", *read), Step(MEND, *edit), Step("Now the test.", *test), done


TRIALS = (
    Trial(
        "claude",
        ("--print", "--output-format", "json", "--permission-mode", "dontAsk", "--allowedTools", "Read Edit Bash",
         "--no-session-persistence", "--", PROMPT),
        lambda file: calls(
            ("Read", {"file_path": file}),
            ("Edit", {"file_path": file, "old_string": WRONG, "new_string": RIGHT}),
            ("Bash", {"command": TEST, "description": "Runs the test"}),
        ),
        "Prompt is too long",
    ),
    Trial(
        "codex",
        ("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--json", PROMPT),
        lambda file: calls(
            ("exec_command", {"cmd": "cat calc.py"}),
            ("exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF"}),
            ("exec_command", {"cmd": TEST}),
        ),
        "Codex ran out of room in the model's context window",
    ),
    Trial(
        "opencode",
        ("run", "--pure", "--format", "json", PROMPT),
        lambda file: calls(
            ("read", {"filePath": file}),
            ("edit", {"filePath": file, "oldString": WRONG, "newString": RIGHT}),
            ("bash", {"command": TEST}),
        ),
        "ContextOverflowError",
    ),
    Trial(
        "pi",
        ("--print", "--mode", "json", "--no-session", "--offline", PROMPT),
        lambda file: calls(
            ("read", {"path": "calc.py"}),
            ("edit", {"path": "calc.py", "edits": [{"oldText": WRONG, "newText": RIGHT}]}),
            ("bash", {"command": TEST}),
        ),
        '{"type":"compaction_start","reason":"overflow"}',
    ),
    Trial(
        "cline",
        ("--json", "--auto-approve", "true", PROMPT),
        lambda file: calls(
            ("read_files", {"files": [{"path": file}]}),
            ("editor", {"path": file, "old_text": WRONG, "new_text": RIGHT}),
            ("run_commands", {"commands": [TEST]}),
        ),
        "exceeds the model's context window",
    ),
    Trial(
        "continue",
        ("--print", "--auto", PROMPT),
        lambda file: calls(
            ("Read", {"filepath": file}),
            ("Edit", {"file_path": file, "old_string": WRONG, "new_string": RIGHT}),
            ("Bash", {"command": TEST}),
        ),
        "Context length exceeded",
    ),
    Trial(
        "openclaw",
        ("agent", "--local", "--json", "--session-id", "task", "--message", PROMPT),
        lambda file: calls(
            ("read", {"path": "calc.py"}),
            ("edit", {"path": "calc.py", "edits": [{"oldText": WRONG, "newText": RIGHT}]}),
            ("exec", {"command": TEST}),
        ),
        '"kind": "context_overflow"',
    ),
    Trial(
        "hermes",
        ("chat", "--quiet", "--accept-hooks", "--yolo", "--query", PROMPT),
        lambda file: calls(
            ("read_file", {"path": file}),
            ("patch", {"mode": "replace", "path": file, "old_string": WRONG, "new_string": RIGHT}),
            ("terminal", {"command": TEST}),
        ),
        "Context length exceeded",
    ),
    Trial(
        "aider",
        ("--yes-always", "--no-auto-commits", "--no-git", "--auto-test", "--test-cmd", TEST, "--message", PROMPT,
         "calc.py", "test_calc.py"),
        lambda file: (
            Step(f"{MEND} {SAID}\n\ncalc.py\n```\n{FILES['calc.py'].replace(WRONG, RIGHT)}```\n"),
        ),
        "",
        has_tools=False,
    ),
    Trial(
        "open-webui",
        (),
        lambda file: calls(
            ("read_file", {"name": "calc.py"}),
            ("edit_file", {"name": "calc.py", "old": WRONG, "new": RIGHT}),
            ("run_test", {"name": "test_calc.py"}),
        ),
        "",
        driver="open_webui.py",
    ),
)  # fmt: skip
