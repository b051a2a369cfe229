"""Peak memory of `prepare`, all its processes together, on data of 0.1, 1 and 5 GB.

    python -m bench.memory                          prompt/response rows in parquet
    python -m bench.memory --gigabytes 0.1 1

A gigabyte is 10⁹ bytes of text in UTF-8. Each size is prepared once, in a fresh process with a fresh cache, the
training of the tokenizer included. Needs about three times the largest size on disk.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from bench import measure, texts

TARGET_MB: Final = 600
TARGET_MANY_MB: Final = 1000  # with more than two processes


def measure_size(folder: Path, gigabytes: float, more: list[str]) -> dict[str, Any]:
    """Write the data, prepare it while memory is sampled, and remove both."""
    data, cache = folder / "data.parquet", folder / "cache"
    try:
        written = texts.write(data, texts.until(texts.pairs(), gigabytes * 1000), "pairs")
        command = measure.prepare_command([data], cache, more=more)
        finished = measure.run(command, {"TRAINDECK_HOME": str(cache)}, watched=True)
        _, meta = measure.finished_cache(cache)
    finally:
        data.unlink(missing_ok=True)
        measure.remove(cache)
    documents, tokens = measure.cache_counts(meta)
    counts = {"rows": written.rows, "text_bytes": written.text_bytes, "documents": documents, "tokens": tokens}
    return {**counts, **finished.document()}


def lines(found: list[dict[str, Any]]) -> list[str]:
    """A table with a row for each size."""
    head = ["text GB", "M tokens", "peak MB", "anonymous", "files", "shared", "processes", "each MB", "at s", "of s"]
    rows = []
    for one in found:
        memory = one["memory"]
        parts = [memory[name] / 1e6 for name in ("peak", "anonymous", "files", "shared")]
        counts = [one["text_bytes"] / 1e9, one["tokens"] / 1e6]
        each = " + ".join(f"{size / 1e6:.0f}" for size in memory["each"])
        rows.append([*counts, *parts, memory["processes"], each, memory["peak_at"], one["seconds"]])
    peak = max(one["memory"]["peak"] for one in found) / 1e6
    target = TARGET_MANY_MB if max(one["memory"]["processes"] for one in found) > 2 else TARGET_MB
    what = found[0]["memory"]["measure"]
    return [measure.table(head, rows), "", f"peak ({what} of all processes): {peak:.0f} MB; target: under {target} MB"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.1, 1, 5])
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    parser.add_argument("more", nargs="*", help="flags for prepare, after --")
    chosen = parser.parse_args()
    told, found = measure.machine(), []
    with measure.work_folder(chosen.work) as folder:
        for gigabytes in chosen.gigabytes:
            found.append(measure_size(folder, gigabytes, chosen.more))
            peak = found[-1]["memory"]["peak"] / 1e6
            measure.log(f"{gigabytes:g} GB: {peak:.0f} MB, {found[-1]['seconds']:.0f} s")
    measure.report("memory", lines(found), {"sizes": found}, told)


if __name__ == "__main__":
    main()
