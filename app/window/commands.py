"""Commands of the window: one QAction each, shared by menus, keyboard shortcuts and buttons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QAbstractButton, QMainWindow, QMenu

from app.core.command_line import SHELLS
from app.core.run_state import RunState, RunStateMachine
from app.pages.registry import PAGES
from app.texts import tr

MenuName = Literal["run", "edit", "view", "help"]

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
    _SEPARATOR,
    ("bug_report", "window.bug_report", "Ctrl+Shift+B"),
    _SEPARATOR,
    ("about", "window.about_traindeck", "Ctrl+F1"),
)
_MENUS: Final = {"run": "window.run", "edit": "window.edit", "view": "window.view", "help": "window.help"}
_CHOICES: Final = {"language": "window.language", "theme": "window.theme"}
_LANGUAGES: Final = {"en": "English", "zh": "中文"}
_THEMES: Final = {"light": "window.light", "dark": "window.dark", "system": "window.system_theme"}
_SHELL_KEYS: Final = {
    "powershell": "window.for_powershell",
    "cmd": "window.for_cmd",
    "bash": "window.for_unix_shell",
}
_SAVABLE_STATES: Final = frozenset({RunState.TRAINING, RunState.EVALUATING})


class Menus(QObject):
    """The menu bar. `actions` has every command by name; pages are `page_ID`, languages `language_en`, themes
    `theme_dark`. Controllers attach slots with `connect_actions`."""

    language_chosen = Signal(str)  # en, zh
    theme_chosen = Signal(str)  # light, dark, system
    copy_command_requested = Signal(str)  # shell
    page_chosen = Signal(str)

    def __init__(self, window: QMainWindow) -> None:
        super().__init__(window)
        self._window = window
        self.actions: dict[str, QAction] = {}
        self._text_keys: dict[QAction, str] = {}
        self._menus = {name: self._add_menu(key) for name, key in _MENUS.items()}
        view = self._menus["view"]
        self._fill(self._menus["run"], _RUN)
        self._add_copy_command(self._menus["run"])
        self._fill(self._menus["run"], _RUN_END)
        self._fill(self._menus["edit"], _EDIT)
        self._add_choices("language", _LANGUAGES, self.language_chosen.emit, "window.next_language", "Ctrl+Shift+L")
        self._add_choices("theme", _THEMES, self.theme_chosen.emit, "window.next_theme", "Ctrl+Shift+T")
        view.addSeparator()
        for number, page in enumerate(PAGES, 1):
            action = self.add(f"page_{page.id}", view, page.title_key, *([f"Ctrl+{number}"] if number <= 9 else []))
            action.triggered.connect(lambda _=False, page=page: self.page_chosen.emit(page.id))
        view.addSeparator()
        self._fill(view, _VIEW)
        self._fill(self._menus["help"], _HELP)
        for name in ("full_screen", "notifications", "path"):
            self.actions[name].setCheckable(True)
        self.actions["quit"].setMenuRole(QAction.MenuRole.QuitRole)
        self.actions["about"].setMenuRole(QAction.MenuRole.AboutRole)
        self.retranslate()

    # --- building -----------------------------------------------------------------------------------------

    def _add_menu(self, text_key: str, parent: QMenu | None = None) -> QMenu:
        menu = QMenu(self._window)
        action = self._window.menuBar().addMenu(menu) if parent is None else parent.addMenu(menu)
        self._text_keys[action] = text_key
        return menu

    def add(self, name: str, menu: QMenu | MenuName, text_key: str, *shortcuts: str) -> QAction:
        """Append a command to a menu."""
        action = QAction(self._window)
        action.setObjectName(name)
        action.setShortcuts([QKeySequence(keys) for keys in shortcuts])
        (self._menus[menu] if isinstance(menu, str) else menu).addAction(action)
        self.actions[name] = action
        self._text_keys[action] = text_key
        return action

    def _fill(self, menu: QMenu, commands: tuple[_Command, ...]) -> None:
        for name, text_key, *shortcuts in commands:
            if name:
                self.add(name, menu, text_key, *shortcuts)
            else:
                menu.addSeparator()

    def _add_copy_command(self, menu: QMenu) -> None:
        """One command per shell, in a submenu where there are several. The first one has the shortcut."""
        several = len(SHELLS) > 1
        if several:
            menu = self._add_menu("window.copy_command_line", menu)
        names = ["copy_command", *(f"copy_command_{shell}" for shell in SHELLS[1:])]
        for name, shell, keys in zip(names, SHELLS, ("Ctrl+Shift+C", "Ctrl+Shift+X"), strict=False):
            action = self.add(name, menu, _SHELL_KEYS[shell] if several else "window.copy_command_line", keys)
            action.triggered.connect(lambda _=False, shell=shell: self.copy_command_requested.emit(shell))

    def _add_choices(
        self, kind: str, choices: Mapping[str, str], chosen: Callable[[str], None], next_key: str, shortcut: str
    ) -> None:
        """A submenu of exclusive choices, with a command that selects the next one."""
        menu, group = self._add_menu(_CHOICES[kind], self._menus["view"]), QActionGroup(self)
        for name, text_key in choices.items():
            action = self.add(f"{kind}_{name}", menu, text_key)
            action.setCheckable(True)
            action.triggered.connect(lambda _=False, name=name: chosen(name))
            group.addAction(action)
        menu.addSeparator()
        actions = group.actions()
        self.add(f"next_{kind}", menu, next_key, shortcut).triggered.connect(
            lambda: actions[(actions.index(group.checkedAction()) + 1) % len(actions)].trigger()
        )

    def connect_actions(self, slots: Mapping[str, Callable[[], object]]) -> None:
        """Connect commands, by name, to what they do."""
        for name, slot in slots.items():
            self.actions[name].triggered.connect(lambda _=False, slot=slot: slot())

    def bind_button(self, name: str, button: QAbstractButton) -> None:
        """Let a button trigger a command and be enabled with it."""
        action = self.actions[name]
        button.setEnabled(action.isEnabled())
        button.clicked.connect(action.trigger)
        action.enabledChanged.connect(button.setEnabled)

    # --- state --------------------------------------------------------------------------------------------

    def display(self, machine: RunStateMachine, *, blocked: bool, checking: bool, active_run_shown: bool) -> None:
        """Enable what is possible. `active_run_shown`: the pages display the run that this window trains."""
        possible = {
            "start": machine.can_start and not blocked,
            "check": machine.can_start and not blocked and not checking,
            "pause": machine.can_pause,
            "resume": machine.can_resume,
            "stop": machine.can_stop,
            "save": machine.state in _SAVABLE_STATES,
            "sample": machine.state is RunState.TRAINING and active_run_shown,
            "run_folder": bool(machine.run_dir) or not active_run_shown,
        }
        for name, action in self.actions.items():
            if name.startswith("copy_command"):
                action.setEnabled(not blocked)
            elif name in possible:
                action.setEnabled(possible[name])
        stop = self.actions["stop"]
        self._text_keys[stop] = "window.force_stop" if machine.next_stop_kills else "window.stop"
        stop.setText(tr(self._text_keys[stop]))

    def update_checked(self, language: str, theme: str, *, notifications: bool) -> None:
        self.actions[f"language_{language}"].setChecked(True)
        self.actions[f"theme_{theme}"].setChecked(True)
        self.actions["notifications"].setChecked(notifications)

    def actions_with_titles(self) -> Iterator[tuple[str, QAction]]:
        """Every command with the title of its menu, in the order of the menus."""
        for menu in self._menus.values():
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
