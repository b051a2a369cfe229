"""What the window remembers between two starts, as JSON in the user's configuration folder.

A damaged file never keeps the window from starting: it is put aside and the defaults hold. A single
value of the wrong type (an older or newer Traindeck) costs that value only.
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

from trainer_core import files

LanguageSetting = Literal["system", "en", "zh"]
ThemeSetting = Literal["system", "light", "dark"]
RECENT: Final = 12


class Settings(msgspec.Struct, kw_only=True):
    """Everything remembered. To remember more, add a field with a default."""

    language: LanguageSetting = "system"
    theme: ThemeSetting = "system"
    preset: str = ""
    data: list[str] = []  # paths of the last run
    recent_data: list[str] = []  # newest first
    values: dict[str, Any] = {}  # knobs that the person changed, by name
    run_name: str = ""
    welcome: bool = True  # the page that greets where there are no runs
    path: bool = True  # the four steps above the setup
    dismissed: list[str] = []  # paths of interrupted runs that the person does not want to be asked about again
    runs_folder: str = ""  # empty: runs/ in Traindeck's folder
    geometry: str = ""  # bytes of QWidget.saveGeometry in base64
    window_state: str = ""  # bytes of QMainWindow.saveState in base64
    splitters: dict[str, str] = {}  # bytes of QSplitter.saveState in base64, by name
    page: str = ""  # name of the page on show
    notifications: bool = True  # of the desktop, when a run ends or needs somebody
    runs_sort: str = "started"  # a column of the runs
    runs_descending: bool = True
    runs_columns: dict[str, int] = {}  # their widths in pixels, in their order
    runs_details: bool = True  # are shown below the runs
    export_folder: str = ""  # that was chosen the last time
    sampling: dict[str, float] = {}  # how models that are tried draw their texts, by the fields of `trying.Sampling`
    smoothing: float = 0.6
    log_scale: bool = False
    clip_outliers: bool = False
    plots_page: Literal["overview", "detail"] = "overview"
    x_axis: Literal["step", "tokens", "time"] = "step"

    def remember_data(self, path: str) -> None:
        """Put a path in front of the recent ones."""
        self.recent_data = [path, *(old for old in self.recent_data if old != path)][:RECENT]


def config_folder() -> Path:
    """`TRAINDECK_CONFIG_DIR`, else the platform's place for settings."""
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
    """The settings and their file. `settings` is loaded by `load`; `save` writes it."""

    path: Path = field(default_factory=lambda: config_folder() / "settings.json")
    settings: Settings = field(default_factory=Settings)
    put_aside: Path | None = None  # where a damaged file went

    def load(self) -> Settings:
        """Read the file. None there, or a damaged one: the defaults."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            content = {}
        except (OSError, ValueError):
            content = {}
            self._put_aside()
        if not isinstance(content, dict):
            content = {}
            self._put_aside()
        self.settings = _from_mapping(content)
        return self.settings

    def save(self) -> bool:
        """Write the file at once and whole. Returns whether that worked: losing settings is no reason to stop."""
        text = json.dumps(msgspec.to_builtins(self.settings), ensure_ascii=False, indent=1)
        try:
            files.write_atomic(self.path, text.encode("utf-8"))
        except OSError:
            return False
        return True

    def _put_aside(self) -> None:
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
        with contextlib.suppress(OSError):
            self.path.replace(aside)
            self.put_aside = aside


def _from_mapping(content: dict[str, Any]) -> Settings:
    settings = Settings()
    for name, kind in typing.get_type_hints(Settings).items():
        if name in content:
            with contextlib.suppress(msgspec.ValidationError):
                setattr(settings, name, msgspec.convert(content[name], kind))
    return settings
