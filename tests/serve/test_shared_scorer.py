"""One scorer for several models of a server: planned once, loaded once, kept while models come and go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lucebox.cli.serve import open_models
from lucebox.compression.scorer import Scorer
from lucebox.measure.needle import make_documents, text_of
from lucebox.models.assets import TextAssets
from lucebox.models.resolve import resolve
from lucebox.options import EngineOptions
from lucebox.serve.model_plans import plan_models
from lucebox.serve.model_set import ModelSet
from lucebox.serve.model_spec import ModelSpec
from lucebox.serve.settings import ServeSettings
from running import MODEL, started

SCORER = Path(__file__).parents[1] / "data" / "recall" / "recall-scorer.Q4_0.gguf"
OPTIONS: dict[str, Any] = {"context": 2048, "prefill_chunk": 64, "threads": 1, "draft": "none", "sessions": 1}
GIB = 1 << 30


def spec(name: str, **options: Any) -> ModelSpec:
    wanted = EngineOptions(**{**OPTIONS, "prefill_drafter": str(SCORER), **options}, prefix_cache=0)
    return ModelSpec(MODEL, wanted, ServeSettings(slots=1, model_name=name), limit=GIB)


def question() -> str:
    """A text of more tokens than the context, with a question at its end."""
    (document,) = make_documents([3000], 1, TextAssets.load(resolve(MODEL).path))
    return text_of(document, document.questions[0])


def test_its_memory_is_planned_once() -> None:
    own, both = plan_models([spec("a")]), plan_models([spec("a"), spec("b")])
    scorer = both[0].spec.scorer
    assert scorer is not None and both[1].spec.scorer is scorer
    assert {one.n_bytes for one in both} == {own[0].n_bytes - scorer.n_bytes}
    assert {one.available_bytes for one in both} == {GIB - scorer.n_bytes}
    third = plan_models([spec("a"), spec("b"), spec("c", prefill_drafter=None)])[2]
    assert third.spec.scorer is None and third.available_bytes == GIB - scorer.n_bytes
    different = plan_models([spec("a"), spec("b", prefill_layers="1")])
    assert [one.spec.scorer for one in different] == [None, None]


@pytest.mark.slow  # 9 s: two servers
def test_answers_and_lines(tmp_path: Path) -> None:
    """Models that share a scorer answer as one that has it alone; the scorer outlives each of them."""
    ask = {"messages": [{"role": "user", "content": question()}], "temperature": 0, "max_tokens": 8}
    ask |= {"compression": {"mode": "always", "keep_ratio": 0.1, "spans": True}}
    flags = ("--slots", "1", "--draft", "none", "--prefill-drafter", str(SCORER))

    def answer(client: Any, model: str) -> tuple[str, Any]:
        got = client.post("/v1/chat/completions", json={**ask, "model": model}).json()
        return got["choices"][0]["message"]["content"], {**got["compression"], "score_s": 0}

    with started(*flags) as alone, alone.client() as client:
        expected = answer(client, MODEL)
    log = tmp_path / "log"
    with started(*flags, model=[f"a={MODEL}", f"b={MODEL}"], log=log) as shared, shared.client() as client:
        assert answer(client, "a") == answer(client, "b") == expected
        assert client.get("/status").json()["compression"]["scorer_is_shared"]
        for name in ("a", "b"):
            assert client.post(f"/v1/models/{name}/unload").status_code == 200
        assert answer(client, "b") == expected
    line = next(line for line in log.read_text().splitlines() if line.startswith("a, b share the scorer "))
    assert "recall-scorer.Q4_0: " in line and line.endswith(" on cpu")


def test_loads_leak_no_scorer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads and unloads of its models load it once, and the set frees it."""
    opened: list[Scorer] = []
    begin = Scorer.__init__

    def counted(self: Scorer, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        opened.append(self)

    monkeypatch.setattr(Scorer, "__init__", counted)
    models: ModelSet = open_models([spec("a"), spec("b")], ServeSettings(slots=1, load="use"))
    for _ in range(5):
        for entry in models.entries:
            entry.take(entry.open(models.telemetry))
            assert entry.running is not None and entry.running.model.loaded.compressor is not None
            assert entry.running.model.loaded.compressor.scorer is opened[0]
        for entry in models.entries:
            assert entry.running is not None
            entry.running.close()
            entry.running = None
    (scorer,) = opened
    assert len(scorer.score("a text").scores)
    models.free()
    with pytest.raises(Exception, match="this scorer was closed"):
        scorer.score("a text")
