"""The MODEL arguments of `lucebox serve`, and the memory plan of several models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lucebox.cli.served_models import on_one_server, read_models
from lucebox.errors import InvalidRequestError, LuceboxError, OutOfMemoryError
from lucebox.options import EngineOptions
from lucebox.serve.model_plans import needed_room, plan_models
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.settings import ServeSettings

TINY = Path(__file__).parents[1] / "data" / "tiny"
LLAMA, QWEN = TINY / "llama_a.gguf", TINY / "qwen3_a.gguf"
MIB = 1 << 20


def read(*arguments: object, settings: ServeSettings | None = None, **engine: Any) -> list[ModelSpec]:
    return read_models([str(one) for one in arguments], settings or ServeSettings(), engine, offline=True)


def test_one_model_has_all_settings() -> None:
    (spec,) = read(LLAMA, settings=ServeSettings(model_name="m", alias=("x*",)), context=512, memory_limit="1GiB")
    assert (spec.model, spec.settings.model_name, spec.settings.alias) == (str(LLAMA), "m", ("x*",))
    assert (spec.options.context, spec.options.memory_limit, spec.limit) == (512, None, 1 << 30)
    assert spec.keywords()["memory_limit"] == 1 << 30


def test_names_and_the_common_cache() -> None:
    common = ServeSettings(prefix_cache=100, prefix_cache_dir="cache", prefix_cache_disk=60)
    models = read(LLAMA, f"coder.7b={QWEN}", settings=common)
    assert [spec.n_caches for spec in models] == [1, 1]  # for servers of their own, as on a cluster
    first, second = on_one_server(models)
    assert (first.settings.model_name, second.settings.model_name) == (None, "coder.7b")
    for spec, folder in ((first, "cache/llama_a.gguf"), (second, "cache/coder.7b")):
        assert (spec.n_caches, spec.settings.prefix_cache_disk) == (2, 30)
        assert spec.settings.prefix_cache_dir == folder
    (alone,) = on_one_server(read(LLAMA, settings=common))
    assert (alone.n_caches, alone.settings.prefix_cache_dir) == (1, "cache")


def test_a_path_with_an_equals_sign(tmp_path: Path) -> None:
    file = tmp_path / "a=b.gguf"
    file.write_bytes(b"")
    assert read(file)[0].model == str(file)


def test_a_folder_of_models(tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf", "split-00001-of-00002.gguf", "split-00002-of-00002.gguf", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    inner = tmp_path / "hf"
    inner.mkdir()
    for name in ("config.json", "model.safetensors"):
        (inner / name).write_bytes(b"")
    names = ["a.gguf", "b.gguf", "split-00001-of-00002.gguf", "hf"]
    assert [Path(spec.model) for spec in read(tmp_path)] == [tmp_path / name for name in names]


def test_a_file_of_models(tmp_path: Path) -> None:
    (tmp_path / "here.gguf").write_bytes(b"")
    file = tmp_path / "models.toml"
    file.write_text(
        """[models.chat]
        model = "here.gguf"
        slots = 2
        alias = ["claude-*", "gpt-*"]
        kv = "q8_0"
        memory_limit = "2GiB"
        [models.coder]
        model = "org/name:Q8_0"
        max_tokens = 100
        batch_invariant = true
        """
    )
    chat, coder = read(file, kv="f32", context=512)
    assert (chat.model, chat.settings.model_name) == (str(tmp_path / "here.gguf"), "chat")
    assert (chat.settings.slots, chat.settings.alias, chat.options.sessions) == (2, ("claude-*", "gpt-*"), 2)
    assert (chat.options.kv, chat.options.context, chat.options.memory_limit) == ("q8_0", 512, "2GiB")
    assert (coder.model, coder.settings.max_tokens) == ("org/name:Q8_0", 100)
    assert (coder.options.kv, coder.options.batch_invariant, coder.settings.alias) == ("f32", True, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[models", "is not TOML"),
        ("", r"expected tables \[models.NAME\]"),
        ("port = 1\n[models.a]\nmodel = 'x'", "found 'port'"),
        ("[models]\na = 1", r"\[models.a\] has no `model`"),
        ("[models.a]\nslots = 1", "has no `model`"),
        ("[models.a]\nmodel = 'x'\ncontxt = 1", r"\[models.a\] has no option 'contxt'; did you mean context"),
        ("[models.a]\nmodel = 'x'\nslots = 'two'", r"\[models.a\]: slots cannot be 'two'"),
        ("[models.a]\nmodel = 'x'\nslots = 1979-05-27", r"\[models.a\]: expected a string, a number"),
        ("[models.a]\nmodel = 'x'\nseed = 1", "has no option 'seed'"),
    ],
)
def test_a_file_that_cannot_be_meant(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "models.toml"
    file.write_text(text)
    with pytest.raises(InvalidRequestError, match=message):
        read(file)


@pytest.mark.parametrize("settings", [{"model_name": "m"}, {"alias": ("a",)}])
def test_flags_for_one_model(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match="is for one model, and there are 2: write NAME=MODEL"):
        read(LLAMA, QWEN, settings=ServeSettings(**settings))


@pytest.mark.parametrize(
    ("needed", "free", "leaving"),
    [
        (5, 5, []),
        (6, 5, ["old"]),
        (16, 5, ["large"]),
        (27, 5, ["old", "large", "new"]),
        (99, 5, ["old", "large", "new"]),
    ],
)
def test_the_oldest_leave_and_none_in_vain(needed: int, free: int, leaving: list[str]) -> None:
    assert needed_room(needed, free, [("old", 2), ("large", 15), ("new", 5)]) == leaving


def planned(limit: int, *paths: Path, **options: Any) -> list[tuple[int, int]]:
    """Bytes and context of each model's plan."""
    engine = EngineOptions(sessions=1, threads=1, prefix_cache=0, draft="none", **options)
    specs = [ModelSpec(str(path), engine, ServeSettings(slots=1), True, limit) for path in paths]
    return [(plan.n_bytes, plan.context) for plan in plan_models(specs)]


def test_models_share_a_device() -> None:
    recall = TINY.parent / "recall" / "recall-scorer.Q4_0.gguf"
    ((alone, most),) = planned(1 << 30, recall)
    limit = 2 * alone - 20 * MIB
    pair = planned(limit, recall, recall)
    assert sum(n_bytes for n_bytes, _ in pair) <= limit
    assert all(4096 <= context < most for _, context in pair)
    # A small model takes what it wants, and the large one the rest.
    (small, large) = planned(alone + 10 * MIB, LLAMA, recall)
    assert small == planned(1 << 30, LLAMA)[0] and 4096 < large[1] < most
    assert small[0] + large[0] <= alone + 10 * MIB


def test_models_that_cannot_share_take_turns() -> None:
    recall = TINY.parent / "recall" / "recall-scorer.Q4_0.gguf"
    limit = planned(1 << 30, recall, context=4096)[0][0] + 4 * MIB
    assert planned(limit, recall, recall) == planned(limit, recall) * 2


def test_a_model_that_never_fits_is_named() -> None:
    with pytest.raises(OutOfMemoryError, match=f"{LLAMA}: the weights take"):
        planned(4 * MIB, QWEN, LLAMA)
    with pytest.raises(LuceboxError, match="no-such"):
        planned(1 << 30, Path("no-such.gguf"), LLAMA)
