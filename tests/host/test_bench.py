"""Measurements of a real model, and the scripts of benchmarks/ that need no peer."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import gguf
import lucebox
import numpy as np
import pytest
from engines import largest_difference, log_softmax, mean_kl
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.measure import bench, energy
from lucebox.measure.bench import KernelTime, Measurement, Profile, Summary, context_for, measure, profile
from lucebox.measure.energy import Meter
from lucebox.measure.numerics import compare
from lucebox.measure.plots import save_bench_plot
from lucebox.packs.machine import processor_name
from safetensors import safe_open

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory's bandwidth from 16 MiB: no test needs the right number, and each would take a second for it."""
    monkeypatch.setattr(bench, "BANDWIDTH_BYTES", 16 << 20)


def test_a_measurement_computes_speed_from_its_runs() -> None:
    measurement = Measurement(
        "decode", n_tokens=10, depth=128, seconds=(1.0, 4.0, 2.0), weight_bytes=6_000_000_000, joules=60.0
    )
    assert measurement.label == "tg10 @128"
    assert measurement.tok_s == Summary(median=5.0, min=2.5, max=10.0)
    assert measurement.ms == Summary(median=2e3, min=1e3, max=4e3)
    assert measurement.gb_s == 3.0
    assert measurement.tok_j == 0.5
    assert replace(measurement, joules=None).tok_j is None


def test_measure_counts_every_test_and_run(tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []
    with lucebox.LLM("tiny-hybrid", context=128) as llm:
        report = measure(
            llm, prefill=(16,), decode=(4, 8), depth=3, runs=2, on_run=lambda label, run: heard.append((label, run))
        )
        with pytest.raises(InvalidRequestError, match="runs"):
            measure(llm, runs=0)
        with pytest.raises(InvalidRequestError, match="size"):
            measure(llm, decode=(0,))
        bytes_per_token = llm.info.bytes_per_token
    assert heard == [(label, run) for label in ("pp16", "tg4", "tg8") for run in range(3)]
    prefill, short, long = report.measurements
    assert (prefill.gb_s, report.share(prefill)) == (None, None)
    assert (short.weight_bytes, long.weight_bytes) == (4 * bytes_per_token, 8 * bytes_per_token)
    assert all(seconds > 0 for m in report.measurements for seconds in m.seconds)
    assert report.bandwidth_gb_s > 0.1
    assert report.device_name == processor_name() != ""

    picture = tmp_path / "bench.svg"
    save_bench_plot(report, picture)
    assert "<svg" in picture.read_text()
    with pytest.raises(UnsupportedError, match="nonsense"):
        save_bench_plot(report, tmp_path / "bench.nonsense")


def test_appends_are_compared_with_one_row(tmp_path: Path) -> None:
    depth, runs = 5, 2
    context = context_for((), (), (8, 3), depth, runs)
    with lucebox.LLM("tiny-hybrid", context=context) as llm:
        report = measure(llm, prefill=(), decode=(), batch=(8, 3), depth=depth, runs=runs)
        with pytest.raises(InvalidRequestError, match="64 rows"):
            measure(llm, batch=(65,))
        with pytest.raises(UnsupportedError, match="CPU"):
            profile(llm, prefill=8, decode=0)
        bytes_per_token = llm.info.bytes_per_token
    assert [m.label for m in report.measurements] == ["b1 @5", "b8 @5", "b3 @5"]
    one, eight, _ = report.measurements
    assert report.of_one_row(eight) == eight.ms.median / one.ms.median
    assert all(m.weight_bytes == bytes_per_token for m in report.measurements)
    assert report.energy_source is None and one.tok_j is None

    picture = tmp_path / "bench.svg"
    save_bench_plot(report, picture, [Profile("tg1", (KernelTime("a_kernel", 2, 3e-3), KernelTime("b", 1, 1e-3)))])
    assert "<svg" in picture.read_text()


def test_energy_is_of_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake meter of one joule per token in the session. The fill before decoding is not measured."""
    monkeypatch.setattr(energy, "MIN_SECONDS", 0)
    with lucebox.LLM("tiny-hybrid", context=128) as llm:
        meter = Meter("tokens held", joules=lambda: float(llm.pool.latest.n_tokens), watts=None)
        monkeypatch.setattr(bench, "find_meter", lambda device: meter)
        report = measure(llm, prefill=(32,), decode=(8,), batch=(4,), depth=40, runs=3)
    assert report.energy_source == "tokens held"
    prefill, decode, _, append = report.measurements
    assert prefill.joules is None  # as many at the end of the runs as before them
    assert (decode.joules, decode.tok_j) == (3 * 8, 1)
    assert (append.joules, append.tok_j) == (3, 4)  # each append of 4 rows keeps one


def test_a_comparison_is_of_the_logits() -> None:
    exact = {"context": 64, "activations": "f32", "kv": "f32"}
    with lucebox.LLM("tiny-hybrid", context=64) as llm, lucebox.LLM("tiny-hybrid", **exact) as reference:
        result = compare(llm, reference, 40)
        itself = compare(reference, reference, 40)
        ids = np.random.default_rng(0).integers(0, llm.info.vocab, 40)
        got, want = llm.logits(ids), reference.logits(ids)
        assert sum(reference.score(ids)) == pytest.approx(log_softmax(want)[np.arange(39), ids[1:]].sum(), rel=1e-4)
    assert result.max_difference == largest_difference(got, want) > 0
    assert result.mean_kl == pytest.approx(mean_kl(want, got)) and result.mean_kl > 0
    assert result.greedy_agreement == (got.argmax(axis=1) == want.argmax(axis=1)).mean()
    assert (itself.max_difference, itself.mean_kl, itself.greedy_agreement) == (0, 0, 1)


def test_peers_name_tests_as_measurements_do() -> None:
    with (BENCHMARKS / "peers.csv").open(newline="") as file:
        peers = list(csv.DictReader(file))
    assert peers
    for peer in peers:
        assert re.fullmatch(r"(pp|tg|b)\d+( @\d+)?", peer["test"])
        assert bool(peer["tok_s"]) != bool(peer["ms"]) == peer["test"].startswith("b")


@pytest.mark.slow  # 5 s: a process of benchmarks/
def test_speculative_steps_are_measured_and_replayed(tmp_path: Path) -> None:
    script, file = BENCHMARKS / "speculation_gpu.py", tmp_path / "rows.csv"
    command = [sys.executable, str(script), "tiny-hybrid", "mtp", "-b", "3", "-n", "10", "--device", "cpu"]
    done = subprocess.run([*command, "--csv", str(file)], check=True, capture_output=True, text=True)
    with file.open(newline="") as table:
        rows = list(csv.DictReader(table))
    assert [(row["sampling"], row["replay"]) for row in rows] == [
        ("greedy", ""), ("greedy", "mtp 2.87"), ("T=1", ""), ("T=1", "mtp 2.87"),
    ]  # fmt: skip
    assert all(float(row[f"part_{part}_ms"]) > 0 for row in rows for part in ("draft", "tree", "verify", "walk"))
    assert "replay mtp 2.87" in done.stdout
    with (BENCHMARKS / "results" / "sm_90_speculation.csv").open(newline="") as recorded:
        assert next(csv.reader(recorded)) == list(rows[0])


@pytest.mark.first_case
@pytest.mark.parametrize(
    "shape, preset",
    [
        ("qwen35-tiny", "Q4_K_M"),
        pytest.param("qwen3-tiny", "Q8_0", marks=pytest.mark.slow),  # every day, tests/gpu/test_bench.py runs it
        pytest.param("qwen35-tiny", "BF16", marks=pytest.mark.slow),  # 1 s each
        ("qwen35moe-tiny", "Q4_K_M"),
        ("gpt-oss-tiny", "Q8_0"),
        ("qwen35-tiny", "NVFP4"),
    ],
)
def test_a_synthetic_model_is_valid_and_runs(shape: str, preset: str, tmp_path: Path) -> None:
    file = tmp_path / f"{shape}.{preset}.gguf"
    script = BENCHMARKS / "make_synthetic_gguf.py"
    subprocess.run([sys.executable, str(script), "--shape", shape, "--type", preset, "--out", str(file)], check=True)
    reader = gguf.GGUFReader(file)
    last = reader.tensors[-1]
    assert last.data_offset + last.n_bytes <= file.stat().st_size < last.data_offset + last.n_bytes + 32
    with lucebox.LLM(file, context=64) as llm:
        scores = llm.score([5, 250, 260, 300])
    assert len(scores) == 3
    assert all(-30 < score < 0 for score in scores)  # finite weights of a sane scale give a flat distribution


@pytest.mark.slow  # 2 s
def test_a_synthetic_fp8_checkpoint_is_valid_and_runs(tmp_path: Path) -> None:
    folder, script = tmp_path / "fp8", BENCHMARKS / "make_synthetic_gguf.py"
    arguments = ["--shape", "qwen35-tiny", "--type", "FP8", "--out", str(folder)]
    subprocess.run([sys.executable, str(script), *arguments], check=True)
    with lucebox.LLM(folder, context=64) as llm:
        scores = llm.score([5, 250, 260, 300])
        copied = next(one.bytes for one in llm.memory_plan.entries if one.name == "copied weights")
    assert all(-30 < score < 0 for score in scores)
    with safe_open(folder / "model.safetensors", "np") as file:
        names = list(file.keys())
    assert "model.layers.0.linear_attn.in_proj_qkv.weight_scale_inv" in names
    values = (folder / "model.safetensors").stat().st_size
    assert 0.5 * values < copied < values
