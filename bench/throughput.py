"""Tokens per second of Traindeck, the Hugging Face Trainer and a plain GPT-2 loop at the same size and precision.

    python -m bench.throughput                    on a CPU: a small model and that of the quick start
    python -m bench.throughput --precision bf16   the same in bf16, on a CPU that computes it (AVX-512 BF16, AMX)
    python -m bench.throughput --device cuda      GPT-2's size (124M) at 1024 tokens in bf16
    python -m bench.throughput --shapes tiny --steps 20 --rounds 1     to try it

All run in turn, each in a new process. Traindeck is its real command with defaults, in a long run that is stopped after
the measured steps. The speed is the wall time between a process's own reports after a warmup: the median of a run, then
over the rounds; ratios are within each round. Compilation is excluded; the time to the first report is shown.

Llama models (Traindeck, Hugging Face) have three MLP matrices where GPT-2 has two. At the small sizes they have more
weights than the plain loop, to its advantage; at GPT-2's size as many.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import corpus, measure, runs
from bench.runs import Shape, Trained

OURS: Final = "Traindeck"
TARGETS: Final = {
    "cpu": {"Hugging Face Trainer": 1.3},
    "cuda": {"plain loop, compiled": 1.2, "Hugging Face Trainer": 1.5},
}
_SHAPES: Final = {"cpu": ["small", "quickstart"], "cuda": ["gpt2_124m"]}


def select_peers(device: str, peers: str) -> dict[str, tuple[str, list[str]]]:
    """Module and flags of each peer. `peers`: all, eager, or targets (those with a target)."""
    found: dict[str, tuple[str, list[str]]] = {
        "Hugging Face Trainer": ("hf_trainer", []),
        "plain loop": ("plain_gpt", []),
        "plain loop, compiled": ("plain_gpt", ["--compile"]),
    }
    if device != "cpu":
        found["Hugging Face Trainer, compiled"] = ("hf_trainer", ["--compile"])
    wanted = {
        "all": list(found),
        "eager": [name for name in found if "compiled" not in name],
        "targets": list(TARGETS[device]),
    }
    return {name: peer for name, peer in found.items() if name in wanted[peers]}


def measure_shape(shape: Shape, text: corpus.Corpus, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Run all in turn, several times. A peer that fails is left out from then on."""
    log_steps = max(1, args.steps // 20)
    warm = max(1, args.steps // 5)
    trainers: dict[str, Callable[[], Trained]] = {
        OURS: lambda: runs.ours(shape, text, folder / "run", args.steps, log_steps)
    }
    for name, (module, more) in select_peers(shape.device, args.peers).items():
        trainers[name] = partial(runs.peer, module, shape, text, args.steps, log_steps, more)
    found: dict[str, list[Trained]] = {name: [] for name in trainers}
    failed: dict[str, str] = {}
    for round_ in range(args.rounds):
        for name, work in trainers.items():
            if name in failed:
                continue
            try:
                found[name].append(work())
            except RuntimeError as error:
                failed[name] = str(error)
                measure.log(f"{name} failed: {error}")
                continue
            speed = shape.tokens / found[name][-1].step_ms(warm) * 1000
            measure.log(f"round {round_ + 1}/{args.rounds} {name}: {speed:,.0f} tokens/s")
    figures = {name: _figures(shape, done, warm) for name, done in found.items() if done and name not in failed}
    ratios = {name: _ratios(figures[OURS], one) for name, one in figures.items() if name != OURS and OURS in figures}
    return {"shape": shape.describe(), "trainers": figures, "times_as_fast": ratios, "failed": failed}


def _figures(shape: Shape, done: list[Trained], warm: int) -> dict[str, Any]:
    speeds = [shape.tokens / one.step_ms(warm) * 1000 for one in done]
    return {
        "parameters": done[0].parameters,
        "tokens_per_s": measure.spread(speeds),
        "each": speeds,
        "to_first_report_s": measure.spread([one.to_first_step for one in done]),
        "peak_vram": done[-1].peak_vram,
        "compile_s": done[-1].first("compiled").get("compile_s"),
        "fast_paths": (done[-1].first("compiled") or done[-1].first("ready")).get("fast_paths"),
        "mfu": done[-1].of("step")[-1].get("mfu"),
    }


def _ratios(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    each = [mine / other for mine, other in zip(ours["each"], theirs["each"], strict=False)]
    return {**measure.spread(each), "by_round": each}


def lines(device: str, found: dict[str, Any]) -> list[str]:
    """A table, and a sentence for each target."""
    head = ["", "weights", "tokens/s", "from", "to", "first report, s", "VRAM, MB", "Traindeck is"]
    rows = []
    for name, one in found["trainers"].items():
        speed, peak = one["tokens_per_s"], one["peak_vram"]
        ratio = found["times_as_fast"].get(name)
        times = "" if ratio is None else f"{ratio['median']:.2f} x ({ratio['min']:.2f} to {ratio['max']:.2f})"
        shown = "–" if peak is None else f"{peak / 1e6:,.0f}"
        first = one["to_first_report_s"]["median"]
        rows.append([name, one["parameters"], speed["median"], speed["min"], speed["max"], first, shown, times])
    output = [found["shape"], "", measure.table(head, rows), ""]
    for name, wanted in TARGETS[device].items():
        if name in found["times_as_fast"]:
            reached = found["times_as_fast"][name]["median"]
            output.append(f"against the {name}: {reached:.2f} times as fast (target: {wanted})")
    output += [f"{name} failed: {reason.splitlines()[0]}" for name, reason in found["failed"].items()]
    return [*output, ""]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.throughput", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shapes", nargs="+", choices=list(runs.SHAPES), help="default: by the device")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], help="default: of the shape")
    parser.add_argument("--steps", type=int, help="default: 400 on a CPU, 100 on a GPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", choices=["all", "eager", "targets"], default="all")
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    args = parser.parse_args()
    args.steps = args.steps or (400 if args.device == "cpu" else 100)
    machine, document, output = measure.machine(), {}, []
    with measure.work_folder(args.work) as folder:
        for name in args.shapes or _SHAPES[args.device]:
            shape = runs.SHAPES[name]
            shape = replace(shape, device=args.device, precision=args.precision or shape.precision)
            measure.log(shape.describe())
            text = corpus.make(folder / f"text-{shape.vocab_size}", shape.vocab_size)
            document[name] = measure_shape(shape, text, folder, args)
            output += lines(args.device, document[name])
    name = "throughput" if args.device == "cpu" else f"throughput-{args.device}"
    name += f"-{args.precision}" if args.precision else ""
    measure.report(name, output, {"steps": args.steps, "rounds": args.rounds, "shapes": document}, machine)


if __name__ == "__main__":
    main()
