"""Builds the application of a cluster: an ingress, and a deployment for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ray import serve

from lucebox.errors import InvalidRequestError
from lucebox.options import EngineOptions
from lucebox.ray.ingress import Ingress, Served
from lucebox.ray.replica import CHECK_TIMEOUT_S, Replica
from lucebox.ray.settings import RaySettings
from lucebox.ray.tables import checked, named
from lucebox.serve.model_spec import OWN_OPTIONS, OWN_SETTINGS, ModelSpec
from lucebox.serve.running_model import DEFAULT_SLOTS
from lucebox.serve.settings import ServeSettings

__all__ = ["KILL_S", "app", "application", "least_resources"]

ROUTER = "lucebox.ray.router.PrefixRouter"
INGRESS_REQUESTS = 10_000
"""Requests that an ingress relays concurrently. It computes nothing: the replicas' queues are the limit."""
KILL_S = 10
"""Seconds after the time to drain, for errors to reach their clients."""
START_TRIES = 2


def app(args: Mapping[str, Any]) -> Any:
    """An application for `serve.run`, or for a Serve config file as `import_path: lucebox.ray:app`.

    args: `models` has a table for each model by its name, with `model`, options of EngineOptions and the settings that
    a model may have for itself; `server` has fields of ServeSettings, `ray` of RaySettings.

    Raises:
        InvalidRequestError: a table that has no meaning; the message says why.
    """
    models = named(args, ("models", "server", "ray"), "args").get("models")
    if not isinstance(models, Mapping) or not models:
        raise InvalidRequestError("expected `models`, a table with `model` for each name")
    settings = _settings(args.get("server", {}))
    settings.check()
    specs = [_spec(name, table, settings) for name, table in models.items()]
    return application(specs, settings, RaySettings.read(args.get("ray", {})))


def _settings(table: Any) -> ServeSettings:
    known = [field.name for field in fields(ServeSettings)]
    return ServeSettings(**checked(ServeSettings, named(table, known, "server"), "server"))


def _spec(name: str, table: Any, settings: ServeSettings) -> ModelSpec:
    if not isinstance(table, Mapping) or not isinstance(model := table.get("model"), str):
        raise InvalidRequestError(f"models: {name} has no `model`: a path, a hub id or a catalog name, as a string")
    where = f"models: {name}"
    named(table, ("model", *OWN_SETTINGS, *OWN_OPTIONS), where)
    own = checked(ServeSettings, {key: table[key] for key in OWN_SETTINGS if key in table}, where)
    options = checked(EngineOptions, {key: table[key] for key in OWN_OPTIONS if key in table}, where)
    of_model = replace(settings, model_name=name, **own)
    sessions = of_model.slots or DEFAULT_SLOTS
    return ModelSpec(model, EngineOptions(**options, sessions=sessions, prefix_cache=0), of_model)


def application(specs: Sequence[ModelSpec], settings: ServeSettings, ray: RaySettings) -> Any:
    """The application that serves these models, each with its own replicas.

    Raises:
        InvalidRequestError: there are several models, and one has no name; or replicas cannot have a setting.
    """
    if settings.prefix_cache_dir is not None:
        raise InvalidRequestError(
            "with --ray there is no --prefix-cache-dir: replicas on a machine would share the folder"
        )
    if settings.kv_events is not None and "*" in settings.kv_events:
        raise InvalidRequestError(
            f"with --ray, --kv-events cannot bind {settings.kv_events}: replicas on a machine would share the port. "
            "Give an address to connect to"
        )
    served = [Served(spec.settings.model_name, spec.settings.alias) for spec in specs]
    if len(specs) > 1 and any(one.name is None for one in served):
        raise InvalidRequestError("with --ray, each of several models needs a name: write NAME=MODEL")
    engines = [_deployment(spec, ray).bind(_for_cluster(spec, ray)) for spec in specs]
    ingress = serve.deployment(
        name="ingress",
        num_replicas=ray.ingresses,
        max_ongoing_requests=INGRESS_REQUESTS,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.drain + KILL_S,
    )(serve.ingress()(Ingress))
    return ingress.bind(settings, served, *engines)


def least_resources(specs: Sequence[ModelSpec], ray: RaySettings) -> dict[str, float]:
    """CPUs and GPUs of the replicas that always run."""
    n = ray.min_replicas
    return {"CPU": float(len(specs) * n * ray.cpus), "GPU": n * sum(_gpus(spec, ray) for spec in specs)}


def _gpus(spec: ModelSpec, ray: RaySettings) -> float:
    return ray.gpus if ray.gpus is not None else float(spec.options.device != "cpu")


def _for_cluster(spec: ModelSpec, ray: RaySettings) -> ModelSpec:
    """Without a GPU, the model's threads are the replica's CPUs."""
    if _gpus(spec, ray) or spec.options.threads is not None:
        return spec
    return spec.with_options(threads=ray.cpus)


def _deployment(spec: ModelSpec, ray: RaySettings) -> Any:
    slots = spec.settings.slots or DEFAULT_SLOTS
    most = ray.max_replicas or ray.min_replicas
    return serve.deployment(
        name=f"model-{spec.settings.model_name}" if spec.settings.model_name else "model",
        autoscaling_config={
            "min_replicas": ray.min_replicas,
            "max_replicas": most,
            "target_ongoing_requests": slots,
        },
        max_ongoing_requests=slots + spec.settings.max_queue,
        max_queued_requests=spec.settings.max_queue,
        ray_actor_options={"num_cpus": ray.cpus, "num_gpus": _gpus(spec, ray)},
        request_router_config={"request_router_class": ROUTER, "request_router_kwargs": {"slots": slots}},
        health_check_timeout_s=CHECK_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=1,
        graceful_shutdown_timeout_s=spec.settings.drain + KILL_S,
        max_constructor_retry_count=START_TRIES,
    )(Replica)
