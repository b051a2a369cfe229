"""Settings of the window, stored as JSON in the user's configuration folder.

A damaged file is moved aside and replaced by defaults. A value of the wrong type is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from trainer_core.system import files

LanguageSetting = Literal["system", "en", "zh"]
ThemeSetting = Literal["system", "light", "dark"]
MAX_RECENT: Final = 12


class RemoteMachine(msgspec.Struct, frozen=True):
    """A machine to train on."""

    host: str  # as ssh calls it
    folder: str  # of Traindeck there


class Settings(msgspec.Struct, kw_only=True):
    """Stored settings. To store more, add a field with a default."""

    language: LanguageSetting = "system"
    theme: ThemeSetting = "system"
    preset: str = ""
    data: list[str] = []  # paths of the last run
    recent_data: list[str] = []  # newest first
    recent_models: list[str] = []  # folders of base models, newest first
    machines: list[RemoteMachine] = []
    machine: RemoteMachine | None = None  # to train on; None: this one
    values: dict[str, Any] = {}  # knobs that the user changed, by name
    welcome: bool = True  # show the welcome page if there are no runs
    path: bool = True  # show the four steps above the setup
    dismissed: list[str] = []  # interrupted runs that the user dismissed
    geometry: str = ""  # QWidget.saveGeometry, base64
    layouts: dict[str, str] = {}  # saveState of QSplitter and QHeaderView, base64, by name
    page: str = ""  # id of the current page
    notifications: bool = True  # desktop notifications
    export_folder: str = ""  # in which exports create theirs
    sampling: dict[str, float] = {}  # sampling options by field of `SamplingOptions`
    keep_conversations: bool = True  # store the conversations of the chat page
    chat_shows_samples: bool = False
    smoothing: float = 0.6
    log_scale: bool = False
    clip_outliers: bool = False
    plots_page: Literal["overview", "detail"] = "overview"
    x_axis: Literal["step", "tokens", "time"] = "step"

    def add_recent_data(self, path: str) -> None:
        """Add a path in front of the recent ones."""
        self.recent_data = list(dict.fromkeys([path, *self.recent_data]))[:MAX_RECENT]

    def add_recent_model(self, path: str) -> None:
        """Add a model folder in front of the recent ones."""
        self.recent_models = list(dict.fromkeys([path, *self.recent_models]))[:MAX_RECENT]


def config_folder() -> Path:
    """`TRAINDECK_CONFIG_DIR`, otherwise the platform's configuration folder."""
    chosen = os.environ.get("TRAINDECK_CONFIG_DIR")
    if chosen:
        return Path(chosen)
    if sys.platform == "win32":
        base, usual, name = os.environ.get("APPDATA"), "AppData/Roaming", "Traindeck"
    else:
        base, usual, name = os.environ.get("XDG_CONFIG_HOME"), ".config", "traindeck"
    return (Path(base) if base else Path.home() / usual) / name


@dataclass(slots=True)
class SettingsStore:
    """Settings and their file. `load` reads it, `save` writes it."""

    path: Path = field(default_factory=lambda: config_folder() / "settings.json")
    settings: Settings = field(default_factory=Settings)

    def load(self) -> Settings:
        """Read the file; defaults if it is missing or damaged."""
        try:
            content = msgspec.convert(json.loads(self.path.read_text(encoding="utf-8-sig")), dict[str, Any])
        except FileNotFoundError:
            content = {}
        except (OSError, ValueError, msgspec.ValidationError):
            content = {}
            self._move_damaged_aside()
        self.settings = _settings_from_mapping(content)
        return self.settings

    def save(self) -> None:
        """Write the file atomically. A failure is not fatal."""
        text = json.dumps(msgspec.to_builtins(self.settings), ensure_ascii=False, indent=1)
        with contextlib.suppress(OSError):
            files.write_atomic(self.path, text.encode("utf-8"))

    def _move_damaged_aside(self) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        with contextlib.suppress(OSError):
            self.path.replace(aside)


def _settings_from_mapping(content: dict[str, Any]) -> Settings:
    settings = Settings()
    for name, kind in typing.get_type_hints(Settings).items():
        if name in content:
            with contextlib.suppress(msgspec.ValidationError):
                setattr(settings, name, msgspec.convert(content[name], kind))
    return settings
