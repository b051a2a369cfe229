"""What loading batches costs: the loader alone, and the share of a real step that waits for it.

    python -m bench.loading
    python -m bench.loading --device cuda

First the loader alone, on a cache of random tokens with the settings of the preset gpt2_124m: batches made where they
are needed, by a thread, and by one and two processes. `wait` is how long the trainer stands still for a batch when it
does something else for 12 ms between two of them, as a fast GPU has it. Then training steps of that preset, by default
and (on a GPU) with processes, with the waiting as the trainer itself reports it. The vocabulary is that of the cache
(8,192), so steps are somewhat shorter than with GPT-2's, and the share that waits somewhat larger.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import measure, opening, texts

if TYPE_CHECKING:
    from trainer_core.data.batches import Loader

TARGET: Final = 0.01  # share of a step
PRESET: Final = "gpt2_124m"
WAYS: Final = {
    "when needed": (0, 0),
    "a thread": (0, 8),
    "1 process": (1, 0),
    "2 processes": (2, 0),
}  # processes, ahead
_STEP_S: Final = 0.012  # between two batches: a micro-batch of the preset on an H200
_WAITS: Final = 100
_ENOUGH: Final = 2.0  # seconds of measuring at full speed


# --- the loader alone ------------------------------------------------------------------------------


def alone(data: Path, cache: Path, flags: list[str], batch_size: int) -> dict[str, Any]:
    """Every way of loading one kind of sequences."""
    from trainer_core.config import Config
    from trainer_core.data.batches import Loader
    from trainer_core.data.prepare import prepare
    from trainer_core.report import Quiet

    found = {}
    for name, (processes, ahead) in WAYS.items():
        config = Config(
            data=[str(data)],
            cache_dir=str(cache),
            vocab_size=8192,
            max_seq_len=1024,
            batch_size=batch_size,
            num_workers=processes,
            prefetch_factor=4,
            packing="--packing" in flags,
            attend_across_documents="--no-attend-across-documents" not in flags,
        )
        loader = Loader(prepare(config, Quiet()), config)
        if ahead:
            loader.choice = replace(loader.choice, ahead=ahead)
        found[name] = _timed(loader)
        loader.close()
    return found


def _timed(loader: Loader) -> dict[str, float]:
    begun = time.perf_counter()
    batches = loader.iterate(0)
    next(batches)
    first = time.perf_counter()
    count = positions = filled = 0
    for batch in batches:
        count += 1
        positions += batch.input_ids.numel()
        filled += int(batch.input_ids.count_nonzero())  # what is padded is 0 (`<|endoftext|>`)
        if time.perf_counter() - first > _ENOUGH:
            break
    seconds = time.perf_counter() - first
    return {
        "first_ms": (first - begun) * 1000,
        "batch_ms": seconds / count * 1000,
        "positions_per_s": positions / seconds,
        "tokens_per_s": filled / seconds,
        "fill": filled / positions,
        "wait_ms": measure.spread(_waits(loader))["median"],
    }


def _waits(loader: Loader) -> list[float]:
    """Milliseconds that somebody stands still who asks for a batch now and then."""
    waits = []
    batches = loader.iterate(1)
    next(batches)
    for _ in range(min(_WAITS, loader.batches_per_epoch - 1)):
        time.sleep(_STEP_S)
        begun = time.perf_counter()
        next(batches)
        waits.append((time.perf_counter() - begun) * 1000)
    return waits


# --- in real steps ---------------------------------------------------------------------------------


def steps(data: Path, folder: Path, device: str, workers: int, count: int, size: tuple[int, int]) -> dict[str, Any]:
    """Train; the mean of all steps but the first two, which warm up."""
    run = folder / "run"
    settings = {
        "preset": PRESET, "data": data, "cache-dir": folder / "cache", "run-dir": run, "device": device,
        "vocab-size": 8192, "num-workers": workers, "batch-size": size[0], "gradient-accumulation-steps": size[1],
        "max-steps": count + 2, "log-steps": 1, "eval-steps": 0, "eval-batches": 1, "save-steps": 0, "sample-steps": 0,
        "output": "json",
    }  # fmt: skip
    if device == "cpu":
        settings["mixed-precision"] = "no"
    else:
        settings["compile"] = "on"  # a run so short would not be worth it, and slow steps hide what they wait for
    command = measure.trainer(
        "train", *(part for name, value in settings.items() for part in (f"--{name}", str(value)))
    )
    output = measure.run(command, {"TRAINDECK_HOME": str(folder / "cache")}).output
    measure.remove(run)
    events = [json.loads(line) for line in output.splitlines()]
    (ready,) = (event for event in events if event["type"] == "ready")
    times = [event["time_ms"] for event in events if event["type"] == "step"][2:]
    data_ms, step_ms = sum(one["data"] for one in times), sum(sum(one.values()) for one in times)
    loading = {name: ready[f"loader_{name}"] for name in ("workers", "ahead", "pinned", "reason")}
    return {"data_ms": data_ms / len(times), "step_ms": step_ms / len(times), "share": data_ms / step_ms, **loading}


# --- telling ---------------------------------------------------------------------------------------


def shown(found: dict[str, Any], trained: dict[str, Any], size: tuple[int, int]) -> list[str]:
    head = ["", "loaded", "first, ms", "a batch, ms", "M positions/s", "M tokens/s", "filled", "wait, ms"]
    rows = []
    for name, ways in found.items():
        for way, one in ways.items():
            rates = [one["positions_per_s"] / 1e6, one["tokens_per_s"] / 1e6]
            rows.append([name, way, one["first_ms"], one["batch_ms"], *rates, one["fill"], one["wait_ms"]])
    lines = [measure.table(head, rows), "", f"steps of {PRESET}, micro-batches of {size[0]}, {size[1]} a step:", ""]
    head = ["num_workers", "processes", "ahead", "reason", "a step, ms", "waits, ms", "share, %"]
    rows = [
        [name, one["workers"], one["ahead"], one["reason"], one["step_ms"], one["data_ms"], one["share"] * 100]
        for name, one in trained.items()
    ]
    lines += [measure.table(head, rows), "", f"target: under {TARGET:.0%} by default (num_workers -1)"]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.loading", description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--millions", type=float, default=20, help="tokens in the cache")
    parser.add_argument("--steps", type=int, help="default: 2 on a CPU, 20 on a GPU; 0: only the loader")
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    chosen = parser.parse_args()
    on_gpu = chosen.device == "cuda"
    count = chosen.steps if chosen.steps is not None else 20 if on_gpu else 2
    size = (12, 40) if on_gpu else (1, 2)  # as in the preset; a CPU takes minutes for that
    told, found, trained = measure.machine(), {}, {}
    with measure.work_folder(chosen.work) as folder:
        for kind in texts.COLUMNS:
            data = opening.make(folder, kind, int(chosen.millions * 1e6))
            for name, flags in opening.VARIANTS.items():
                if name.startswith("pairs") == (kind == "pairs"):
                    print(name, file=sys.stderr, flush=True)
                    found[name] = alone(data, folder / "cache", flags, 12)
            ways = (-1, 1, 2) if on_gpu else (-1,)  # on a CPU nothing of it could be seen
            for workers in ways if count and kind == "text" else ():
                print(f"training, num_workers {workers}", file=sys.stderr, flush=True)
                trained[str(workers)] = steps(data, folder, chosen.device, workers, count, size)
            measure.remove(folder / "cache")
    measure.report("loading", shown(found, trained, size), {"alone": found, "steps": trained}, told)


if __name__ == "__main__":
    main()
