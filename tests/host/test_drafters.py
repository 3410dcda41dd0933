"""Which drafter an option names, and what a request counts of its drafts. An oracle drafts real trees."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from lucebox import LLM, Sampling
from lucebox.errors import HubError, InvalidRequestError, ModelNotFoundError
from lucebox.generation.decode import DraftTally
from lucebox.models import catalog
from lucebox.models.drafters import Drafters, resolve_drafts
from lucebox.models.resolve import ResolvedModel, resolve
from lucebox.results import DraftCounts, Usage
from oracle import OracleSession, plain_text, with_oracle
from safetensors.numpy import save_file
from text_data import TINY_HYBRID

# In f32 the rows of a tree round as single ones do nearly always; rounded to 8 bits they part where two tokens tie.
OPTIONS: dict[str, Any] = {"context": 512, "threads": 1, "activations": "f32", "kv": "f32"}
PROMPT = "def fibonacci(n):\n"
N_RIGHT = 3
DRAFTER = catalog.find("tiny-hybrid").drafter  # type: ignore[union-attr]


# --- which drafter


def gguf_with(path: Path, *tensors: str) -> ResolvedModel:
    writer = gguf.GGUFWriter(path, "qwen35")
    for name in tensors:
        writer.add_tensor(name, np.zeros((1, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return ResolvedModel(path, "path", path.stem)


def folder_with(path: Path, *tensors: str) -> ResolvedModel:
    path.mkdir()
    save_file({name: np.zeros((1, 32), np.float32) for name in tensors}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"model_type": "qwen3_5_text"}))
    return ResolvedModel(path, "path", path.name)


WORDS = {
    "none": Drafters(),
    "suffix": Drafters(suffix=True),
    "mtp": Drafters("mtp"),
    "mtp+suffix": Drafters("mtp", suffix=True),
}


def test_words_stay_and_files_are_found(tmp_path: Path) -> None:
    model = ResolvedModel(TINY_HYBRID, "path", "tiny-hybrid.Q8_0")
    for word, drafters in WORDS.items():
        assert resolve_drafts(word, model) == (drafters,)
        assert str(drafters) == drafters.label == word
    file = tmp_path / "drafter.gguf"
    file.touch()
    assert resolve_drafts(str(file), model) == (Drafters(str(file)),)
    (both,) = resolve_drafts(f"{file}+suffix", model)
    assert both == Drafters(str(file), suffix=True)
    assert (str(both), both.label) == (f"{file}+suffix", "drafter.gguf+suffix")
    with pytest.raises(ModelNotFoundError, match="'absent' is not a file"):
        resolve_drafts("absent+suffix", model)
    for nonsense in ("none+suffix", "suffix+suffix"):
        with pytest.raises(InvalidRequestError, match=r"draft cannot be '(none|suffix)\+suffix'"):
            resolve_drafts(nonsense, model)


def test_auto_lists_what_comes_with_the_model(tmp_path: Path) -> None:
    block = ("blk.0.attn_norm.weight", "blk.1.nextn.eh_proj.weight")
    without = Drafters(suffix=True), Drafters()
    with_block = Drafters("mtp", suffix=True), *without
    for kind in ("auto", "auto+suffix"):
        assert resolve_drafts(kind, gguf_with(tmp_path / f"a-{kind}.gguf", *block)) == with_block
        assert resolve_drafts(kind, gguf_with(tmp_path / f"b-{kind}.gguf", block[0])) == without
    for name in ("mtp.fc.weight", "model.mtp.layers.0.mlp.up_proj.weight"):
        assert resolve_drafts("auto", folder_with(tmp_path / name, "model.norm.weight", name)) == with_block
    assert resolve_drafts("auto", folder_with(tmp_path / "plain", "model.norm.weight")) == without


def test_the_catalog_names_drafters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter comes with the model's package or is in the cache folder; auto fetches none."""
    assert DRAFTER is not None
    packaged = catalog.fetch_drafter("tiny-hybrid")
    monkeypatch.setenv("LUCEBOX_CACHE", str(tmp_path))
    (tmp_path / "models").mkdir()
    file = tmp_path / "models" / DRAFTER.file
    shutil.copy(packaged, file)
    model = resolve("tiny-hybrid")
    own = Drafters("mtp", suffix=True), Drafters(suffix=True), Drafters()
    assert resolve_drafts("auto", model) == (Drafters(str(file), suffix=True), *own)
    assert resolve_drafts("tiny-hybrid", model) == (Drafters(str(file)),)
    with pytest.raises(ModelNotFoundError, match="no drafter for 'absent'; it has one for tiny-hybrid, smollm2-135m"):
        catalog.fetch_drafter("absent")
    monkeypatch.setattr(catalog, "_local", lambda file: None)
    assert resolve_drafts("auto", model) == own
    with pytest.raises(HubError, match=rf"{DRAFTER.file}, the drafter of tiny-hybrid, is not on this machine"):
        resolve_drafts("tiny-hybrid", model)


@pytest.mark.parametrize(("budget", "message"), [(0, "must be positive, got 0"), (64, "between 1 and 63, got 64")])
def test_a_bad_budget_is_refused(budget: int, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"draft_budget .*{message}"):
        LLM("tiny-hybrid", draft="suffix", draft_budget=budget, **OPTIONS)


# --- counts


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    """An LLM without drafts."""
    with LLM("tiny-hybrid", draft="none", **OPTIONS) as loaded:
        yield loaded


def drafting(llm: LLM, *prompts: str) -> LLM:
    """An LLM with an oracle that knows the greedy answers to these prompts."""
    texts = [plain_text("tiny-hybrid", llm.tokenize(prompt), 80, **OPTIONS) for prompt in prompts]
    return with_oracle(LLM("tiny-hybrid", draft="suffix", **OPTIONS), texts, N_RIGHT)


def expected_counts(n: int) -> DraftCounts:
    """Counts of n tokens in one go: a verify at the first token and at every fourth. The last token is not computed."""
    verifies = -(-(n - 1) // (N_RIGHT + 1))
    accepted = n - 1 - verifies
    last = accepted - (verifies - 1) * N_RIGHT
    by_length = [0] * (N_RIGHT + 1)
    by_length[N_RIGHT] = verifies - 1
    by_length[last] += 1
    return DraftCounts(verifies, (N_RIGHT + 1) * verifies, accepted, tuple(by_length))


@pytest.mark.first_case
@pytest.mark.parametrize("n", [41, 40, 2])
def test_a_generation_counts_its_drafts(llm: LLM, n: int) -> None:
    sampling = Sampling(max_tokens=n, ignore_eos=True)
    plain = llm.generate(PROMPT, sampling)
    assert plain.usage.drafts is None and plain.usage.tokens_per_step == 1
    with drafting(llm, PROMPT) as drafter:
        for _ in range(2):  # the counts of a request begin at 0
            result = drafter.generate(PROMPT, sampling)
            assert result.ids == plain.ids
            drafts = result.usage.drafts
            assert drafts is not None
            want = expected_counts(n)
            assert drafts.verifies == want.verifies and drafts.accepted_tokens == want.accepted_tokens
            assert drafts.drafted_tokens == want.drafted_tokens
            assert drafts.by_length == want.by_length[: len(drafts.by_length)]
            assert sum(drafts.by_length) == want.verifies
            assert drafts.tokens_per_verify == 1 + want.accepted_tokens / want.verifies
            assert result.usage.tokens_per_step == n / (n - want.accepted_tokens)


@pytest.mark.first_case
@pytest.mark.parametrize("n_prompt", [64, 65, 66, 129])
@pytest.mark.parametrize("n", [2, 5, 9])
def test_a_prompt_whose_last_append_has_one_row_counts_its_tree(n_prompt: int, n: int) -> None:
    """That append drafts, and its tree belongs to the request."""
    prompt = ([11, 12, 13, 14] * 40)[:n_prompt]
    sampling = Sampling(max_tokens=n, ignore_eos=True, logit_bias=dict.fromkeys((11, 12, 13, 14), 30.0))
    options = OPTIONS | {"prefill_chunk": 64, "prefix_cache": 0}
    with LLM("tiny-hybrid", draft="suffix", draft_budget=63, **options) as drafter:
        (session,) = drafter.model.sessions.free
        before = session.draft_counts
        drafts = drafter.generate(prompt, sampling).usage.drafts
        after = session.draft_counts
    assert drafts is not None
    counted = drafts.verifies, drafts.drafted_tokens, drafts.accepted_tokens
    assert counted == tuple(after[key] - before[key] for key in ("verified", "drafted", "accepted"))
    assert drafts.verifies > 0


def test_streams_that_interleave_count_their_own_drafts(llm: LLM) -> None:
    """Each stream drafts in a separate session."""
    prompts, sampling = (PROMPT, "import os\n"), Sampling(max_tokens=9, ignore_eos=True)
    texts = [plain_text("tiny-hybrid", llm.tokenize(prompt), 80, **OPTIONS) for prompt in prompts]
    with LLM("tiny-hybrid", draft="suffix", **OPTIONS) as drafter:
        drafter.pool.free[:] = [OracleSession(drafter.engine, texts, N_RIGHT) for _ in range(2)]
        streams = [drafter.generate(prompt, sampling, stream=True) for prompt in prompts]
        for _ in range(2):
            next(streams[0])
        results = [list(stream)[-1].result for stream in reversed(streams)]
        assert [result and result.usage.drafts for result in results] == [expected_counts(9)] * 2


def session_counts(verified: int, drafted: int, accepted: int) -> dict[str, Any]:
    return {"verified": verified, "drafted": drafted, "accepted": accepted}


def test_a_tree_verified_ahead_belongs_to_the_step_that_takes_it_up() -> None:
    """On a device sample() starts to verify the next tree immediately. The tree after the last token does not count for
    the request."""
    tally = DraftTally()
    states = [
        (session_counts(5, 50, 20), session_counts(5, 50, 20), session_counts(6, 54, 20)),  # a plain step, a tree ahead
        (session_counts(6, 54, 20), session_counts(6, 54, 20), session_counts(6, 54, 20)),  # at its root
        (session_counts(6, 54, 20), session_counts(6, 54, 21), session_counts(6, 54, 21)),
        (session_counts(6, 54, 21), session_counts(6, 54, 22), session_counts(7, 56, 22)),  # its end, the next ahead
        (session_counts(7, 56, 22), session_counts(7, 56, 22), session_counts(8, 59, 22)),  # nothing accepted
    ]
    for before, synced, sampled in states:
        tally.synced(before, synced)
        tally.sampled(synced, sampled)
    assert tally.counts == DraftCounts(verifies=2, drafted_tokens=6, accepted_tokens=2, by_length=(1, 0, 1))


def test_tokens_per_step_without_tokens() -> None:
    assert Usage(3, 0, 0).tokens_per_step == 0
    assert DraftCounts(0, 0, 0, ()).tokens_per_verify == 0
