"""From text to token cache: `traindeck prepare` against `datasets.map` with the same tokenizer.

    python -m bench.preparation                 100,000 prompt/response rows in parquet, then plain text

Both encode the same file with the same tokenizer.json, each time in a fresh process with fresh caches, in turn. Ours
is timed as a whole process: start, imports, hashing the data, encoding, flushing to disk. The peer is timed as a
whole process and as its `map` alone, in one process (whose tokenizer uses all cores) and with all cores; the ratio
that counts is against the fastest of these, which is the least favourable to us. Peak memory is measured in a run of
its own. The ids of the first rows are compared.
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
class Way:
    """One way to do the work: its measured runs."""

    name: str
    processes: int  # of the peer's map; 0: in one process; -1: not the peer
    runs: list[measure.Finished] = field(default_factory=list)
    stages: list[dict[str, float]] = field(default_factory=list)  # seconds of import, load, map, save
    watched: measure.Finished | None = None

    def seconds(self) -> float:
        return measure.spread([one.seconds for one in self.runs])["median"]

    def map_seconds(self) -> float:
        return measure.spread([one["map"] for one in self.stages])["median"]


@dataclass(slots=True)
class Work:
    """The same work for all: a file, a tokenizer, and a folder for what comes out."""

    kind: texts.Kind
    data: Path
    tokenizer: Path
    folder: Path

    def run(self, way: Way, watched: bool = False) -> measure.Finished:
        """Do it in a fresh process with fresh caches; what came out before is removed first."""
        out = self.folder / way.name.replace(" ", "-")
        measure.remove(out)
        if way.processes < 0:
            return measure.run(measure.prepare_command([self.data], out, self.tokenizer), _home(out), watched)
        command = [sys.executable, "-m", "bench.peers.datasets_map", str(self.data), str(out / "saved")]
        command += ["--tokenizer", str(self.tokenizer), "--num-proc", str(way.processes)]
        finished = measure.run(command, {"HF_HOME": str(out / "hf"), "HF_HUB_OFFLINE": "1"}, watched)
        if not watched:
            way.stages.append(json.loads(finished.output.splitlines()[-1]))
        return finished

    def out(self, way: Way) -> Path:
        return self.folder / way.name.replace(" ", "-")


def _home(out: Path) -> dict[str, str]:
    return {"TRAINDECK_HOME": str(out)}


# --- the same ids ----------------------------------------------------------------------------------


def compare(work: Work, ours: Path, peers: Path) -> str:
    """In words, how the first rows of both agree; raises `RuntimeError` where they do not."""
    folder, meta = measure.finished_cache(ours)
    splits = [Split(folder / name, meta["vocab_size"]) for name in ("train", "validation")]
    try:
        if work.kind == "pairs":
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


def measured(work: Work, repetitions: int) -> dict[str, Any]:
    """All ways in turn, several times; then once more each, watched."""
    cores = os.cpu_count() or 1
    ours, *peers = ways = [Way("traindeck", -1), Way("datasets one process", 0), Way("datasets all cores", cores)]
    for repetition in range(repetitions):
        for way in ways:
            way.runs.append(work.run(way))
            measure.log(f"{work.kind} {repetition + 1}/{repetitions} {way.name}: {way.runs[-1].seconds:.1f} s")
    for way in ways:
        way.watched = work.run(way, watched=True)
    folder, meta = measure.finished_cache(work.out(ours))
    documents, tokens = measure.cache_counts(meta)
    words = compare(work, work.out(ours), work.out(peers[0]) / "saved")
    theirs = peer_tokens(work.out(peers[0]) / "saved")
    if work.kind == "pairs" and theirs != tokens:  # a text in pieces may differ by a token where pieces meet
        raise RuntimeError(f"{tokens} tokens, of the peer {theirs}")
    counts = {"documents": documents, "tokens": tokens, "peer_tokens": theirs, "same_ids": words}
    counts["cache_bytes"] = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {**counts, "ways": {way.name: _told(way, tokens, theirs) for way in ways}, **_ratios(work.kind, ways)}


def _told(way: Way, tokens: int, theirs: int) -> dict[str, Any]:
    assert way.watched is not None
    count = tokens if way.processes < 0 else theirs
    told: dict[str, Any] = {
        "seconds": measure.spread([one.seconds for one in way.runs]),
        "tokens_per_s": count / way.seconds(),
        "cpu_seconds": [one.cpu_seconds for one in way.runs],
        "watched": way.watched.document(),
    }
    if way.stages:
        told |= {"stages": way.stages, "map_seconds": way.map_seconds(), "map_tokens_per_s": count / way.map_seconds()}
    return told


def _ratios(kind: str, ways: list[Way]) -> dict[str, Any]:
    ours, *peers = ways
    whole = min(peer.seconds() for peer in peers)
    alone = min(peer.map_seconds() for peer in peers)
    in_turn = [
        min(peer.stages[i]["map"] for peer in peers) / ours.runs[i].seconds for i in range(len(ours.runs))
    ]  # each repetition by itself: the machine's speed may have changed between them
    return {
        "ratio_to_whole_process": whole / ours.seconds(),
        "ratio_to_map_alone": alone / ours.seconds(),
        "ratio_to_map_alone_by_repetition": in_turn,
        "target": _TARGETS[kind],
    }


def lines(kind: str, found: dict[str, Any]) -> list[str]:
    """What was found, as a table and a few sentences."""
    head = ["", "whole s", "map alone s", "CPU s", "M tokens/s", "peak MB", "processes"]
    rows = []
    for name, told in found["ways"].items():
        memory = told["watched"]["memory"]
        alone = told.get("map_seconds")
        best = told.get("map_tokens_per_s", told["tokens_per_s"]) / 1e6
        alone_shown = "–" if alone is None else f"{alone:.1f}"
        cpu = "–" if None in told["cpu_seconds"] else f"{measure.spread(told['cpu_seconds'])['median']:.1f}"
        times = [told["seconds"]["median"], alone_shown, cpu]
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
    told, document, shown = measure.machine(), {}, []
    with measure.work_folder(chosen.work) as folder:
        tokenizer = measure.trained_tokenizer(folder, chosen.vocab_size)
        for kind, file in (("pairs", "pairs.parquet"), ("text", "text.txt")):
            size = chosen.rows if kind == "pairs" else chosen.text_megabytes
            if not size:
                continue
            made: Any = texts.rows(size) if kind == "pairs" else texts.until(texts.endless("text"), size)
            written = texts.write(folder / file, made, kind)  # type: ignore[arg-type]
            work = Work(kind, folder / file, tokenizer, folder / kind)  # type: ignore[arg-type]
            _warm_up(work)
            found = measured(work, chosen.repetitions)
            document[kind] = {"rows": written.rows, "text_bytes": written.text_bytes, **found}
            shown += lines(kind, found)
    measure.report("preparation", shown, {"vocab_size": chosen.vocab_size, **document}, told)


def _warm_up(work: Work) -> None:
    """Files of the programs into memory, bytecode onto disk: on a few rows, not counted."""
    small = work.folder.parent / f"few-{work.data.name}"
    texts.write(small, texts.until(texts.endless(work.kind), 2), work.kind)
    few = Work(work.kind, small, work.tokenizer, work.folder / "few")
    for way in (Way("traindeck", -1), Way("datasets", 0)):
        few.run(way)


if __name__ == "__main__":
    main()
