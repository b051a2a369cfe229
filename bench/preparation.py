"""From text to token cache: `prepare` compared with `datasets.map` and the same tokenizer.

    python -m bench.preparation                 100,000 prompt/response rows in parquet, then plain text

Both encode the same file with the same tokenizer.json, each time in a new process with empty caches, in turn. Traindeck
is timed as a whole process; the peer as a whole process and as its `map` alone, in one process and with all cores. The
ratio is to the fastest of these. Peak memory is measured in a separate run. The ids of the first rows are compared.
"""

import argparse
import json
import os
import shutil
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow.compute as pc

from bench import data, processes, results
from bench.processes import Finished
from bench.synthetic_texts import pairs, paragraphs, take, write

TARGETS: Final = {"pairs": 4.0, "text": 3.0}
_COMPARED: Final = 2000  # rows, or ids of plain text
_VOCAB_SIZE: Final = 8192
_TOKENIZER_SAMPLE_MB: Final = 20
_WARMUP_MB: Final = 2


@dataclass(slots=True)
class Program:
    """Traindeck or a peer, and its runs. `num_proc`: of the peer's `map`; 0 is the parent process."""

    name: str
    folder: Path
    num_proc: int | None = None
    runs: list[Finished] = field(default_factory=list)

    def run(self, file: Path, tokenizer: Path, sample_memory: bool = False) -> Finished:
        """Run in a new process with empty caches."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.num_proc is None:
            return data.prepare(self.folder, {"data": [str(file)], "tokenizer": str(tokenizer)}, sample_memory)
        command = processes.python("bench.peers.datasets_map", file, self.folder / "saved", tokenizer, self.num_proc)
        env = {"HF_HOME": str(self.folder / "hf"), "HF_HUB_OFFLINE": "1"}
        return processes.run(command, env, sample_memory)

    @property
    def seconds(self) -> float:
        return median(run.seconds for run in self.runs)

    @property
    def stages(self) -> list[dict[str, float]]:
        """Seconds of each stage of the peer, by run."""
        return [json.loads(run.output.splitlines()[-1]) for run in self.runs]

    @property
    def map_seconds(self) -> float:
        return median(stages["map"] for stages in self.stages)

    def document(self, tokens: int, sampled: Finished) -> dict[str, Any]:
        """Measurements for JSON. `sampled`: the run whose memory was measured."""
        document = {
            "seconds": results.spread([run.seconds for run in self.runs]), "tokens_per_s": tokens / self.seconds,
            "cpu_seconds": [run.cpu_seconds for run in self.runs], "watched": sampled.document(),
        }  # fmt: skip
        if self.num_proc is not None:
            speed = tokens / self.map_seconds
            document |= {"stages": self.stages, "map_seconds": self.map_seconds, "map_tokens_per_s": speed}
        return document


def measure_file(file: Path, tokenizer: Path, repetitions: int) -> dict[str, Any]:
    """Run all programs in turn, several times; then once more each while memory is sampled."""
    folder = file.with_suffix("")
    traindeck = Program("traindeck", folder / "traindeck")
    single = Program("datasets one process", folder / "datasets-single", 0)
    parallel = Program("datasets all cores", folder / "datasets-parallel", os.cpu_count() or 1)
    for number in range(1, repetitions + 1):
        for program in (traindeck, single, parallel):
            program.runs.append(program.run(file, tokenizer))
            results.log(f"{file.stem} {number}/{repetitions} {program.name}: {program.runs[-1].seconds:.1f} s")
    sampled = {program.name: program.run(file, tokenizer, True) for program in (traindeck, single, parallel)}
    peer_tokens, comparison = compare(traindeck.folder, single.folder / "saved", file.stem)
    counts, (cache, _) = data.count(traindeck.folder), data.read_meta(traindeck.folder)
    if file.stem == "pairs" and peer_tokens != counts["tokens"]:  # text in pieces may differ by a token at their edges
        raise RuntimeError(f"{counts['tokens']} tokens, of the peer {peer_tokens}")
    documents = {traindeck.name: traindeck.document(counts["tokens"], sampled[traindeck.name])}
    for peer in (single, parallel):
        documents[peer.name] = peer.document(peer_tokens, sampled[peer.name])
    by_repetition = [  # because the machine's speed varies
        min(first["map"], second["map"]) / run.seconds
        for first, second, run in zip(single.stages, parallel.stages, traindeck.runs, strict=True)
    ]
    return {
        **counts, "peer_tokens": peer_tokens, "same_ids": comparison,
        "cache_bytes": sum(entry.stat().st_size for entry in cache.rglob("*") if entry.is_file()),
        "programs": documents, "target": TARGETS[file.stem],
        "ratio_to_whole_process": min(single.seconds, parallel.seconds) / traindeck.seconds,
        "ratio_to_map_alone": min(single.map_seconds, parallel.map_seconds) / traindeck.seconds,
        "ratio_to_map_alone_by_repetition": by_repetition,
    }  # fmt: skip


def compare(home: Path, saved: Path, kind: str) -> tuple[int, str]:
    """Compare the ids of the first rows. Returns the peer's number of tokens, and the result. Raises `RuntimeError`."""
    from datasets import load_from_disk  # type: ignore[import-untyped]

    rows, splits = load_from_disk(str(saved)), list(data.open_splits(home).values())
    peer_tokens = int(pc.sum(pc.list_value_length(rows.data.column("input_ids"))).as_py())
    first_rows = rows[:_COMPARED]["input_ids"]
    if kind == "pairs":  # each row is a document of either split
        documents = {
            tuple(split.read(start, stop).tolist())
            for split in splits
            for start, stop in pairwise(split.offsets[: 2 * _COMPARED].tolist())
        }
        different = sum(tuple(row) not in documents for row in first_rows)
        if different:
            raise RuntimeError(f"{different} of {len(first_rows)} rows have other ids")
        return peer_tokens, f"the first {len(first_rows):,} rows have the same ids"
    end_of_text = data.read_meta(home)[1]["end_of_text"]
    peer_ids = [token for row in first_rows for token in row]
    for split in splits:  # the text begins in either split
        ids = [token for token in split.read(0, min(split.tokens, _COMPARED)).tolist() if token != end_of_text]
        if ids and ids == peer_ids[: len(ids)]:
            return peer_tokens, f"the first {len(ids):,} ids are the same"
    raise RuntimeError("the ids of the text differ")


def format_lines(kind: str, measured: dict[str, Any]) -> list[str]:
    """A table and the ratios."""
    rows = []
    for name, program in measured["programs"].items():
        cpu, memory = program["cpu_seconds"], program["watched"]["memory"]
        rows.append({
            "": name, "whole s": program["seconds"]["median"],
            "map alone s": f"{program['map_seconds']:.1f}" if "map_seconds" in program else "–",
            "CPU s": "–" if None in cpu else f"{median(cpu):.1f}",
            "M tokens/s": program.get("map_tokens_per_s", program["tokens_per_s"]) / 1e6,
            "peak MB": memory["peak"] / 1e6, "processes": memory["processes"],
        })  # fmt: skip
    by_repetition = ", ".join(f"{ratio:.2f}" for ratio in measured["ratio_to_map_alone_by_repetition"])
    return [
        f"{kind}: {measured['documents']:,} documents, {measured['tokens']:,} tokens ({measured['peer_tokens']:,} of "
        f"the peer); {measured['same_ids']}\n",
        results.markdown_table(rows),
        f"\nwhole process against whole process: {measured['ratio_to_whole_process']:.2f} times as fast",
        f"whole process against map alone: {measured['ratio_to_map_alone']:.2f} times as fast ({by_repetition} by "
        f"repetition; target: {measured['target']:.0f})\n",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.preparation", description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="prompt/response rows; 0: leave them out")
    parser.add_argument("--text-megabytes", type=float, default=100, help="plain text; 0: leave it out")
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    if not find_spec("datasets") or not find_spec("transformers"):
        parser.error("the peers are not installed; see docs/performance.md")
    with results.benchmark("preparation") as report:
        sample = report.folder / "sample.txt"
        write(sample, take(paragraphs(seed=1), _TOKENIZER_SAMPLE_MB))
        tokenizer = data.train_tokenizer(report.folder, str(sample), _VOCAB_SIZE, _TOKENIZER_SAMPLE_MB + 1)
        inputs = {  # the rows to measure, and some for the warmup
            "pairs.parquet": (islice(pairs(), args.rows), take(pairs(), _WARMUP_MB)),
            "text.txt": (take(paragraphs(), args.text_megabytes), take(paragraphs(), _WARMUP_MB)),
        }
        report.document["vocab_size"] = _VOCAB_SIZE
        for name, (rows, warmup_rows) in inputs.items():
            file, warmup_file, warmup_folder = (report.folder / path for path in (name, f"warmup-{name}", "warmup"))
            written = write(file, rows)
            if written["rows"]:
                write(warmup_file, warmup_rows)  # loads program files into memory and compiles bytecode
                for program in (Program("traindeck", warmup_folder), Program("datasets", warmup_folder, 0)):
                    program.run(warmup_file, tokenizer)
                measured = measure_file(file, tokenizer, args.repetitions)
                report.document[file.stem] = {**written, **measured}
                report.lines += format_lines(file.stem, measured)
