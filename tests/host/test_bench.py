"""Measurements of a real model, and the scripts of benchmarks/ that need no peer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gguf
import lucebox
import pytest
from lucebox.bench import Measurement, Summary, measure
from lucebox.errors import InvalidRequestError, UnsupportedError
from lucebox.machine import processor_name
from lucebox.plots import save_bench_plot

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_a_measurement_computes_speed_from_its_runs() -> None:
    measurement = Measurement("decode", n_tokens=10, depth=128, seconds=(1.0, 4.0, 2.0), weight_bytes=6_000_000_000)
    assert measurement.label == "tg10 @128"
    assert measurement.tok_s == Summary(median=5.0, min=2.5, max=10.0)
    assert measurement.gb_s == 3.0


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
    assert report.device == processor_name() != ""

    picture = tmp_path / "bench.svg"
    save_bench_plot(report, picture)
    assert "<svg" in picture.read_text()
    with pytest.raises(UnsupportedError, match="nonsense"):
        save_bench_plot(report, tmp_path / "bench.nonsense")


@pytest.mark.parametrize("shape, preset", [("qwen35-tiny", "Q4_K_M"), ("qwen3-tiny", "Q8_0"), ("qwen35-tiny", "BF16")])
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
