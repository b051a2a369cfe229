"""`doctor --fast-paths` as a real process, without a compiler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.core.trainer import ROOT, TINY, environment, run, text_file
from trainer_core import protocol, texts
from trainer_core.protocol import FastPath


def start(home: Path, *arguments: str, language: str = "en") -> subprocess.Popen[bytes]:
    none = {"CXX": "no-such-compiler", "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.Popen(
        [sys.executable, "-m", "trainer_core", "doctor", "--fast-paths", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(home), "TRAINDECK_LANG": language, **none},
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, FastPath], str]:
    home = tmp_path_factory.mktemp("home")
    process = start(home, "--output", "json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    found = msgspec.convert(json.loads(out), list[FastPath])
    return home, {path.name: path for path in found}, err.decode("utf-8")


def test_every_path_is_reported_with_its_measurement_or_reason(measured: tuple[Path, dict[str, FastPath], str]) -> None:
    _, found, _ = measured
    assert found.keys() == {key.split(".")[1] for key in texts.catalogue("en") if key.startswith("fast_path.")}
    assert (found["compile"].used, found["compile"].reason) == (False, "path.no_compiler")
    assert found["tf32"].reason == "path.no_gpu"
    assert (found["fused_adamw"].error or 0.0) < 1e-3
    assert (found["fused_adamw"].speedup or 0.0) > 0
    assert found["precision"].choice == "bf16"
    assert found["threads"].choice


def test_progress_goes_to_stderr(measured: tuple[Path, dict[str, FastPath], str]) -> None:
    said = measured[2]
    assert said.index("measuring: Attention") < said.index("measuring: Fused AdamW")
    assert "measuring: Compiled model" not in said


def test_hello_of_a_run_contains_the_measurements(measured: tuple[Path, dict[str, FastPath], str]) -> None:
    home, found, _ = measured
    ended = run(home, "train", "--data", str(text_file(home)), "--max-steps", "1", "--compile", "off", *TINY)
    (hello,) = ended.of(protocol.Hello)
    said = {path.name: path for path in hello.fast_paths}
    assert said["fused_adamw"] == found["fused_adamw"]
    assert said["compile"].reason in ("path.found", "path.no_compiler")  # as it is now, not as it was then


def test_a_terminal_shows_the_table_in_chinese(tmp_path: Path) -> None:
    out, err = start(tmp_path, "--output", "plain", language="zh").communicate(timeout=120)
    assert "正在测量：融合 AdamW" in err.decode("utf-8")
    lines = out.decode("utf-8").splitlines()
    assert any(line.split()[:3] == ["编译模型", "否", "-"] and "未找到 C++ 编译器。" in line for line in lines)


def test_a_torch_that_does_not_load_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch: cannot open shared object file')", encoding="utf-8")
    both = os.pathsep.join((str(tmp_path), str(ROOT)))
    ended = subprocess.run(
        [sys.executable, "-m", "trainer_core", "doctor", "--fast-paths", "--output", "plain"],
        capture_output=True,
        env={**environment(tmp_path), "PYTHONPATH": both},
        cwd=tmp_path,
        check=False,
    )
    assert ended.returncode == 1
    assert b"libtorch: cannot open shared object file" in ended.stdout
    assert b"Traceback" not in ended.stderr


@pytest.mark.skipif(os.name == "nt", reason="a test cannot press Ctrl+C on Windows without ending itself")
def test_ctrl_c_ends_it_without_a_traceback(tmp_path: Path) -> None:
    process = start(tmp_path)
    assert process.stderr is not None
    while b"measuring" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
