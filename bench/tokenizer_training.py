"""Training a tokenizer: ours against the trainer of `tokenizers`, on the same 100 MB.

    python -m bench.tokenizer_training                       English, Chinese and code; then Chinese alone
    python -m bench.tokenizer_training --megabytes 33.6 --vocab-size 32768

Each trains in a fresh process, in turn; peak memory is that of the whole process, from a run of its own. How well the
two tokenizers compress is compared on a text that neither has seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer

from bench import measure, texts

TARGET_SECONDS: Final = 30
TARGET_MB: Final = 1000
_UNSEEN: Final = 2  # MB
_WAYS: Final = ("ours", "tokenizers")


@dataclass(slots=True)
class Way:
    """One trainer: its measured runs."""

    name: str
    runs: list[measure.Finished] = field(default_factory=list)
    watched: measure.Finished | None = None

    def told(self, key: str) -> list[float]:
        return [json.loads(run.output.splitlines()[-1])[key] for run in self.runs]

    def document(self) -> dict[str, Any]:
        assert self.watched is not None
        return {
            "seconds": measure.spread(self.told("training")),
            "longest_silence": measure.spread(self.told("longest_silence")),
            "whole_seconds": measure.spread([run.seconds for run in self.runs]),
            "cpu_seconds": [run.cpu_seconds for run in self.runs],
            "watched": self.watched.document(),
        }


def rows(kind: str, seed: int) -> Iterator[texts.Row]:
    """Paragraphs without end; `chinese`: only those in which most characters take three bytes."""
    every = texts.endless("text", seed)
    return every if kind == "mixed" else (row for row in every if texts.utf8_size(row[0]) > 2 * len(row[0]))


def measured(folder: Path, kind: str, chosen: argparse.Namespace) -> dict[str, Any]:
    file = folder / f"{kind}.txt"
    written = texts.write(file, texts.until(rows(kind, seed=0), chosen.megabytes), "text")
    ways = [Way(name) for name in _WAYS]

    def run(way: Way, watched: bool) -> measure.Finished:
        command = [sys.executable, "-m", "bench.peers.tokenizer_trainer", way.name, str(file), str(_out(folder, way))]
        return measure.run([*command, "--vocab-size", str(chosen.vocab_size), "--kind", chosen.kind], watched=watched)

    for repetition in range(chosen.repetitions):
        for way in ways:
            way.runs.append(run(way, watched=False))
            print(f"{kind} {repetition + 1}/{chosen.repetitions} {way.name}: {way.runs[-1].seconds:.1f} s", flush=True)
    for way in ways:
        way.watched = run(way, watched=True)
    file.unlink()
    ours, theirs = (way.document() for way in ways)
    return {
        "text_bytes": written.text_bytes,
        **dict(zip(_WAYS, (ours, theirs), strict=True)),
        "times_as_fast": theirs["seconds"]["median"] / ours["seconds"]["median"],
        "share_of_memory": ours["watched"]["memory"]["peak"] / theirs["watched"]["memory"]["peak"],
        **_compared(kind, *(_out(folder, way) for way in ways)),
    }


def _out(folder: Path, way: Way) -> Path:
    return folder / f"{way.name}.json"


def _compared(kind: str, ours: Path, theirs: Path) -> dict[str, Any]:
    """Tokens of an unseen text, and how many merges are the same before the first that differs."""
    unseen = [text for (text,) in texts.until(rows(kind, seed=1), _UNSEEN)]
    counts = [
        sum(len(encoding) for encoding in Tokenizer.from_file(str(path)).encode_batch(unseen))
        for path in (ours, theirs)
    ]
    merges = [json.loads(path.read_bytes())["model"]["merges"] for path in (ours, theirs)]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*merges, strict=False)))
    common = len({tuple(one) for one in merges[0]} & {tuple(one) for one in merges[1]})
    return {
        "unseen_tokens": dict(zip(_WAYS, counts, strict=True)),
        "more_tokens": counts[0] / counts[1] - 1,
        "merges": len(merges[0]),
        "merges_same_from_the_start": same,
        "merges_in_both": common,
    }


def lines(kind: str, found: dict[str, Any]) -> list[str]:
    head = [kind, "seconds", "peak MB", "longest silence s", "tokens of unseen text"]
    rows = []
    for name in _WAYS:
        told = found[name]
        peak = told["watched"]["memory"]["peak"] / 1e6
        silence = told["longest_silence"]["median"]
        rows.append([name, told["seconds"]["median"], peak, silence, found["unseen_tokens"][name]])
    return [
        measure.table(head, rows),
        "",
        f"{found['times_as_fast']:.1f} times as fast with {found['share_of_memory']:.0%} of the memory "
        f"(targets: {TARGET_SECONDS} s, {TARGET_MB} MB); {found['more_tokens']:+.3%} tokens; "
        f"{found['merges_in_both']:,} of {found['merges']:,} merges are in both, "
        f"the first {found['merges_same_from_the_start']:,} in the same order",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tokenizer_training", description=__doc__)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--kind", choices=["gpt-2", "llama-bpe", "qwen2"], default="qwen2")
    parser.add_argument("--texts", nargs="+", choices=["mixed", "chinese"], default=["mixed", "chinese"])
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    chosen = parser.parse_args()
    told, document, shown = measure.machine(), {}, []
    with measure.work_folder(chosen.work) as folder:
        for kind in chosen.texts:
            document[kind] = measured(folder, kind, chosen)
            shown += lines(kind, document[kind])
    measure.report("tokenizer_training", shown, {**vars(chosen), **document}, told)


if __name__ == "__main__":
    main()
