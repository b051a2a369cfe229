"""Activation checkpointing: what backward needs is computed again instead of kept (Chen et al. 2016)."""

from __future__ import annotations

from typing import Literal

from trainer_core.model.decoder import Decoder


def checkpoint_activations(model: Decoder, mode: Literal["off", "selective", "full"]) -> None:
    """Train with less memory: `full` keeps only what goes from layer to layer; `selective` also the results of
    matrix products and attention. Gradients are those of `off`, dropout included. No name of a weight changes."""
