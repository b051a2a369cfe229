"""Seconds from the start of a LoRA run to its first step, by phase.

    python -m bench.first_step                                              Qwen3-0.6B on a CPU
    python -m bench.first_step --model Qwen/Qwen3-1.7B --device cuda        another model of presets/models.yaml

The base model has that model's architecture and random weights in bf16. It was just written, so it is read from the
page cache. Each round begins without a token cache. `bench.gpu` trains such models too.
"""

import argparse
import json
import shutil
import statistics
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

from bench import data, fine_tuning, results, synthetic_texts, training
from bench.processes import ChildProcess
from trainer_core.base_model import catalogue
from trainer_core.base_model.catalogue import CatalogueModel
from trainer_core.config import Config
from trainer_core.models import hf_config
from trainer_core.models.build import build_model

MODELS: Final = {model.id: model for model in catalogue.load()}
TARGET_S: Final = 30.0
_TRAINED_VOCAB: Final = 16_000  # of the tokenizer; the model may have more
_SHARD_TENSORS: Final = 40


def prepare(folder: Path, model: CatalogueModel, config: Config, rows: int) -> Config:
    """Write question pairs, a tokenizer and the base model. Returns the configuration with them."""
    file, tokenizer = folder / "rows.parquet", folder / "tokenizer.json"
    if not tokenizer.exists():
        synthetic_texts.write(file, islice(synthetic_texts.pairs(), rows))
        vocab_size = min(_TRAINED_VOCAB, model.shape.vocab_size // 2)
        data.train_tokenizer(folder, str(file), vocab_size, sample_mib=8)
    write_base_model(folder / model.name, model, tokenizer)
    return replace(config, data=[str(file)], base_model=str(folder / model.name))


def write_base_model(folder: Path, model: CatalogueModel, tokenizer: Path) -> None:
    """A model folder with random weights in bf16, in shards. Needs the memory of one shard."""
    ids = fine_tuning.write_tokenizer(folder, tokenizer)
    shape = {**msgspec.structs.asdict(model.shape), "max_position_embeddings": model.context, "rms_norm_eps": 1e-6}
    (folder / "config.json").write_text(json.dumps({**shape, **ids, "torch_dtype": "bfloat16"}), encoding="utf-8")
    decoder = build_model(torch.device("meta"), hf_config.from_hf_config(shape, str(folder)), initialize=False)
    weights, files = list(decoder.named_parameters()), dict[str, str]()
    for start in range(0, len(weights), _SHARD_TENSORS):
        shard = {name: _random(weight) for name, weight in weights[start : start + _SHARD_TENSORS]}
        file = f"model-{start:05}.safetensors"
        save_file(shard, folder / file)
        files.update(dict.fromkeys(shard, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}), encoding="utf-8")


def _random(weight: torch.Tensor) -> torch.Tensor:
    """Values for a weight; ones for a norm or bias."""
    values = torch.ones(weight.shape, dtype=torch.bfloat16)
    return values if weight.dim() == 1 else values.normal_(std=0.02)


def measure(child: ChildProcess) -> tuple[float, dict[str, float]]:
    """Seconds from the start of a run to its first step event, and those of each phase."""
    ready, step = child.events.first("ready"), child.events.first("step")
    return step["t"] - child.started_at, {**ready["startup_s"], "first step": step["t"] - ready["t"]}


def format_phases(phases: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.first_step", description=__doc__)
    parser.add_argument("--model", choices=list(MODELS), default="Qwen/Qwen3-0.6B")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--max-seq-len", type=int, default=128)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with results.benchmark(f"first-step-{args.device}") as report:
        config = replace(training.LORA, device=args.device, max_seq_len=args.max_seq_len, batch_size=1)
        config = prepare(report.folder, MODELS[args.model], config, args.rows)
        measured = list[tuple[float, dict[str, float]]]()
        for number in range(1, args.rounds + 1):
            shutil.rmtree(report.folder / "cache", ignore_errors=True)
            seconds, phases = measure(training.run_traindeck(config, report.folder / "run", stop_at_step=1))
            measured.append((seconds, phases))
            report.lines.append(f"round {number}: {seconds:.1f} s ({format_phases(phases)})")
            results.log(report.lines[-1])
        median = statistics.median(seconds for seconds, _ in measured)
        report.lines.append(f"{args.model}: first step after {median:.1f} s (median; target: {TARGET_S:.0f} s)")
        report.document = {"model": args.model, "rounds": measured}
