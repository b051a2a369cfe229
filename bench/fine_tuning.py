"""LoRA fine-tuning: rows per second and memory of Traindeck, the Hugging Face Trainer with PEFT, and TRL's SFTTrainer.

    python -m bench.fine_tuning                          a CPU: Qwen2's architecture with 30 million weights, fp32
    python -m bench.fine_tuning --precision bf16         the same with weights and computation in bf16
    python -m bench.fine_tuning --steps 10 --peers trl   to try it

All train adapters of rank 16 on all linear layers of the same base model (random weights), with 2,000 English and
Chinese rows of up to 512 tokens, 8 rows per update, the loss on the responses only, and AdamW at a constant learning
rate. Traindeck also runs with 4 rows at once; TRL also with packing, with as many packed sequences per update as hold
about 8 rows. All run in turn, each in a new process. Rows per second: between the reports after a quarter of the steps
and after the last. Memory: the peak of the process and its children. Afterwards `transformers` and `peft` load each
adapter and compute its loss on the same held-out rows.
"""

import argparse
import json
import shutil
import statistics
from itertools import islice, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow.parquet as pq

from app.core import command_line
from bench import data, processes, results, synthetic_texts

OWN: Final = {"Traindeck": 8, "Traindeck, micro-batches of 4": 4}  # rows at once; 8 per update
PEERS: Final = {"trainer": "Trainer + PEFT", "trl": "TRL", "trl-packed": "TRL, packed"}
TARGETS: Final = {"rows_per_s": 2.5, "memory": 0.5}
_ROWS, _HELD_OUT_ROWS, _BATCH_ROWS, _MAX_SEQ_LEN, _VOCAB = 2000, 64, 8, 512, 16_000
_LEARNING_RATE: Final = 1e-3
_MODEL: Final = {
    "model_type": "qwen2", "vocab_size": _VOCAB, "hidden_size": 512, "intermediate_size": 1408,
    "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}  # fmt: skip
_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_SPECIAL_TOKENS: Final = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}


def write_tokenizer(folder: Path, tokenizer: Path) -> dict[str, Any]:
    """Save a tokenizer with a chat template, as `save_pretrained` does. Returns its ids for `config.json`."""
    from transformers import PreTrainedTokenizerFast

    names = {**_SPECIAL_TOKENS, "chat_template": _CHAT_TEMPLATE}
    saved = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), **names)  # type: ignore[no-untyped-call]
    saved.save_pretrained(folder)
    return {"eos_token_id": saved.eos_token_id, "pad_token_id": saved.pad_token_id, "bos_token_id": None}


def write_base_model(folder: Path, tokenizer: Path) -> None:
    """A model folder with random weights, as `save_pretrained` writes it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    ids = write_tokenizer(folder, tokenizer)
    values = {name: value for name, value in _MODEL.items() if name != "model_type"}
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(_MODEL["model_type"], **values, **ids)).save_pretrained(
        folder
    )


def prepare_job(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the rows and the base model. Returns paths and settings, the same for all trainers."""
    rows = synthetic_texts.pairs()
    files = {"data": folder / "rows.parquet", "held_out": folder / "held-out.parquet"}
    synthetic_texts.write(files["data"], islice(rows, _ROWS))
    synthetic_texts.write(files["held_out"], islice(rows, _HELD_OUT_ROWS))
    tokenizer = data.train_tokenizer(folder, str(files["data"]), _VOCAB, sample_mib=8)
    write_base_model(folder / "model", tokenizer)
    job = {
        "model": str(folder / "model"), **{name: str(path) for name, path in files.items()}, "steps": arguments.steps,
        "learning_rate": _LEARNING_RATE, "batch_size": _BATCH_ROWS, "max_seq_len": _MAX_SEQ_LEN,
        "precision": arguments.precision, "seed": 1234,
    }  # fmt: skip
    mean = _mean_tokens(job)
    job["packed_batch_size"] = round(_BATCH_ROWS * mean / _MAX_SEQ_LEN)
    job["rows_per_sequence"] = _MAX_SEQ_LEN / mean
    return job


def _mean_tokens(job: dict[str, Any]) -> float:
    """Tokens of a row after truncation."""
    from transformers import AutoTokenizer

    from bench.peers import hf_fine_tuning

    tokenizer, rows = AutoTokenizer.from_pretrained(job["model"]), pq.read_table(job["data"]).to_pylist()
    return float(np.mean([len(hf_fine_tuning.encode(row, tokenizer, _MAX_SEQ_LEN)["input_ids"]) for row in rows]))


def traindeck_command(job: dict[str, Any], micro_batch: int, run_dir: Path, **changed: Any) -> list[str]:
    """`changed`: settings other than those of fine-tuning on answers."""
    knobs = {
        "base_model": job["model"], "method": "lora", "max_steps": job["steps"], "max_seq_len": job["max_seq_len"],
        "batch_size": micro_batch, "gradient_accumulation_steps": job["batch_size"] // micro_batch,
        "learning_rate": job["learning_rate"], "lr_schedule": "constant",
        "warmup_steps": 0, "weight_decay": 0.0, "beta2": 0.999, "log_steps": 1, "device": "cpu",
        "mixed_precision": "no" if job["precision"] == "fp32" else job["precision"], "validation_fraction": 0.0,
        "eval_steps": 0, "save_steps": 0, "keep_best": 0, "sample_steps": 0, "sample_tokens": 1, "advice": False,
        "seed": job["seed"], **changed,
    }  # fmt: skip
    arguments = command_line.train_arguments(None, knobs, [job["data"]], str(run_dir))
    return processes.python("trainer_core", *arguments, "--output", "json")


def run_trainer(name: str, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train in a new process. Returns speed, memory and the folder of the adapter."""
    output = folder / f"adapter-{name}"
    if name in OWN:
        command, env = traindeck_command(job, OWN[name], folder / "run"), {"TRAINDECK_HOME": str(folder)}
    else:
        command = processes.python("bench.peers.hf_fine_tuning", name, json.dumps({**job, "output": str(output)}))
        env = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets")}
    finished = processes.run(command, env, sample_memory=True)
    events = finished.events
    rows_per_step = job["batch_size"] if name != "trl-packed" else job["packed_batch_size"] * job["rows_per_sequence"]
    return {
        "rows_per_s": rows_per_step * events.steps_per_s(),
        "memory": finished.memory["peak"] if finished.memory else 0, "seconds": finished.seconds,
        "trainable_parameters": events.first("ready")["trainable_parameters"],
        "adapter": events.first("done")["model"] if name in OWN else str(output),
    }  # fmt: skip


def evaluate_adapter(job: dict[str, Any], adapter: str) -> float:
    """Mean loss in nats per response token of the held-out rows, by transformers and peft in fp32."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from bench.peers import hf_fine_tuning

    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(job["model"]), adapter)
    total, count = 0.0, 0
    for row in pq.read_table(job["held_out"]).to_pylist():
        encoded = hf_fine_tuning.encode(row, tokenizer, job["max_seq_len"])
        labels = torch.tensor([encoded["labels"]])
        learned = int((labels[:, 1:] != hf_fine_tuning.IGNORED).sum())
        with torch.no_grad():
            loss = model(input_ids=torch.tensor([encoded["input_ids"]]), labels=labels).loss
        total, count = total + float(loss) * learned, count + learned
    return total / count


def measure(job: dict[str, Any], folder: Path, names: list[str], rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Run all in turn, several times."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(1, rounds + 1):
        for name in names:
            shutil.rmtree(folder / "run", ignore_errors=True)
            run = run_trainer(name, job, folder)
            if number == rounds:
                run["loss"] = evaluate_adapter(job, run["adapter"])
            runs[name].append(run)
            results.log(f"round {number}/{rounds} {name}: {run['rows_per_s']:.2f} rows/s, {run['memory'] / 1e6:.0f} MB")
    return runs


def format_runs(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A table, and a line for each target. Ratios are medians of those within each round."""
    rows, lines = [], []
    for name, found in runs.items():
        speeds, memory = [run["rows_per_s"] for run in found], [run["memory"] / 1e6 for run in found]
        rows.append({
            "": PEERS.get(name, name), "rows/s": statistics.median(speeds), "from": min(speeds), "to": max(speeds),
            "peak MB": statistics.median(memory), "loss": found[-1]["loss"],
        })  # fmt: skip
    for name, peer in product(OWN, filter(PEERS.get, runs)):
        pairs = list(zip(runs[name], runs[peer], strict=True))
        faster = statistics.median(one["rows_per_s"] / other["rows_per_s"] for one, other in pairs)
        smaller = statistics.median(one["memory"] / other["memory"] for one, other in pairs)
        lines.append(
            f"{name}, against {PEERS[peer]}: {faster:.2f} times the rows/s (target: {TARGETS['rows_per_s']}), "
            f"{smaller:.2f} of the memory (target: {TARGETS['memory']})"
        )
    return [results.markdown_table(rows), "", *lines]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.fine_tuning", description=__doc__)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peers", nargs="*", choices=list(PEERS), default=list(PEERS))
    args = parser.parse_args()
    with results.benchmark(f"fine-tuning-{args.precision}") as report:
        job = prepare_job(report.folder, args)
        runs = measure(job, report.folder, [*OWN, *args.peers], args.rounds)
        report.lines, report.document = format_runs(runs), {"job": job, "runs": runs}
