"""The menu bar: every action of the window with its keys, its words, and whether it is possible just now.

What an action does is connected from outside, by its name. A view with an action of its own (the plots' export) adds it
with `add`, so that it stands among the others in the list of keyboard shortcuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal

from PySide6.QtCore import QObject, Signal
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QMainWindow, QMenu

from app.state.run_machine import RunMachine, RunState

MenuName = Literal["run", "edit", "view", "help"]

_RUN: Final = ("start", "add_to_queue", "sweep", "check", "pause", "resume", "stop", "", "save", "sample", "")
_RUN_REST: Final = ("run_folder", "runs_folder", "", "quit")
_EDIT: Final = ("undo", "redo", "reset_all", "", "add_files", "add_folder", "look")
_VIEW: Final = ("search", "path", "full_screen", "notifications")
_HELP: Final = ("welcome", "guide", "shortcuts", "", "bundle", "", "about")
_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "start": ("F5", "Ctrl+Return"),
    "check": ("F6",),
    "add_to_queue": ("Ctrl+Shift+Return",),
    "sweep": ("Ctrl+Shift+E",),
    "pause": ("F7",),
    "resume": ("F8",),
    "stop": ("Shift+F5",),
    "save": ("Ctrl+S",),
    "sample": ("Ctrl+G",),
    "copy_command": ("Ctrl+Shift+C",),
    "copy_command_cmd": ("Ctrl+Shift+X",),
    "run_folder": ("Ctrl+Shift+O",),
    "runs_folder": ("Ctrl+Shift+R",),
    "quit": ("Ctrl+Q",),
    "undo": ("Ctrl+Z",),
    "redo": ("Ctrl+Y", "Ctrl+Shift+Z"),
    "reset_all": ("Ctrl+Shift+D",),
    "add_files": ("Ctrl+O",),
    "add_folder": ("Ctrl+Shift+F",),
    "look": ("Ctrl+L",),
    "search": ("Ctrl+F",),
    "path": ("Ctrl+Shift+P",),
    "full_screen": ("F11",),
    "notifications": ("Ctrl+Shift+N",),
    "next_language": ("Ctrl+Shift+L",),
    "next_theme": ("Ctrl+Shift+T",),
    "welcome": ("Ctrl+Shift+W",),
    "guide": ("Shift+F1",),
    "shortcuts": ("F1",),
    "bundle": ("Ctrl+Shift+B",),
    "about": ("Ctrl+F1",),
}
_SAVES: Final = frozenset({RunState.TRAINING, RunState.EVALUATING})


class Menus(QObject):
    """`actions` holds every one by its name; pages are `page_NAME`, languages `language_en`, themes `theme_dark`."""

    language_chosen = Signal(str)  # en, zh
    theme_chosen = Signal(str)  # light, dark, system
    command_asked = Signal(str)  # the shell that it is for
    page_chosen = Signal(str)

    def __init__(self, window: QMainWindow, pages: tuple[str, ...], shells: tuple[str, ...]) -> None:
        super().__init__(window)
        self._window = window
        self.actions: dict[str, QAction] = {}
        self._menus: dict[str, QMenu] = {name: window.menuBar().addMenu("") for name in ("run", "edit", "view", "help")}
        self._submenus = {name: QMenu(window) for name in ("copy", "language", "theme")}
        self._fill(self._menus["run"], _RUN)
        self._add_copying(shells)
        self._fill(self._menus["run"], _RUN_REST)
        self._fill(self._menus["edit"], _EDIT)
        self._add_choices("language", ("en", "zh"), self.language_chosen.emit)
        self._add_choices("theme", ("light", "dark", "system"), self.theme_chosen.emit)
        self._menus["view"].addSeparator()
        for place, name in enumerate(pages, 1):
            keys = (f"Ctrl+{place}",) if place <= 9 else ()
            action = self.add(f"page_{name}", self._menus["view"], keys)
            action.triggered.connect(lambda _=False, name=name: self.page_chosen.emit(name))
        self._menus["view"].addSeparator()
        self._fill(self._menus["view"], _VIEW)
        self._fill(self._menus["help"], _HELP)
        for name in ("full_screen", "notifications", "path"):
            self.actions[name].setCheckable(True)
        self.actions["quit"].setMenuRole(QAction.MenuRole.QuitRole)
        self.actions["about"].setMenuRole(QAction.MenuRole.AboutRole)

    # --- making -----------------------------------------------------------------------------------------

    def add(self, name: str, menu: QMenu | MenuName, keys: tuple[str, ...] = ()) -> QAction:
        """A new action at the end of a menu."""
        action = QAction(self._window)
        action.setObjectName(name)
        action.setShortcuts([QKeySequence(key) for key in keys or _KEYS.get(name, ())])
        (self._menus[menu] if isinstance(menu, str) else menu).addAction(action)
        self.actions[name] = action
        return action

    def _fill(self, menu: QMenu, names: tuple[str, ...]) -> None:
        for name in names:
            if name:
                self.add(name, menu)
            else:
                menu.addSeparator()

    def _add_copying(self, shells: tuple[str, ...]) -> None:
        """The first shell has the shortcut; where there are several, they stand in a menu of their own."""
        menu = self._menus["run"]
        if len(shells) > 1:
            menu.addMenu(self._submenus["copy"])
            menu = self._submenus["copy"]
        for shell in shells:
            first = shell == shells[0]
            name = "copy_command" if first else f"copy_command_{shell}"
            action = self.add(name, menu)
            action.setData(shell if len(shells) > 1 else "")
            action.triggered.connect(lambda _=False, shell=shell: self.command_asked.emit(shell))

    def _add_choices(self, kind: str, names: tuple[str, ...], chosen: Callable[[str], None]) -> None:
        menu, group = self._submenus[kind], QActionGroup(self)
        self._menus["view"].addMenu(menu)
        for name in names:
            action = self.add(f"{kind}_{name}", menu)
            action.setCheckable(True)
            group.addAction(action)
            action.triggered.connect(lambda _=False, name=name: chosen(name))
        menu.addSeparator()
        following = self.add(f"next_{kind}", menu)
        following.triggered.connect(lambda: chosen(self._after(kind, names)))

    def _after(self, kind: str, names: tuple[str, ...]) -> str:
        now = next((place for place, name in enumerate(names) if self.actions[f"{kind}_{name}"].isChecked()), -1)
        return names[(now + 1) % len(names)]

    def connect_all(self, slots: Mapping[str, Callable[[], object]]) -> None:
        """What actions do, by name."""
        for name, slot in slots.items():
            self.actions[name].triggered.connect(lambda _=False, slot=slot: slot())

    # --- showing ----------------------------------------------------------------------------------------

    def display(self, machine: RunMachine, *, blocked: bool, checking: bool, own_shown: bool) -> None:
        """What may be done now. `own_shown`: the run on show is the one that this window trains."""
        possible = {
            "start": machine.can_start and not blocked,
            "check": machine.can_start and not blocked and not checking,
            "pause": machine.can_pause,
            "resume": machine.can_resume,
            "stop": machine.can_stop,
            "save": machine.state in _SAVES,
            "sample": machine.state is RunState.TRAINING and own_shown,
            "run_folder": bool(machine.run_dir) or not own_shown,
        }
        for name, allowed in possible.items():
            self.actions[name].setEnabled(allowed)
        for name, action in self.actions.items():
            if name.startswith("copy_command"):
                action.setEnabled(not blocked)

    def render_choices(self, language: str, theme: str, *, notifications: bool) -> None:
        """Mark what is chosen."""
        self.actions[f"language_{language}"].setChecked(True)
        self.actions[f"theme_{theme}"].setChecked(True)
        self.actions["notifications"].setChecked(notifications)

    def listed(self) -> Iterator[tuple[str, QAction]]:
        """Every action that has keys, with the title of its menu, in the order of the menus."""
        for menu in self._menus.values():
            yield from self._listed(menu, menu.title())

    def _listed(self, menu: QMenu, title: str) -> Iterator[tuple[str, QAction]]:
        inner = {submenu.menuAction(): submenu for submenu in self._submenus.values()}
        for action in menu.actions():
            if action in inner:
                yield from self._listed(inner[action], inner[action].title())
            elif not action.isSeparator():
                yield title, action

    # --- words ------------------------------------------------------------------------------------------

    def retranslate(self, pages: Mapping[str, str]) -> None:
        """Word everything; `pages`: their titles by name."""
        for menus, titles in ((self._menus, self._menu_titles()), (self._submenus, self._submenu_titles())):
            for name, menu in menus.items():
                menu.setTitle(titles[name])
        texts = {**self._run_texts(), **self._edit_texts(), **self._view_texts(), **self._help_texts()}
        texts |= {f"page_{name}": title for name, title in pages.items()}
        for name, text in texts.items():
            self.actions[name].setText(text)
        for name, action in self.actions.items():
            if name.startswith("copy_command"):
                action.setText(self._copy_text(action.data()))

    def _menu_titles(self) -> dict[str, str]:
        return {"run": self.tr("&Run"), "edit": self.tr("&Edit"), "view": self.tr("&View"), "help": self.tr("&Help")}

    def _submenu_titles(self) -> dict[str, str]:
        return {"copy": self.tr("Copy command line"), "language": self.tr("Language"), "theme": self.tr("Theme")}

    def _run_texts(self) -> dict[str, str]:
        return {
            "start": self.tr("Start"),
            "check": self.tr("Check"),
            "add_to_queue": self.tr("Add to queue"),
            "sweep": self.tr("Sweep…"),
            "pause": self.tr("Pause"),
            "resume": self.tr("Resume"),
            "stop": self.tr("Stop"),
            "save": self.tr("Save a checkpoint now"),
            "sample": self.tr("Write a sample now"),
            "run_folder": self.tr("Open the folder of this run"),
            "runs_folder": self.tr("Open the runs folder"),
            "quit": self.tr("Quit"),
        }

    def _edit_texts(self) -> dict[str, str]:
        return {
            "undo": self.tr("Undo"),
            "redo": self.tr("Redo"),
            "reset_all": self.tr("Reset all settings"),
            "add_files": self.tr("Add files to the data…"),
            "add_folder": self.tr("Add a folder to the data…"),
            "look": self.tr("Look at the data"),
        }

    def _view_texts(self) -> dict[str, str]:
        return {
            "language_en": "English",
            "language_zh": "中文",
            "next_language": self.tr("Switch the language"),
            "theme_light": self.tr("Light"),
            "theme_dark": self.tr("Dark"),
            "theme_system": self.tr("As the system"),
            "next_theme": self.tr("Next theme"),
            "search": self.tr("Search"),
            "path": self.tr("Steps to a run"),
            "full_screen": self.tr("Full screen"),
            "notifications": self.tr("Notifications"),
        }

    def _help_texts(self) -> dict[str, str]:
        return {
            "welcome": self.tr("Welcome"),
            "guide": self.tr("User guide"),
            "shortcuts": self.tr("Keyboard shortcuts"),
            "bundle": self.tr("Bundle for a bug report…"),
            "about": self.tr("About Traindeck"),
        }

    def _copy_text(self, shell: str) -> str:
        match shell:
            case "powershell":
                return self.tr("For PowerShell")
            case "cmd":
                return self.tr("For the command prompt (cmd)")
            case "bash":
                return self.tr("For a Unix shell")
        return self.tr("Copy command line")
