"""The Help menu: what it opens is read here, in the language of the window; a bundle is seen before it is saved."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import TypeVar

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QGuiApplication, QImage
from PySide6.QtWidgets import QDialog, QFileDialog, QLabel, QPushButton, QWidget
from pytestqt.qtbot import QtBot

import trainer_core
from app.controller import Controller
from app.help.about import About
from app.help.bug_report_dialog import BugReportDialog
from app.help.text_dialog import Document
from app.services import desktop_shell
from tests.gui.conftest import MakeWindow
from trainer_core import texts
from trainer_core.messages import Language

D = TypeVar("D", bound=QDialog)


def opened(controller: Controller, entry: str, kind: type[D]) -> D:
    controller.window.menus.actions[entry].trigger()
    [dialog] = [dialog for dialog in controller.window.findChildren(kind) if dialog.isVisible()]
    return dialog


def press(qtbot: QtBot, dialog: QWidget, name: str) -> None:
    button = dialog.findChild(QPushButton, name)
    assert button is not None
    assert button.isEnabled()
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_about_names_the_versions_which_can_be_copied(make_window: MakeWindow, qtbot: QtBot, language: str) -> None:
    controller = make_window(language=language)
    about = opened(controller, "about", About)
    shown = [label.text() for label in about.findChildren(QLabel)]
    assert f"Traindeck {trainer_core.__version__}" in shown
    assert {"Python", "Qt", "PySide6", "PyTorch"} <= set(shown)
    press(qtbot, about, "aboutCopy")
    assert QGuiApplication.clipboard().text().startswith(f"Traindeck {trainer_core.__version__}\nPython 3.")
    press(qtbot, about, "aboutLicence")
    [licence] = controller.window.findChildren(Document)
    assert "Apache License" in licence.text.toPlainText()


ROOT = Path(__file__).resolve().parents[2]
NAMED = {
    "en": (r"\*\*([^*]+)\*\*|(?<!\*)\*([^*]+)\*(?!\*)", "guide.md"),
    "zh": (r"“([^”]+)”|\*\*([^*]+)\*\*", "guide.zh.md"),
}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_the_guide_names_is_called_so_in_the_window(language: Language) -> None:
    pattern, file = NAMED[language]
    text = (ROOT / "docs" / file).read_text(encoding="utf-8").replace("\n", " ")
    known = {plain(each) for each in texts.catalogue(language).values()}
    found = [one for pair in re.findall(pattern, text) for one in pair if one]
    names = {plain(name) for one in found for name in re.split(r" → |, |、", one)} - {"⋯"}
    assert len(names) > 20
    assert names - known == set()


def plain(name: str) -> str:
    """As it is read: without the sign of a key, without dots."""
    return re.sub(r"\(&\w\)|[&….]", "", name).strip().lower()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_guide_opens_in_the_language_of_the_window(make_window: MakeWindow, language: str) -> None:
    guide = opened(make_window(language=language), "guide", Document)
    text = guide.text.toPlainText()
    chinese = sum("一" <= letter <= "鿿" for letter in text)
    assert len(text) > 500
    assert (chinese > len(text) / 5) == (language == "zh")


def test_pictures_of_a_document_come_by_themselves_and_no_wider_than_its_text(qtbot: QtBot, tmp_path: Path) -> None:
    picture = QImage(3000, 1000, QImage.Format.Format_RGB32)
    picture.fill(QColor("red"))
    tmp_path.joinpath("图 片").mkdir()
    assert picture.save(str(tmp_path / "图 片" / "a.png"))
    path = tmp_path / "guide.md"
    path.write_text("# Title\n\n![one](图%20片/a.png)\n\n![none](gone.png)\n\nAfter.\n", encoding="utf-8")
    document = Document(path, "Guide")
    qtbot.addWidget(document)
    document.show()

    def shown() -> QColor:
        return document.text.grab().toImage().pixelColor(document.text.width() // 2, 150)

    qtbot.waitUntil(lambda: shown() == QColor("red"))
    assert document.text.document().size().width() <= document.text.viewport().width()


def test_a_bundle_is_looked_through_and_then_saved(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []
    monkeypatch.setattr(desktop_shell, "open_folder", folders.append)
    controller = make_window()
    view = opened(controller, "bundle", BugReportDialog)
    assert view.wait.isVisible()
    assert not view.save.isEnabled()
    qtbot.waitUntil(view.save.isEnabled, timeout=60_000)
    names = [view.list.item(row).text().split()[0] for row in range(view.list.count())]
    assert {"versions.txt", "doctor.txt"} <= set(names)
    view.list.setCurrentRow(names.index("doctor.txt"))
    assert "Python" in view.text.toPlainText()
    press(qtbot, view, "bundleSave")
    [where] = view.findChildren(QFileDialog)
    out = tmp_path / "报告 1.zip"
    where.fileSelected.emit(str(out))
    assert zipfile.ZipFile(out).namelist() == names
    assert str(out) in view.note.text()
    press(qtbot, view, "bundleFolder")
    assert folders == [out]
    press(qtbot, view, "bundleClose")
    assert controller.help_controller.bundler is None


def test_a_bundle_that_cannot_be_saved_says_why_and_can_be_saved_elsewhere(
    make_window: MakeWindow, qtbot: QtBot, tmp_path: Path
) -> None:
    controller = make_window()
    view = opened(controller, "bundle", BugReportDialog)
    qtbot.waitUntil(view.save.isEnabled, timeout=60_000)
    tmp_path.joinpath("file").write_text("", encoding="utf-8")
    view.save_requested.emit(str(tmp_path / "file" / "a.zip"))
    assert "could not be made" in view.note.text()
    view.save_requested.emit(str(tmp_path / "a.zip"))
    assert tmp_path.joinpath("a.zip").is_file()


def test_after_esc_a_bundle_can_be_made_again(make_window: MakeWindow, qtbot: QtBot) -> None:
    controller = make_window()
    view = opened(controller, "bundle", BugReportDialog)
    qtbot.keyClick(view, Qt.Key.Key_Escape)
    assert controller.help_controller.bundler is None
    qtbot.waitUntil(lambda: not controller.window.findChildren(BugReportDialog))
    opened(controller, "bundle", BugReportDialog).close()


def test_leaving_in_the_middle_of_it_ends_the_process_and_keeps_nothing(make_window: MakeWindow) -> None:
    controller = make_window()
    view = opened(controller, "bundle", BugReportDialog)
    bundler = controller.help_controller.bundler
    assert bundler is not None
    folder = bundler._folder
    assert folder.is_dir()
    view.close()
    assert not folder.exists()
    assert controller.help_controller.bundler is None
