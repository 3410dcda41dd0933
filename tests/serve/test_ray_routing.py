"""Prefix digests and tags of requests, the router's table and the table [ray]; needs no Ray."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lucebox.cli.served_models import read_ray
from lucebox.errors import InvalidRequestError
from lucebox.ray import RaySettings, merging
from lucebox.ray.relayed import model_tag, replica_tag, stored_tag
from lucebox.serve import prefix_table as prefix_table_module
from lucebox.serve.prefix_digests import BLOCK, MAX_PREFIXES, prefix_digests
from lucebox.serve.prefix_table import PrefixTable
from lucebox.serve.protocols.response_ids import new_id, tag_in

SYSTEM = {"role": "system", "content": "You are terse."}
FIRST = {"role": "user", "content": "hello"}
TURNS = [FIRST, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]


def test_a_longer_conversation_has_the_prefixes_of_the_shorter_one() -> None:
    shorter, longer = prefix_digests({"messages": TURNS[:1]}), prefix_digests({"messages": TURNS})
    assert len(longer) == 3 and longer[:1] == shorter
    assert prefix_digests({"messages": [FIRST, *TURNS[2:]]})[1] != longer[1]


def test_system_messages_do_not_count() -> None:
    assert prefix_digests({"messages": [SYSTEM, *TURNS]}) == prefix_digests({"messages": TURNS})
    assert prefix_digests({"messages": [SYSTEM]}) == ()


@pytest.mark.parametrize(
    "form",
    [
        {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "user", "content": "hello", "id": "msg_1", "status": "completed"},
    ],
)
def test_forms_of_a_message_agree(form: dict[str, Any]) -> None:
    """Clients move Anthropic's cache_control to the last messages, so it must not count."""
    assert prefix_digests({"messages": [form]}) == prefix_digests({"messages": [FIRST]})


def test_inputs_and_prompts() -> None:
    assert prefix_digests({"input": "hello"}) == prefix_digests({"input": [FIRST]})
    text = "x" * BLOCK + "y" * BLOCK
    assert len(prefix_digests({"prompt": text + "z"})) == 2
    assert prefix_digests({"prompt": text})[:1] == prefix_digests({"prompt": text[:BLOCK] + "other"})
    for body in (None, [], {"prompt": 3}, {"prompt": [1, 2]}, {"messages": [3, None]}, {"input": ["a", "b"]}):
        assert prefix_digests(body) == ()


def test_a_long_conversation_keeps_its_longest_prefixes() -> None:
    turns = [{"role": "user", "content": str(i)} for i in range(MAX_PREFIXES + 5)]
    shorter, longer = prefix_digests({"messages": turns[:-2]}), prefix_digests({"messages": turns})
    assert len(longer) == MAX_PREFIXES and longer[-3] == shorter[-1]


def test_deep_bodies() -> None:
    value: Any = "hello"
    for _ in range(100_000):
        value = [value]
    assert len(prefix_digests({"messages": [{"role": "user", "content": value}]})) == 1


def test_ids_name_their_replica() -> None:
    tag = replica_tag("model-a", "a1b2c3")
    assert tag.startswith(model_tag("model-a")) and not tag.startswith(model_tag("model-b"))
    assert tag != replica_tag("model-a", "a1b2c4")
    for prefix, n_digits in (("resp", 48), ("msg", 24), ("rs", 24)):
        made = new_id(prefix, tag)
        assert len(made) == len(prefix) + 1 + n_digits == len(new_id(prefix, ""))
        assert tag_in(made) == tag
    assert tag_in("call_0123456789abcdef01234567") is None and tag_in("msg_1") is None


def test_requests_that_refer_to_stored_responses() -> None:
    tag, other = replica_tag("model", "a"), replica_tag("model", "b")
    response, item = new_id("resp", tag), new_id("rs", other)
    for path in ("", "/cancel", "/input_items"):
        assert stored_tag(f"/v1/responses/{response}{path}", None) == tag
    body = {"previous_response_id": response, "input": [{"type": "item_reference", "id": item}]}
    assert stored_tag("/v1/responses", body) == tag
    assert stored_tag("/v1/responses", {"input": [FIRST, {"type": "reasoning", "id": item}]}) == other
    for nothing in ({"input": "a"}, {"input": [3]}, {"previous_response_id": 3}, {"previous_response_id": "x"}, []):
        assert stored_tag("/v1/responses", nothing) is None


def test_the_longest_known_prefix_of_a_living_replica_counts() -> None:
    table: PrefixTable[str] = PrefixTable()
    table.add([b"1", b"2"], "a")
    table.add([b"1", b"3"], "b")
    assert table.find([b"1", b"2", b"9"], {"a", "b"}) == ["a"]
    assert table.find([b"1", b"9"], {"a", "b"}) == ["b", "a"]
    assert table.find([b"1", b"3"], {"a"}) == ["a"]
    assert table.find([b"9"], {"a", "b"}) == [] == table.find([], {"a"})


def test_the_table_forgets_what_was_used_least_recently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_table_module, "MAX_DIGESTS", 3)
    table: PrefixTable[str] = PrefixTable()
    for digest in (b"1", b"2", b"3", b"1", b"4"):
        table.add([digest], "a")
    assert [bool(table.find([digest], {"a"})) for digest in (b"1", b"2", b"3", b"4")] == [True, False, True, True]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"replicas": 2}, "no option 'replicas'"),
        ({"min_replicas": 0}, "min_replicas must be a positive whole number, got 0"),
        ({"min_replicas": True}, "got True"),
        ({"min_replicas": 3, "max_replicas": 2}, "max_replicas, 2, is less than min_replicas, 3"),
        ({"gpus": -1}, "gpus must be a number from 0, got -1"),
    ],
)
def test_settings_that_have_no_meaning(table: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        RaySettings.read(table)


def test_the_table_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[models.a]\nmodel = "tiny-hybrid"\n[ray]\nmin_replicas = 2\n')
    assert RaySettings.read(read_ray([str(file)])) == RaySettings(min_replicas=2)
    assert read_ray(["tiny-hybrid"]) == {}
    file.write_text("ray = 2\n")
    with pytest.raises(InvalidRequestError, match=r"expected one table \[ray\]"):
        read_ray([str(file)])


@pytest.mark.slow  # 3 s
def test_without_ray() -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("Ray is installed")
    for command in (["-m", "lucebox", "serve", "--ray", "tiny-hybrid"], ["-c", "import lucebox.ray; lucebox.ray.app"]):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        assert done.returncode != 0
        assert "ray is not installed; run: pip install 'lucebox[ray]'" in done.stderr
        assert command[0] == "-c" or "Traceback" not in done.stderr


def test_digests_are_the_same_in_all_processes() -> None:
    """Several ingresses, and one after a restart, must agree."""
    body = {"messages": TURNS}
    code = (
        "import json, sys; from lucebox.serve.prefix_digests import prefix_digests; "
        "print(prefix_digests(json.load(sys.stdin))[-1].hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(body), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == prefix_digests(body)[-1].hex()


@pytest.mark.parametrize("fails", [False, True])
def test_parts_that_follow_each_other_are_merged(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first part does not wait, and the end waits for nothing."""
    monkeypatch.setattr(merging, "MERGE_S", 3600)

    async def received() -> list[object]:
        messages: asyncio.Queue[Any] = asyncio.Queue()
        first_is_read = asyncio.Event()

        async def respond() -> None:
            try:
                await messages.put({"type": "http.response.start", "status": 200})
                await messages.put({"type": "http.response.body", "body": b"a", "more_body": True})
                await first_is_read.wait()
                for part in (b"b", b"", b"c", b"d"):
                    await messages.put({"type": "http.response.body", "body": part, "more_body": True})
                    await asyncio.sleep(0)
                if fails:
                    raise RuntimeError
                await messages.put({"type": "http.response.body"})
            finally:
                messages.put_nowait(None)

        app = asyncio.create_task(respond())
        found: list[object] = []
        async for message in merging.merged(messages, app):
            found.append(message.get("status") or message["body"])
            if message.get("body") == b"a":
                first_is_read.set()
        await asyncio.gather(app, return_exceptions=True)
        return found

    assert asyncio.run(asyncio.wait_for(received(), 60)) == [200, b"a", b"bcd"]
