"""Muon against AdamW at equal tokens: held-out loss, several seeds, each at its best learning rate.

    python -m bench.optimizers
    python -m bench.optimizers --shape tiny --steps 40 --seeds 1 --rates adamw=1e-3 muon=1e-2      to try it

First each learning rate of the sweep with the first seed, for both optimizers; then the best of each with the other
seeds. All is Traindeck's own command on the same text (the standard library's sources, a few million tokens) with the
same batches: the optimizer, its rate and the seed are all that differs. A best rate at an end of its sweep is said,
for then a better one may lie beyond. What an optimizer costs in time is shown beside its loss.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any, Final

from bench import chart, corpus, measure, runs
from bench.runs import Shape, Trained
from trainer_core.benchmark import svg

OPTIMIZERS: Final = ("adamw", "muon")
RATES: Final = {"adamw": [1e-3, 2e-3, 4e-3, 8e-3], "muon": [2.5e-3, 5e-3, 1e-2, 2e-2]}
_EVALUATIONS: Final = 20
_FIRST_SEED: Final = 21


def trained(
    shape: Shape, text: corpus.Corpus, folder: Path, optimizer: str, rate: float, seed: int, steps: int
) -> dict[str, Any]:
    """One run to its end."""
    settings = {
        "optimizer": optimizer, "learning-rate": rate, "seed": seed, "max-steps": steps, "eval-batches": 0,
        "eval-steps": max(1, steps // _EVALUATIONS), "warmup-steps": max(1, steps // 20),
    }  # fmt: skip
    run = runs.ours(shape, text, folder / "run", None, max(1, steps // 40), settings)
    losses = [(event["step"] * shape.tokens / 1e6, event["loss"]) for event in run.of("eval")]
    return {
        "optimizer": optimizer,
        "rate": rate,
        "seed": seed,
        "loss": _final(run),
        "curve": [point for point in losses if point[1] is not None],
        "step_ms": run.step_ms(warm=max(1, steps // 10)),
        "optimizer_ms": statistics.median(event["time_ms"]["optimizer"] for event in run.of("step")),
    }


def _final(run: Trained) -> float:
    """The last held-out loss; infinite where training broke."""
    loss = run.of("eval")[-1]["loss"]
    return float("inf") if loss is None else float(loss)


def measured(shape: Shape, text: corpus.Corpus, folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """The sweep, then the seeds, the optimizers taking turns."""
    sweep: dict[str, list[dict[str, Any]]] = {name: [] for name in OPTIMIZERS}
    most = max(map(len, chosen.rates.values()))
    for number in range(most):
        for name in OPTIMIZERS:
            for rate in chosen.rates[name][number : number + 1]:
                sweep[name].append(_told(trained(shape, text, folder, name, rate, _FIRST_SEED, chosen.steps)))
    best = {name: min(found, key=lambda one: one["loss"]) for name, found in sweep.items()}
    seeds: dict[str, list[dict[str, Any]]] = {name: [best[name]] for name in OPTIMIZERS}
    for seed in range(_FIRST_SEED + 1, _FIRST_SEED + chosen.seeds):
        for name in OPTIMIZERS:
            rate = best[name]["rate"]
            seeds[name].append(_told(trained(shape, text, folder, name, rate, seed, chosen.steps)))
    return {"sweep": sweep, "seeds": seeds}


def _told(one: dict[str, Any]) -> dict[str, Any]:
    _say(f"{one['optimizer']} {one['rate']:g} seed {one['seed']}: {one['loss']:.4f}")
    return one


def lines(shape: Shape, found: dict[str, Any]) -> list[str]:
    """Two tables, and what they come to."""
    head = ["optimizer", "learning rate", "held-out loss", "ms a step", "of it the optimizer"]
    rows = [
        [name, f"{one['rate']:g}", f"{one['loss']:.4f}", one["step_ms"], one["optimizer_ms"]]
        for name in OPTIMIZERS
        for one in found["sweep"][name]
    ]
    told = [shape.words(), "", measure.table(head, rows), ""]
    for name in OPTIMIZERS:
        rates = [one["rate"] for one in found["sweep"][name]]
        if len(rates) > 1 and found["seeds"][name][0]["rate"] in (min(rates), max(rates)):
            told.append(f"{name}: the best rate is at an end of its sweep; a better one may lie beyond")
    losses = {name: [one["loss"] for one in found["seeds"][name]] for name in OPTIMIZERS}
    head = ["at its best rate", "learning rate", "mean held-out loss", "least", "largest", "seeds"]
    rows = [
        [
            name,
            f"{found['seeds'][name][0]['rate']:g}",
            *(f"{value:.4f}" for value in (statistics.mean(values), min(values), max(values))),
            len(values),
        ]
        for name, values in losses.items()
    ]
    apart = [mine - theirs for mine, theirs in zip(losses["muon"], losses["adamw"], strict=True)]
    won = sum(one < 0 for one in apart)
    summed = f"muon is {statistics.mean(apart):+.4f} nats from adamw; lower in {won} of {len(apart)} seeds"
    return [*told, "", measure.table(head, rows), "", f"{summed} (target: lower)"]


def picture(path: Path, found: dict[str, Any]) -> None:
    """Held-out loss against tokens: all seeds at the best rates."""
    drawn = {
        f"{name} {one['rate']:g}, seed {one['seed']}": one["curve"][2:] or one["curve"]
        for name in OPTIMIZERS
        for one in found["seeds"][name]
    }
    chart.write(path, [svg.curves("Held-out loss at equal tokens", drawn, "million tokens", "nats a token")])


def _rates(text: str) -> tuple[str, list[float]]:
    name, _, values = text.partition("=")
    if name not in OPTIMIZERS:
        raise argparse.ArgumentTypeError(f"one of {', '.join(OPTIMIZERS)}, not {name}")
    return name, [float(value) for value in values.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.optimizers", description=__doc__)
    parser.add_argument("--shape", choices=list(runs.SHAPES), default="quickstart")
    parser.add_argument("--steps", type=int, default=1500, help="of each run: 3 million tokens of the quick start")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", nargs="*", type=_rates, default=[], help="such as muon=0.005,0.01")
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    chosen = parser.parse_args()
    chosen.rates = {**RATES, **dict(chosen.rates)}
    told, shape = measure.machine(), runs.SHAPES[chosen.shape]
    with measure.work_folder(chosen.work) as folder:
        text = corpus.make(folder / "text", shape.vocab_size)
        found = measured(shape, text, folder, chosen)
    picture(measure.RESULTS / "optimizers.svg", found)
    tokens = chosen.steps * shape.tokens
    document = {"shape": shape.words(), "text": text.document(), "steps": chosen.steps, "tokens": tokens, **found}
    measure.report("optimizers", lines(shape, found), document, told)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
