"""Language and theme of the window."""

from __future__ import annotations

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QApplication

from app.core.settings import Settings
from app.texts import Translator, current_language
from app.theme import style
from app.theme.palette import ThemeChoice
from app.window.main_window import MainWindow
from trainer_core.messages import Language


class AppearanceController(QObject):
    """Switches language and theme at run time. The theme can follow the desktop."""

    changed = Signal()

    def __init__(self, window: MainWindow, settings: Settings, translator: Translator) -> None:
        super().__init__(window)
        self._window, self._settings, self._translator = window, settings, translator
        window.menus.language_chosen.connect(self.set_language)
        window.menus.theme_chosen.connect(self.set_theme)
        QGuiApplication.styleHints().colorSchemeChanged.connect(self._on_system_theme)

    def set_language(self, language: Language) -> None:
        self._settings.language = language
        self._translator.set_language(language)
        style.apply_theme(_application(), style.resolve_theme(self._settings.theme), language)
        self.update_menu_checks()
        self.changed.emit()

    def set_theme(self, theme: ThemeChoice) -> None:
        self._settings.theme = theme
        palette = style.resolve_theme(theme)
        style.apply_theme(_application(), palette, current_language())
        self._window.retheme(palette)
        self.update_menu_checks()
        self.changed.emit()

    def _on_system_theme(self) -> None:
        if self._settings.theme == "system":
            self.set_theme("system")

    def update_menu_checks(self) -> None:
        settings = self._settings
        self._window.menus.update_checked(current_language(), settings.theme, notifications=settings.notifications)


def _application() -> QApplication:
    application = QApplication.instance()
    assert isinstance(application, QApplication)
    return application
