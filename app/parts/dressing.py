"""The window's language and colours: chosen by the person, or following the desktop."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication

from app.i18n import Translator
from app.state.settings import Settings
from app.theme import style
from app.theme.tokens import ThemeChoice
from app.views import words
from app.views.main_window import MainWindow
from trainer_core.messages import Language


class Dressing(QObject):
    """Switches the whole window while it is open."""

    changed = Signal()  # the settings: they are worth keeping

    def __init__(self, window: MainWindow, settings: Settings, translator: Translator) -> None:
        super().__init__(window)
        self._window, self._settings, self._translator = window, settings, translator
        window.menus.language_chosen.connect(self.set_language)
        window.menus.theme_chosen.connect(self.set_theme)
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._on_system_theme)

    def set_language(self, language: Language) -> None:
        self._settings.language = language
        self._translator.switch(language)
        style.apply(_application(), style.resolve(self._settings.theme), language)
        self.mark_choices()
        self.changed.emit()

    def set_theme(self, theme: ThemeChoice) -> None:
        self._settings.theme = theme
        tokens = style.resolve(theme)
        style.apply(_application(), tokens, words.language())
        self._window.retheme(tokens)
        self.mark_choices()
        self.changed.emit()

    def _on_system_theme(self) -> None:
        if self._settings.theme == "system":
            self.set_theme("system")

    def mark_choices(self) -> None:
        """In the menus."""
        choices = self._settings
        self._window.menus.render_choices(words.language(), choices.theme, notifications=choices.notifications)


def _application() -> QApplication:
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    return application
