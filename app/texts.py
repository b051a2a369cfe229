"""Texts of the window in its current language, and of Qt's own dialogs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QCoreApplication, QEvent, QLibraryInfo, QLocale, QTranslator

from trainer_core import texts
from trainer_core.texts import Language

_QT_KEYS: Final = {
    ("QFileDialog", "&Look in:"): "qt.look_in",
    ("QFileDialog", "Files of &type:"): "qt.files_of_type",
    ("QAbstractFileIconProvider", "Folder"): "qt.folder",
    ("QFileSystemModel", "Size"): "qt.size",
}
"""Texts of Qt's file dialog that Qt's Chinese translation lacks or gets wrong (体积 means volume)."""

_language: Language = "en"


def tr(key: str, **params: object) -> str:
    """Return the text of `key` in the window's language, formatted with `params`. Raises `KeyError`."""
    return texts.get(key, _language, **params)


def current_language() -> Language:
    """Return the language that `tr` uses."""
    return _language


def system_language() -> Language:
    """Return Chinese on a Chinese desktop, English elsewhere."""
    return "zh" if QLocale.system().language() == QLocale.Language.Chinese else "en"


class Translator:
    """Switches the language of the window at run time. Widgets receive `QEvent.LanguageChange`."""

    def __init__(self) -> None:
        self._installed: list[QTranslator] = []
        self._content = b""

    def set_language(self, language: Language) -> None:
        """Select the language of `tr`, of number and date formats, and of Qt's own dialogs."""
        global _language
        _language = language
        for translator in self._installed:
            QCoreApplication.removeTranslator(translator)
        self._installed = []
        locale = QLocale(QLocale.Language.Chinese, QLocale.Country.China) if language == "zh" else QLocale("en_US")
        QLocale.setDefault(locale)
        if language == "zh":
            self._install(self._load_qt_texts())
            self._install(_QtTranslator())  # Qt asks the newest first
        # Qt posts the event to each window. Sent now, no view shows two languages.
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LanguageChange.value)

    def _load_qt_texts(self) -> QTranslator:
        """Return Qt's Chinese texts, read into memory: Qt maps a file, and an update that replaces it would crash."""
        translator = QTranslator()
        path = Path(QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath), "qtbase_zh_CN.qm")
        if path.is_file():
            self._content = path.read_bytes()  # Qt reads from it and keeps no copy
            translator.load(self._content)
        return translator

    def _install(self, translator: QTranslator) -> None:
        QCoreApplication.installTranslator(translator)
        self._installed.append(translator)


class _QtTranslator(QTranslator):
    """Translates the texts of `_QT_KEYS`; Qt asks the next translator for all others."""

    def isEmpty(self) -> bool:  # noqa: N802 - Qt's name
        return False

    def translate(self, context: str, source: str, disambiguation: str | None = None, n: int = -1) -> str | None:
        key = _QT_KEYS.get((context, source))
        return tr(key) if key else None
