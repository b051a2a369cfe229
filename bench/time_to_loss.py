"""Wall time to the final loss of a plain loop: Traindeck's recipe compared with GPT-2 and AdamW on the same text.

    python -m bench.time_to_loss
    python -m bench.time_to_loss --recipe optimizer=muon learning_rate=0.02 batch_size=12
    python -m bench.time_to_loss --shape tiny --steps 60 --rounds 1          to try it

The plain loop (bench/peers/plain_gpt.py) trains 4 layers, 128 wide, on 64 tokens, batch 12, for 2,000 steps of AdamW at
1e-3 falling to 1e-4. Its last held-out loss is the goal. Traindeck's real command trains on the same text with the same
tokenizer, split and sequence length. The time is from the start of a process to the evaluation that reaches the goal,
with imports, compilation and all evaluations. Both evaluate all held-out tokens after the same numbers of tokens. The
loops run in turn, with another seed in each round.
"""

import argparse
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bench import data, results, training
from bench.processes import ChildProcess, Events
from trainer_core.config import Config, check_value

TARGET: Final = 1 / 3
RECIPE: Final[dict[str, Any]] = {
    "optimizer": "muon", "learning_rate": 1.2e-2, "muon_momentum": 0.7, "lr_schedule": "linear",
    "min_learning_rate_ratio": 0.0, "warmup_steps": 10, "batch_size": 24, "max_steps": 220, "qk_norm": True,
}  # fmt: skip
_EVALUATIONS: Final = 40  # of the plain loop, in its whole run
_FIRST_SEED: Final = 11


def find_goal(events: Events, started_at: float, goal: float) -> dict[str, Any] | None:
    """The first evaluation at or below the goal: seconds from the start, and without evaluations."""
    evaluation_s = 0.0
    for event in events.of("eval"):
        evaluation_s += event["seconds"]
        if event["loss"] is not None and event["loss"] <= goal:
            seconds = event["t"] - started_at
            times = {"seconds": seconds, "without_evaluations": seconds - evaluation_s}
            return {**times, "step": event["step"], "loss": event["loss"]}
    return None


def describe_run(run: ChildProcess) -> dict[str, Any]:
    """Number of weights, and held-out losses against seconds from the start of the process."""
    evaluations = [event for event in run.events.of("eval") if event["loss"] is not None]
    curve = [(event["t"] - run.started_at, event["loss"]) for event in evaluations]
    return {"parameters": run.events.first("ready")["parameters"], "curve": curve}


def measure_round(plain_config: Config, config: Config, run_dir: Path) -> dict[str, Any]:
    """Run both with the same seed."""
    run = training.run_peer("plain_gpt", plain_config)
    plain = describe_run(run)
    plain["seconds"], goal = plain["curve"][-1]
    plain["first"] = find_goal(run.events, run.started_at, goal)
    run = training.run_traindeck(config, run_dir)
    ours = describe_run(run)
    ours["reached"] = reached = find_goal(run.events, run.started_at, goal)
    ours["best"] = min(loss for _, loss in ours["curve"])
    outcome = f"reached after {reached['seconds']:.1f} s" if reached else "not reached"
    results.log(f"seed {config.seed}: {goal:.4f} after {plain['seconds']:.1f} s; Traindeck: {outcome}")
    return {"seed": config.seed, "goal": goal, "plain": plain, "ours": ours, **training.compilation(run.events)}


def summarize(rounds: list[dict[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """A table with a row for each round and the time as a share of the plain loop's; the same for JSON."""
    rows, shares, shares_of_best = [], [], []
    for entry in rounds:
        plain, reached = entry["plain"], entry["ours"]["reached"]
        if reached:
            shares.append(reached["seconds"] / plain["seconds"])
            shares_of_best.append(reached["seconds"] / plain["first"]["seconds"])
        rows.append({
            "seed": str(entry["seed"]), "loss to reach": f"{entry['goal']:.4f}", "plain loop, s": plain["seconds"],
            "Traindeck, s": reached["seconds"] if reached else f"not reached (best {entry['ours']['best']:.4f})",
            "at step": reached["step"] if reached else "–",
            "without evaluations, s": reached["without_evaluations"] if reached else "–",
            "share": f"{shares[-1]:.3f}" if reached else "–",
        })  # fmt: skip
    if not shares:
        return [results.markdown_table(rows)], {"reached": 0}
    share, share_of_best = results.spread(shares), results.spread(shares_of_best)
    line = (
        f"\n{share['median']:.3f} of the plain loop's time ({share['min']:.3f} to {share['max']:.3f}; target: "
        f"at most {TARGET:.3f}); reached in {len(shares)} of {len(rounds)} rounds"
    )
    document = {"reached": len(shares), "share_of_time": share, "share_of_time_to_its_best": share_of_best}
    return [results.markdown_table(rows), line], document


def _knob(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, check_value(name, value, "--recipe")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.time_to_loss", description=__doc__)
    parser.add_argument("--shape", choices=list(training.CONFIGS), default="small")
    parser.add_argument("--steps", type=int, default=2000, help="of the plain loop")
    parser.add_argument("--recipe", nargs="*", type=_knob, default=[], help="knobs of Traindeck as NAME=VALUE")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    recipe = {**RECIPE, **dict(args.recipe)}
    with results.benchmark("time_to_loss") as report:
        shared = data.prepare_library(report.folder, training.CONFIGS[args.shape])
        eval_steps = max(1, args.steps // _EVALUATIONS)
        plain = replace(shared, max_steps=args.steps, eval_steps=eval_steps, learning_rate=1e-3, beta2=0.99)
        config = replace(shared, eval_batches=0, **recipe)
        eval_tokens = eval_steps * training.tokens_per_step(plain)  # between two evaluations
        config = replace(config, eval_steps=max(1, round(eval_tokens / training.tokens_per_step(config))))
        rounds = []
        for seed in range(_FIRST_SEED, _FIRST_SEED + args.rounds):
            rounds.append(measure_round(replace(plain, seed=seed), replace(config, seed=seed), report.folder / "run"))
        lines, summary = summarize(rounds)
        shape = training.describe(shared)
        tokens = {f"{name}_tokens": split.tokens for name, split in data.open_splits(report.folder).items()}
        report.lines = [shape, "", *lines]
        report.document = {"shape": shape, "text": tokens, "recipe": recipe, "steps": args.steps, "rounds": rounds}
        report.document |= summary
