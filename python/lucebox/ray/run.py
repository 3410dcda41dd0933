"""Runs an application under Ray Serve until a signal ends it."""

from __future__ import annotations

import logging
import re
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray import serve
from ray._private.node import Node
from ray.exceptions import RayActorError
from ray.serve.config import HTTPOptions
from ray.serve.schema import ProxyStatus

from lucebox.errors import InternalError, InvalidRequestError
from lucebox.ray.application import KILL_S, application, least_resources
from lucebox.ray.settings import RaySettings
from lucebox.serve.listening import bound_sockets
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.settings import ServeSettings

__all__ = ["run"]

APP = "lucebox"
REACH_S = 10
PROXY_S = 120
STARTS = 3
"""Attempts to start a cluster: Ray's node fails if its agents take more than 15 s, as on a busy machine."""
OBJECT_STORE_BYTES = 100 << 20
"""Size of the object store of a cluster that is started here: requests are small."""
_FAULT = re.compile(r"^(?:lucebox\.errors\.\w+|\w*Error): (.+)$", re.M)


def run(
    specs: Sequence[ModelSpec],
    settings: ServeSettings,
    scale: RaySettings,
    on_start: Callable[[str], None],
) -> None:
    """Deploys on the running Ray cluster, or on one that is started for this. After SIGINT or SIGTERM, running answers
    get `settings.drain` seconds.

    on_start: called with the URL.

    Raises:
        InvalidRequestError: the address is public and there is no key, or cannot be listened on; there is no cluster at
            `scale.address`, or this machine is too small for one.
        InternalError: a replica could not be started.
    """
    settings.check_exposure()
    port = _free_port(settings)
    target = application(specs, settings, scale)
    for name in ("ray", "ray.serve"):  # they report each step
        logging.getLogger(name).setLevel(logging.WARNING)
    _connect(scale.address)
    stop = threading.Event()
    if owns_cluster := scale.address is None:
        _check_resources(least_resources(specs, scale))
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        host = settings.host.strip("[]")
        files = {"ssl_certfile": settings.ssl_certfile, "ssl_keyfile": settings.ssl_keyfile or settings.ssl_certfile}
        _start_serve(HTTPOptions(host=host, port=port, **files))
        try:
            serve.run(target, name=APP, route_prefix="/")
        except RuntimeError as error:
            raise InternalError(f"Ray Serve could not start the replicas: {_reason(error)}") from error
        if owns_cluster:
            _wait_for_proxy()
        scheme = "http" if settings.ssl_certfile is None else "https"
        on_start(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")
        stop.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _end(owns_cluster, settings.drain + KILL_S)
        ray.shutdown()


def _connect(address: str | None) -> None:
    """
    Raises:
        InvalidRequestError: there is no cluster at the address. InternalError: a cluster on this machine did not start.
    """
    quiet = {"log_to_driver": False, "configure_logging": False}
    if address is None:
        _start_cluster(quiet)
        return
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdecimal() and "/" not in host:  # Ray itself tries for minutes
            socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
        ray.init(address=address, **quiet)
    except (OSError, OverflowError) as error:  # ConnectionError is an OSError
        raise InvalidRequestError(f"ray: no cluster at the address {address!r}: {error}") from error


def _start_cluster(options: Mapping[str, Any]) -> None:
    """
    Raises:
        InternalError: it did not start.
    """
    for attempt in range(STARTS):
        try:
            ray.init(address="local", include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES, **options)
            return
        except Exception as error:  # Ray has no class for it
            _end_node(error)
            if attempt == STARTS - 1:
                raise InternalError(f"ray: the cluster did not start: {error}") from error


def _end_node(error: Exception) -> None:
    """Ends the processes of a node that did not start. Ray keeps them until this process ends, and its object is in the
    traceback alone."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if isinstance(node := frame.f_locals.get("self"), Node):
            node.kill_all_processes(check_alive=False, allow_graceful=False)
            return


def _start_serve(options: HTTPOptions) -> None:
    """Starts Serve. If the proxy is slow, the first call fails, but Serve runs on: the second call finds it."""
    try:
        serve.start(http_options=options)
    except (TimeoutError, RayActorError):
        serve.start(http_options=options)


def _wait_for_proxy() -> None:
    """
    Raises:
        InternalError: the proxy accepts no connections.
    """
    deadline = time.monotonic() + PROXY_S
    while ProxyStatus.HEALTHY not in (found := serve.status().proxies.values()):
        if time.monotonic() > deadline:
            raise InternalError(
                f"Ray Serve's proxy is not ready after {PROXY_S} s: {', '.join(found) or 'not started'}"
            )
        time.sleep(0.1)


def _check_resources(needed: Mapping[str, float]) -> None:
    """A cluster of one machine gets no more machines: replicas without room would wait forever.

    Raises:
        InvalidRequestError: this machine has too little.
    """
    found = ray.cluster_resources()
    for name, n in needed.items():
        if n > found.get(name, 0):
            ray.shutdown()
            hint = 'device = "cpu", or ' if name == "GPU" else ""
            raise InvalidRequestError(
                f"the replicas need {n:g} {name}{'s' * (n != 1)}, and this machine has {found.get(name, 0):g}: "
                f"set {hint}fewer min_replicas or {name.lower()}s in the table [ray]"
            )


def _end(owns_cluster: bool, limit_s: float) -> None:
    """Ends the application. A signal to a process group has ended the cluster, too, which then answers nothing."""

    def delete() -> None:
        serve.delete(APP)
        if owns_cluster:
            serve.shutdown()

    ending = threading.Thread(target=delete, daemon=True)
    ending.start()
    ending.join(limit_s)


def _free_port(settings: ServeSettings) -> int:
    """The port to listen on, which is free now."""
    sockets = bound_sockets(settings)
    port = sockets[0].getsockname()[1]
    for one in sockets:
        one.close()
    assert isinstance(port, int)
    return port


def _reason(error: RuntimeError) -> str:
    """The last error in the traceback of a replica, which Ray reports as text."""
    deployments = serve.status().applications[APP].deployments.values()
    found = [line for one in deployments for line in _FAULT.findall(one.message)]
    return found[-1] if found else str(error)
