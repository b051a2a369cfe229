"""Fixtures of data tests: an empty home folder and two small data sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary TRAINDECK_HOME, created on first use."""
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Text file of 4,000 lines."""
    path = tmp_path / "text.txt"
    path.write_text("".join(f"Line {i} of a text about {i * 7} things.\n" for i in range(4000)), encoding="utf-8")
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """JSONL file of 500 prompts and responses."""
    path = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"What is {i} plus 1?", "response": f"It is {i + 1}."} for i in range(500)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path
