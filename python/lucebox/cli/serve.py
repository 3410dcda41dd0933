"""`lucebox serve`: serves models over the HTTP APIs of OpenAI, Anthropic and Ollama."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from lucebox.cli import console, options
from lucebox.cli.interrupts import importing
from lucebox.cli.served_models import on_one_server, read_models, read_ray
from lucebox.cli.session import opening_line
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.options import EngineOptions
from lucebox.serve.listening import bound_sockets
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.settings import ServeSettings
from lucebox.sizes import show_size

if TYPE_CHECKING:
    from lucebox.serve.model_entry import ModelEntry
    from lucebox.serve.model_set import ModelSet

DESCRIPTION = """Serve OpenAI's APIs (chat completions, completions, responses) and Anthropic's (messages).

Several models: MODEL MODEL, NAME=MODEL for another name in the APIs, a folder of models, or a TOML file with a table
[models.NAME] for each. Models that do not fit in memory together load when a request names them, in place of idle ones.

By default the server listens on this machine only and needs no key. Another --host needs --api-key or --api-key-file.
SIGINT and SIGTERM stop it after the answers in progress. docs/server.md lists the endpoints and fields."""
RAY_HELP = "run replicas of each model on a Ray cluster: docs/cluster.md"
JSON_HELP = "print one JSON object with address, models and limits when the server listens"


def add_parser(commands: options.Subparsers, about: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        "serve",
        usage="lucebox serve MODEL... [flags]",
        help=about,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    options.add_models(parser)
    parser.add_argument("--ray", action="store_true", help=RAY_HELP)
    options.add_server(parser)
    options.add_engine(parser)
    return parser


def execute(args: argparse.Namespace) -> int:
    try:
        from lucebox.serve.run import serve
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("lucebox"):
            raise
        raise UnsupportedError(f"{error.name} is not installed; run: pip install 'lucebox[serve]'") from error
    settings = ServeSettings(**options.given(args, ServeSettings))
    settings.check()
    specs = read_models(args.models, settings, options.given(args, EngineOptions), offline=args.offline)
    if args.ray:
        return _with_ray(args, specs, settings)
    specs = on_one_server(specs)
    sockets = bound_sockets(settings)
    models = open_models(specs, settings)
    try:

        def on_start(url: str) -> None:
            if args.json:
                facts = models.default.facts
                names = [entry.name for entry in models.firsts]
                shown = {"url": url, "pid": os.getpid(), "model": facts.name, "models": names}
                console.print_json({**shown, "context": facts.context, "slots": facts.slots})
            else:
                for entry in models.entries:
                    console.note(line_of(entry, models))
                console.note(f"listening on {url} (Ctrl-C ends)")

        serve(models, settings, sockets, on_start)
    finally:
        models.free()
    return 0


def _with_ray(args: argparse.Namespace, specs: Sequence[ModelSpec], settings: ServeSettings) -> int:
    from lucebox.ray import RaySettings, environment, missing

    if any(spec.settings.replicas > 1 for spec in specs):
        raise InvalidRequestError("--replicas is for one server; with --ray, use min_replicas of the table [ray]")
    scale = RaySettings.read(read_ray(args.models))
    if scale.address is None:
        environment.set_defaults()
    try:
        from lucebox.ray.run import run
    except ModuleNotFoundError as error:
        raise missing(error) from error
    output = os.dup(1)
    os.dup2(2, 1)  # Ray's messages, which it prints to the standard output, also by threads of its own

    def on_start(url: str) -> None:
        names = [spec.settings.model_name or spec.model for spec in specs]
        if args.json:
            with os.fdopen(output, "w") as file, redirect_stdout(file):
                console.print_json({"url": url, "pid": os.getpid(), "models": names})
        else:
            most = scale.max_replicas or scale.min_replicas
            console.note(f"{', '.join(names)}: {scale.min_replicas} to {most} replicas each")
            console.note(f"listening on {url} (Ctrl-C ends)")

    run(specs, settings, scale, on_start)
    return 0


def open_models(specs: list[ModelSpec], settings: ServeSettings) -> ModelSet:
    """The models as planned, with those in memory that load at the start."""
    with importing():
        from lucebox.serve.model_entry import ModelEntry
        from lucebox.serve.model_plans import plan_models
        from lucebox.serve.model_set import ModelSet
        from lucebox.serve.telemetry import Telemetry
    telemetry = Telemetry.open(settings, console.note)
    loads = settings.load == "start"
    with console.loading() as progress:
        # A model alone that loads now has its device to itself: the load itself plans it.
        planned = [None] if loads and len(specs) == 1 else plan_models(specs, progress)
        _check_names([plan.name for plan in planned if plan is not None and plan.spec.replica == 0])
        models = ModelSet(
            [ModelEntry(spec, plan) for spec, plan in zip(specs, planned, strict=True)],
            telemetry,
            keep_loaded_s=settings.keep_loaded,
            max_waiting=settings.max_queue,
            wait_s=settings.request_timeout,
            report=console.note,
        )
        for scorer in models.shared_scorers:
            names = ", ".join(entry.title for entry in models.entries if entry.spec.scorer is scorer)
            console.note(f"{names} share the scorer {scorer.name}: {show_size(scorer.n_bytes)} on {scorer.device}")
        if loads:
            models.load_first(progress)
    loaded = [entry.running.llm for entry in models.entries if entry.running is not None]
    for text in dict.fromkeys(text for llm in loaded for text in (*llm.unused_gpus, *llm.notes)):
        console.note(f"note: {text}")
    return models


def _check_names(names: list[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequestError(f"two models are called {twice!r}: write NAME=MODEL for one of them")


def line_of(entry: ModelEntry, models: ModelSet) -> str:
    """A line about a model at the start."""
    facts = entry.facts
    if entry.running is not None:
        name = "" if facts.name == facts.loaded_by else f"{facts.name} = "
        return f"{name}{opening_line(entry.running.llm, facts.slots)} | {facts.slots} slots"
    leaving = [one.title for one in models.leaving_for(entry)]
    unloads = f", and then unloads {', '.join(leaving)}" if leaving else ""
    return (
        f"{entry.title}: {show_size(facts.n_bytes)} of {show_size(facts.available_bytes)} on {facts.device} | context "
        f"{facts.context} | {facts.slots} slots | loads on first use{unloads}"
    )
