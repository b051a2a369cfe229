"""Model FLOPs utilisation: what share of the card's arithmetic the training uses.

FLOPs per token = 6 N + 6 L T D: a multiply and an add per weight in forward and two of each in
backward (N: weights that multiply, the embedding look-up excluded, the head included), and causal
attention, half of 12 L T D (PaLM, Chowdhery et al. 2022, appendix B). Peaks are dense bf16/fp16
tensor-core rates from NVIDIA's data sheets; None where the card is not listed.
"""

from __future__ import annotations

from typing import Final

from trainer_core.model.decoder import Decoder

PEAK_TFLOPS: Final = {
    "RTX 3090": 71.0,
    "RTX A6000": 154.8,
    "RTX 4090": 165.2,
    "RTX 5090": 209.5,
    "A100": 312.0,
    "H100": 989.0,
    "H200": 989.0,
}


def flops_per_token(model: Decoder, sequence_length: int) -> float:
    """Floating-point operations of forward and backward for one token."""
    config = model.config
    embedding = 0 if config.tie_embeddings else config.vocab_size * config.hidden_dim
    multiplying = model.count_parameters() - embedding
    return 6.0 * multiplying + 6.0 * config.n_layers * sequence_length * config.hidden_dim


def peak_flops(device_name: str, precision: str) -> float | None:
    """The card's dense 16-bit rate in FLOP/s; None for unknown cards and for fp32."""
    if precision == "fp32":
        return None
    for name, tera in PEAK_TFLOPS.items():
        if name in device_name and "Laptop" not in device_name:
            return tera * 1e12
    return None
