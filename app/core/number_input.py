"""Numbers as typed text. No Qt."""

from __future__ import annotations

import unicodedata


def normalize_number(text: str) -> str:
    """Normalize a typed number for `float`. Full-width digits of a Chinese keyboard are accepted."""
    return unicodedata.normalize("NFKC", text).replace("−", "-").replace(" ", "")


def format_number(value: float) -> str:
    """Format a number as typed: `0.05`, `3e-4`."""
    if value and (abs(value) < 1e-2 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.9e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.10g}"
