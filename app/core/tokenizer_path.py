"""Whether a tokenizer exists at a path. No Qt."""

from __future__ import annotations

from pathlib import Path


def has_tokenizer(path_text: str) -> bool:
    """Whether this is a file, or a folder with a tokenizer.json. Inaccessible paths count as missing."""
    try:
        path = Path(path_text).expanduser()
        return (path / "tokenizer.json").is_file() if path.is_dir() else path.is_file()
    except (OSError, RuntimeError, ValueError):  # no permission; unknown home folder; invalid character
        return False
