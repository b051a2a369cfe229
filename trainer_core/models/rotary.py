"""Rotary positions (Su et al. 2021) in the half-rotation layout of Hugging Face, with scaled frequencies.

The formulas are those of `modeling_rope_utils.py` in transformers, in the same order of operations: at position 100,000
a difference of 1e-7 in a frequency is one of 1e-2 in the angle.

Shapes: B batch, H heads, T positions, C head width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trainer_core.models import cpu_ops
from trainer_core.models.model_config import RopeConfig, RopeScaling


def apply_rotary(x_BHTC: Tensor, cos_BTC: Tensor, sin_BTC: Tensor) -> Tensor:
    """Rotate: the first half of a head pairs with its second half."""
    if cpu_ops.is_supported(x_BHTC):
        return cpu_ops.apply_rotary(x_BHTC, cos_BTC, sin_BTC)
    first, second = x_BHTC.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return x_BHTC * cos_BTC.unsqueeze(1) + turned * sin_BTC.unsqueeze(1)


def rotary_table(rope: RopeConfig, head_dim: int, length: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine, each (length, C) in fp32, frequencies repeated (half-rotation)."""
    with torch.device("cpu"):
        frequencies, factor = _frequencies(rope, head_dim)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * factor, angles.sin() * factor


def rope_factors(rope: RopeConfig, head_dim: int) -> Tensor:
    """What the scaling divides each frequency by, (C / 2,)."""
    plain, _ = _frequencies(RopeConfig(theta=rope.theta), head_dim)
    scaled, _ = _frequencies(rope, head_dim)
    return plain / scaled


def _frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Frequencies (C / 2,), and the factor of cosine and sine."""
    powers = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    frequencies, scaling = 1.0 / powers, rope.scaling
    if scaling is None:
        return frequencies, 1.0
    if scaling.kind == "linear":
        return frequencies / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _scale_llama3(frequencies, scaling), 1.0
    return _scale_yarn(powers, rope.theta, head_dim, scaling), scaling.attention_factor


def _scale_llama3(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Llama 3.1: wavelengths longer than `original_positions / low_freq_factor` are scaled, those shorter than
    `original_positions / high_freq_factor` are not, those between in part.
    """
    length, low, high = scaling.original_positions, scaling.low_freq_factor, scaling.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    scaled = torch.where(wavelengths > length / low, frequencies / scaling.factor, frequencies)
    share = (length / wavelengths - low) / (high - low)
    blended = (1 - share) * scaled / scaling.factor + share * scaled
    between = ~(wavelengths < length / high) * ~(wavelengths > length / low)
    return torch.where(between, blended, scaled)


def _scale_yarn(powers: Tensor, theta: float, head_dim: int, scaling: RopeScaling) -> Tensor:
    """YaRN (Peng et al. 2023): dimensions with over `beta_fast` rotations within `original_positions` are not scaled,
    those with under `beta_slow` are, those between in part.
    """

    def dimension(rotations: float) -> float:
        return head_dim * math.log(scaling.original_positions / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    kept = 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return 1.0 / (scaling.factor * powers) * (1 - kept) + 1.0 / powers * kept
