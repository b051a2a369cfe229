"""Help menu: guide, shortcuts, about, bug report."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import TypeVar

import pytest
from PySide6.QtCore import QProcess
from PySide6.QtGui import QColor, QGuiApplication, QImage
from PySide6.QtWidgets import QDialog, QFileDialog, QMessageBox
from pytestqt.qtbot import QtBot

import trainer_core
from app.controller import Controller
from app.help import help_controller
from app.help.text_dialog import DocumentDialog
from app.services import desktop_shell
from tests.gui.conftest import ROOT, MakeWindow, click
from trainer_core import texts
from trainer_core.messages import Language

D = TypeVar("D", bound=QDialog)


def open_dialog(controller: Controller, entry: str, kind: type[D]) -> D:
    """Open a dialog by its menu entry."""
    controller.window.menus.actions[entry].trigger()
    [dialog] = [dialog for dialog in controller.window.findChildren(kind) if dialog.isVisible()]
    return dialog


def click_button(qtbot: QtBot, box: QMessageBox, text: str) -> None:
    [button] = [button for button in box.buttons() if button.text() == text]
    click(qtbot, button)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_about_shows_versions_that_can_be_copied(make_window: MakeWindow, qtbot: QtBot, language: Language) -> None:
    controller = make_window(language=language)
    about = open_dialog(controller, "about", QMessageBox)
    assert f"Traindeck {trainer_core.__version__}" in about.text()
    assert all(name in about.informativeText() for name in ("python 3.", "PySide6-Essentials", "torch"))
    click_button(qtbot, about, texts.get("help.copy_versions", language))
    assert QGuiApplication.clipboard().text().startswith(f"traindeck {trainer_core.__version__}\n")
    about = open_dialog(controller, "about", QMessageBox)
    click_button(qtbot, about, texts.get("help.licence", language))
    [licence] = controller.window.findChildren(DocumentDialog)
    assert "Apache License" in licence.text.toPlainText()


# Pattern of a quoted name, and file, for each language.
GUIDES = {
    "en": (r"\*\*([^*]+)\*\*|(?<!\*)\*([^*]+)\*(?!\*)", "guide.md"),
    "zh": (r"“([^”]+)”|\*\*([^*]+)\*\*", "guide.zh.md"),
}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_guide_uses_the_names_of_the_window(language: Language) -> None:
    pattern, file = GUIDES[language]
    text = (ROOT / "docs" / file).read_text(encoding="utf-8").replace("\n", " ")
    known = {normalize(label) for label in texts.catalogue(language).values()}
    quotes = [group for groups in re.findall(pattern, text) for group in groups if group]
    names = {normalize(name) for quote in quotes for name in re.split(r" → |, |、", quote)} - {"⋯"}
    assert len(names) > 20
    assert names - known == set()


def normalize(name: str) -> str:
    """Lower case without mnemonic and dots."""
    return re.sub(r"\(&\w\)|[&….]", "", name).strip().lower()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_guide_opens_in_the_language_of_the_window(make_window: MakeWindow, language: str) -> None:
    guide = open_dialog(make_window(language=language), "guide", DocumentDialog)
    text = guide.text.toPlainText()
    chinese_characters = sum("一" <= letter <= "鿿" for letter in text)
    assert len(text) > 500
    assert (chinese_characters > len(text) / 5) == (language == "zh")


def test_images_of_a_document_are_scaled_to_the_width_of_its_text(qtbot: QtBot, tmp_path: Path) -> None:
    picture = QImage(3000, 1000, QImage.Format.Format_RGB32)
    picture.fill(QColor("red"))
    tmp_path.joinpath("图 片").mkdir()
    assert picture.save(str(tmp_path / "图 片" / "a.png"))
    path = tmp_path / "guide.md"
    path.write_text("# Title\n\n![one](图%20片/a.png)\n\n![none](missing.png)\n\nAfter.\n", encoding="utf-8")
    document = DocumentDialog(path, "Guide")
    qtbot.addWidget(document)
    document.show()

    def center_color() -> QColor:
        return document.text.grab().toImage().pixelColor(document.text.width() // 2, 150)

    qtbot.waitUntil(lambda: center_color() == QColor("red"))
    assert document.text.document().size().width() <= document.text.viewport().width()


def create_report(controller: Controller, path: Path) -> None:
    controller.window.menus.actions["bug_report"].trigger()
    [dialog] = controller.window.findChildren(QFileDialog)
    dialog.fileSelected.emit(str(path))
    dialog.close()


def report_message(controller: Controller) -> QMessageBox | None:
    return controller.window.findChild(QMessageBox, "bugReport")


def test_a_bug_report_is_saved_and_its_folder_can_be_opened(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []
    monkeypatch.setattr(desktop_shell, "open_folder", folders.append)
    controller = make_window()
    archive = tmp_path / "报告 1.zip"
    create_report(controller, archive)
    qtbot.waitUntil(lambda: report_message(controller) is not None, timeout=60_000)
    box = report_message(controller)
    assert box is not None
    assert str(archive) in box.text()
    assert {"versions.txt", "doctor.txt"} <= set(zipfile.ZipFile(archive).namelist())
    click_button(qtbot, box, "Open folder")
    assert folders == [archive]


def test_a_bug_report_that_cannot_be_saved_reports_the_reason(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    controller = make_window()
    tmp_path.joinpath("file").write_text("", encoding="utf-8")
    create_report(controller, tmp_path / "file" / "a.zip")
    qtbot.waitUntil(lambda: report_message(controller) is not None, timeout=60_000)
    box = report_message(controller)
    assert box is not None
    assert "could not be created" in box.text()
    assert "a.zip" in box.text()
    assert not list(tmp_path.rglob("*.writing"))


def test_a_bug_report_whose_process_does_not_start_reports_the_reason(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(help_controller, "console_interpreter", lambda: str(tmp_path / "no python"))
    controller = make_window()
    create_report(controller, tmp_path / "a.zip")
    qtbot.waitUntil(lambda: report_message(controller) is not None)
    box = report_message(controller)
    assert box is not None
    assert "could not be created" in box.text()
    assert controller.help_controller._report_process is None


def test_closing_the_window_ends_the_process_of_a_bug_report(make_window: MakeWindow, tmp_path: Path) -> None:
    controller = make_window()
    create_report(controller, tmp_path / "a.zip")
    process = controller.help_controller._report_process
    assert process is not None
    assert process.waitForStarted(10_000)
    controller.shutdown()
    assert process.state() is QProcess.ProcessState.NotRunning
