"""Wall time to the final loss of a plain loop: Traindeck's recipe compared with GPT-2 and AdamW on the same text.

    python -m bench.time_to_loss
    python -m bench.time_to_loss --recipe optimizer=muon learning_rate=0.02 batch_size=12
    python -m bench.time_to_loss --shape tiny --steps 60 --rounds 1          to try it

The plain loop (bench/peers/plain_gpt.py) is that of a small character-level GPT: 4 layers, 128 wide, 64 tokens,
batch 12, 2,000 steps of AdamW at 1e-3 falling to 1e-4. Its last held-out loss is the goal. Traindeck trains the same
text with the same tokenizer, split and sequence length by its real command; its learning rate falls to the end of the
steps it is given, which are fewer.

The time is from the start of a process to the report of the evaluation that reaches the goal, with imports, compilation
and all evaluations. Both evaluate all held-out tokens after the same numbers of tokens. The loops run in turn, with
another seed in each round.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench import corpus, measure, runs
from bench.runs import Shape, Trained

TARGET: Final = 1 / 3
RECIPE: Final[dict[str, Any]] = {
    "optimizer": "muon", "learning-rate": 1.2e-2, "muon-momentum": 0.7, "lr-schedule": "linear",
    "min-learning-rate-ratio": 0, "warmup-steps": 10, "batch-size": 24, "max-steps": 220, "qk-norm": True,
}  # fmt: skip
_EVALUATIONS: Final = 40  # of the plain loop, in its whole run
_FIRST_SEED: Final = 11


def reached(trained: Trained, goal: float) -> dict[str, Any] | None:
    """The first evaluation at or below the goal: seconds from the start, and without evaluations."""
    spent = 0.0
    for event in trained.of("eval"):
        spent += event["seconds"]
        if event["loss"] is not None and event["loss"] <= goal:
            since = event["t"] - trained.began
            return {
                "seconds": since,
                "without_evaluations": since - spent,
                "step": event["step"],
                "loss": event["loss"],
            }
    return None


def curve(trained: Trained) -> list[tuple[float, float]]:
    """Held-out loss against seconds from the start of the process."""
    return [(event["t"] - trained.began, event["loss"]) for event in trained.of("eval") if event["loss"] is not None]


def plain(shape: Shape, text: corpus.Corpus, args: argparse.Namespace, seed: int) -> Trained:
    every = max(1, args.steps // _EVALUATIONS)
    rate = ["--learning-rate", str(args.plain_rate), "--min-learning-rate", str(args.plain_rate / 10)]
    more = ["--eval-steps", str(every), "--seed", str(seed), "--beta2", "0.99", *rate]
    return runs.peer("plain_gpt", shape, text, args.steps, 10, [*more, *args.plain_flags])


def ours(shape: Shape, text: corpus.Corpus, folder: Path, args: argparse.Namespace, seed: int) -> Trained:
    """Run Traindeck's real command with the recipe; evaluations after as many tokens as in the plain loop."""
    recipe = {**RECIPE, **args.recipe}
    own = replace(
        shape,
        batch=int(recipe.pop("batch-size", shape.batch)),
        accumulation=int(recipe.pop("gradient-accumulation-steps", shape.accumulation)),
    )
    every = max(1, round(max(1, args.steps // _EVALUATIONS) * shape.tokens / own.tokens))
    settings = {"eval-steps": every, "eval-batches": 0, "seed": seed, **recipe}
    return runs.ours(own, text, folder / "run", None, 10, settings)


def measure_rounds(shape: Shape, text: corpus.Corpus, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run both in turn with several seeds."""
    rounds = []
    for number in range(args.rounds):
        seed = _FIRST_SEED + number
        theirs = plain(shape, text, args, seed)
        goal = float(theirs.of("eval")[-1]["loss"])
        mine = ours(shape, text, folder, args, seed)
        last = {"seconds": theirs.of("eval")[-1]["t"] - theirs.began, "first": reached(theirs, goal)}
        got = reached(mine, goal)
        best = min(event["loss"] for event in mine.of("eval"))
        rounds.append(
            {
                "seed": seed,
                "goal": goal,
                "plain": {**last, "parameters": theirs.parameters, "curve": curve(theirs)},
                "ours": {"reached": got, "best": best, "parameters": mine.parameters, "curve": curve(mine)},
                "compile_s": mine.first("compiled").get("compile_s"),
                "fast_paths": (mine.first("compiled") or mine.first("ready")).get("fast_paths"),
            }
        )
        when = "not reached" if got is None else f"reached after {got['seconds']:.1f} s"
        measure.log(f"round {number + 1}/{args.rounds}: {goal:.4f} after {last['seconds']:.1f} s; Traindeck: {when}")
    return {"rounds": rounds, **_summary(rounds)}


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    got = [one for one in rounds if one["ours"]["reached"] is not None]
    if not got:
        return {"reached": 0}
    shares = [one["ours"]["reached"]["seconds"] / one["plain"]["seconds"] for one in got]
    return {
        "reached": len(got),
        "share_of_time": measure.spread(shares),
        "share_of_time_to_its_best": measure.spread(
            [one["ours"]["reached"]["seconds"] / one["plain"]["first"]["seconds"] for one in got]
        ),
    }


def lines(shape: Shape, found: dict[str, Any]) -> list[str]:
    """A table with a row for each round, and the ratio."""
    head = ["seed", "loss to reach", "plain loop, s", "Traindeck, s", "at step", "without evaluations, s", "share"]
    rows: list[list[Any]] = []
    for one in found["rounds"]:
        got = one["ours"]["reached"]
        row = [str(one["seed"]), f"{one['goal']:.4f}", one["plain"]["seconds"]]
        if got is None:
            rows.append([*row, f"not reached (best {one['ours']['best']:.4f})", "–", "–", "–"])
        else:
            times = [got["seconds"], got["step"], got["without_evaluations"]]
            rows.append([*row, *times, f"{got['seconds'] / one['plain']['seconds']:.3f}"])
    output = [shape.describe(), "", measure.table(head, rows), ""]
    if found["reached"]:
        share = found["share_of_time"]
        output.append(
            f"{share['median']:.3f} of the plain loop's time ({share['min']:.3f} to {share['max']:.3f}; target: "
            f"at most {TARGET:.3f}); reached in {found['reached']} of {len(found['rounds'])} rounds"
        )
    return output


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not value:
        raise argparse.ArgumentTypeError(f"NAME=VALUE, not {text}")
    return name.replace("_", "-"), value


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.time_to_loss", description=__doc__)
    parser.add_argument("--shape", choices=list(runs.SHAPES), default="small")
    parser.add_argument("--vocab-size", type=int, help="default: that of the shape")
    parser.add_argument("--steps", type=int, default=2000, help="of the plain loop")
    parser.add_argument("--plain-rate", type=float, default=1e-3, help="its peak learning rate")
    parser.add_argument("--plain-flags", nargs="*", default=[], help="more for it, such as --plain-flags=--compile")
    parser.add_argument("--recipe", nargs="*", type=_pair, default=[], help="knobs of Traindeck as NAME=VALUE")
    parser.add_argument("--held-out", type=float, default=0.01, help="share of the text that is evaluated on")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    args = parser.parse_args()
    args.recipe = dict(args.recipe)
    machine = measure.machine()
    shape = runs.SHAPES[args.shape]
    shape = replace(shape, vocab_size=args.vocab_size or shape.vocab_size)
    with measure.work_folder(args.work) as folder:
        text = corpus.make(folder / "text", shape.vocab_size, args.held_out)
        found = measure_rounds(shape, text, folder, args)
    recipe = {**RECIPE, **args.recipe}
    document = {"shape": shape.describe(), "text": text.document(), "recipe": recipe, "steps": args.steps, **found}
    measure.report("time_to_loss", lines(shape, found), document, machine)


if __name__ == "__main__":
    main()
