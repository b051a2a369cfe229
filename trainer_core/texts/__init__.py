"""Catalogue of all texts that people read, in English and Chinese.

`en.json` and `zh.json` hold the same keys, grouped by page or subject. A value is a `str.format` template; both
languages use the same parameters. The terminal, the window and the launcher read these files.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

Language = Literal["en", "zh"]
FOLDER: Final = Path(__file__).resolve().parent


@functools.cache
def catalogue(language: Language) -> Mapping[str, str]:
    """Return all texts of `language` by dotted key, such as `setup.add_file`."""
    return dict(_flatten(json.loads((FOLDER / f"{language}.json").read_text(encoding="utf-8"))))


def _flatten(group: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    texts: list[tuple[str, str]] = []
    for name, value in group.items():
        key = f"{prefix}{name}"
        texts += _flatten(value, f"{key}.") if isinstance(value, dict) else [(key, value)]
    return texts


def get(key: str, language: Language, **params: object) -> str:
    """Return the text of `key`, formatted with `params`. Raises `KeyError` for an unknown key."""
    text = catalogue(language)[key]
    return text.format(**params) if params else text
