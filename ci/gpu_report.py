"""Writes the results of ci/gpu as report.json and report.md."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

TAIL = 60  # lines of a step's output that the Markdown report shows


@dataclass
class Step:
    """One command and how it ended."""

    command: str
    exit_code: int | None  # None: stopped at its limit
    seconds: float
    limit: float
    output: str
    may_fail: bool = False

    @property
    def failed(self) -> bool:
        return self.exit_code != 0 and not self.may_fail

    @property
    def ending(self) -> str:
        if self.exit_code is None:
            return f"stopped after {self.limit:.0f} s"
        return "ok" if self.exit_code == 0 else f"exit code {self.exit_code}"


@dataclass
class Part:
    name: str
    steps: list[Step] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    @property
    def result(self) -> str:
        if not self.steps:
            return "nothing to do"
        return "FAILED" if any(step.failed for step in self.steps) else "ok"

    @property
    def failure(self) -> str:
        """How the first failed step ended, its command and its output; empty: none failed."""
        return next((f"{step.ending}: {step.command}\n{step.output}" for step in self.steps if step.failed), "")


@dataclass
class Report:
    machine: dict[str, str]
    device: str
    parts: list[Part] = field(default_factory=list)


def write(report: Report, folder: Path) -> None:
    (folder / "report.json").write_text(json.dumps(as_json(report), indent=2) + "\n")
    (folder / "report.md").write_text(as_markdown(report))


def as_json(report: Report) -> dict[str, object]:
    return {
        "machine": report.machine,
        "device": report.device,
        "parts": [
            {
                "name": part.name,
                "result": part.result,
                "seconds": round(part.seconds, 1),
                "steps": [
                    {
                        "command": step.command,
                        "exit_code": step.exit_code,
                        "seconds": step.seconds,
                        "limit": step.limit,
                        **_output(step.output),
                    }
                    for step in part.steps
                ],
            }
            for part in report.parts
        ],
    }


def _output(text: str) -> dict[str, object]:
    """A step's output: as JSON if it is JSON, else as text."""
    try:
        return {"data": json.loads(text)}
    except ValueError:
        return {"output": text}


def as_markdown(report: Report) -> str:
    lines = [f"# lucebox on {report.machine.get('gpu', report.device)}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in report.machine.items()]
    lines += ["", "| part | result | seconds |", "|---|---|---|"]
    lines += [f"| {part.name} | {part.result} | {part.seconds:.1f} |" for part in report.parts]
    for part in report.parts:
        lines += ["", f"## {part.name}"]
        for step in part.steps:
            lines += ["", f"`{step.command}`: {step.ending}, {step.seconds:.1f} s"]
            if tail := _shown(step):
                lines += ["", "```", *tail, "```"]
    return "\n".join(lines) + "\n"


def _shown(step: Step) -> list[str]:
    """The last lines of a step's output. Nothing for a successful build or for JSON, which report.json has."""
    if not step.failed and (" -m pip " in step.command or "data" in _output(step.output)):
        return []
    return step.output.strip().splitlines()[-TAIL:]
