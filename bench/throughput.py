"""Tokens a second of Traindeck, the Hugging Face Trainer and a plain GPT-2 loop: same size, tokens, precision, batch.

    python -m bench.throughput                    on a CPU: a small model and that of the quick start
    python -m bench.throughput --precision bf16   the same in bf16, on a CPU that computes it (AVX-512 BF16, AMX)
    python -m bench.throughput --device cuda      GPT-2's size (124M) at 1024 tokens in bf16
    python -m bench.throughput --shapes tiny --steps 20 --rounds 1     to try it

All take turns, each in a fresh process. Traindeck is its real command as it comes (`--preset` aside: the shape is
given), in a run planned long and stopped after the steps that are measured. The speed is that of the clock between a
process's own reports once it is warm; the median of a run, then over the rounds, and the ratio within each round.
Compiling is not in it; the time from the start of a process to its first report is shown beside it.

The Llama kind (Traindeck, Hugging Face) has three matrices in its MLP where GPT-2 has two. The small shapes have
somewhat more weights than the plain loop, which is to its advantage; GPT-2's size has as many.
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


def ways(device: str, peers: str) -> dict[str, tuple[str, list[str]]]:
    """The peers: their module and what it is told beside the shape. `peers`: all, those that are eager, or those that
    there are targets for."""
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
    return {name: way for name, way in found.items() if name in wanted[peers]}


def measured(shape: Shape, text: corpus.Corpus, folder: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    """All in turn, several times. A peer that fails is told and left out."""
    log_steps = max(1, chosen.steps // 20)
    warm = max(1, chosen.steps // 5)
    tried: dict[str, Callable[[], Trained]] = {
        OURS: lambda: runs.ours(shape, text, folder / "run", chosen.steps, log_steps)
    }
    for name, (module, more) in ways(shape.device, chosen.peers).items():
        tried[name] = partial(runs.peer, module, shape, text, chosen.steps, log_steps, more)
    found: dict[str, list[Trained]] = {name: [] for name in tried}
    failed: dict[str, str] = {}
    for round_ in range(chosen.rounds):
        for name, work in tried.items():
            if name in failed:
                continue
            try:
                found[name].append(work())
            except RuntimeError as error:
                failed[name] = str(error)
                measure.log(f"{name} failed: {error}")
                continue
            speed = shape.tokens / found[name][-1].step_ms(warm) * 1000
            measure.log(f"round {round_ + 1}/{chosen.rounds} {name}: {speed:,.0f} tokens/s")
    told = {name: _told(shape, done, warm) for name, done in found.items() if done and name not in failed}
    ratios = {name: _ratios(told[OURS], one) for name, one in told.items() if name != OURS and OURS in told}
    return {"shape": shape.describe(), "ways": told, "times_as_fast": ratios, "failed": failed}


def _told(shape: Shape, done: list[Trained], warm: int) -> dict[str, Any]:
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
    """A table and a sentence for each peer."""
    head = ["", "weights", "tokens/s", "from", "to", "first report, s", "VRAM, MB", "Traindeck is"]
    rows = []
    for name, one in found["ways"].items():
        speed, peak = one["tokens_per_s"], one["peak_vram"]
        ratio = found["times_as_fast"].get(name)
        times = "" if ratio is None else f"{ratio['median']:.2f} x ({ratio['min']:.2f} to {ratio['max']:.2f})"
        shown = "–" if peak is None else f"{peak / 1e6:,.0f}"
        first = one["to_first_report_s"]["median"]
        rows.append([name, one["parameters"], speed["median"], speed["min"], speed["max"], first, shown, times])
    told = [found["shape"], "", measure.table(head, rows), ""]
    for name, wanted in TARGETS[device].items():
        if name in found["times_as_fast"]:
            reached = found["times_as_fast"][name]["median"]
            told.append(f"against the {name}: {reached:.2f} times as fast (target: {wanted})")
    told += [f"{name} failed: {why.splitlines()[0]}" for name, why in found["failed"].items()]
    return [*told, ""]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.throughput", description=__doc__)
    made.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    made.add_argument("--shapes", nargs="+", choices=list(runs.SHAPES), help="default: by the device")
    made.add_argument("--precision", choices=["fp32", "bf16", "fp16"], help="default: as the shape has it")
    made.add_argument("--steps", type=int, help="default: 400 on a CPU, 100 on a GPU")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--peers", choices=["all", "eager", "targets"], default="all")
    made.add_argument("--work", help="folder for large files; default: bench/results")
    return made


def main() -> None:
    chosen = parser().parse_args()
    chosen.steps = chosen.steps or (400 if chosen.device == "cpu" else 100)
    told, document, shown = measure.machine(), {}, []
    with measure.work_folder(chosen.work) as folder:
        for name in chosen.shapes or _SHAPES[chosen.device]:
            shape = runs.SHAPES[name]
            shape = replace(shape, device=chosen.device, precision=chosen.precision or shape.precision)
            measure.log(shape.describe())
            text = corpus.make(folder / f"text-{shape.vocab_size}", shape.vocab_size)
            document[name] = measured(shape, text, folder, chosen)
            shown += lines(chosen.device, document[name])
    name = "throughput" if chosen.device == "cpu" else f"throughput-{chosen.device}"
    name += f"-{chosen.precision}" if chosen.precision else ""
    measure.report(name, shown, {"steps": chosen.steps, "rounds": chosen.rounds, "shapes": document}, told)


if __name__ == "__main__":
    main()
