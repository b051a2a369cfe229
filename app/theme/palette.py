"""Colors of both themes, and of each for a desktop with high contrast.

The first six curve colors are those of Okabe and Ito (2008), which are distinguishable with any common color blindness.
They are darkened in the light theme and lightened in the dark one, to a contrast of at least 3:1 with the surface
(WCAG 2.2, 1.4.11). Colors g to k are distinguishable from each other, but not always from the first six: curves with
these colors differ in a second property.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

ThemeName = Literal["light", "dark"]
ThemeChoice = Literal["light", "dark", "system"]


@dataclass(frozen=True, slots=True)
class Palette:
    """Colors of a theme."""

    name: ThemeName
    window: str  # behind everything
    surface: str  # cards, plots, lists
    field: str  # inside input fields
    hover: str
    border: str
    text: str
    muted: str  # secondary text
    accent: str
    on_accent: str
    good: str
    warn: str
    bad: str
    warn_surface: str
    bad_surface: str
    note_surface: str
    curve_a: str  # train loss, first curve of a plot
    curve_b: str  # eval loss, second curve
    curve_c: str
    curve_d: str
    curve_e: str
    curve_f: str
    curve_g: str  # g to k: overlaid runs
    curve_h: str
    curve_i: str
    curve_j: str
    curve_k: str
    loss_token_a: str  # background of tokens that count towards the loss; a and b alternate
    loss_token_b: str
    rejected_token: str  # background of what only a rejected answer has
    context_token_a: str  # background of the other tokens
    context_token_b: str


LIGHT: Final = Palette(
    name="light", window="#f4f5f7", surface="#ffffff", field="#ffffff", hover="#e8ebf0", border="#d5d9e0",
    text="#1b2330", muted="#5a6474", accent="#1f5fbf", on_accent="#ffffff",
    good="#1b7a4a", warn="#8a5a00", bad="#b3261e",
    warn_surface="#fdf3dc", bad_surface="#fbe7e5", note_surface="#e6effb",
    curve_a="#0072b2", curve_b="#c75100", curve_c="#00805d", curve_d="#a8508a", curve_e="#3f9bd1", curve_f="#a38c00",
    curve_g="#8f1d14", curve_h="#ae59fa", curve_i="#2f3e9e", curve_j="#f2382a", curve_k="#1fa090",
    loss_token_a="#cdeadb", loss_token_b="#b3ddc7", rejected_token="#f6cbc6",
    context_token_a="#eef0f3", context_token_b="#e1e5ea",
)  # fmt: skip

DARK: Final = Palette(
    name="dark", window="#15181d", surface="#1d2127", field="#171a1f", hover="#2a3038", border="#363d47",
    text="#e4e8ee", muted="#9aa5b4", accent="#6ea8fe", on_accent="#0d1726",
    good="#5ccb93", warn="#e6b450", bad="#f28b82",
    warn_surface="#332a16", bad_surface="#3a1f1f", note_surface="#1c2b40",
    curve_a="#56b4e9", curve_b="#f0a030", curve_c="#3ecf9d", curve_d="#dd94c0", curve_e="#3a80b4", curve_f="#e3d84a",
    curve_g="#c2408a", curve_h="#b09a10", curve_i="#dcb6fc", curve_j="#7cf03c", curve_k="#2080ff",
    loss_token_a="#17452f", loss_token_b="#1f573c", rejected_token="#6a2a2a",
    context_token_a="#262b33", context_token_b="#2f353e",
)  # fmt: skip

# Texts have a contrast of at least 7:1 (WCAG 2.2, 1.4.6), and all surfaces are bounded by lines like texts.
LIGHT_CONTRAST: Final = replace(
    LIGHT, window="#ffffff", surface="#ffffff", hover="#dedede", border="#000000", text="#000000", muted="#3d3d3d",
    accent="#00309f", good="#004d26", warn="#5c3400", bad="#8f0000",
    warn_surface="#ffffff", bad_surface="#ffffff", note_surface="#ffffff",
)  # fmt: skip

DARK_CONTRAST: Final = replace(
    DARK, window="#000000", surface="#000000", field="#000000", hover="#333333", border="#ffffff", text="#ffffff",
    muted="#d6d6d6", accent="#ffff00", on_accent="#000000", good="#7dffb5", warn="#ffd24d", bad="#ffb0a8",
    warn_surface="#000000", bad_surface="#000000", note_surface="#000000",
)  # fmt: skip

SPACING: Final = 8
"""Spacing unit in device-independent pixels. Layouts use halves and multiples of it."""
