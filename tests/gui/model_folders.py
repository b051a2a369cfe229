"""Small models on disk for the tests of base models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.gui.runs_page import add_run
from trainer_core.base_model.catalogue import Shape
from trainer_core.runs import checkpoint_dir

SHAPE = Shape(
    model_type="llama", hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, vocab_size=300, tie_word_embeddings=True,
)  # fmt: skip


def write_model(folder: Path) -> Path:
    """A Llama model of 80,640 weights with matrices only, for 128 positions."""
    folder.mkdir(parents=True)
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "rms_norm_eps": 1e-5,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "tie_word_embeddings": True,
        "max_position_embeddings": 128,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# 模型\n", encoding="utf-8")
    save_file({name: np.zeros(shape, np.float32) for name, shape in SHAPE.matrices()}, folder / "model.safetensors")
    return folder


def add_model_run(home: Path, name: str) -> Path:
    """A finished run whose last checkpoint is such a model."""
    run = add_run(home, name)
    folder = checkpoint_dir.list_checkpoints(run / "checkpoints")[-1]
    shutil.rmtree(folder)
    write_model(folder)
    checkpoint_dir.write_manifest(folder, 60, "final", None)
    return run
