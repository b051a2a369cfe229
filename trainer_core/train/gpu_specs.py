"""Peak rates of graphics cards from NVIDIA's data sheets: dense tensor-core rates with fp32 accumulation.

This is how torch multiplies; sparse rates (twice as high) and rates with fp16 accumulation do not apply. Sources,
GeForce: specifications in NVIDIA's Turing, GA102, Ada and RTX Blackwell architecture whitepapers; others: data sheets.
GeForce cards differ in SM count and boost clock (of the reference card) only: since the 20 series each SM does 512
16-bit operations per cycle, half as many in TF32; the 20 series has neither TF32 nor bf16. RTX PRO 6000: NVIDIA's RTX
Blackwell PRO whitepaper (Workstation Edition); product page, TF32 (Server Edition); data sheet, FP4 (Max-Q). If a data
sheet gives sparse rates of narrower types only, 16-bit rates are a quarter (FP8; RTX Ada) or an eighth (FP4; RTX PRO)
of them, as in those whitepapers. No laptops: their clocks depend on the configured power limit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_GEFORCE: Final = {  # SMs, boost clock in GHz
    "RTX 2070": (36, 1.620), "RTX 2080": (46, 1.710), "RTX 2080 Ti": (68, 1.545),
    "RTX 3060": (28, 1.777), "RTX 3060 Ti": (38, 1.665), "RTX 3070": (46, 1.725), "RTX 3070 Ti": (48, 1.770),
    "RTX 3080": (68, 1.710), "RTX 3080 Ti": (80, 1.665), "RTX 3090": (82, 1.695), "RTX 3090 Ti": (84, 1.860),
    "RTX 4060": (24, 2.460), "RTX 4060 Ti": (34, 2.535), "RTX 4070": (46, 2.475), "RTX 4070 SUPER": (56, 2.475),
    "RTX 4070 Ti": (60, 2.610), "RTX 4070 Ti SUPER": (66, 2.610), "RTX 4080": (76, 2.505),
    "RTX 4080 SUPER": (80, 2.550), "RTX 4090": (128, 2.520), "RTX 4090 D": (114, 2.520),
    "RTX 5060": (30, 2.497), "RTX 5060 Ti": (36, 2.572), "RTX 5070": (48, 2.512), "RTX 5070 Ti": (70, 2.452),
    "RTX 5080": (84, 2.617), "RTX 5090": (170, 2.407),
}  # fmt: skip
_PER_CYCLE: Final = 512
_FP16_ONLY: Final = "RTX 20"  # prefix of GeForce cards with neither bf16 nor TF32

_OTHERS: Final[dict[str, tuple[float, float | None, bool]]] = {  # 16-bit and TF32 TFLOP/s, bf16 support
    "A2": (18.0, 9.0, True), "A10": (125.0, 62.5, True), "A30": (165.0, 82.0, True), "A40": (149.7, 74.8, True),
    "A100": (312.0, 156.0, True), "A800": (312.0, 156.0, True),
    "H20": (148.0, 74.0, True), "H100": (989.4, 494.7, True), "H100 NVL": (835.5, 417.5, True),
    "H100 PCIe": (756.0, 378.0, True), "H200": (989.4, 494.7, True), "H200 NVL": (835.5, 417.5, True),
    "H800": (989.4, 494.7, True), "GH200": (989.4, 494.7, True), "B200": (2250.0, 1125.0, True),
    "B300": (2250.0, 1125.0, True),
    "L4": (121.0, 60.0, True), "L40": (181.05, 90.5, True), "L40S": (362.05, 183.0, True),
    "RTX A2000": (31.9, 16.0, True), "RTX A4000": (76.7, 38.3, True), "RTX A4500": (94.6, 47.3, True),
    "RTX A5000": (111.1, 55.6, True), "RTX A6000": (154.8, 77.4, True), "RTX 6000 Ada": (364.2, 182.1, True),
    "RTX 4000 Ada": (106.9, 53.5, True), "RTX 5000 Ada": (261.1, 130.6, True),
    "RTX PRO 6000 Blackwell Workstation Edition": (503.8, 251.9, True),
    "RTX PRO 6000 Blackwell Max Q Workstation Edition": (438.9, 219.4, True),
    "RTX PRO 6000 Blackwell Server Edition": (468.0, 234.0, True),
    "TITAN RTX": (130.5, None, False), "Quadro RTX 6000": (130.5, None, False),
    "T4": (65.0, None, False), "V100": (125.0, None, False), "V100 PCIE": (112.0, None, False),
}  # fmt: skip

_BRANDS: Final = re.compile(r"\b(NVIDIA|GeForce|Tesla)\b ?")
_IGNORED_SUFFIX: Final = re.compile(r"\d+GB|SXM\d?|PCIE|HBM\d\w?|Generation|AC", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PeakFlops:
    """Peak rate of a card."""

    flops: float  # per second
    name: str  # card and arithmetic


def lookup_peak(device_name: str, precision: str, count: int = 1) -> PeakFlops | None:
    """Peak of `count` cards by CUDA device name, in `bf16`, `fp16` or `tf32`; None: unknown.

    None for `fp32` without TF32, which does not use tensor cores.
    """
    card = _card(device_name)
    if card is None or precision not in ("bf16", "fp16", "tf32"):
        return None
    half, tf32, has_bf16 = _geforce(card) if card in _GEFORCE else _OTHERS[card]
    tera = tf32 if precision == "tf32" else half if has_bf16 or precision == "fp16" else None
    cards = card if count == 1 else f"{count} × {card}"
    return None if tera is None else PeakFlops(count * tera * 1e12, f"{cards}, {precision}")


def _geforce(card: str) -> tuple[float, float | None, bool]:
    """Entry as in `_OTHERS`."""
    processors, clock = _GEFORCE[card]
    half, newer = processors * clock * 1e-3 * _PER_CYCLE, not card.startswith(_FP16_ONLY)
    return half, half / 2 if newer else None, newer


def _card(device_name: str) -> str | None:
    """Name of the card in the tables. Suffixes matter: a laptop GPU or a MIG instance is another card."""
    words = _BRANDS.sub("", device_name).replace("-", " ").split()
    for name in sorted((*_GEFORCE, *_OTHERS), key=len, reverse=True):
        parts = name.split()
        if words[: len(parts)] == parts and all(map(_IGNORED_SUFFIX.fullmatch, words[len(parts) :])):
            return name
    return None
