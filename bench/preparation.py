"""From text to token cache: `prepare` compared with `datasets.map` and the same tokenizer.

    python -m bench.preparation                 100,000 prompt/response rows in parquet, then plain text

Both encode the same file with the same tokenizer.json, each time in a new process with empty caches, in turn. Traindeck
is timed as a whole process with start, imports, hashing, encoding and flushing; the peer as a whole process and as its
`map` alone, in one process and with all cores. The ratio is against the fastest of these. Peak memory is measured in a
separate run. The ids of the first rows are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bench import measure, texts
from trainer_core.data.token_files import Split

COMPARED: Final = 2000  # rows whose ids are compared
_TARGETS: Final = {"pairs": 4.0, "text": 3.0}


@dataclass(slots=True)
class Program:
    """A program and its measured runs."""

    name: str
    processes: int  # of the peer's map; 0: one process; -1: Traindeck
    runs: list[measure.Finished] = field(default_factory=list)
    stages: list[dict[str, float]] = field(default_factory=list)  # seconds of import, load, map, save
    watched: measure.Finished | None = None

    def seconds(self) -> float:
        return measure.spread([one.seconds for one in self.runs])["median"]

    def map_seconds(self) -> float:
        return measure.spread([one["map"] for one in self.stages])["median"]


@dataclass(slots=True)
class Task:
    """The task of all programs: a file, a tokenizer, and a folder for output."""

    kind: texts.Kind
    data: Path
    tokenizer: Path
    folder: Path

    def run(self, program: Program, watched: bool = False) -> measure.Finished:
        """Run in a new process with empty caches."""
        out = self.out(program)
        measure.remove(out)
        if program.processes < 0:
            return measure.run(measure.prepare_command([self.data], out, self.tokenizer), _home(out), watched)
        command = [sys.executable, "-m", "bench.peers.datasets_map", str(self.data), str(out / "saved")]
        command += ["--tokenizer", str(self.tokenizer), "--num-proc", str(program.processes)]
        finished = measure.run(command, {"HF_HOME": str(out / "hf"), "HF_HUB_OFFLINE": "1"}, watched)
        if not watched:
            program.stages.append(json.loads(finished.output.splitlines()[-1]))
        return finished

    def out(self, program: Program) -> Path:
        return self.folder / program.name.replace(" ", "-")


def _home(out: Path) -> dict[str, str]:
    return {"TRAINDECK_HOME": str(out)}


# --- the same ids ----------------------------------------------------------------------------------


def compare(task: Task, ours: Path, peers: Path) -> str:
    """Compare the first rows; returns a sentence, or raises `RuntimeError`."""
    folder, meta = measure.finished_cache(ours)
    splits = [Split(folder / name, meta["vocab_size"]) for name in ("train", "validation")]
    try:
        if task.kind == "pairs":
            return _compare_rows(splits, peers)
        return _compare_stream(splits, peers, meta["end_of_text"])
    finally:
        for split in splits:
            split.close()


def _compare_rows(splits: list[Split], peers: Path) -> str:
    found = {ids for split in splits for ids in islice(_documents(split), 2 * COMPARED)}
    wanted = list(islice(_peer_rows(peers), COMPARED))
    same = sum(tuple(row) in found for row in wanted)
    if same < len(wanted):
        raise RuntimeError(f"only {same} of {len(wanted)} rows have the same ids")
    return f"the first {same:,} rows have the same ids"


def _documents(split: Split) -> Iterator[tuple[int, ...]]:
    for start, stop in zip(split.offsets[:-1].tolist(), split.offsets[1:].tolist(), strict=True):
        yield tuple(split.read(start, stop).tolist())


def _compare_stream(splits: list[Split], peers: Path, end_of_text: int) -> str:
    """Plain text has no rows here: compare the first stretch of it. Ours begins in either split."""
    wanted: list[int] = []
    for row in _peer_rows(peers):
        wanted += row
        if len(wanted) > 4 * COMPARED:
            break
    for split in splits:
        got = [one for one in split.read(0, min(split.tokens, COMPARED)).tolist() if one != end_of_text]
        if got and got == wanted[: len(got)]:
            return f"the first {len(got):,} ids are the same"
    raise RuntimeError("the ids of the text differ")


def _peer_rows(peers: Path) -> Iterator[list[int]]:
    """The ids of each row in a folder that datasets saved."""
    for table in _peer_tables(peers):
        yield from (row.as_py() for row in table["input_ids"])


def _peer_tables(peers: Path) -> Iterator[Any]:
    for file in sorted(peers.glob("data-*.arrow")):
        with pa.memory_map(str(file)) as source:
            yield from pa.ipc.open_stream(source)


def peer_tokens(peers: Path) -> int:
    return sum(len(batch["input_ids"].flatten()) for batch in _peer_tables(peers))


# --- measuring -------------------------------------------------------------------------------------


def measure_programs(task: Task, repetitions: int) -> dict[str, Any]:
    """Run all in turn, several times; then once more each with memory sampling."""
    cores = os.cpu_count() or 1
    ours, *peers = programs = [
        Program("traindeck", -1),
        Program("datasets one process", 0),
        Program("datasets all cores", cores),
    ]
    for repetition in range(repetitions):
        for program in programs:
            program.runs.append(task.run(program))
            measure.log(f"{task.kind} {repetition + 1}/{repetitions} {program.name}: {program.runs[-1].seconds:.1f} s")
    for program in programs:
        program.watched = task.run(program, watched=True)
    folder, meta = measure.finished_cache(task.out(ours))
    documents, tokens = measure.cache_counts(meta)
    words = compare(task, task.out(ours), task.out(peers[0]) / "saved")
    theirs = peer_tokens(task.out(peers[0]) / "saved")
    if task.kind == "pairs" and theirs != tokens:  # text in pieces may differ by a token at their edges
        raise RuntimeError(f"{tokens} tokens, of the peer {theirs}")
    counts = {"documents": documents, "tokens": tokens, "peer_tokens": theirs, "same_ids": words}
    counts["cache_bytes"] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {
        **counts,
        "programs": {program.name: _figures(program, tokens, theirs) for program in programs},
        **_ratios(task.kind, programs),
    }


def _figures(program: Program, tokens: int, theirs: int) -> dict[str, Any]:
    assert program.watched is not None
    count = tokens if program.processes < 0 else theirs
    figures: dict[str, Any] = {
        "seconds": measure.spread([one.seconds for one in program.runs]),
        "tokens_per_s": count / program.seconds(),
        "cpu_seconds": [one.cpu_seconds for one in program.runs],
        "watched": program.watched.document(),
    }
    if program.stages:
        figures |= {
            "stages": program.stages,
            "map_seconds": program.map_seconds(),
            "map_tokens_per_s": count / program.map_seconds(),
        }
    return figures


def _ratios(kind: str, programs: list[Program]) -> dict[str, Any]:
    ours, *peers = programs
    whole = min(peer.seconds() for peer in peers)
    alone = min(peer.map_seconds() for peer in peers)
    in_turn = [
        min(peer.stages[i]["map"] for peer in peers) / ours.runs[i].seconds for i in range(len(ours.runs))
    ]  # within each repetition, because the machine's speed varies
    return {
        "ratio_to_whole_process": whole / ours.seconds(),
        "ratio_to_map_alone": alone / ours.seconds(),
        "ratio_to_map_alone_by_repetition": in_turn,
        "target": _TARGETS[kind],
    }


def lines(kind: str, found: dict[str, Any]) -> list[str]:
    """A table and the ratios."""
    head = ["", "whole s", "map alone s", "CPU s", "M tokens/s", "peak MB", "processes"]
    rows = []
    for name, figures in found["programs"].items():
        memory = figures["watched"]["memory"]
        alone = figures.get("map_seconds")
        best = figures.get("map_tokens_per_s", figures["tokens_per_s"]) / 1e6
        alone_shown = "–" if alone is None else f"{alone:.1f}"
        cpu = "–" if None in figures["cpu_seconds"] else f"{measure.spread(figures['cpu_seconds'])['median']:.1f}"
        times = [figures["seconds"]["median"], alone_shown, cpu]
        rows.append([name, *times, best, memory["peak"] / 1e6, memory["processes"]])
    spans = ", ".join(f"{one:.2f}" for one in found["ratio_to_map_alone_by_repetition"])
    return [
        f"{kind}: {found['documents']:,} documents, {found['tokens']:,} tokens ({found['peer_tokens']:,} of the peer); "
        f"{found['same_ids']}",
        "",
        measure.table(head, rows),
        "",
        f"whole process against whole process: {found['ratio_to_whole_process']:.2f} times as fast",
        f"whole process against map alone: {found['ratio_to_map_alone']:.2f} times as fast ({spans} by repetition; "
        f"target: {found['target']:.0f})",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.preparation", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="prompt/response rows; 0: leave them out")
    parser.add_argument("--text-megabytes", type=float, default=100, help="plain text; 0: leave it out")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    chosen = parser.parse_args()
    if not {"datasets", "transformers"} <= packages_distributions().keys():
        parser.error("the peer is missing: pip install -c constraints.txt '.[bench]'")
    machine, document, output = measure.machine(), {}, []
    with measure.work_folder(chosen.work) as folder:
        tokenizer = measure.trained_tokenizer(folder, chosen.vocab_size)
        for kind, file in (("pairs", "pairs.parquet"), ("text", "text.txt")):
            size = chosen.rows if kind == "pairs" else chosen.text_megabytes
            if not size:
                continue
            made: Any = texts.rows(size) if kind == "pairs" else texts.until(texts.endless("text"), size)
            written = texts.write(folder / file, made, kind)  # type: ignore[arg-type]
            task = Task(kind, folder / file, tokenizer, folder / kind)  # type: ignore[arg-type]
            _warm_up(task)
            found = measure_programs(task, chosen.repetitions)
            document[kind] = {"rows": written.rows, "text_bytes": written.text_bytes, **found}
            output += lines(kind, found)
    measure.report("preparation", output, {"vocab_size": chosen.vocab_size, **document}, machine)


def _warm_up(task: Task) -> None:
    """Load program files into memory and compile bytecode, with a few rows."""
    small = task.folder.parent / f"few-{task.data.name}"
    texts.write(small, texts.until(texts.endless(task.kind), 2), task.kind)
    few = Task(task.kind, small, task.tokenizer, task.folder / "few")
    for program in (Program("traindeck", -1), Program("datasets", 0)):
        few.run(program)


if __name__ == "__main__":
    main()
