"""Tokens per second of Traindeck, the Hugging Face Trainer and a plain GPT-2 loop at the same size and precision.

    python -m bench.throughput                    on a CPU: a small model and that of the quick start
    python -m bench.throughput --precision bf16   the same in bf16, on a CPU that computes it (AVX-512 BF16, AMX)
    python -m bench.throughput --device cuda      GPT-2's size (124M) at 1024 tokens in bf16
    python -m bench.throughput --shapes tiny --steps 20 --rounds 1     to try it

All run in turn, each in a new process. Traindeck is its real command, in a long run that is stopped after the measured
steps. It is compiled before the first one; by default the compiler competes with the first minute. The speed is the
wall time between events after a warmup and the compilation: the median of a run, then over the rounds; ratios are
within each round. At the small sizes the Llama models (Traindeck, Hugging Face) have more weights than the plain loop's
GPT-2, to its advantage; at GPT-2's size as many.
"""

import argparse
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from bench import data, results, training
from bench.processes import ChildProcess
from trainer_core.config import Config

TRAINDECK: Final = "Traindeck"
PEERS: Final = {  # module and `compile`
    "Hugging Face Trainer": ("hf_trainer", "off"),
    "plain loop": ("plain_gpt", "off"),
    "plain loop, compiled": ("plain_gpt", "on"),
    "Hugging Face Trainer, compiled": ("hf_trainer", "on"),
}
TARGETS: Final = {
    "cpu": {"Hugging Face Trainer": 1.3},
    "cuda": {"plain loop, compiled": 1.2, "Hugging Face Trainer": 1.5},
}
_SHAPES: Final = {"cpu": ["small", "quickstart"], "cuda": ["gpt2_124m"]}


def measure_shape(config: Config, run_dir: Path, steps: int, rounds: int, peers: list[str]) -> dict[str, Any]:
    """Run all in turn, several times. A trainer that fails is left out from then on."""
    results.log(training.describe(config))
    runs: dict[str, list[ChildProcess]] = {name: [] for name in (TRAINDECK, *peers)}
    speeds: dict[str, list[float]] = {name: [] for name in runs}
    failed: dict[str, str] = {}
    for number in range(1, rounds + 1):
        for name in [name for name in runs if name not in failed]:
            try:
                if name == TRAINDECK:
                    run = training.run_traindeck(replace(config, compile="on"), run_dir, stop_at_step=steps)
                else:
                    module, compiled = PEERS[name]
                    run = training.run_peer(module, replace(config, max_steps=steps, compile=compiled))
                speed = 1000 * training.tokens_per_step(config) / training.step_ms(run.events, max(1, steps // 5))
            except RuntimeError as error:
                failed[name] = str(error)
                results.log(f"{name} failed: {error}")
                continue
            runs[name].append(run)
            speeds[name].append(speed)
            results.log(f"round {number}/{rounds} {name}: {speed:,.0f} tokens/s")
    trainers, ratios = {}, {}
    for name in [name for name in runs if name not in failed]:
        events = runs[name][-1].events
        trainers[name] = {
            "parameters": events.first("ready")["parameters"],
            "tokens_per_s": results.spread(speeds[name]), "each": speeds[name],
            "to_first_report_s": results.spread([run.events.first("step")["t"] - run.started_at for run in runs[name]]),
            "peak_vram": events.first("done").get("peak_vram"),  # reserved by torch's allocator, bytes
            "mfu": events.of("step")[-1].get("mfu"), **training.compilation(events),
        }  # fmt: skip
        if name != TRAINDECK and TRAINDECK not in failed:
            by_round = [own / peer for own, peer in zip(speeds[TRAINDECK], speeds[name], strict=True)]
            ratios[name] = {**results.spread(by_round), "by_round": by_round}
    return {"shape": training.describe(config), "trainers": trainers, "times_as_fast": ratios, "failed": failed}


def format_shape(device: str, measured: dict[str, Any]) -> list[str]:
    """A table, and a line for each target."""
    ratios, rows = measured["times_as_fast"], []
    for name, trainer in measured["trainers"].items():
        speed, vram, ratio = trainer["tokens_per_s"], trainer["peak_vram"], ratios.get(name)
        rows.append({
            "": name, "weights": trainer["parameters"],
            "tokens/s": speed["median"], "from": speed["min"], "to": speed["max"],
            "first report, s": trainer["to_first_report_s"]["median"],
            "VRAM, MB": "–" if vram is None else f"{vram / 1e6:,.0f}",
            "Traindeck is": f"{ratio['median']:.2f} x ({ratio['min']:.2f} to {ratio['max']:.2f})" if ratio else "",
        })  # fmt: skip
    lines = [measured["shape"], "", results.markdown_table(rows), ""]
    for name, target in TARGETS[device].items():
        if name in ratios:
            lines.append(f"against the {name}: {ratios[name]['median']:.2f} times as fast (target: {target})")
    lines += [f"{name} failed: {reason.splitlines()[0]}" for name, reason in measured["failed"].items()]
    return [*lines, ""]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.throughput", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shapes", nargs="+", choices=list(training.CONFIGS), help="default: by the device")
    parser.add_argument("--precision", choices=["fp32", "bf16"], help="default: of the shape")
    parser.add_argument("--steps", type=int, help="default: 400 on a CPU, 100 on a GPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", choices=["all", "eager", "targets"], default="all")
    args = parser.parse_args()
    steps = args.steps or (400 if args.device == "cpu" else 100)
    peers = {  # of `--peers`
        "all": [name for name in PEERS if args.device != "cpu" or name != "Hugging Face Trainer, compiled"],
        "eager": [name for name, (_, compiled) in PEERS.items() if compiled == "off"],
        "targets": list(TARGETS[args.device]),
    }
    suffixes = [suffix for suffix in (args.device, args.precision) if suffix and suffix != "cpu"]
    with results.benchmark("-".join(["throughput", *suffixes])) as report:
        shapes = {}
        for name in args.shapes or _SHAPES[args.device]:
            config = replace(training.CONFIGS[name], device=args.device, log_steps=max(1, steps // 20))
            if args.precision:
                config = replace(config, mixed_precision="no" if args.precision == "fp32" else args.precision)
            config = data.prepare_library(report.folder / f"text-{config.vocab_size}", config)
            shapes[name] = measure_shape(config, report.folder / "run", steps, args.rounds, peers[args.peers])
            report.lines += format_shape(args.device, shapes[name])
        report.document = {"steps": steps, "rounds": args.rounds, "shapes": shapes}
