"""Peak rates of NVIDIA GPUs: dense tensor-core rates with fp32 accumulation.

These are the rates that torch's matrix multiplication can reach; sparse rates (twice as high) and rates with fp16
accumulation do not apply. The tables list desktop GeForce cards since the 20 series, and data center and workstation
cards. The MFU of a GPU that is not listed is unknown. Laptop GPUs are left out because their clocks depend on the
configured power limit.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

# Source: specifications in NVIDIA's Turing, GA102, Ada and RTX Blackwell architecture whitepapers.
# FLOP/s = SMs * boost clock * FLOP per SM and cycle.
_GEFORCE: Final = {  # SMs, boost clock of the reference card in GHz
    "RTX 2070": (36, 1.620), "RTX 2080": (46, 1.710), "RTX 2080 Ti": (68, 1.545),
    "RTX 3060": (28, 1.777), "RTX 3060 Ti": (38, 1.665), "RTX 3070": (46, 1.725), "RTX 3070 Ti": (48, 1.770),
    "RTX 3080": (68, 1.710), "RTX 3080 Ti": (80, 1.665), "RTX 3090": (82, 1.695), "RTX 3090 Ti": (84, 1.860),
    "RTX 4060": (24, 2.460), "RTX 4060 Ti": (34, 2.535), "RTX 4070": (46, 2.475), "RTX 4070 SUPER": (56, 2.475),
    "RTX 4070 Ti": (60, 2.610), "RTX 4070 Ti SUPER": (66, 2.610), "RTX 4080": (76, 2.505),
    "RTX 4080 SUPER": (80, 2.550), "RTX 4090": (128, 2.520), "RTX 4090 D": (114, 2.520),
    "RTX 5060": (30, 2.497), "RTX 5060 Ti": (36, 2.572), "RTX 5070": (48, 2.512), "RTX 5070 Ti": (70, 2.452),
    "RTX 5080": (84, 2.617), "RTX 5090": (170, 2.407),
}  # fmt: skip
_FLOP_PER_SM_CYCLE: Final = 512  # in 16 bits, half of it in TF32; the same since the 20 series
_TURING_PREFIX: Final = "RTX 20"

# Source: data sheets. RTX PRO 6000: NVIDIA's RTX Blackwell PRO whitepaper (Workstation Edition), product page (Server
# Edition, TF32), data sheet (Max-Q, FP4). Where a data sheet has only sparse rates of narrower types, as in those
# whitepapers: 16-bit dense = FP8 sparse / 4 (RTX Ada) = FP4 sparse / 8 (RTX PRO).
# TFLOP/s in 16 bits (fp16, bf16) and in TF32. None: before Ampere, with neither bf16 nor TF32.
_DATA_SHEET_TFLOPS: Final[dict[str, tuple[float, float | None]]] = {
    "A2": (18.0, 9.0), "A10": (125.0, 62.5), "A30": (165.0, 82.0), "A40": (149.7, 74.8),
    "A100": (312.0, 156.0), "A800": (312.0, 156.0), "H20": (148.0, 74.0), "H100": (989.4, 494.7),
    "H100 NVL": (835.5, 417.5), "H100 PCIe": (756.0, 378.0), "H200": (989.4, 494.7), "H200 NVL": (835.5, 417.5),
    "H800": (989.4, 494.7), "GH200": (989.4, 494.7), "B200": (2250.0, 1125.0), "B300": (2250.0, 1125.0),
    "L4": (121.0, 60.0), "L40": (181.05, 90.5), "L40S": (362.05, 183.0), "RTX A2000": (31.9, 16.0),
    "RTX A4000": (76.7, 38.3), "RTX A4500": (94.6, 47.3), "RTX A5000": (111.1, 55.6), "RTX A6000": (154.8, 77.4),
    "RTX 6000 Ada": (364.2, 182.1), "RTX 4000 Ada": (106.9, 53.5), "RTX 5000 Ada": (261.1, 130.6),
    "RTX PRO 6000 Blackwell Workstation Edition": (503.8, 251.9),
    "RTX PRO 6000 Blackwell Max Q Workstation Edition": (438.9, 219.4),
    "RTX PRO 6000 Blackwell Server Edition": (468.0, 234.0),
    "TITAN RTX": (130.5, None), "Quadro RTX 6000": (130.5, None), "T4": (65.0, None), "V100": (125.0, None),
    "V100 PCIE": (112.0, None),
}  # fmt: skip

EXPECTED_MFU: Final = 0.4
"""Share of the peak that training is expected to use."""

_BRANDS: Final = re.compile(r"\b(NVIDIA|GeForce|Tesla)\b ?")
# Follows the name of the card: A100-SXM4-80GB, H100 80GB HBM3, RTX 5000 Ada Generation, B300 SXM6 AC.
_IGNORED_SUFFIX: Final = re.compile(r"\d+GB|SXM\d?|PCIE|HBM\d\w?|Generation|AC", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PeakFlops:
    """Peak rate of one or more GPUs."""

    flops_per_s: float
    name: str  # GPUs and precision


def lookup_peak(device_name: str, precision: str, gpus: int = 1) -> PeakFlops | None:
    """Return the peak rate of GPUs of a CUDA device name in `precision` (`bf16`, `fp16` or `tf32`).

    None if the card is not listed or lacks the precision, and for `fp32`, which does not use tensor cores.
    """
    card = _find_card(device_name)
    if card is None:
        return None
    tflops_16bit, tflops_tf32 = _geforce_tflops(card) if card in _GEFORCE else _DATA_SHEET_TFLOPS[card]
    is_ampere_or_later = tflops_tf32 is not None
    rates = {"fp16": tflops_16bit, "bf16": tflops_16bit if is_ampere_or_later else None, "tf32": tflops_tf32}
    tflops = rates.get(precision)
    if tflops is None:
        return None
    name = card if gpus == 1 else f"{gpus} × {card}"
    return PeakFlops(gpus * tflops * 1e12, f"{name}, {precision}")


def _geforce_tflops(card: str) -> tuple[float, float | None]:
    """Return the same as `_DATA_SHEET_TFLOPS` for a GeForce card."""
    sms, clock_ghz = _GEFORCE[card]
    tflops_16bit = sms * clock_ghz * 1e-3 * _FLOP_PER_SM_CYCLE
    return tflops_16bit, None if card.startswith(_TURING_PREFIX) else tflops_16bit / 2


def _find_card(device_name: str) -> str | None:
    """Return the name of the card in the tables, where "-" is a space. Other suffixes than those ignored name another
    card: a laptop GPU or a MIG instance.
    """
    words = _BRANDS.sub("", device_name).replace("-", " ").split()
    for name in sorted((*_GEFORCE, *_DATA_SHEET_TFLOPS), key=len, reverse=True):
        parts = name.split()
        if words[: len(parts)] == parts and all(map(_IGNORED_SUFFIX.fullmatch, words[len(parts) :])):
            return name
    return None
