"""Model FLOPs by formula, for MFU.

Model FLOPs utilization (MFU) = FLOPs per token * tokens/s / peak FLOP/s. FLOPs per token = 6 N + 6 L T D: two per
weight in forward and four in backward (N: weights that multiply, including the head, without embeddings), plus causal
attention, half of 12 L T D (PaLM, Chowdhery et al. 2022, appendix B). L layers, D width, T the mean document length
weighted by positions. Padding counts as tokens, because it is computed. Activation recomputation does not count.
"""

from __future__ import annotations

from trainer_core.models.decoder import Decoder


def flops_per_token(model: Decoder, length: float) -> float:
    """FLOPs of forward and backward per token of a document with `length` tokens."""
    config = model.config
    embedding = 0 if config.tie_embeddings else config.vocab_size * config.hidden_dim
    multiplying = model.count_parameters() - embedding
    return 6.0 * multiplying + 6.0 * config.n_layers * length * config.hidden_dim
