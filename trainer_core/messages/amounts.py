"""Bytes in words, which are the same in every language. No torch, no Qt."""

from __future__ import annotations

from typing import Final

_KIB: Final = 2**10
_MIB: Final = 2**20
_GIB: Final = 2**30


def unit_of(amount: float) -> tuple[int, str]:
    """Bytes of the unit in which an amount is said, and its name."""
    if round(amount / _MIB) >= 1024:
        return _GIB, "GiB"
    return (_MIB, "MiB") if amount >= _MIB else (_KIB, "KiB")


def size(amount: float) -> str:
    """Bytes for people: `17.6 KiB`, `4.2 MiB`, `512 MiB`, `1.5 GiB`."""
    scale, unit = unit_of(amount)
    return f"{amount / scale:,.{0 if unit == 'MiB' and amount >= 10 * _MIB else 1}f} {unit}"


def size_of_mib(amount: int) -> str:
    """Whole MiB, as messages carry them. In two digits of a GiB: a few hundredths may be all that lacks."""
    return f"{amount / 1024:,.2f} GiB" if amount >= 1024 else f"{amount} MiB"
