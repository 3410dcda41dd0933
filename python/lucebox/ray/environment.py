"""Ray's environment variables for a cluster that lucebox starts. Ray reads them when it is imported."""

from __future__ import annotations

import os

__all__ = ["DEFAULTS", "set_defaults"]

DEFAULTS = {
    # Ray runs workers at niceness 15: beside other work, replicas would start in minutes and be found dead.
    "RAY_worker_niceness": "0",
    # Serve replaces a proxy that is not ready in 5 s, and its start then fails.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # A part of a stream passes from process to process as a gRPC message, not as an object of Ray's store, and stays
    # in one thread of each. Both together take 0.4 ms of CPU time, not 1.9 ms.
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str((1 << 31) - 1),  # bodies; the server has its own limit
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # Without requests, a cluster of two replicas takes 9 % of a core, not 16 %.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.5",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
}


def set_defaults() -> None:
    """Sets the variables that the user has not set. Call it before Ray is imported; processes that Ray starts inherit
    them."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
