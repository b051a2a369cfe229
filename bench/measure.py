"""What every benchmark needs: fresh processes timed and watched, the machine told, a table and a JSON file written.

Time and memory are measured in separate runs, since looking at memory costs time. Memory is that of a whole process
tree. On Linux it is the sum of PSS, in which a page that n processes share counts 1/n in each; elsewhere the sum of
RSS, which counts such pages n times.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import psutil

from bench import texts

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "bench" / "results"
PACKAGES: Final = (
    "numpy",
    "pyarrow",
    "tokenizers",
    "gigatoken",
    "tiktoken",
    "datasets",
    "transformers",
    "accelerate",
    "torch",
)

_INTERVAL: Final = 0.02  # seconds between two looks at memory, at least
_SHARE: Final = 0.1  # of a core's time that looking may take
_SERIES: Final = 400  # points kept of memory over time
_TOLD: Final = 2000  # characters of a failed command's output


# --- memory ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Memory:
    """The peak of a process tree, in bytes; `anonymous`, `files` and `shared` are its parts at that moment (of PSS)."""

    measure: str = ""  # PSS or RSS
    peak: int = 0
    anonymous: int = 0
    files: int = 0
    shared: int = 0
    peak_at: float = 0.0  # seconds after the start
    each: list[int] = field(default_factory=list)  # of every process at that moment, the first one first
    processes: int = 0  # the most there were at once
    looks: int = 0
    series: list[tuple[float, int]] = field(default_factory=list)  # (seconds, bytes)


_ROLLUP: Final = re.compile(rb"^(Pss|Pss_Anon|Pss_File|Pss_Shmem):\s+(\d+) kB", re.MULTILINE)


def _pss(pid: int) -> dict[str, int] | None:
    """PSS and its parts in bytes; None where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except OSError:
        return None
    return {name.decode(): int(size) * 1024 for name, size in _ROLLUP.findall(text)} or None


class _Watch(threading.Thread):
    """Looks at the memory of a process and all below it until it has ended."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="memory-watch", daemon=True)
        self._root = psutil.Process(pid)
        self._ended = threading.Event()
        self._began = time.monotonic()
        self.memory = Memory(measure="PSS" if _pss(pid) is not None else "RSS")

    def run(self) -> None:
        wait = _INTERVAL
        while not self._ended.wait(wait):
            begun = time.thread_time()
            self._look()
            wait = max(_INTERVAL, (time.thread_time() - begun) / _SHARE)

    def end(self) -> Memory:
        self._ended.set()
        self.join()
        step = max(1, len(self.memory.series) // _SERIES)
        self.memory.series = [max(part, key=lambda point: point[1]) for part in _split(self.memory.series, step)]
        return self.memory

    def _look(self) -> None:
        try:
            alive = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        sizes = [size for process in alive if (size := self._size(process)) is not None]
        total = sum(size["Pss"] for size in sizes)
        at = round(time.monotonic() - self._began, 3)
        memory = self.memory
        memory.looks += 1
        memory.processes = max(memory.processes, len(sizes))
        memory.series.append((at, total))
        if total > memory.peak:
            memory.peak, memory.peak_at, memory.each = total, at, [size["Pss"] for size in sizes]
            parts = [sum(size.get(name, 0) for size in sizes) for name in ("Pss_Anon", "Pss_File", "Pss_Shmem")]
            memory.anonymous, memory.files, memory.shared = parts

    def _size(self, process: psutil.Process) -> dict[str, int] | None:
        try:
            return _pss(process.pid) if self.memory.measure == "PSS" else {"Pss": process.memory_info().rss}
        except psutil.Error:
            return None


def _split(values: list[tuple[float, int]], step: int) -> Iterator[list[tuple[float, int]]]:
    return (values[start : start + step] for start in range(0, len(values), step))


# --- processes -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Finished:
    """One command, from its start to its end."""

    seconds: float
    cpu_seconds: float | None  # of all its processes; None where the system does not tell
    output: str
    memory: Memory | None = None

    def document(self) -> dict[str, Any]:
        """For the JSON file: everything but the output."""
        return {name: value for name, value in asdict(self).items() if name != "output"}


def run(command: Sequence[str], env: Mapping[str, str] | None = None, watched: bool = False) -> Finished:
    """Run a command to its end; its stdout is kept. Raises `RuntimeError` where it fails."""
    before = _children_cpu()
    with tempfile.TemporaryFile() as told:
        began = time.perf_counter()
        process = subprocess.Popen(
            list(command), stdout=subprocess.PIPE, stderr=told, cwd=ROOT, env={**_environment(), **(env or {})}
        )
        watch = _Watch(process.pid) if watched else None
        if watch is not None:
            watch.start()
        output, _ = process.communicate()
        seconds = time.perf_counter() - began
        memory = watch.end() if watch is not None else None
        after = _children_cpu()
        if process.returncode:
            told.seek(0)
            words = told.read().decode("utf-8", "replace")[-_TOLD:]
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{words}")
    cpu = None if before is None or after is None else after - before
    return Finished(seconds, cpu, output.decode("utf-8", "replace"), memory)


def _environment() -> dict[str, str]:
    """That of this process; Python may keep its bytecode, as it does for users, rather than compile at each start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _children_cpu() -> float | None:
    """CPU seconds of all children that have ended, and theirs."""
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def trainer(*arguments: str) -> list[str]:
    """The command of this project's trainer, by its own Python."""
    return [sys.executable, "-m", "trainer_core", *arguments]


def prepare_command(
    data: Sequence[Path], cache: Path, tokenizer: Path | None = None, more: Sequence[str] = ()
) -> list[str]:
    """`traindeck prepare` on files, with a given tokenizer or one that it trains."""
    given = ["--tokenizer", str(tokenizer)] if tokenizer is not None else []
    paths = [part for path in data for part in ("--data", str(path))]
    return trainer("prepare", *paths, "--cache-dir", str(cache), *given, "--output", "json", *more)


def finished_cache(cache: Path) -> tuple[Path, dict[str, Any]]:
    """The one token cache in a cache folder, and its meta.json."""
    (meta,) = cache.glob("*/meta.json")
    return meta.parent, json.loads(meta.read_bytes())


def cache_counts(meta: Mapping[str, Any]) -> tuple[int, int]:
    """Documents and tokens of both splits of a cache."""
    splits = [meta["train"], meta["validation"]]
    return sum(split["documents"] for split in splits), sum(split["tokens"] for split in splits)


def trained_tokenizer(folder: Path, vocab_size: int, megabytes: float = 20) -> Path:
    """A tokenizer.json that `traindeck prepare` trained on made-up texts, for benchmarks that need a given one."""
    sample, cache = folder / "sample.txt", folder / "sample-cache"
    texts.write(sample, texts.until(texts.endless("text", seed=1), megabytes), "text")
    more = ["--vocab-size", str(vocab_size), "--tokenizer-sample-mib", str(int(megabytes) + 1)]
    run(prepare_command([sample], cache, more=more), {"TRAINDECK_HOME": str(cache)})
    found, _ = finished_cache(cache)
    kept = (found / "tokenizer.json").replace(folder / "tokenizer.json")
    remove(cache)
    sample.unlink()
    return kept


def remove(folder: Path) -> None:
    """Remove a folder where there is one."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def work_folder(parent: str | None) -> Iterator[Path]:
    """A folder for large files that is removed at the end, whatever happens."""
    base = Path(parent) if parent else RESULTS
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=base))
    try:
        yield folder
    finally:
        remove(folder)


# --- what came out ---------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """What was measured on, and with what."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": _commit(),
        "load_before": [round(load, 2) for load in psutil.getloadavg()],
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "command": " ".join(["python", "-m", _module(), *sys.argv[1:]]),
    }


def _module() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).name


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _commit() -> str:
    """The commit, with a + where files of the trainer differ from it."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return described.stdout.strip()


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table: text to the left, numbers to the right."""
    shown = [[_shown(value) for value in row] for row in rows]
    widths = [max(3, *(len(row[i]) for row in [list(head), *shown])) for i in range(len(head))]
    right = [all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
    lines = [_line(head, widths, right), "|" + "|".join(_rule(*one) for one in zip(widths, right, strict=True)) + "|"]
    return "\n".join([*lines, *(_line(row, widths, right) for row in shown)])


def _rule(width: int, right: bool) -> str:
    return " " + "-" * (width - 1) + (": " if right else "- ")


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "| " + " | ".join(placed) + " |"


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def spread(values: Sequence[float]) -> dict[str, float]:
    """The least, middle and largest of several measurements."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def report(name: str, lines: Sequence[str], document: Mapping[str, Any], told: Mapping[str, Any]) -> None:
    """Print what came out and write bench/results/NAME.json. `told`: `machine()`, from before the first run."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": told, **document}, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"{told['command']}\n{describe(told)}\n")
    print("\n".join(lines))
    print(f"\n{path}")


def describe(told: Mapping[str, Any]) -> str:
    """The machine in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in told["versions"].items())
    return (
        f"{told['cores']} cores ({told['cpu']}), {told['memory_gib']} GiB, {told['system']}, Python {told['python']}, "
        f"{versions}; commit {told['commit']}; load before: {told['load_before'][0]}; {told['date']}"
    )
