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

from tests.core.trainer_process import ROOT, TINY, environment, run, text_file
from trainer_core import protocol, texts
from trainer_core.protocol import FastPath


def start_doctor(home: Path, *arguments: str, language: str = "en") -> subprocess.Popen[bytes]:
    no_accelerators = {"CXX": "no-such-compiler", "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.Popen(
        [sys.executable, "-m", "trainer_core", "doctor", "--fast-paths", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment(home), "TRAINDECK_LANG": language, **no_accelerators},
        cwd=ROOT,
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, FastPath], str]:
    home = tmp_path_factory.mktemp("home")
    process = start_doctor(home, "--output", "json")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err.decode()
    paths = msgspec.convert(json.loads(out), list[FastPath])
    return home, {path.name: path for path in paths}, err.decode("utf-8")


def test_every_path_is_reported_with_its_measurement_or_reason(measured: tuple[Path, dict[str, FastPath], str]) -> None:
    _, paths, _ = measured
    assert paths.keys() == {key.split(".")[1] for key in texts.catalogue("en") if key.startswith("fast_path.")}
    assert (paths["compile"].used, paths["compile"].reason) == (False, "path.no_compiler")
    assert paths["tf32"].reason == "path.no_gpu"
    assert (paths["fused_adamw"].error or 0.0) < 1e-3
    assert (paths["fused_adamw"].speedup or 0.0) > 0
    assert paths["precision"].choice == "bf16"
    assert paths["threads"].choice


def test_progress_goes_to_stderr(measured: tuple[Path, dict[str, FastPath], str]) -> None:
    log = measured[2]
    assert log.index("measuring: Attention") < log.index("measuring: Fused AdamW")
    assert "measuring: Compiled model" not in log


def test_hello_of_a_run_contains_the_measurements(measured: tuple[Path, dict[str, FastPath], str]) -> None:
    home, paths, _ = measured
    result = run(home, "train", "--data", str(text_file(home)), "--max-steps", "1", "--compile", "off", *TINY)
    (hello,) = result.events_of(protocol.Hello)
    reported = {path.name: path for path in hello.fast_paths}
    assert reported["fused_adamw"] == paths["fused_adamw"]
    # Determined at the start of the run, not cached.
    assert reported["compile"].reason in ("path.found", "path.no_compiler")


def test_a_terminal_shows_the_table_in_chinese(tmp_path: Path) -> None:
    out, err = start_doctor(tmp_path, "--output", "plain", language="zh").communicate(timeout=120)
    assert "正在测量：融合 AdamW" in err.decode("utf-8")
    lines = out.decode("utf-8").splitlines()
    assert any(line.split()[:3] == ["编译模型", "否", "-"] and "未找到 C++ 编译器。" in line for line in lines)


def test_a_torch_that_cannot_be_loaded_is_reported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch: cannot open shared object file')", encoding="utf-8")
    python_path = os.pathsep.join((str(tmp_path), str(ROOT)))
    result = subprocess.run(
        [sys.executable, "-m", "trainer_core", "doctor", "--fast-paths", "--output", "plain"],
        capture_output=True,
        env={**environment(tmp_path), "PYTHONPATH": python_path},
        cwd=tmp_path,
        check=False,
    )
    assert result.returncode == 1
    assert b"libtorch: cannot open shared object file" in result.stdout
    assert b"Traceback" not in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="Ctrl+C would also end the test process on Windows")
def test_ctrl_c_ends_the_command_without_a_traceback(tmp_path: Path) -> None:
    process = start_doctor(tmp_path)
    assert process.stderr is not None
    while b"measuring" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, b"")
    assert b"Traceback" not in err
