"""The clients that round_trip.py runs: how each starts without a terminal, and how its tools are called in the task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from task import FILES, PROMPT, RIGHT, SAID, TEST, WRONG, Step

READ, MEND, RUN = "I read the file first.", "The sign is wrong.", "Now the test."
DONE = Step(f"The test passes: {SAID}.")
PATCH = f"*** Begin Patch\n*** Update File: calc.py\n@@\n-{WRONG}\n+{RIGHT}\n*** End Patch"


@dataclass(frozen=True)
class Trial:
    """A client and its task."""

    name: str
    arguments: tuple[str, ...]
    steps: Callable[[Path], tuple[Step, ...]]
    """The model's answers, for a project in this folder."""
    overflow: str
    """The client's message for a prompt that is too long; empty: that turn is not tried."""
    has_tools: bool = True
    driver: str = ""
    """A program beside this file that starts the client and talks to it; empty: the client runs by itself."""


TRIALS = (
    Trial(
        "claude",
        ("--print", "--output-format", "json", "--permission-mode", "dontAsk", "--allowedTools", "Read Edit Bash",
         "--no-session-persistence", "--", PROMPT),
        lambda work: (
            Step(READ, "Read", {"file_path": f"{work}/calc.py"}),
            Step(MEND, "Edit", {"file_path": f"{work}/calc.py", "old_string": WRONG, "new_string": RIGHT}),
            Step(RUN, "Bash", {"command": TEST, "description": "Runs the test"}),
            DONE,
        ),
        "Prompt is too long",
    ),
    Trial(
        "codex",
        ("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "--json", PROMPT),
        lambda work: (
            Step(READ, "exec_command", {"cmd": "cat calc.py"}),
            Step(MEND, "exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}\nEOF"}),
            Step(RUN, "exec_command", {"cmd": TEST}),
            DONE,
        ),
        "Codex ran out of room in the model's context window",
    ),
    Trial(
        "opencode",
        ("run", "--pure", "--format", "json", PROMPT),
        lambda work: (
            Step(READ, "read", {"filePath": f"{work}/calc.py"}),
            Step(MEND, "edit", {"filePath": f"{work}/calc.py", "oldString": WRONG, "newString": RIGHT}),
            Step(RUN, "bash", {"command": TEST}),
            DONE,
        ),
        "ContextOverflowError",
    ),
    Trial(
        "pi",
        ("--print", "--mode", "json", "--no-session", "--offline", PROMPT),
        lambda work: (
            Step(READ, "read", {"path": "calc.py"}),
            Step(MEND, "edit", {"path": "calc.py", "edits": [{"oldText": WRONG, "newText": RIGHT}]}),
            Step(RUN, "bash", {"command": TEST}),
            DONE,
        ),
        '{"type":"compaction_start","reason":"overflow"}',
    ),
    Trial(
        "cline",
        ("--json", "--auto-approve", "true", PROMPT),
        lambda work: (
            Step(READ, "read_files", {"files": [{"path": f"{work}/calc.py"}]}),
            Step(MEND, "editor", {"path": f"{work}/calc.py", "old_text": WRONG, "new_text": RIGHT}),
            Step(RUN, "run_commands", {"commands": [TEST]}),
            DONE,
        ),
        "exceeds the model's context window",
    ),
    Trial(
        "continue",
        ("--print", "--auto", PROMPT),
        lambda work: (
            Step(READ, "Read", {"filepath": f"{work}/calc.py"}),
            Step(MEND, "Edit", {"file_path": f"{work}/calc.py", "old_string": WRONG, "new_string": RIGHT}),
            Step(RUN, "Bash", {"command": TEST}),
            DONE,
        ),
        "Context length exceeded",
    ),
    Trial(
        "openclaw",
        ("agent", "--local", "--json", "--session-id", "task", "--message", PROMPT),
        lambda work: (
            Step(READ, "read", {"path": "calc.py"}),
            Step(MEND, "edit", {"path": "calc.py", "edits": [{"oldText": WRONG, "newText": RIGHT}]}),
            Step(RUN, "exec", {"command": TEST}),
            DONE,
        ),
        '"kind": "context_overflow"',
    ),
    Trial(
        "hermes",
        ("chat", "--quiet", "--accept-hooks", "--yolo", "--query", PROMPT),
        lambda work: (
            Step(READ, "read_file", {"path": f"{work}/calc.py"}),
            Step(
                MEND,
                "patch",
                {"mode": "replace", "path": f"{work}/calc.py", "old_string": WRONG, "new_string": RIGHT},
            ),
            Step(RUN, "terminal", {"command": TEST}),
            DONE,
        ),
        "Context length exceeded",
    ),
    Trial(
        "aider",
        ("--yes-always", "--no-auto-commits", "--no-git", "--auto-test", "--test-cmd", TEST, "--message", PROMPT,
         "calc.py", "test_calc.py"),
        lambda work: (
            Step(f"{MEND} {SAID}\n\ncalc.py\n```\n{FILES['calc.py'].replace(WRONG, RIGHT)}```\n"),
        ),
        "",
        has_tools=False,
    ),
    Trial(
        "open-webui",
        (),
        lambda work: (
            Step(READ, "read_file", {"name": "calc.py"}),
            Step(MEND, "edit_file", {"name": "calc.py", "old": WRONG, "new": RIGHT}),
            Step(RUN, "run_test", {"name": "test_calc.py"}),
            DONE,
        ),
        "",
        driver="open_webui.py",
    ),
)  # fmt: skip
