"""Formatting of byte counts and percentages, the same in all languages. No torch, no Qt."""

from __future__ import annotations

from typing import Final

_KIB: Final = 2**10
_MIB: Final = 2**20
_GIB: Final = 2**30


def byte_unit(amount: float) -> tuple[int, str]:
    """Return the scale in bytes and the name of the unit for an amount."""
    if round(amount / _MIB) >= 1024:
        return _GIB, "GiB"
    return (_MIB, "MiB") if amount >= _MIB else (_KIB, "KiB")


def format_bytes(amount: float) -> str:
    """Return a byte count with its unit: `17.6 KiB`, `4.2 MiB`, `512 MiB`, `1.5 GiB`."""
    scale, unit = byte_unit(amount)
    return f"{amount / scale:,.{0 if unit == 'MiB' and amount >= 10 * _MIB else 1}f} {unit}"


def format_mib(amount: int) -> str:
    """Return whole MiB with their unit, from 1 GiB with two digits: `512 MiB`, `12.70 GiB`."""
    return f"{amount / 1024:,.2f} GiB" if amount >= 1024 else f"{amount} MiB"


def format_percentage(part: float, whole: float) -> str:
    """Percentage; 0 only for zero."""
    if not whole or not part:
        return "0 %"
    percent = 100 * part / whole
    return "< 0.01 %" if percent < 0.01 else f"{percent:.2g} %" if percent < 1 else f"{percent:.1f} %"
