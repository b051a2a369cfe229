"""Reports of the benchmarks: the machine, Markdown tables, JSON files."""

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psutil

from bench.processes import ROOT
from trainer_core.system import hardware

RESULTS: Final = ROOT / "bench" / "results"
_PACKAGES: Final = ("numpy", "pyarrow", "tokenizers", "gigatoken", "datasets", "transformers", "accelerate", "torch")


@dataclass(slots=True)
class Report:
    """Result of a benchmark. `folder`: a temporary folder in bench/results."""

    folder: Path
    lines: list[str] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)


@contextmanager
def benchmark(name: str) -> Iterator[Report]:
    """Context of a benchmark. Afterwards, print the report and write it to bench/results/NAME.json."""
    machine = describe_machine()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=RESULTS, ignore_cleanup_errors=True) as folder:
        report = Report(Path(folder))
        yield report
    path = write_json(name, {"machine": machine, **report.document})
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    print(
        f"{machine['command']}\n{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}, {versions}; commit {machine['commit']}; "
        f"load before: {machine['load_before'][0]}; {machine['date']}\n"
    )
    print(*report.lines, f"\n{path}", sep="\n")


def log(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def describe_machine() -> dict[str, Any]:
    """Hardware, versions, commit (with a + for uncommitted changes) and load."""
    machine, spec = hardware.probe(), sys.modules["__main__"].__spec__
    module = spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).stem
    return {
        "cpu": machine.cpu_name, "cores": machine.cpu_threads, "memory_gib": round(machine.ram_total / 2**30, 1),
        "system": machine.platform, "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in _PACKAGES if find_spec(name)},
        "commit": subprocess.getoutput(f'git -C "{ROOT}" describe --always --dirty=+'),
        "load_before": [round(load, 2) for load in psutil.getloadavg()], "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": " ".join(["python", "-m", module, *sys.argv[1:]]),
    }  # fmt: skip


def write_json(name: str, document: dict[str, Any]) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
    return path


def read_json(name: str) -> dict[str, Any]:
    """Read bench/results/NAME.json; empty if it does not exist."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A Markdown table of rows by column. Columns of numbers are right-aligned."""
    columns = []
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows]
        cells = [name, *map(_format, values)]
        width = max(3, *map(len, cells))
        if all(isinstance(value, int | float) for value in values):
            column = [cell.rjust(width) for cell in cells]
            rule = "-" * (width - 1) + ":"
        else:
            column = [cell.ljust(width) for cell in cells]
            rule = "-" * width
        columns.append([column[0], rule, *column[1:]])
    return "\n".join(f"| {' | '.join(line)} |" for line in zip(*columns, strict=True))


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
