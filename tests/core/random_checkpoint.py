"""Checkpoints of small models with random weights, whose greedy text does not repeat itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.unit.model_folders import load_codec
from trainer_core.data.column_mapping import Task
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.models import hf_config
from trainer_core.models.build import build_model
from trainer_core.models.decoder import Decoder
from trainer_core.runs import checkpoint_dir
from trainer_core.train.checkpoint_writer import write_tensors

TOKENIZERS = {"llama": "llama3", "mistral": "mistral", "qwen2": "qwen2.5", "qwen3": "qwen3", "gemma3_text": "gemma"}


class RandomCheckpoint(NamedTuple):
    folder: Path
    model: Decoder
    codec: Codec

    @torch.no_grad()
    def generate(self, ids: list[int], count: int) -> list[int]:
        """Greedy tokens after `ids`, up to `count` or one that ends the text."""
        found = list(ids)
        while len(found) < len(ids) + count and (len(found) == len(ids) or found[-1] not in self.codec.stop_token_ids):
            found.append(int(self.model(torch.tensor([found]))[0, -1, : self.model.config.n_tokens].argmax()))
        return found[len(ids) :]


def write_checkpoint(
    folder: Path, values: dict[str, Any], tokenizer: str = "", task: Task = "sft", dtype: torch.dtype = torch.float32
) -> RandomCheckpoint:
    """`values`: of `config.json`, without the vocabulary. `tokenizer`: name in `tests.unit.model_folders`."""
    folder.mkdir(parents=True)
    codec = load_codec(tokenizer or TOKENIZERS[values["model_type"]])
    sizes = {"vocab_size": -(-codec.vocab_size // 64) * 64, "used_vocab_size": codec.vocab_size}
    config = hf_config.read_decoder({**values, **sizes}, "test")
    torch.manual_seed(1)
    model = build_model(torch.device("cpu"), config).eval()
    assert isinstance(model, Decoder)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim > 1:
                weight.normal_(0.0, 0.3 / config.embedding_scale**1.5 if "embed" in name else 0.3)
            else:
                weight.add_(torch.randn_like(weight) * 0.2)
            weight.copy_(weight.to(dtype))
    tied = {"lm_head.weight"} if config.tie_embeddings else set()
    weights = {name: weight.to(dtype) for name, weight in model.state_dict().items() if name not in tied}
    write_tensors(folder / "model.safetensors", weights)
    written = hf_config.to_hf_config(config, codec.end_of_turn, codec.pad_token_id)
    (folder / "config.json").write_text(json.dumps(written), encoding="utf-8")
    codec.save(folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_bytes(codec.config_json(task))
    checkpoint_dir.write_manifest(folder, 1, "final", None)
    return RandomCheckpoint(folder, model, codec)
