"""Masks secrets and personal names in texts that leave the machine.

Errs on the side of masking: a bug report needs figures and codes, not paths and keys.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

SECRET_PLACEHOLDER: Final = "<secret>"
_MIN_NAME_LENGTH: Final = 3  # letters: shorter user names are masked in paths only
_MIN_SECRET_LENGTH: Final = 8  # letters of an environment variable's value that could be a key
_SECRET_NAME: Final = re.compile(r"(?i)key|token|secret|passw|credential|auth")
_TEXT_FIELDS: Final = frozenset(
    {"prompt", "prompts", "text", "expected", "answer", "response", "sample_prompts", "samples"}
)
"""Fields with text of the user or of the data."""
_SECRET_PATTERNS: Final = [
    # OpenAI, Anthropic, Stripe, Hugging Face, GitHub, GitLab, Slack, Weights & Biases
    r"\b(?:sk|pk|rk|hf|gh[opsu]|glpat|github_pat|xox[abprs]|wandb_v1|local)[-_][A-Za-z0-9_-]{16,}",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS
    r"\bey[JK][A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*)?",  # JWT
    r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])",  # an old W&B key; commit hashes look the same
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"(?i)(\b[a-z][a-z0-9+.-]*://)[^/\s@\"']+(?=@)",
    r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}",
    r"(?i)((?:api[-_ ]?key|access[-_ ]?key|[-_]key|\bkey|token|secret|passw(?:or)?d|pwd)\\?[\"']?\s*"
    r"(?:[:=]|\s(?=\S{16,}))\s*\\?[\"']?)(?!(?:null|none|true|false)\b)(?=[^\s\"',;}&]{6,})(?![\d.]+\b)[^\s\"',;}&\\]+",
]
"""A group before the secret is kept."""
_HOME_PATTERN: Final = (
    r"(?i)([a-z]:[\\/]+(?:users|documents and settings)[\\/]+|(?<![\w.])/+(?:home|users)/+)[^\\/\s\"'<>|:]+"
)


class Masker:
    """Masks known names and everything that looks like a key."""

    def __init__(
        self, homes: Iterable[str], users: Iterable[str], hosts: Iterable[str], secrets: Iterable[str]
    ) -> None:
        self._patterns: list[tuple[re.Pattern[str], str]] = []
        self._add(secrets, SECRET_PLACEHOLDER)
        self._add(homes, "~", after=r"(?![\w-])")
        for names, placeholder in ((users, "<user>"), (hosts, "<computer>")):
            long_names = [name for name in names if len(name) >= _MIN_NAME_LENGTH]
            self._add(long_names, placeholder, before=r"(?<![^\W_])", after=r"(?![^\W_])")
        for pattern in map(re.compile, _SECRET_PATTERNS):
            self._patterns.append((pattern, rf"\1{SECRET_PLACEHOLDER}" if pattern.groups else SECRET_PLACEHOLDER))
        self._patterns.append((re.compile(_HOME_PATTERN), r"\1<user>"))

    @classmethod
    def for_this_machine(cls, environment: Mapping[str, str] = os.environ) -> Masker:
        """Masker for home folder, user and computer names, and environment variables named like secrets."""
        home = Path.home()
        users = [environment.get(name, "") for name in ("USERNAME", "USER", "LOGNAME")]
        if home.parent.name.lower() in ("users", "home"):
            users.append(home.name)
        homes = [environment.get(name, "") for name in ("USERPROFILE", "HOME")] + [str(home), str(home.resolve())]
        return cls(
            [path for path in homes if len(Path(path).parts) > 1],
            [user for user in users if user.lower() not in ("root", "user", "admin", "administrator")],
            [name for name in (platform.node(),) if name.lower() != "localhost"],
            # Neither switches nor numbers. A path that is masked does no harm.
            [
                value
                for name, value in environment.items()
                if _SECRET_NAME.search(name) and len(value) >= _MIN_SECRET_LENGTH and not value.isdigit()
            ],
        )

    def _add(self, texts: Iterable[str], replacement: str, *, before: str = "", after: str = "") -> None:
        flags = re.IGNORECASE if replacement != SECRET_PLACEHOLDER else re.NOFLAG
        for text in sorted(set(texts), key=len, reverse=True):
            forms = "|".join(map(re.escape, _spellings(text)))
            self._patterns.append((re.compile(f"{before}(?:{forms}){after}", flags), replacement))

    def mask(self, text: str) -> str:
        """Mask a text."""
        for pattern, replacement in self._patterns:
            text = pattern.sub(replacement, text)
        return text

    def mask_value(self, value: Any, name: str = "") -> Any:
        """Mask a JSON or YAML value; texts of users and data are replaced by their length."""
        if isinstance(value, str | list | dict) and value and name in _TEXT_FIELDS:
            return f"<{len(value)} {'characters' if isinstance(value, str) else 'entries'}>"
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, list):
            return [self.mask_value(item) for item in value]
        if isinstance(value, dict):
            return {self.mask(str(key)): self.mask_value(item, str(key)) for key, item in value.items()}
        return value


def _spellings(text: str) -> list[str]:
    """Spellings of a path or name: with either slash, in JSON with and without escapes, in a URL."""
    forms = [text, text.replace("\\", "/")]
    forms += [json.dumps(form, ensure_ascii=ascii)[1:-1] for form in (text, forms[1]) for ascii in (True, False)]
    return sorted({*forms, quote(forms[1]), quote(forms[1], safe="")}, key=len, reverse=True)
