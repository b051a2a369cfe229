"""Commands of the window: one QAction each, shared by menus, keyboard shortcuts and buttons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Final

from PySide6.QtCore import QObject
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu

from app.core.command_line import SHELLS
from app.core.installation import installation
from app.core.run_state import RunState, RunStateMachine
from app.pages.registry import PAGES
from app.texts import tr

_SEPARATOR: Final = ("", "")
_Command = tuple[str, ...]  # name, key of the text, shortcuts

_RUN: Final[tuple[_Command, ...]] = (
    ("start", "window.start", "F5", "Ctrl+Return"),
    ("add_to_queue", "window.add_to_queue", "Ctrl+Shift+Return"),
    ("sweep", "window.sweep", "Ctrl+Shift+E"),
    ("check", "window.check", "F6"),
    ("pause", "window.pause", "F7"),
    ("resume", "window.resume", "F8"),
    ("stop", "window.stop", "Shift+F5"),
    _SEPARATOR,
    ("save", "window.save_checkpoint", "Ctrl+S"),
    ("sample", "window.generate_sample", "Ctrl+G"),
    _SEPARATOR,
)
_RUN_END: Final[tuple[_Command, ...]] = (
    ("machines", "window.other_machines", "Ctrl+Shift+M"),
    ("tensorboard", "window.open_in_tensorboard", "Ctrl+Shift+V"),
    ("run_folder", "window.open_run_folder", "Ctrl+Shift+O"),
    ("runs_folder", "window.open_runs_folder", "Ctrl+Shift+R"),
    _SEPARATOR,
    ("quit", "window.quit", "Ctrl+Q"),
)
_EDIT: Final[tuple[_Command, ...]] = (
    ("undo", "window.undo", "Ctrl+Z"),
    ("redo", "window.redo", "Ctrl+Y", "Ctrl+Shift+Z"),
    ("reset_all", "window.reset_all_settings", "Ctrl+Shift+D"),
    _SEPARATOR,
    ("add_files", "window.add_files", "Ctrl+O"),
    ("add_folder", "window.add_folder", "Ctrl+Shift+F"),
    ("look", "window.preview_data", "Ctrl+L"),
)
_VIEW: Final[tuple[_Command, ...]] = (
    ("search", "window.search", "Ctrl+F"),
    ("path", "window.onboarding_steps", "Ctrl+Shift+P"),
    ("full_screen", "window.full_screen", "F11"),
    ("notifications", "window.notifications", "Ctrl+Shift+N"),
)
_HELP: Final[tuple[_Command, ...]] = (
    ("welcome", "window.welcome", "Ctrl+Shift+W"),
    ("guide", "window.user_guide", "Shift+F1"),
    ("shortcuts", "window.keyboard_shortcuts", "F1"),
    ("whats_new", "window.whats_new", "Ctrl+Shift+F1"),
    _SEPARATOR,
    ("undo_update", "window.undo_update", "Ctrl+Shift+U"),
    ("bug_report", "window.bug_report", "Ctrl+Shift+B"),
    _SEPARATOR,
    ("about", "window.about_traindeck", "Ctrl+F1"),
)
_TRAY: Final[tuple[_Command, ...]] = (("show_window", "window.show_window"), _SEPARATOR)
_TRAY_END: Final[tuple[_Command, ...]] = (_SEPARATOR, ("stop_and_quit", "window.stop_save_and_quit"))
_LANGUAGES: Final = {"en": "English", "zh": "中文"}
_THEMES: Final = {"light": "window.light", "dark": "window.dark", "system": "window.system_theme"}
_SHELL_KEYS: Final = {
    "powershell": ("window.for_powershell", "Ctrl+Shift+C"),
    "cmd": ("window.for_cmd", "Ctrl+Shift+X"),
    "bash": ("window.copy_command_line", "Ctrl+Shift+C"),
}


class Menus(QObject):
    """The menu bar. `actions` has every command by name; there are one `page_ID` per page, one `copy_SHELL` per shell,
    `language_en`, `theme_dark` and so on. Controllers attach slots with `connect_actions`."""

    def __init__(self, window: QMainWindow) -> None:
        super().__init__(window)
        self._window = window
        self.actions: dict[str, QAction] = {}
        self._text_keys: dict[QAction, str] = {}
        keys = ("window.run", "window.edit", "window.view", "window.help")
        run, edit, view, help_ = self._menus = [self._add_menu(key) for key in keys]
        self._fill(run, _RUN)
        shells = self._add_menu("window.copy_command_line", run) if len(SHELLS) > 1 else run
        self._fill(shells, tuple((f"copy_{shell}", *_SHELL_KEYS[shell]) for shell in SHELLS))
        self._fill(run, _RUN_END)
        self._fill(edit, _EDIT)
        languages, themes = self._add_menu("window.language", view), self._add_menu("window.theme", view)
        self._add_choices(languages, "language", _LANGUAGES, ("window.next_language", "Ctrl+Shift+L"))
        self._add_choices(themes, "theme", _THEMES, ("window.next_theme", "Ctrl+Shift+T"))
        for _, pages in groupby(enumerate(PAGES, 1), lambda page: page[1].group):
            view.addSeparator()
            self._fill(
                view, tuple((f"page_{page.id}", page.title_key, f"Ctrl+{n % 10}" * (n <= 10)) for n, page in pages)
            )
        view.addSeparator()
        self._fill(view, _VIEW)
        self._fill(help_, _HELP)
        self.tray_menu = QMenu(window)
        self._fill(self.tray_menu, _TRAY)
        self.tray_menu.addActions([self.actions[name] for name in ("pause", "resume", "stop")])
        self._fill(self.tray_menu, _TRAY_END)
        for name in ("full_screen", "notifications", "path"):
            self.actions[name].setCheckable(True)
        self.actions["quit"].setMenuRole(QAction.MenuRole.QuitRole)
        self.actions["about"].setMenuRole(QAction.MenuRole.AboutRole)
        self.retranslate()

    def _add_menu(self, text_key: str, parent: QMenu | None = None) -> QMenu:
        menu = QMenu(self._window)
        action = self._window.menuBar().addMenu(menu) if parent is None else parent.addMenu(menu)
        self._text_keys[action] = text_key
        return menu

    def _fill(self, menu: QMenu, commands: tuple[_Command, ...]) -> None:
        for name, text_key, *shortcuts in commands:
            action = menu.addAction("")
            action.setSeparator(not name)
            if name:
                action.setObjectName(name)
                action.setShortcuts([QKeySequence(keys) for keys in shortcuts if keys])
                self.actions[name] = action
                self._text_keys[action] = text_key

    def _add_choices(self, menu: QMenu, kind: str, choices: Mapping[str, str], next_choice: tuple[str, str]) -> None:
        """Fill a menu with exclusive choices, and a command that selects the next one."""
        group = QActionGroup(self)
        self._fill(menu, tuple((f"{kind}_{name}", text_key) for name, text_key in choices.items()))
        actions = menu.actions()
        for action in actions:
            action.setCheckable(True)
            group.addAction(action)
        self._fill(menu, (_SEPARATOR, (f"next_{kind}", *next_choice)))
        self.connect_actions({
            f"next_{kind}": lambda: actions[(actions.index(group.checkedAction()) + 1) % len(actions)].trigger()
        })  # fmt: skip

    def connect_actions(self, slots: Mapping[str, Callable[[], object]]) -> None:
        """Connect commands, by name, to what they do."""
        for name, slot in slots.items():
            self.actions[name].triggered.connect(lambda _=False, slot=slot: slot())

    # --- state --------------------------------------------------------------------------------------------

    def display(self, machine: RunStateMachine, *, blocked: bool, can_check: bool, active_run_shown: bool) -> None:
        """Enable what is possible. `active_run_shown`: the pages display the run that this window trains."""
        possible = {
            "start": machine.can_start and not blocked,
            "check": machine.can_start and can_check,
            "pause": machine.can_pause,
            "resume": machine.can_resume,
            "stop": machine.can_stop,
            "stop_and_quit": machine.is_active,
            "undo_update": installation.can_undo_update and not machine.is_active,
            "save": machine.can_save,
            "sample": machine.state is RunState.TRAINING and active_run_shown,
            **dict.fromkeys(("run_folder", "tensorboard"), bool(machine.run_dir) or not active_run_shown),
            **{f"copy_{shell}": not blocked for shell in SHELLS},
        }
        for name, is_possible in possible.items():
            self.actions[name].setEnabled(is_possible)
        stop = self.actions["stop"]
        self._text_keys[stop] = "window.force_stop" if machine.next_stop_kills else "window.stop"
        stop.setText(tr(self._text_keys[stop]))

    def update_checked(self, language: str, theme: str, *, notifications: bool) -> None:
        self.actions[f"language_{language}"].setChecked(True)
        self.actions[f"theme_{theme}"].setChecked(True)
        self.actions["notifications"].setChecked(notifications)

    def actions_with_titles(self) -> Iterator[tuple[str, QAction]]:
        """Every command with the title of its menu, in the order of the menus."""
        for menu in self._menus:
            yield from _actions_of(menu)

    def retranslate(self) -> None:
        for action, key in self._text_keys.items():
            action.setText(tr(key) if "." in key else key)


def _actions_of(menu: QMenu) -> Iterator[tuple[str, QAction]]:
    for action in menu.actions():
        submenu = action.menu()
        if isinstance(submenu, QMenu):
            yield from _actions_of(submenu)
        elif not action.isSeparator():
            yield menu.title(), action
