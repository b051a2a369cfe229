"""Whether there is a tokenizer where a person says that there is one. No Qt."""

from __future__ import annotations

from pathlib import Path


def holds_tokenizer(given: str) -> bool:
    """Whether this is a file, or a folder with a tokenizer.json. What may not be looked at cannot be used either."""
    try:
        path = Path(given).expanduser()
        return (path / "tokenizer.json").is_file() if path.is_dir() else path.is_file()
    except (OSError, RuntimeError, ValueError):  # no permission; a home that is not known; a character no path has
        return False
