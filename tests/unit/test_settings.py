"""Settings of the window and their file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from app.core import settings
from app.core.settings import MAX_RECENT, Settings, SettingsStore


def test_settings_are_saved_and_loaded(tmp_path: Path) -> None:
    store = SettingsStore(tmp_path / "新" / "settings.json")
    store.load()
    store.settings.language = "zh"
    store.settings.values = {"batch_size": 4, "data": ["数据.txt"]}
    store.settings.add_recent_data("C:\\数据\\a.txt")
    store.save()
    reloaded = SettingsStore(store.path)
    assert reloaded.load() == store.settings
    assert [file.name for file in store.path.parent.iterdir()] == ["settings.json"]


def test_a_missing_file_yields_defaults_and_is_not_created(tmp_path: Path) -> None:
    store = SettingsStore(tmp_path / "settings.json")
    assert store.load() == Settings()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe\x00", b"null", b'{"language": "zh"'])
def test_a_damaged_file_is_renamed_and_replaced_by_defaults(tmp_path: Path, content: bytes) -> None:
    store = SettingsStore(tmp_path / "settings.json")
    store.path.write_bytes(content)
    assert store.load() == Settings()
    [backup] = tmp_path.iterdir()
    assert backup.read_bytes() == content
    store.save()
    assert store.path.is_file()


def test_only_invalid_values_are_replaced_by_defaults(tmp_path: Path) -> None:
    store = SettingsStore(tmp_path / "settings.json")
    content = {"theme": "dark", "language": "klingon", "recent_data": [1], "from_the_future": {}, "log_scale": True}
    store.path.write_text(json.dumps(content), encoding="utf-8")
    loaded = store.load()
    assert loaded == Settings(theme="dark", log_scale=True)
    assert list(tmp_path.iterdir()) == [store.path]


def test_saving_to_an_invalid_folder_does_not_raise(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    SettingsStore(tmp_path / "file" / "settings.json").save()


def test_recent_data_is_newest_first_unique_and_limited() -> None:
    saved = Settings()
    for number in [*range(20), 18]:
        saved.add_recent_data(f"f{number}")
    assert saved.recent_data[:3] == ["f18", "f19", "f17"]
    assert len(saved.recent_data) == len(set(saved.recent_data)) == MAX_RECENT


def test_the_configuration_folder_follows_the_conventions_of_the_platform(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINDECK_CONFIG_DIR", str(tmp_path / "chosen"))
    assert settings.config_folder() == tmp_path / "chosen"
    monkeypatch.delenv("TRAINDECK_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "roaming"))
    monkeypatch.setattr(sys, "platform", "win32")
    assert settings.config_folder() == tmp_path / "roaming" / "Traindeck"
    monkeypatch.setattr(sys, "platform", "linux")
    assert settings.config_folder() == tmp_path / "xdg" / "traindeck"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert settings.config_folder().parts[-2:] == (".config", "traindeck")
