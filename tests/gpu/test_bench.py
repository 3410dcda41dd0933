"""Measurements on a device: timing or profiling an append does not change its results; whole reports."""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_packs
import lucebox
import numpy as np
import pytest
import tune_report
from engines import feed, open_engine, random_ids
from lucebox import _engine, _kernels, selftest
from lucebox.cli import main
from lucebox.cli.bench_sheet import sheet
from lucebox.measure import timeline
from lucebox.measure.bench import measure, profile
from lucebox.measure.numerics import compare
from lucebox.measure.plots import save_bench_plot
from lucebox.packs.manifest import Manifest
from lucebox.selftest import KernelResult
from project import ROOT
from reference.gguf_files import Shape, write_model
from tolerances import tolerance

TIMELINE = "-DLUCEBOX_TIMELINE"
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SHAPE = Shape("qwen35", n_layers=2, recurrent=(True, False), n_heads=2, n_kv_heads=1, head_dim=64, d_state=64)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "small.gguf", SHAPE)


def synthetic_model(folder: Path, shape: str, dtype: str, *more: str) -> Path:
    """Writes a synthetic model with a tokenizer, which LLM needs."""
    file = folder / f"{shape}.{dtype}.gguf"
    options = ["--shape", shape, "--type", dtype, "--out", str(file), *more]
    subprocess.run([sys.executable, str(BENCHMARKS / "make_synthetic_gguf.py"), *options], check=True)
    return file


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_model(tmp_path_factory.mktemp("models"), "qwen3-tiny", "Q8_0")


@pytest.mark.first_case
@pytest.mark.parametrize("rows, n_logits", [(1, 1), (19, 19), (5, 0)])
def test_a_measured_append_is_an_append(pack: _engine.gpu.Pack, small: Path, rows: int, n_logits: int) -> None:
    ids = random_ids(3 + rows + 2, SHAPE.vocab)
    engine = open_engine(small, pack=pack)
    plain, timed, profiled = (_engine.Session(engine) for _ in range(3))
    for session in (plain, timed, profiled):
        feed(session, ids[:3])
    plain.append(ids[3:-2])
    assert _kernels.SessionProbe(timed).time_append(ids[3:-2], n_logits) > 0
    times = _kernels.SessionProbe(profiled).profile_append(ids[3:-2], n_logits)
    assert all(launches >= 1 and seconds >= 0 for _, launches, seconds in times)
    assert [seconds for *_, seconds in times] == sorted((seconds for *_, seconds in times), reverse=True)
    for session in (plain, timed, profiled):
        session.commit(list(range(rows)))
    want, *others = (session.append(ids[-2:])[0] for session in (plain, timed, profiled))
    assert all(np.array_equal(want, got) for got in others)


def test_a_profile_names_every_kernel_once(pack: _engine.gpu.Pack, small: Path) -> None:
    probe = _kernels.SessionProbe(_engine.Session(open_engine(small, pack=pack)))
    ids = random_ids(3, SHAPE.vocab)
    times = probe.profile_append(ids, 3)
    names = [kernel for kernel, *_ in times]
    assert len(set(names)) == len(names)
    for part in ("embed", "rms_norm", "swiglu", "gem", "attention", "delta"):
        assert any(part in name for name in names), (part, names)
    launches = {kernel: n for kernel, n, _ in times}
    assert launches == {
        kernel: n for kernel, n, _ in probe.profile_append(ids, 3)
    }  # counts of the first call are cleared


def test_logits_asked_for_must_be_rows(pack: _engine.gpu.Pack, small: Path) -> None:
    session = _engine.Session(open_engine(small, pack=pack))
    for n in (-1, 4):
        with pytest.raises(ValueError, match="3"):
            _kernels.SessionProbe(session).time_append(random_ids(3, SHAPE.vocab), n)


@pytest.mark.slow  # 4 s
def test_a_report_of_a_device(on_pack: str, synthetic: Path, tmp_path: Path) -> None:
    with lucebox.LLM(synthetic, device=on_pack, context=64, sessions=3, draft="none") as llm:
        report = measure(llm, prefill=(5,), decode=(2,), batch=(3,), depth=2, runs=1)
        profiles = profile(llm, prefill=5, decode=2, depth=2, parallel=(3,))
    assert [m.label for m in report.measurements] == ["pp5", "tg2 @2", "b1 @2", "b3 @2"]
    one, three = report.measurements[2:]
    assert report.of_one_row(one) == 1
    assert report.of_one_row(three) == pytest.approx(three.seconds[0] / one.seconds[0])
    assert report.of_one_row(report.measurements[0]) is None
    assert [p.label for p in profiles] == ["pp5", "tg2 @2", "pass of 3 @2"]
    decode, together = profiles[1:]
    assert any("_batched" in t.kernel for t in together.times)
    assert decode.seconds == pytest.approx(sum(t.seconds for t in decode.times)) and decode.seconds > 0
    assert all(t.launches % 2 == 0 for t in decode.times)  # of two steps
    if on_pack == "sim:0":
        assert report.energy_source is None and all(m.joules is None for m in report.measurements)

    picture = tmp_path / "bench.svg"
    save_bench_plot(report, picture, profiles)
    assert "<svg" in picture.read_text()


@pytest.mark.slow  # 4 s
def test_the_command_shows_profile_and_comparison(
    on_pack: str, synthetic: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["-p", "0", "-n", "1", "-r", "1", "--device", on_pack]
    assert main(["bench", str(synthetic), *flags, "--profile", "--compare", "cpu"]) == 0
    text = capsys.readouterr().out
    assert "tg1 by kernel" in text and "rms_norm" in text and "greedy agreement" in text
    assert "energy: not readable" in text or on_pack != "sim:0"


@pytest.mark.slow  # 8 s
def test_experts_by_share(on_pack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = synthetic_model(tmp_path, "qwen35moe-tiny", "Q8_0", "--local-routes", "--layers", "2")
    script = load_script("expert_slots", monkeypatch)
    flags = ["--device", on_pack, "--shares", "100,25", "-p", "6", "-n", "3", "-d", "2", "-r", "1"]
    monkeypatch.setattr(sys, "argv", ["expert_slots.py", str(model), *flags, "--json", str(tmp_path / "slots.json")])
    assert script.main() == 0
    rows = json.loads((tmp_path / "slots.json").read_text())
    of = {(row["test"], row["slots"]): row for row in rows}
    assert set(of) == {(test, slots) for test in ("pp6", "tg3 @2") for slots in (16, 4)}
    assert all(row["n_experts"] == 16 and row["tok_s"] > 0 for row in rows)
    some = of["tg3 @2", 4]
    assert of["tg3 @2", 16]["hits"] is None and 0 < some["hits"] < 1 and some["mb_per_token"] > 0


@pytest.mark.slow  # 4 s
def test_experts_of_the_prompt_before_do_not_count(on_pack: str, tmp_path: Path) -> None:
    model = synthetic_model(tmp_path, "qwen35moe-tiny", "Q8_0", "--layers", "2")
    n_layers, n_used, n_tokens, runs = 2, 4, 3, 2
    with lucebox.LLM(str(model), device=on_pack, context=128, draft="none", expert_slots=n_used) as llm:
        (decode,) = measure(llm, prefill=(), decode=(n_tokens,), depth=70, runs=runs).measurements
    assert decode.experts is not None
    assert decode.experts.hits + decode.experts.misses == runs * n_tokens * n_layers * n_used


def load_script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A script of benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, script)
    spec.loader.exec_module(script)
    return script


@pytest.mark.slow  # 4 s
def test_the_table_beside_peers(
    on_pack: str, synthetic: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decode_gpu = load_script("decode_gpu", monkeypatch)
    table = tmp_path / "models.csv"
    flags = ["--device", on_pack, "--prefill", "3", "--decode", "1", "--batch", "2", "--runs", "1", "--csv", str(table)]
    monkeypatch.setattr(sys, "argv", ["decode_gpu.py", str(synthetic), *flags])
    with lucebox.LLM(synthetic, device=on_pack, context=8, draft="none") as llm:
        info = llm.info
        shape = (str(info.n_layers), str(info.hidden), "Q8_0")
        peer = decode_gpu.Peer(llm.device_name, "peer", "any", info.architecture, *shape, "b1", "", "1e-3", "", "here")
    monkeypatch.setattr(decode_gpu, "read_peers", lambda: [peer, replace(peer, device="another")])
    decode_gpu.main()
    decode_gpu.main()
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["test"] for row in rows] == ["pp3", "tg1", "b1", "b2"] * 2
    assert all(float(row["tok_s"]) > 0 and row["model"] == synthetic.name for row in rows)
    assert [bool(row["share"]) for row in rows[:4]] == [False, True, True, True]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if "peer 1e-3 ms, x peer" in line] == ["b1", "b1"]


@pytest.mark.slow  # 5 s
def test_a_sheet_becomes_rows(
    on_pack: str, pack_folder: Path, synthetic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless a kernel is wrong."""
    manifest = Manifest.parse((pack_folder / "manifest.json").read_text(encoding="utf-8"), "manifest.json")
    right = KernelResult("rope_kernel", n_cases=1, limit=1.0, problem=None)
    with lucebox.LLM(synthetic, device=on_pack, context=64, sessions=2, draft="none") as llm:
        report = measure(llm, prefill=(5,), decode=(2,), parallel=(2,), depth=3, runs=1)
        made, of_wrong = (
            sheet(llm, manifest, report, selftest.Report(on_pack, "pack", 1, (tested,), ()))
            for tested in (right, replace(right, problem="wrong"))
        )
    text = json.dumps(made)
    assert str(synthetic.parent) not in text and Path.home().name not in text.split('"')
    file, root = tmp_path / "sheet.json", tmp_path / "root"
    shutil.copytree(ROOT / "targets", root / "targets")
    (root / "benchmarks/results").mkdir(parents=True)
    target = "sm_86" if on_pack == "sim" else made["target"]  # the simulator has no rows
    file.write_text(json.dumps(of_wrong | {"target": target}), encoding="utf-8")
    assert tune_report.main([str(file)], root) == 1
    assert "0 of 1 kernels are ok" in capsys.readouterr().err
    file.write_text(json.dumps(made | {"target": target}), encoding="utf-8")
    assert tune_report.main([str(file)], root) == 0
    with (root / tune_report.RESULTS.format(target)).open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["test"] for row in rows] == ["pp5", "tg2 @3", "1 x tg2 @3", "2 x tg2 @3"]
    for row, measured in zip(rows, report.measurements, strict=True):
        assert float(row["tok_s"]) == round(measured.tok_s.median, 2) and row["command"].endswith("--sheet")


def test_comparison_with_the_cpu(on_pack: str, synthetic: Path) -> None:
    exact = {"context": 32, "activations": "f32", "kv": "f32", "draft": "none"}
    with (
        lucebox.LLM(synthetic, device=on_pack, **exact) as llm,
        lucebox.LLM(synthetic, device="cpu", **exact) as reference,
    ):
        result = compare(llm, reference, 20)
    assert result.reference == "cpu, f32 activations, f32 KV"
    assert 0 < result.max_difference < tolerance("logits", "f32_device")
    assert abs(result.mean_kl) < tolerance("logits", "f32_device")
    assert result.greedy_agreement >= 0.9  # where the two likeliest are not almost alike


@pytest.mark.slow  # 7 s: a build of a kernel
def test_a_timeline_of_the_megakernel(
    on_pack: str, pack_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if TIMELINE not in gpu_packs.manifest_of(pack_folder)["generations"][0]["compiler"]["flags"]:
        pytest.skip("the pack was built without the timeline")
    monkeypatch.setattr(timeline, "N_TOKENS", 3)  # the simulator takes a second for each
    model = synthetic_model(tmp_path, "qwen35-tiny", "BF16", "--layers", "1")
    page, picture = tmp_path / "out.html", tmp_path / "out.svg"
    flags = ["-p", "0", "-n", "2", "-r", "1", "-d", "3", "--device", on_pack, "--path", "megakernel"]
    assert main(["bench", str(model), *flags, "--timeline", str(page), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["decode_path"].startswith("megakernel_plain_kernel")
    kinds = report["timeline"]["kinds"]
    assert sum(kind["phases"] for kind in kinds) == int(re.findall(r"(\d+) phases", report["decode_path"])[0])
    assert sum(kind["phases"] * kind["us"] for kind in kinds) == pytest.approx(report["timeline"]["us"])
    assert all(0 <= kind["working"] <= 1 for kind in kinds)

    text = page.read_text()
    assert "@" not in re.sub(r"(?s)<script>.*</script>", "", text).replace("@3", "") and "http" not in text
    data = json.loads(re.findall(r"const data = (\{.*\});", text)[0])
    begun = {(block, phase) for block, phase, *_ in data["steps"]}
    assert {phase for _, phase in begun} == set(range(len(data["phases"])))
    assert all(0 <= began <= waited <= done <= 1e3 * data["us"] + 1 for *_, began, waited, done in data["steps"])

    assert main(["bench", str(model), *flags, "--timeline", str(picture)]) == 0
    assert "<svg" in picture.read_text() and "rms_norm" in capsys.readouterr().out


def test_a_pack_without_the_timeline_says_how_to_build_one(pack_folder: Path, small: Path) -> None:
    manifest = gpu_packs.manifest_of(pack_folder)
    for compiler in (code["compiler"] for code in manifest["generations"]):
        compiler["flags"] = [flag for flag in compiler["flags"] if flag != TIMELINE]
    engine = open_engine(small, pack=gpu_packs.load(pack_folder, manifest), decode_path="megakernel")
    with pytest.raises(lucebox.UnsupportedError, match=r"built without the timeline.*LUCEBOX_TIMELINE=ON"):
        _kernels.SessionProbe(_engine.Session(engine)).step_timeline()


def test_ways_to_decode_that_are_not_there(
    on_pack: str, synthetic: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["-p", "0", "-n", "2", "-r", "1"]
    page = ["--timeline", str(tmp_path / "out.html")]
    for more, problem in (
        (["--device", on_pack, "--activations", "f32", *page], "decoded by the graph"),
        (["--device", "cpu", *page], "the device is the CPU"),
        (["--device", "cpu", "--path", "megakernel"], "decode_path = graph and megakernel need a GPU"),
    ):
        assert main(["bench", str(synthetic), *flags, *more]) == 1
        assert problem in capsys.readouterr().err
    exact = ["--device", on_pack, "--path", "megakernel", "--activations", "f32"]
    assert main(["bench", str(synthetic), *flags, *exact]) == 1
    assert "[megakernel] rounds x of quantised weights to 8 bits only" in capsys.readouterr().err
