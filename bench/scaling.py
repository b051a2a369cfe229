"""Whether preparation time grows with the number of rows and no faster: three sizes up to 10 million short rows.

    python -m bench.scaling
    python -m bench.scaling --millions 0.25 0.5 1

Each size is prepared several times, in turn, in fresh processes with fresh caches and a given tokenizer. A straight
line is fitted to the medians by least squares; its residuals are shown, and the exponent b of time = a · rows^b after
the start-up (the line's intercept) is taken off.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import measure, texts

PROMPT, RESPONSE = (10, 40), (20, 120)  # characters of short rows
_PART: Final = 1_000_000  # rows in a file: larger sizes are more of the same files


def write_parts(folder: Path, rows: int) -> list[Path]:
    """Parquet files of at most a million rows each, all different."""
    paths = []
    for number, start in enumerate(range(0, rows, _PART)):
        path = folder / f"part-{number:03d}.parquet"
        made = texts.rows(min(_PART, rows - start), number, PROMPT, RESPONSE)
        texts.write(path, made, "pairs")
        paths.append(path)
        print(f"{path.name} written", file=sys.stderr, flush=True)
    return paths


def fit(rows: list[int], seconds: list[float]) -> dict[str, Any]:
    """Seconds = fixed + per_million * millions of rows, by least squares."""
    millions = np.array(rows) / 1e6
    slope, fixed = np.polyfit(millions, seconds, 1)
    expected = fixed + slope * millions
    without_start = np.maximum(np.array(seconds) - max(0.0, fixed), 1e-9)
    exponent = np.polyfit(np.log(millions), np.log(without_start), 1)[0]
    return {
        "fixed_s": float(fixed),
        "s_per_million": float(slope),
        "expected_s": expected.tolist(),
        "residuals_s": (np.array(seconds) - expected).tolist(),
        "exponent": float(exponent),
        "r_squared": float(np.corrcoef(millions, seconds)[0, 1] ** 2),
    }


def lines(sizes: list[dict[str, Any]], line: dict[str, Any]) -> list[str]:
    head = ["M rows", "M tokens", "s", "s, the line", "off by %", "s per M rows", "M tokens/s"]
    rows = []
    for one, expected in zip(sizes, line["expected_s"], strict=True):
        seconds, millions, tokens = one["seconds"]["median"], one["rows"] / 1e6, one["tokens"] / 1e6
        off = 100 * (seconds - expected) / expected
        rows.append([millions, tokens, seconds, expected, off, seconds / millions, tokens / seconds])
    told = (
        f"{line['fixed_s']:.1f} s + {line['s_per_million']:.2f} s per million rows, R² {line['r_squared']:.5f}; "
        f"without the start it grows as rows^{line['exponent']:.3f}"
    )
    return [measure.table(head, rows), "", told]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scaling", description=__doc__)
    parser.add_argument("--millions", type=float, nargs="+", default=[2.5, 5, 10], help="rows; three sizes or more")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    chosen = parser.parse_args()
    counts = sorted(round(millions * 1e6) for millions in chosen.millions)
    told = measure.machine()
    with measure.work_folder(chosen.work) as folder:
        tokenizer = measure.trained_tokenizer(folder, chosen.vocab_size)
        runs: dict[int, list[float]] = {count: [] for count in counts}
        meta: dict[int, dict[str, Any]] = {}
        data = {count: write_parts(folder / str(count), count) for count in counts}
        for _ in range(chosen.repetitions):
            for count in counts:
                cache = folder / "cache"
                command = measure.prepare_command(data[count], cache, tokenizer)
                runs[count].append(measure.run(command, {"TRAINDECK_HOME": str(cache)}).seconds)
                _, meta[count] = measure.finished_cache(cache)
                measure.remove(cache)
                print(f"{count / 1e6:g} M rows: {runs[count][-1]:.1f} s", file=sys.stderr, flush=True)
    sizes = []
    for count in counts:
        documents, tokens = measure.cache_counts(meta[count])
        assert documents == count, f"{documents} documents of {count} rows"
        sizes.append({"rows": count, "tokens": tokens, "runs_s": runs[count], "seconds": measure.spread(runs[count])})
    line = fit(counts, [one["seconds"]["median"] for one in sizes])
    measure.report("scaling", lines(sizes, line), {"sizes": sizes, "fit": line}, told)


if __name__ == "__main__":
    main()
