"""Taking secrets and names of people out of texts that leave the machine.

It is better to mask too much than too little: who reads a report needs figures and codes, not paths and keys.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

SECRET: Final = "<secret>"
_SHORT_NAME: Final = 3  # letters: a user called "al" is masked only where paths name him
_SHORT_VALUE: Final = 8  # letters of an environment variable's value that could be a key
_TELLING: Final = re.compile(r"(?i)key|token|secret|passw|credential|auth")
_PATH: Final = re.compile(r"(?i)[\\/]|~[\w.-]*[\\/]|\.{1,2}[\\/]|[a-z]:[\\/]")  # begins like one
_BASE64: Final = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[A-Za-z0-9+/]{32,}={0,2}")  # may begin with a slash, too
_PROSE: Final = frozenset({"prompt", "prompts", "text", "expected", "answer", "response", "sample_prompts", "samples"})
"""Fields that hold what a person wrote, or a line of the data."""

_PATTERNS: Final = [
    (re.compile(pattern), put)
    for pattern, put in (
        (r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{16,}", SECRET),  # OpenAI, Anthropic, Stripe …
        (r"\b(?:hf|ghp|gho|ghs|ghu|glpat|github_pat|xox[abprs]|wandb_v1|local)[-_][A-Za-z0-9_-]{16,}", SECRET),
        (r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b", SECRET),
        (r"\bey[JK][A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)?", SECRET),  # JWT
        (r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])", SECRET),  # a W&B key; commits look the same
        (r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", SECRET),
        (r"(?i)(\b[a-z][a-z0-9+.-]*://)[^/\s@\"']+@", rf"\1{SECRET}@"),
        (r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}", rf"\1{SECRET}"),
        (
            r"(?i)((?:api[-_ ]?key|access[-_ ]?key|[-_]key|\bkey|token|secret|passw(?:or)?d|pwd)\\?[\"']?\s*"
            r"(?:[:=]|\s(?=\S{16,}))\s*\\?[\"']?)(?!(?:null|none|true|false)\b)(?=[^\s\"',;}&]{6,})(?![\d.]+\b)[^\s\"',;}&\\]+",
            rf"\1{SECRET}",
        ),
        (r"(?i)([a-z]:[\\/]+(?:users|documents and settings)[\\/]+)[^\\/\s\"'<>|:]+", r"\1<user>"),
        (r"(?<![\w.])(/+(?:home|Users)/+)[^/\s\"'<>:]+", r"\1<user>"),
    )
]


class Masker:
    """Masks what it is told of a person and a machine, and all that looks like a key."""

    def __init__(
        self, homes: Iterable[str], users: Iterable[str], hosts: Iterable[str], secrets: Iterable[str]
    ) -> None:
        self._known: list[tuple[re.Pattern[str], str]] = []
        for secret in sorted(set(secrets), key=len, reverse=True):
            self._add(secret, SECRET)
        for home in sorted(set(homes), key=len, reverse=True):
            self._add(home, "~", after=r"(?![\w-])")
        for names, put in ((users, "<user>"), (hosts, "<computer>")):
            for name in sorted(set(names), key=len, reverse=True):
                if len(name) >= _SHORT_NAME:
                    self._add(name, put, before=r"(?<![^\W_])", after=r"(?![^\W_])")

    @classmethod
    def of_this_machine(cls, environment: Mapping[str, str] = os.environ) -> Masker:
        """Home folder, user and computer, and the values of environment variables that are named like secrets."""
        home = Path.home()
        users = [environment.get(name, "") for name in ("USERNAME", "USER", "LOGNAME")] + [_user()]
        if home.parent.name.lower() in ("users", "home"):
            users.append(home.name)
        homes = [environment.get(name, "") for name in ("USERPROFILE", "HOME")] + [str(home), str(home.resolve())]
        values = [value for name, value in environment.items() if _TELLING.search(name) and _may_be_secret(value)]
        return cls(
            [path for path in homes if len(Path(path).parts) > 1],
            [user for user in users if user.lower() not in ("", "root", "user", "admin", "administrator")],
            [name for name in (platform.node(),) if name.lower() not in ("", "localhost")],
            values,
        )

    def _add(self, text: str, put: str, *, before: str = "", after: str = "") -> None:
        forms = "|".join(dict.fromkeys(re.escape(form) for form in _forms(text)))
        flags = re.IGNORECASE if put != SECRET else re.NOFLAG
        self._known.append((re.compile(f"{before}(?:{forms}){after}", flags), put.replace("\\", r"\\")))

    def mask(self, text: str) -> str:
        """The text without what it must not say."""
        for pattern, put in (*self._known, *_PATTERNS):
            text = pattern.sub(put, text)
        return text

    def mask_value(self, value: Any, name: str = "") -> Any:
        """The same for what JSON or YAML held; of what people wrote and of data only the length is left."""
        if name in _PROSE and value:
            return _size(value)
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, list):
            return [self.mask_value(item) for item in value]
        if isinstance(value, dict):
            if name == "used":  # which column is used as what: names of fields, not what they hold
                return {key: self.mask_value(item) for key, item in value.items()}
            return {self.mask(str(key)): self.mask_value(item, str(key)) for key, item in value.items()}
        return value


def _size(value: Any) -> Any:
    if isinstance(value, str):
        return f"<{len(value)} characters>"
    return f"<{len(value)} entries>" if isinstance(value, list | dict) else value


def _forms(text: str) -> list[str]:
    """How a path or a name may be written: with either slash, in JSON with either way for Chinese, in a URL."""
    forms = [text, text.replace("\\", "/")]
    forms += [json.dumps(form, ensure_ascii=ascii)[1:-1] for form in (text, forms[1]) for ascii in (True, False)]
    return sorted([*forms, quote(forms[1]), quote(forms[1], safe="")], key=len, reverse=True)


def _may_be_secret(value: str) -> bool:
    """Not a switch, a number, or a path such as SSH_AUTH_SOCK's. Keys may have slashes, too: those of AWS."""
    if len(value) < _SHORT_VALUE or value.isdigit():
        return False
    return not any(slash in value for slash in "/\\") or not _is_path(value)


def _is_path(value: str) -> bool:
    return os.access(value, os.F_OK) or (_PATH.match(value) is not None and _BASE64.fullmatch(value) is None)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""
