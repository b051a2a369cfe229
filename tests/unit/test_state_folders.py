"""The folder in which one is asked for files."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.core.folders import first_existing


def test_the_first_folder_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "资料").mkdir()
    assert first_existing([tmp_path / "gone", tmp_path / "资料", tmp_path]) == tmp_path / "资料"
    assert first_existing([tmp_path / "gone"]) is None
    assert first_existing([]) is None


def test_a_share_that_gives_no_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    is_dir = Path.is_dir
    monkeypatch.setattr(Path, "is_dir", lambda path: (time.sleep(2.0 * (path.name == "share")), is_dir(path))[1])
    began = time.monotonic()
    assert first_existing([tmp_path / "share", tmp_path]) is None
    assert time.monotonic() - began < 1.0
