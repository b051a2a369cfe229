"""Language and theme of the window."""

from __future__ import annotations

from functools import partial

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QGuiApplication

from app.core.settings import Settings
from app.texts import Translator, current_language
from app.theme import style
from app.theme.palette import ThemeChoice
from app.window.main_window import MainWindow
from trainer_core.messages import Language


class AppearanceController(QObject):
    """Switches language and theme at run time. The theme can follow the desktop; its contrast does."""

    changed = Signal()

    def __init__(self, window: MainWindow, settings: Settings, translator: Translator) -> None:
        super().__init__(window)
        self._window, self._settings, self._translator = window, settings, translator
        languages: tuple[Language, ...] = ("en", "zh")
        themes: tuple[ThemeChoice, ...] = ("light", "dark", "system")
        window.menus.connect_actions({f"language_{name}": partial(self.set_language, name) for name in languages})
        window.menus.connect_actions({f"theme_{name}": partial(self.set_theme, name) for name in themes})
        desktop = QGuiApplication.styleHints()
        desktop.colorSchemeChanged.connect(self._apply)
        if hasattr(desktop, "accessibility"):  # Qt 6.10
            desktop.accessibility().contrastPreferenceChanged.connect(self._apply)

    def set_language(self, language: Language) -> None:
        self._settings.language = language
        self._translator.set_language(language)
        self._apply()

    def set_theme(self, theme: ThemeChoice) -> None:
        self._settings.theme = theme
        self._apply()

    def _apply(self) -> None:
        palette = style.resolve_theme(self._settings.theme)
        style.apply_theme(palette, current_language())
        self._window.retheme(palette)
        self.update_menu_checks()
        self.changed.emit()

    def update_menu_checks(self) -> None:
        settings = self._settings
        self._window.menus.update_checked(current_language(), settings.theme, notifications=settings.notifications)
