"""Hardware probe, file manager, clipboard and start folders."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from pytestqt.qtbot import QtBot

from app.services import desktop_shell, gpu_probe


def test_the_hardware_is_probed_in_another_thread(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    probe = gpu_probe.probe
    monkeypatch.setattr(gpu_probe, "probe", lambda: (threads.append(threading.current_thread()), probe())[1])
    probing = gpu_probe.GpuProbe()
    received_in: list[threading.Thread] = []
    probing.completed.connect(lambda machine: received_in.append(threading.current_thread()))
    with qtbot.waitSignal(probing.completed, timeout=20_000) as signal:
        probing.start()
    machine = signal.args[0]
    assert machine.ram_total > 0
    assert machine.gpus or machine.no_gpu_reason
    assert threads[0] is not threading.main_thread()
    assert received_in == [threading.main_thread()]


def test_the_window_can_be_closed_while_the_hardware_is_probed(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    continue_probe, probe_ended = threading.Event(), threading.Event()
    monkeypatch.setattr(gpu_probe, "probe", lambda: continue_probe.wait(10))
    probing = gpu_probe.GpuProbe()
    run_probe = probing._run
    monkeypatch.setattr(probing, "_run", lambda: (run_probe(), probe_ended.set()))
    probing.start()
    probing.deleteLater()
    qtbot.wait(50)
    continue_probe.set()
    assert probe_ended.wait(10)


def test_open_folder_opens_the_nearest_existing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[QUrl] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url) or True)
    (tmp_path / "file.txt").touch()
    for path in (tmp_path, tmp_path / "file.txt", tmp_path / "missing" / "folder"):
        assert desktop_shell.open_folder(path)
    assert {Path(url.toLocalFile()) for url in opened} == {tmp_path.resolve()}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /sys/bus/pci")
def test_an_nvidia_card_is_found_without_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, vendor, device_class in (
        ("a", "0x10de", "0x040300"),
        ("b", "0x8086", "0x030000"),
    ):  # an audio device of NVIDIA, a display adapter of Intel
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n", encoding="ascii")
        (tmp_path / name / "class").write_text(f"{device_class}\n", encoding="ascii")
    monkeypatch.setattr(gpu_probe, "PCI_DEVICES", tmp_path)
    assert not gpu_probe.nvidia_card_present()
    (tmp_path / "b" / "vendor").write_text("0x10de\n", encoding="ascii")
    assert gpu_probe.nvidia_card_present()


def test_the_first_existing_folder_is_used_without_waiting_for_slow_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "资料").mkdir()
    assert desktop_shell.first_existing([tmp_path / "gone", tmp_path / "资料", tmp_path]) == tmp_path / "资料"
    assert desktop_shell.first_existing([tmp_path / "gone"]) is None
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: (time.sleep(2.0 * (path.name == "share")), is_dir(path))[1])
    started = time.monotonic()
    assert desktop_shell.first_existing([tmp_path / "share", tmp_path]) is None
    assert time.monotonic() - started < 1.0
