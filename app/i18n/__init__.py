"""Languages of the window: Qt Linguist files, Qt's own dialogs, the words of the knobs."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from PySide6.QtCore import QCoreApplication, QEvent, QLibraryInfo, QLocale, QTranslator

from trainer_core.messages import Language

FOLDER: Final = Path(__file__).resolve().parent


def system_language() -> Language:
    """Chinese on a Chinese desktop, English elsewhere."""
    return "zh" if QLocale.system().language() == QLocale.Language.Chinese else "en"


class Translator:
    """Switches the whole program's language while it runs. Widgets hear of it by `LanguageChange`."""

    def __init__(self) -> None:
        self._installed: list[tuple[QTranslator, bytes]] = []

    def switch(self, language: Language) -> None:
        """Install the translations of `language`; English is what the sources say, and needs none."""
        for translator, _ in self._installed:
            QCoreApplication.removeTranslator(translator)
        self._installed = []
        locale = QLocale(QLocale.Language.Chinese, QLocale.Country.China) if language == "zh" else QLocale("en_US")
        QLocale.setDefault(locale)
        if language == "zh":
            self._install("qtbase_zh_CN", QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath))
            self._install("traindeck_zh_CN", str(FOLDER))  # Qt asks the newest first
        # Qt posts the news to each window; sent now, no view is worded half in one language.
        QCoreApplication.sendPostedEvents(None, QEvent.Type.LanguageChange.value)

    def _install(self, name: str, folder: str) -> None:
        """From memory: Qt maps a file, and an update that writes it anew would end the window (SIGBUS)."""
        try:
            content = Path(folder, f"{name}.qm").read_bytes()
        except OSError:
            return
        translator = QTranslator()
        if translator.load(content):
            QCoreApplication.installTranslator(translator)
            self._installed.append((translator, content))  # Qt reads from it, and keeps no copy
