"""The example of a cluster on Kubernetes, by Ray's own schema, and errors of an application's tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from lucebox.errors import InvalidRequestError

pytest.importorskip("ray", reason="pip install 'lucebox[ray]'")
pytestmark = [
    pytest.mark.slow,  # importing Ray takes seconds; ci/ray_serve.py installs it
    pytest.mark.filterwarnings("ignore::pydantic.warnings.PydanticDeprecatedSince20"),
]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "kuberay.yaml"
# Fields of KubeRay's custom resource (ray.io/v1), below which are Kubernetes' own pods.
SERVICE = {"serveConfigV2", "rayClusterConfig", "serveService", "upgradeStrategy"}
CLUSTER = {"rayVersion", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs", "autoscalerOptions"}
HEAD = {"rayStartParams", "template", "serviceType", "headService"}
WORKERS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template", "numOfHosts"}
POD = {"containers", "volumes", "terminationGracePeriodSeconds"}
CONTAINER = {"name", "image", "resources", "volumeMounts"}


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    import yaml  # Ray needs it

    document: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    return document


def test_fields_of_the_custom_resource(example: dict[str, Any]) -> None:
    assert (example["apiVersion"], example["kind"]) == ("ray.io/v1", "RayService")
    spec = example["spec"]
    cluster = spec["rayClusterConfig"]
    assert spec.keys() <= SERVICE and cluster.keys() <= CLUSTER
    assert {"rayStartParams", "template"} <= cluster["headGroupSpec"].keys() <= HEAD
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups[1:]:
        assert {"groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"} <= group.keys() <= WORKERS
    for group in groups:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        pod = group["template"]["spec"]
        assert pod.keys() <= POD
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert container.keys() <= CONTAINER
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_the_serve_config_builds_the_application(example: dict[str, Any], tmp_path: Path) -> None:
    import lucebox.ray
    import yaml
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema(**yaml.safe_load(example["spec"]["serveConfigV2"]))
    (one,) = config.applications
    assert one.import_path == "lucebox.ray:app"
    args = one.args
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    args["server"]["api_key_file"] = str(keys)
    built = call_user_app_builder_with_args_if_necessary(lucebox.ray.app, args)
    assert built._bound_deployment.name == "ingress"
    # Pods end after the answers that a replica may finish.
    pod = example["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > args["server"]["drain"] + 10


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"model": {}}, "args: no option 'model'; did you mean models"),
        ({}, "expected `models`"),
        ({"models": {"a": {"path": "x"}}}, "models: a has no `model`"),
        ({"models": {"a": {"model": "x"}}, "server": {"slot": 2}}, "server: no option 'slot'"),
        ({"models": {"a": {"model": "x"}}, "server": {"host": "0.0.0.0"}}, "use --api-key"),
        ({"models": {"a": {"model": "x"}}, "server": None}, "server: expected a table, got None"),
        (
            {"models": {"a": {"model": "x"}}, "server": {"drain": "60"}},
            "server: drain: Input should be a valid number, got str",
        ),
        (
            {"models": {"a": {"model": "x"}}, "server": {"api_key": "secret"}},
            "server: api_key: Input should be a list, got str",
        ),
        ({"models": {"a": {"model": "x", "alias": "claude-*"}}}, "models: a: alias: Input should be a list, got str"),
        ({"models": {"a": {"model": "x", "sessions": 2}}}, "models: a: no option 'sessions'"),
        ({"models": {"a": {"model": "x", "contxt": 2048}}}, "models: a: no option 'contxt'; did you mean context"),
        ({"models": {"a": {"model": "x", "context": 0}}}, "context must be positive"),
        ({"models": {"a": {"model": "x"}}, "ray": {"min_replica": 2}}, "did you mean"),
        ({"models": {"a": {"model": "x"}}, "server": {"prefix_cache_dir": "x"}}, "would share the folder"),
        ({"models": {"a": {"model": "x"}}, "server": {"kv_events": "tcp://*:5557"}}, "cannot bind"),
    ],
)
def test_tables_that_have_no_meaning(args: dict[str, Any], said: str) -> None:
    import lucebox.ray

    with pytest.raises(InvalidRequestError, match=said):
        lucebox.ray.app(args)


PROTOCOLS = [
    ("/v1/chat/completions", "text/event-stream", b'data: {"error":'),
    ("/v1/completions", "text/event-stream", b'data: {"error":'),
    ("/completion", "text/event-stream", b'data: {"error":'),
    ("/v1/messages", "text/event-stream; charset=utf-8", b'event: error\ndata: {"type":"error",'),
    ("/v1/responses", "text/event-stream", b'event: error\ndata: {"type":"error",'),
    ("/api/chat", "application/x-ndjson", b'{"error":'),
]


@pytest.mark.parametrize(("path", "content_type", "start"), PROTOCOLS, ids=[path for path, *_ in PROTOCOLS])
def test_a_lost_stream_ends_in_its_protocol(path: str, content_type: str, start: bytes) -> None:
    from lucebox.ray.ingress import LOST, failure_part
    from lucebox.serve.errors import overloaded

    end = failure_part(path, content_type, overloaded(LOST, 1), 7)
    assert end.startswith(start) and b"send the request again" in end and end.endswith(b"\n")
    assert (b'"sequence_number":7' in end) == (path == "/v1/responses")
    assert failure_part(path, "application/json", overloaded(LOST, 1), 7) == b""


def test_ray_knows_the_variables_that_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster's own test shows that RAY_worker_niceness works; it is a name in Ray's C++."""
    from lucebox.ray import environment
    from ray.serve._private import constants

    names = environment.DEFAULTS.keys() - {"RAY_worker_niceness"}
    source = Path(constants.__file__).read_text()
    assert names and [name for name in names if f'"{name}"' not in source] == []
    found = {"RAY_worker_niceness": "7"}
    monkeypatch.setattr(os, "environ", found)
    environment.set_defaults()
    assert found["RAY_worker_niceness"] == "7" and names <= found.keys()
