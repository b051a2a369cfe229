"""Share by which a chat on the CPU slows a training run on the same CPU.

    python -m bench.chat_beside_training

A run in progress; in every other block of seconds, the window's generation process writes one text after another with a
model of 42 million weights. The result is the step rate of each such block relative to the mean of its neighbors.
"""

import argparse
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from app.core import command_line
from bench import data, results, training
from bench.processes import ChildProcess, python, run
from trainer_core.config import Config, to_dict
from trainer_core.messages.exit_codes import ExitCode

TARGET: Final = 0.1
_TOKENS: Final = 16  # of a text, so that blocks end soon
_CHAT: Final[dict[str, Any]] = {"n_layers": 12, "hidden_dim": 512, "n_heads": 8, "mlp_dim": 1536, "max_seq_len": 128}


def train_arguments(config: Config, run_dir: Path) -> list[str]:
    arguments = command_line.train_arguments(None, to_dict(config), config.data, str(run_dir))
    return python("trainer_core", *arguments, "--output", "json", "--control", "stdin")


def block_rates(config: Config, folder: Path, blocks: int, block_s: float) -> tuple[list[float], list[float]]:
    """Steps per second of each block, with a chat in the blocks 1, 3, ...; and the chat's tokens per second."""
    small = replace(config, **_CHAT, batch_size=1, max_steps=1)
    run(train_arguments(small, folder / "chat"), training.environment(config))
    generate = python("trainer_core", "generate", folder / "chat", "--control", "stdin", "--output", "json")
    trainer = ChildProcess(train_arguments(config, folder / "run"), training.environment(config))
    chat = ChildProcess([*generate, "--device", "cpu"], training.environment(config))
    starts, speeds, sent = list[float](), list[float](), 0
    try:
        trainer.wait_until(lambda events: len(events.of("step")) > 3)
        chat.wait_until(lambda events: bool(events.of("loaded")))
        for block in range(blocks):
            starts.append(time.time())
            written = 0
            while time.time() < starts[-1] + block_s:
                if block % 2 == 0:
                    time.sleep(0.1)
                    continue
                sent += 1
                chat.send(command="generate", id=sent, prompt="def f(", max_tokens=_TOKENS, seed=sent)
                if not chat.wait_until(lambda events: len(events.of("generated")) == sent):  # noqa: B023
                    raise RuntimeError(chat.describe_exit())
                written += chat.events[-1]["tokens"]
            speeds.append(written / (time.time() - starts[-1]))
        starts.append(time.time())
    finally:
        chat.kill()
        trainer.request_stop()
        trainer.wait(60, allowed=[ExitCode.STOPPED])
    steps = trainer.events.of("step")
    rates = []
    for began, ended in pairwise(starts):
        inside = [event for event in steps if began <= event["t"] < ended]
        rates.append((inside[-1]["step"] - inside[0]["step"]) / (inside[-1]["t"] - inside[0]["t"]))
    return rates, speeds[1::2]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.chat_beside_training", description=__doc__)
    parser.add_argument("--shapes", nargs="+", choices=["quickstart", "small"], default=["quickstart"])
    parser.add_argument("--blocks", type=int, default=13)
    parser.add_argument("--block-s", type=float, default=8)
    args = parser.parse_args()
    with results.benchmark("chat-beside-training") as report:
        report.document["runs"] = {}
        for shape in args.shapes:
            config = replace(training.CONFIGS[shape], log_steps=2, max_steps=1_000_000, compile="off")
            config = data.prepare_library(report.folder / f"text-{config.vocab_size}", config)
            rates, speeds = block_rates(config, report.folder / shape, args.blocks, args.block_s)
            shares = [1 - 2 * rates[n] / (rates[n - 1] + rates[n + 1]) for n in range(1, len(rates) - 1, 2)]
            report.document["runs"][shape] = {"rates": rates, "shares": shares, "chat_tokens_per_s": speeds}
            median, low, high = statistics.median(shares), min(shares), max(shares)
            report.lines += [
                f"{shape}: training is slower by {median:.1%} ({low:.1%} to {high:.1%})",
                f"while the chat writes {statistics.median(speeds):.1f} tokens/s (target: at most {TARGET:.0%})",
            ]
