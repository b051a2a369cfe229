"""Peak memory of `prepare`, all its processes together, on data of 0.1, 1 and 5 GB.

    python -m bench.memory                          prompt/response rows in parquet
    python -m bench.memory --gigabytes 0.1 1

A gigabyte is 10⁹ bytes of text in UTF-8. Each size is prepared once, in a fresh process with a fresh cache, the
training of the tokenizer included. Needs about three times the largest size on disk.
"""

import argparse
import shutil
from pathlib import Path
from typing import Any, Final

from bench import data, results, synthetic_texts

TARGET_MB: Final = 600
TARGET_SEVERAL_PROCESSES_MB: Final = 1000  # with more than two processes


def measure_size(folder: Path, gigabytes: float) -> dict[str, Any]:
    """Write the data, prepare it while memory is sampled, and remove both."""
    file, home = folder / "data.parquet", folder / "home"
    written = synthetic_texts.write(file, synthetic_texts.take(synthetic_texts.pairs(), gigabytes * 1000))
    finished = data.prepare(home, {"data": [str(file)]}, sample_memory=True)
    measured = {**written, **data.count(home), **finished.document()}
    file.unlink()
    shutil.rmtree(home)
    results.log(f"{gigabytes:g} GB: {measured['memory']['peak'] / 1e6:.0f} MB, {finished.seconds:.0f} s")
    return measured


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.1, 1, 5])
    args = parser.parse_args()
    with results.benchmark("memory") as report:
        sizes = [measure_size(report.folder, gigabytes) for gigabytes in args.gigabytes]
        rows = []
        for size in sizes:
            memory = size["memory"]
            rows.append({
                "text GB": size["text_bytes"] / 1e9, "M tokens": size["tokens"] / 1e6, "peak MB": memory["peak"] / 1e6,
                "anonymous": memory["anonymous"] / 1e6, "files": memory["files"] / 1e6,
                "shared": memory["shared"] / 1e6, "processes": memory["processes"],
                "each MB": " + ".join(f"{process / 1e6:.0f}" for process in memory["each"]),
                "at s": memory["peak_at"], "of s": size["seconds"],
            })  # fmt: skip
        peak, measure = max(row["peak MB"] for row in rows), sizes[0]["memory"]["measure"]
        target = TARGET_SEVERAL_PROCESSES_MB if max(row["processes"] for row in rows) > 2 else TARGET_MB
        summary = f"\npeak ({measure} of all processes): {peak:.0f} MB; target: under {target} MB"
        report.lines, report.document = [results.markdown_table(rows), summary], {"sizes": sizes}
