"""Benchmarks compare on one GPU. The Hugging Face Trainer would take all that it sees and give each a batch of its own,
and a step of it would hold more tokens than are counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"  # environment: which GPUs a program may use, and in which order


def first_card(environ: Mapping[str, str]) -> str:
    """What `VISIBLE` is to be, so that a program sees the first GPU that it may use and no other; none stays none."""
    return environ.get(VISIBLE, "0").split(",")[0].strip()
