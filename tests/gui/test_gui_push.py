"""Dialog that pushes an export to a hub on loopback, through the real trainer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.pages.export.page import ExportPage
from app.pages.export.push_dialog import PushDialog
from app.services import trainer_process
from tests.gui.conftest import ROOT, MakeWindow, click
from tests.hub_upload_server import UploadHub, serve_uploads
from trainer_core import protocol

VERIFICATION = protocol.Verification(folder="out", format="gguf", dtype="q8_0", program="llama.cpp 1", passed=True)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[UploadHub]:
    """A hub that the trainer uses."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with serve_uploads() as hub:
        flags = ["--hub-endpoint", hub.endpoint, "--hub-send-token"]
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from trainer_core.cli import main"
        command = [sys.executable, "-c", f"{code}; main([*sys.argv[1:], *{flags!r}])"]
        monkeypatch.setattr(trainer_process, "trainer_command", lambda: command)
        yield hub


@pytest.fixture
def exported(tmp_path: Path) -> dict[str, bytes]:
    folder = tmp_path / "模型 a"
    folder.mkdir()
    contents = {
        "1.safetensors": b"1",
        "README.md": "---\nlibrary_name: gguf\n---\n# 模型\n".encode(),
        "model.gguf": bytes(range(256)) * 512,
        "verification.json": protocol.encode(VERIFICATION),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return contents


@pytest.fixture
def page(make_window: MakeWindow, tmp_path: Path, exported: dict[str, bytes]) -> ExportPage:
    """The page after an export."""
    window = make_window().window
    window.show_page("export")
    page = window.export
    assert not page.programs.push.isEnabled()
    page.programs.display(tmp_path / "模型 a")
    return page


def open_dialog(qtbot: QtBot, page: ExportPage) -> PushDialog:
    click(qtbot, page.programs.push)
    dialog = page.programs.findChild(PushDialog)
    assert isinstance(dialog, PushDialog)
    qtbot.waitUntil(lambda: dialog.job.is_complete or bool(dialog.job.failure), timeout=20_000)
    return dialog


def test_an_export_is_pushed_after_its_files_were_listed(
    qtbot: QtBot, page: ExportPage, server: UploadHub, exported: dict[str, bytes]
) -> None:
    dialog = open_dialog(qtbot, page)
    assert (dialog.status.text(), dialog.repository.text()) == ("", "wang/a")
    lines = dialog.listing.toPlainText().splitlines()
    assert lines[1] == "Repository: wang/a (private, new)"
    assert [line.split()[-1] for line in lines[2:-1]] == list(exported)
    assert not server.writes
    click(qtbot, dialog.push)
    assert not dialog.push.isEnabled()
    qtbot.waitUntil(lambda: dialog.job.is_complete or bool(dialog.job.failure), timeout=20_000)
    assert dialog.status.text() == f"Pushed to {server.endpoint}/wang/a"
    assert dialog.open_page.isVisible()
    assert server.models == {"wang/a": exported}
    assert not server.public["wang/a"]


def test_the_list_follows_the_repository_and_errors_are_displayed(
    qtbot: QtBot, page: ExportPage, server: UploadHub, exported: dict[str, bytes]
) -> None:
    server.models["team/b"], server.public["team/b"] = {}, True
    dialog = open_dialog(qtbot, page)
    dialog.repository.selectAll()
    qtbot.keyClicks(dialog.repository, "team/b")
    assert not dialog.push.isEnabled()
    assert not dialog.listing.toPlainText()
    qtbot.keyClick(dialog.repository, Qt.Key.Key_Return)
    qtbot.waitUntil(lambda: "is public already" in dialog.status.text(), timeout=20_000)
    assert not dialog.push.isEnabled()
    click(qtbot, dialog.private)
    qtbot.waitUntil(dialog.push.isEnabled, timeout=20_000)
    assert "team/b (public, exists" in dialog.listing.toPlainText()
    assert not server.writes
    server.refused = {"/commit/": 403}
    click(qtbot, dialog.push)
    qtbot.waitUntil(lambda: "does not permit your account" in dialog.status.text(), timeout=20_000)
    server.refused.clear()
    click(qtbot, dialog.push)
    qtbot.waitUntil(lambda: server.models["team/b"] == exported, timeout=20_000)


def test_cancel_during_an_upload_stops_it_and_nothing_is_published(
    qtbot: QtBot, page: ExportPage, server: UploadHub
) -> None:
    server.holds_content = True
    dialog = open_dialog(qtbot, page)
    click(qtbot, dialog.push)
    qtbot.waitUntil(lambda: bool(server.paths("/upload/")), timeout=20_000)
    click(qtbot, dialog.cancel)
    qtbot.waitUntil(lambda: dialog.status.text() == "Stopped. Nothing was published.", timeout=20_000)
    assert not server.paths("/commit/")
    click(qtbot, dialog.cancel)
    qtbot.waitUntil(lambda: page.programs.findChild(PushDialog) is None)
