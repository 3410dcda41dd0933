"""`lucebox doctor`: the GPUs of this machine, the packs for them, and the command to install what is missing. With
`--fix`, it runs the command."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import shlex

from lucebox.cli import console
from lucebox.cli.options import Subparsers
from lucebox.errors import InvalidRequestError
from lucebox.packs import ON_PYPI, installer
from lucebox.packs.doctor import DeviceState, DriverState, Host, PackState, Report, examine, with_links
from lucebox.packs.links import ROW_BYTES, LinkState
from lucebox.sizes import show_size

DESCRIPTION = """Show the GPUs of this machine, their drivers, the installed GPU packs, and the pip command to run next.
With several usable GPUs, also prove and time the link from each to the next. Needs no vendor tool.

Exit code 1: there is a GPU, but none is usable; or --fix left something to do."""
SOURCE = "where lucebox came from (with --index-url, or by their wheel files; they are not on PyPI)"
JSON_HELP = "print one JSON object"


def add_parser(commands: Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "doctor",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--fix", action="store_true", help="run the pip command after asking, then look again")
    parser.add_argument("--yes", action="store_true", help="with --fix: run it without asking")
    parser.add_argument("--index-url", metavar="URL", help="the package index of the packs, instead of pip's own")
    return parser


def execute(args: argparse.Namespace) -> int:
    if args.fix and args.json and not args.yes:
        args.parser.error("--json asks nothing, so --fix needs --yes beside it")
    report = _examine(args.index_url)
    if args.fix:
        return _fix(report, args)
    if args.json:
        console.print_json(report)
    else:
        print_report(report)
    return 0 if report.ok else 1


def _examine(index_url: str | None) -> Report:
    with console.status() as show:
        show("asking the drivers")
        report = examine(index_url=index_url)
        show("proving the links between the GPUs")
        return with_links(report)


def _fix(report: Report, args: argparse.Namespace) -> int:
    """Runs the report's commands, up to the first that fails, and reports again."""
    if not args.json:
        print_report(report)
    if report.commands and args.index_url is None and not ON_PYPI:
        raise InvalidRequestError(
            "the packs are not on PyPI, where a plain pip would look; name the index that lucebox came from: "
            "lucebox doctor --fix --index-url URL"
        )
    ran: list[installer.Ran] = []
    if report.commands and (args.yes or _agreed(report)):
        for words in report.commands:
            ran.append(installer.run(words, quiet_stdout=args.json))
            if ran[-1].exit_code:
                break
        importlib.invalidate_caches()
        report = _examine(args.index_url)
    if args.json:
        console.print_json({"ran": ran, **dataclasses.asdict(report)})
    elif ran:
        console.write("\n")
        print_report(report)
    for one in ran:
        if one.exit_code:
            console.error(f"exit code {one.exit_code}: {shlex.join(one.command)}")
    return 0 if report.ok and report.install is None else 1


def _agreed(report: Report) -> bool:
    """Shows the commands as they will run, and asks."""
    for words in report.commands:
        console.write(f"\n    {shlex.join(installer.command_line(words))}\n")
    return console.confirm("\nRun this now?")


def print_report(report: Report) -> None:
    for name, text in [*host_lines(report.host), *map(driver_line, report.drivers)]:
        console.write(f"{name:<8} {text}\n")
    if report.devices:
        console.write("\n")
        console.print_table(
            ["device", "GPU", "architecture", ("memory", "right"), ("free", "right"), "pack", "code by", "why"],
            [device_row(device) for device in report.devices],
        )
    if report.links:
        console.write("\n")
        console.print_table(
            ["from", "to", (f"row of {show_size(ROW_BYTES)}", "right"), "path"],
            [link_row(link) for link in report.links],
        )
    if report.packs:
        console.write("\n")
        console.print_table(
            ["pack", "wheel", "version", ("kernels", "right"), ("size", "right"), "state"],
            [pack_row(pack) for pack in report.packs],
        )
    console.write(f"\n{report.verdict}\n")
    for warning in dict.fromkeys(device.warning for device in report.devices if device.warning):
        console.write(f"\nWarning: {warning}.\n")
    for step in report.drivers_first:
        console.write(f"\n{step}.\n")
    if report.install:
        source = "" if ON_PYPI or "--index-url" in report.install else f" from {SOURCE}"
        console.write(f"\n{'Then install' if report.drivers_first else 'Install'} the packs{source}:\n")
        console.write(f"\n    {report.install}\n")


def host_lines(host: Host) -> list[tuple[str, str]]:
    memory = "" if host.memory_bytes is None else f", {show_size(host.memory_bytes)} memory"
    return [
        ("lucebox", f"{host.lucebox}, Python {host.python}"),
        ("system", host.os + (" inside Windows (WSL)" if host.wsl else "")),
        ("cpu", f"{host.cpu}, {host.isa} kernels{memory}"),
    ]


def driver_line(driver: DriverState) -> tuple[str, str]:
    kernel = f" (kernel module {driver.kernel_version})" if driver.kernel_version else ""
    return driver.backend, (driver.error or driver.version or "answers, and reports no device") + kernel


def device_row(device: DeviceState) -> list[str]:
    sizes = ["" if n is None else show_size(n) for n in (device.total_bytes, device.free_bytes)]
    return [
        device.device or "-",
        device.name,
        device.architecture or "unknown without the driver",
        *sizes,
        device.pack or "none",
        device.code or "-",
        device.reason,
    ]


def link_row(link: LinkState) -> list[str]:
    time = "-" if link.row_us is None else f"{link.row_us:,.1f} us"
    return [link.sender, link.receiver, time, link.path or f"none: {link.error}"]


def pack_row(pack: PackState) -> list[str]:
    if pack.error is not None:
        return [pack.target, pack.distribution, "", "", "", pack.error]
    state = "in order; no GPU of this machine needs it"
    if pack.target.split("_")[0] == "sim":
        state = "in order; needs no GPU"
    elif pack.devices:
        state = f"used by {', '.join(pack.devices)}"
    elif pack.blocked:
        state = f"in order; {', '.join(pack.blocked)} cannot use it yet"
    return [
        pack.target,
        pack.distribution,
        pack.version or "",
        str(pack.n_kernels),
        show_size(pack.bytes or 0),
        state,
    ]
