"""The small services around the trainer's process."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices, QGuiApplication
from pytestqt.qtbot import QtBot

from app.services import desktop_shell, gpu_probe


def test_the_machine_is_looked_at_on_another_thread_and_told_on_this_one(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    real = gpu_probe.probe
    monkeypatch.setattr(gpu_probe, "probe", lambda: (threads.append(threading.current_thread()), real())[1])
    probing = gpu_probe.GpuProbe()
    told_on: list[threading.Thread] = []
    probing.completed.connect(lambda machine: told_on.append(threading.current_thread()))
    with qtbot.waitSignal(probing.completed, timeout=20_000) as found:
        probing.start()
    machine = found.args[0]
    assert machine.ram_total > 0
    assert machine.gpus or machine.no_gpu_reason
    assert threads[0] is not threading.main_thread()
    assert told_on == [threading.main_thread()]


def test_a_window_that_closes_while_the_machine_is_looked_at_does_no_harm(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, over = threading.Event(), threading.Event()
    monkeypatch.setattr(gpu_probe, "probe", lambda: go_on.wait(10))
    probing = gpu_probe.GpuProbe()
    look = probing._run
    monkeypatch.setattr(probing, "_run", lambda: (look(), over.set()))
    probing.start()
    probing.deleteLater()
    qtbot.wait(50)
    go_on.set()
    assert over.wait(10)


def test_opening_a_path_shows_the_nearest_folder_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[QUrl] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", lambda url: opened.append(url) or True)
    (tmp_path / "file.txt").touch()
    for path in (tmp_path, tmp_path / "file.txt", tmp_path / "not" / "there"):
        assert desktop_shell.open_folder(path)
    assert {Path(url.toLocalFile()) for url in opened} == {tmp_path.resolve()}


def test_a_copied_text_is_on_the_clipboard(qtbot: QtBot) -> None:
    desktop_shell.copy_text("python -m trainer_core train --data 数据")
    assert QGuiApplication.clipboard().text() == "python -m trainer_core train --data 数据"


@pytest.mark.skipif(sys.platform != "linux", reason="reads the bus as Linux shows it")
def test_a_card_on_the_bus_is_seen_without_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, vendor, kind in (("a", "0x10de", "0x040300"), ("b", "0x8086", "0x030000")):  # its sound, another's card
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n", encoding="ascii")
        (tmp_path / name / "class").write_text(f"{kind}\n", encoding="ascii")
    monkeypatch.setattr(gpu_probe, "PCI_DEVICES", tmp_path)
    assert not gpu_probe.nvidia_card_present()
    (tmp_path / "b" / "vendor").write_text("0x10de\n", encoding="ascii")
    assert gpu_probe.nvidia_card_present()
