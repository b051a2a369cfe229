"""Learning from preferences and rewards: speed and memory of Traindeck and TRL, and whether their losses are equal.

    python -m bench.preferences                     DPO with LoRA on a CPU: Qwen2's architecture, 30 million weights
    python -m bench.preferences --objective grpo    GRPO of the same model
    python -m bench.preferences --steps 6           to try it
    python -m bench.preferences --compare           losses and gradients of DPO, IPO, ORPO and KTO on the same rows

Both train adapters of rank 16 on all linear layers of the same base model (random weights) with AdamW at a constant
learning rate. DPO: the same English and Chinese pairs of up to 512 tokens an answer, 8 pairs per update. GRPO: the same
prompts, 8 per update, 8 answers of up to 64 tokens to each, 8 answers in a micro-batch, and a reward for short answers.

They run in turn, each in a new process. Pairs or answers per second: between the reports after a quarter of the steps
and after the last. Memory: the peak of the process and its children.

`--compare` loads the same small model in both, changes its weights by the same random numbers, so that it differs from
the reference, and computes loss and gradients of one batch in fp32.
"""

import argparse
import json
import shutil
import statistics
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bench import data, fine_tuning, processes, results, synthetic_texts

TARGETS: Final = {"speed": 1.5, "memory": 0.7}
UNITS: Final = {"dpo": "pairs", "grpo": "answers"}
COMPARED: Final = ("dpo", "ipo", "orpo", "kto")
_ROWS, _BATCH, _MAX_SEQ_LEN, _VOCAB = 400, 8, 512, 16_000
_GROUP, _NEW_TOKENS, _SHORT_CHARS = 8, 64, 100
_TOLERANCE: Final = 1e-4
# Nothing follows the end token: TRL trains on what the template writes there, Traindeck does not.
_TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_rows(path: Path, objective: str) -> None:
    """Prompts with two answers of different lengths, or with a reference."""
    rows = list(islice(synthetic_texts.pairs(), 2 * _ROWS))
    names = ("prompt", "chosen", "rejected") if objective == "dpo" else ("prompt", "response")
    found = [
        dict(zip(names, (prompt, chosen, rejected), strict=False))
        for (prompt, chosen), (_, rejected) in zip(rows[:_ROWS], rows[_ROWS:], strict=True)
    ]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found), encoding="utf-8")


def prepare_job(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the rows and the base model. Returns paths and settings, the same for both."""
    write_rows(folder / "rows.jsonl", arguments.objective)
    texts = folder / "texts.parquet"
    synthetic_texts.write(texts, islice(synthetic_texts.pairs(), 2000))
    fine_tuning.write_base_model(folder / "model", data.train_tokenizer(folder, str(texts), _VOCAB, sample_mib=8))
    return {
        "objective": arguments.objective, "per_step": _BATCH * (_GROUP if arguments.objective == "grpo" else 1),
        "group_size": _GROUP, "max_new_tokens": _NEW_TOKENS, "short_chars": _SHORT_CHARS,
        "model": str(folder / "model"), "data": str(folder / "rows.jsonl"), "steps": arguments.steps,
        "learning_rate": 1e-4, "batch_size": _BATCH, "max_seq_len": _MAX_SEQ_LEN, "beta": 0.1,
        "precision": "fp32", "seed": 1234, "output": str(folder / "adapter"),
    }  # fmt: skip


def run_trainer(name: str, job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train in a new process. Returns speed and memory."""
    if name == "Traindeck":
        knobs = {"objective": job["objective"], **_own_settings(job)}
        command = fine_tuning.traindeck_command(job, job["batch_size"], folder / "run", **knobs)
        env = {"TRAINDECK_HOME": str(folder)}
    else:
        command = processes.python("bench.peers.trl_preferences", job["objective"], json.dumps(job))
        env = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets")}
    finished = processes.run(command, env, sample_memory=True)
    return {
        "speed": job["per_step"] * finished.events.steps_per_s(),
        "memory": finished.memory["peak"] if finished.memory else 0,
        "losses": [step["loss"] for step in finished.events.of("step")],
    }


def _own_settings(job: dict[str, Any]) -> dict[str, Any]:
    if job["objective"] == "dpo":
        return {"preference_beta": job["beta"]}
    rewards = [f"length:-{job['short_chars']}"]
    limit = job["max_new_tokens"]
    return {"rewards": rewards, "group_size": job["group_size"], "rollout_max_new_tokens": limit}


def measure(job: dict[str, Any], folder: Path, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Run both in turn, several times."""
    runs: dict[str, list[dict[str, Any]]] = {"Traindeck": [], "TRL": []}
    for number in range(1, rounds + 1):
        for name, found in runs.items():
            shutil.rmtree(folder / "run", ignore_errors=True)
            run = run_trainer(name, job, folder)
            found.append(run)
            speed, memory = f"{run['speed']:.2f} {UNITS[job['objective']]}/s", f"{run['memory'] / 1e6:.0f} MB"
            results.log(f"round {number}/{rounds} {name}: {speed}, {memory}, last loss {run['losses'][-1]:.4f}")
    return runs


def format_runs(runs: dict[str, list[dict[str, Any]]], unit: str) -> list[str]:
    """A table, and the ratios: medians of those within each round."""
    rows = []
    for name, found in runs.items():
        speeds, memory = [run["speed"] for run in found], [run["memory"] / 1e6 for run in found]
        rows.append({
            "": name, f"{unit}/s": statistics.median(speeds), "from": min(speeds), "to": max(speeds),
            "peak MB": statistics.median(memory), "last loss": found[-1]["losses"][-1],
        })  # fmt: skip
    both = list(zip(*runs.values(), strict=True))
    faster = statistics.median(own["speed"] / other["speed"] for own, other in both)
    smaller = statistics.median(own["memory"] / other["memory"] for own, other in both)
    line = (
        f"Traindeck, against TRL: {faster:.2f} times the {unit}/s (target: {TARGETS['speed']}), "
        f"{smaller:.2f} of the memory (target: {TARGETS['memory']})"
    )
    return [results.markdown_table(rows), "", line]


# --- equality ------------------------------------------------------------------------------------------


def compare(folder: Path) -> list[dict[str, Any]]:
    """Loss, and largest relative difference of the gradients, of each objective."""
    texts = folder / "texts.parquet"
    synthetic_texts.write(texts, islice(synthetic_texts.pairs(), 500))
    fine_tuning.write_base_model(folder / "model", data.train_tokenizer(folder, str(texts), 2000, sample_mib=1))
    config = folder / "model" / "tokenizer_config.json"
    values = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({**values, "chat_template": _TEMPLATE}), encoding="utf-8")
    (folder / "model" / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
    rows = _short_rows()
    return [_compare_objective(folder, objective, rows) for objective in COMPARED]


def _short_rows() -> list[dict[str, Any]]:
    found = list(islice(synthetic_texts.pairs(), 2 * _BATCH))
    return [
        {"prompt": prompt[:60], "chosen": chosen[: 20 + 9 * number], "rejected": rejected[: 100 - 8 * number]}
        for number, ((prompt, chosen), (_, rejected)) in enumerate(zip(found[:_BATCH], found[_BATCH:], strict=True))
    ]


def _compare_objective(folder: Path, objective: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    if objective == "kto":
        labelled = [(row["prompt"], row["chosen" if n % 2 else "rejected"], n % 2 == 1) for n, row in enumerate(rows)]
        rows = [{"prompt": prompt, "completion": answer, "label": label} for prompt, answer, label in labelled]
    path = folder / f"{objective}.jsonl"
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    own_loss, own = _own_gradients(folder, objective, path)
    loss, gradients = _trl_gradients(folder, objective, rows)
    assert own.keys() == gradients.keys(), set(own) ^ set(gradients)
    error = max(
        float((own[name] - one).abs().max() / one.abs().max().clamp(min=1e-12)) for name, one in gradients.items()
    )
    equal = abs(own_loss - loss) <= _TOLERANCE and error <= _TOLERANCE
    return {"objective": objective, "Traindeck": own_loss, "TRL": loss, "gradients": error, "equal": equal}


def _own_gradients(folder: Path, objective: str, rows: Path) -> tuple[float, dict[str, Any]]:
    import numpy as np
    import torch

    from trainer_core.config import Config
    from trainer_core.data.loader import BatchLoader
    from trainer_core.data.prepare import prepare
    from trainer_core.generation.generate import load_model
    from trainer_core.progress import NullReporter
    from trainer_core.train.preferences import USES_REFERENCE, PreferenceLoss, all_reference_logps

    config = Config(
        data=[str(rows)], objective=objective, base_model=str(folder / "model"), tokenizer=str(folder / "model"),
        cache_dir=str(folder / "cache"), max_seq_len=_MAX_SEQ_LEN, batch_size=_BATCH, validation_fraction=0.0,
    )  # fmt: skip
    batches = BatchLoader(prepare(config, NullReporter()), config).iterate_samples(np.arange(_BATCH))
    model, batch = load_model(folder / "model", torch.device("cpu")).model, next(batches)
    if objective in USES_REFERENCE:
        batch = batch.with_reference(all_reference_logps(model, batch).numpy())
    _perturb(model)
    loss_of = PreferenceLoss(config)
    loss_of.prepare([batch])
    loss = loss_of(model, batch, chunk=64)[0] / batch.pairs
    loss.backward()
    return loss.item(), {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def _trl_gradients(folder: Path, objective: str, rows: list[dict[str, Any]]) -> tuple[float, dict[str, Any]]:
    from bench.peers import trl_preferences

    job = {
        "model": str(folder / "model"), "steps": 1, "learning_rate": 1e-4, "batch_size": _BATCH,
        "max_seq_len": _MAX_SEQ_LEN, "beta": 0.1, "precision": "fp32", "seed": 1, "output": str(folder / "adapter"),
    }  # fmt: skip
    trainer = trl_preferences.build_trainer(objective, job, rows, lora=False)
    inputs = trainer.data_collator([trainer.train_dataset[number] for number in range(_BATCH)])
    _perturb(trainer.model)
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    named = trainer.model.named_parameters()
    return float(loss), {name: weight.grad for name, weight in named if weight.grad is not None}


def _perturb(model: Any) -> None:
    """Add the same random numbers to the weights of one name."""
    import torch

    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            generator = torch.Generator().manual_seed(sum(name.encode()))
            weight += 0.01 * torch.randn(weight.shape, generator=generator)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.preferences", description=__doc__)
    parser.add_argument("--objective", choices=list(UNITS), default="dpo")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--compare", action="store_true")
    args = parser.parse_args()
    with results.benchmark("preferences-" + ("compared" if args.compare else args.objective)) as report:
        if args.compare:
            found = compare(report.folder)
            report.lines, report.document = [results.markdown_table(found)], {"compared": found}
        else:
            job = prepare_job(report.folder, args)
            runs = measure(job, report.folder, args.rounds)
            report.lines, report.document = format_runs(runs, UNITS[args.objective]), {"job": job, "runs": runs}
