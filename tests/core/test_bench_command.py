"""The `bench` command as a real process."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.core.test_fine_tuning import base_folder
from tests.core.trainer_process import ROOT, environment
from tests.core.training import pairs_file
from trainer_core.benchmark import run, tables
from trainer_core.config import Config

# fmt: off
SMALL = (
    "--hidden-dim", "32", "--n-layers", "1", "--n-heads", "1", "--max-seq-len", "32", "--batch-size", "4",
    "--vocab-size", "320", "--compile", "off", "--cpu-threads", "1", "--device", "cpu",
)
# fmt: on


def start_benchmark(home: Path, *arguments: str, temporary: Path | None = None) -> subprocess.Popen[bytes]:
    variables = {"TMPDIR": str(temporary)} if temporary else {}
    return subprocess.Popen(
        [sys.executable, "-m", "trainer_core", "bench", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(home), "TRAINDECK_LANG": "en", **variables},
        cwd=ROOT,
    )


def text_file(home: Path) -> Path:
    path = home / "text.txt"
    path.write_text("".join(f"line {n} says {n * n}\n" for n in range(3000)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, str]:  # type: ignore[type-arg]
    home = tmp_path_factory.mktemp("home")
    process = start_benchmark(home, *SMALL, "--data", str(text_file(home)), "--seconds", "1", "--output", "json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    return home, json.loads(out), err.decode()


def test_recipes_are_measured_in_turn(benchmark: tuple[Path, dict, str]) -> None:  # type: ignore[type-arg]
    _, document, log = benchmark
    recipes = {recipe["name"]: recipe for recipe in document["recipes"]}
    assert recipes["untuned"]["knobs"]["batch_size"] == 12
    assert recipes["untuned"]["knobs"]["attention"] == "math"
    assert all(recipe["tokens_per_s"]["median"] > 0 for recipe in recipes.values())
    assert document["times_as_fast"]["median"] > 0
    assert {"matmul fp32", "copy RAM"} <= document["ceilings"].keys()
    assert all(rate > 0 for rate in document["ceilings"].values())
    assert log.index("round 1: untuned recipe") < log.index("round 1: tuned")


def test_a_benchmark_writes_only_the_result_file(benchmark: tuple[Path, dict, str]) -> None:  # type: ignore[type-arg]
    home, document, _ = benchmark
    (file,) = map(Path, document["files"])
    assert list((home / "bench" / "results").iterdir()) == [file]
    assert not (home / "runs").exists()
    assert json.loads(file.read_text(encoding="utf-8"))["recipes"] == document["recipes"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_terminal_shows_the_results_in_its_language(benchmark: tuple[Path, dict, str], language: str) -> None:  # type: ignore[type-arg]
    path = {"name": "compile", "used": False, "choice": "", "reason": "path.no_compiler", "params": {}}
    document = {**benchmark[1], "fast_paths": [{**path, "speedup": 1.5, "error": 1e-5}]}
    text = tables.render(document, "zh" if language == "zh" else "en")
    tokens_per_s = document["recipes"][0]["tokens_per_s"]["median"]
    assert f"{tokens_per_s:,.0f}" in text
    assert "×1.50" in text
    assert ("untuned recipe" in text) == (language == "en")
    assert ("未调优方案" in text) == (language == "zh")
    if language == "zh":
        assert "median" not in text


def test_a_base_model_is_benchmarked_with_its_own_architecture(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base", "qwen2.5")
    options = ("--base-model", str(base), "--method", "lora", "--optimizer", "adamw_8bit", "--max-seq-len", "32")
    data = ("--data", str(pairs_file(tmp_path)), "--batch-size", "4", "--device", "cpu", "--compile", "off")
    process = start_benchmark(tmp_path, *options, *data, "--seconds", "1")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    assert "AdamW (8-bit)" in out.decode()


def test_a_too_large_model_is_rejected_in_one_sentence(tmp_path: Path) -> None:
    process = start_benchmark(tmp_path, "--preset", "gpt2_124m", "--device", "cpu", "--seconds", "5")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert b"too large" in err
    assert b"Traceback" not in err
    assert out == b""
    assert not list(tmp_path.rglob("*.json"))


def test_a_failing_run_exits_with_the_code_of_its_error(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("", encoding="utf-8")
    process = start_benchmark(tmp_path, *SMALL, "--data", str(empty), "--seconds", "1")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 4
    assert b"Traceback" not in err


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C would also end the test process on Windows")
def test_ctrl_c_leaves_neither_processes_nor_files(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = start_benchmark(
        tmp_path, *SMALL, "--data", str(text_file(tmp_path)), "--seconds", "60", temporary=temporary
    )
    assert process.stderr is not None
    while b"round 1" not in process.stderr.readline():
        assert process.poll() is None
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert not (tmp_path / "bench").exists()
    assert not list(temporary.iterdir())


def test_explicit_options_are_not_tuned() -> None:
    config = Config(batch_size=4, compile="off", attention="math")
    tuned = run.build_recipes(config, on_gpu=True, fixed=["batch_size", "compile"])[-1].config
    assert (tuned.batch_size, tuned.compile, tuned.attention) == (4, "off", "auto")


def test_tuning_raises_the_batch_size_on_a_gpu_and_does_not_change_the_model() -> None:
    config = Config(hidden_dim=64, n_layers=3, batch_size=4, max_seq_len=512, gradient_accumulation_steps=8)
    untuned, preset, tuned = run.build_recipes(config, on_gpu=True)
    assert (untuned.config.batch_size, preset.config.batch_size, tuned.config.batch_size) == (12, 4, 32)
    assert {recipe.config.gradient_accumulation_steps for recipe in (untuned, preset, tuned)} == {8}
    assert {(recipe.config.hidden_dim, recipe.config.n_layers) for recipe in (untuned, preset, tuned)} == {(64, 3)}


def test_all_recipes_have_the_same_optimizer() -> None:
    config = Config(optimizer="muon")
    assert {recipe.config.optimizer for recipe in run.build_recipes(config, on_gpu=False)} == {"muon"}


def test_a_recipe_that_does_not_fit_is_reported(benchmark: tuple[Path, dict, str]) -> None:  # type: ignore[type-arg]
    document = copy.deepcopy(benchmark[1])
    error = {"code": "memory.out", "params": {"device": "CPU", "step": 0}}
    document["recipes"][0] |= {"error": error, "tokens_per_s": None}
    assert any("untuned recipe: Out of memory" in line for line in tables.notes(document, "en"))
    assert "untuned recipe  " not in tables.render(document, "en")
