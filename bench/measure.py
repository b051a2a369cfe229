"""Shared by all benchmarks: timed processes, their memory, the machine, tables and JSON files.

Time and memory are measured in separate runs, since sampling memory takes time. Memory is that of a whole process tree:
on Linux the sum of PSS, in which a page that n processes share counts 1/n in each; elsewhere the sum of RSS.
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
    "numpy", "pyarrow", "tokenizers", "gigatoken", "tiktoken", "datasets", "transformers", "accelerate", "torch",
)  # fmt: skip

_INTERVAL_S: Final = 0.02  # between two samples of memory, at least
_CPU_SHARE: Final = 0.1  # of a core, for sampling
_MAX_OUTPUT: Final = 2000  # characters of a failed command


# --- memory ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Memory:
    """Peak of a process tree in bytes; `anonymous`, `files` and `shared` are its parts at that moment (of PSS)."""

    measure: str = ""  # PSS or RSS
    peak: int = 0
    anonymous: int = 0
    files: int = 0
    shared: int = 0
    peak_at: float = 0.0  # seconds after the start
    each: list[int] = field(default_factory=list)  # of every process at that moment, the first one first
    processes: int = 0  # maximum at one time


_ROLLUP: Final = re.compile(rb"^(Pss|Pss_Anon|Pss_File|Pss_Shmem):\s+(\d+) kB", re.MULTILINE)


def _pss(pid: int) -> dict[str, int] | None:
    """PSS and its parts in bytes; None if the system does not report them."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except OSError:
        return None
    return {name.decode(): int(size) * 1024 for name, size in _ROLLUP.findall(text)} or None


class _MemorySampler(threading.Thread):
    """Samples the memory of a process and its descendants until `stop`."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="memory-sampler", daemon=True)
        self._root = psutil.Process(pid)
        self._stopped = threading.Event()
        self._started_at = time.monotonic()
        self.memory = Memory(measure="PSS" if _pss(pid) is not None else "RSS")

    def run(self) -> None:
        wait = _INTERVAL_S
        while not self._stopped.wait(wait):
            before = time.thread_time()
            self._sample()
            wait = max(_INTERVAL_S, (time.thread_time() - before) / _CPU_SHARE)

    def stop(self) -> Memory:
        self._stopped.set()
        self.join()
        return self.memory

    def _sample(self) -> None:
        try:
            processes = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        sizes = [size for process in processes if (size := self._size(process)) is not None]
        total, memory = sum(size["Pss"] for size in sizes), self.memory
        memory.processes = max(memory.processes, len(sizes))
        if total > memory.peak:
            memory.peak, memory.peak_at = total, round(time.monotonic() - self._started_at, 3)
            memory.each = [size["Pss"] for size in sizes]
            parts = [sum(size.get(name, 0) for size in sizes) for name in ("Pss_Anon", "Pss_File", "Pss_Shmem")]
            memory.anonymous, memory.files, memory.shared = parts

    def _size(self, process: psutil.Process) -> dict[str, int] | None:
        try:
            return _pss(process.pid) if self.memory.measure == "PSS" else {"Pss": process.memory_info().rss}
        except psutil.Error:
            return None


# --- processes -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Finished:
    """A command that ended successfully."""

    seconds: float
    cpu_seconds: float | None  # of all its processes; None if the system does not report them
    output: str
    memory: Memory | None = None

    def document(self) -> dict[str, Any]:
        """Everything but the output, for JSON."""
        return {name: value for name, value in asdict(self).items() if name != "output"}


def run(command: Sequence[str], env: Mapping[str, str] | None = None, watched: bool = False) -> Finished:
    """Run a command and keep its stdout. `watched`: measure memory. Raises `RuntimeError` if it fails."""
    before = _children_cpu()
    with tempfile.TemporaryFile() as stderr:
        started = time.perf_counter()
        process = subprocess.Popen(
            list(command), stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, env={**environment(), **(env or {})}
        )
        sampler = _MemorySampler(process.pid) if watched else None
        if sampler is not None:
            sampler.start()
        output, _ = process.communicate()
        seconds = time.perf_counter() - started
        memory = sampler.stop() if sampler is not None else None
        after = _children_cpu()
        if process.returncode:
            stderr.seek(0)
            text = stderr.read().decode("utf-8", "replace")[-_MAX_OUTPUT:]
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{text}")
    cpu = None if before is None or after is None else after - before
    return Finished(seconds, cpu, output.decode("utf-8", "replace"), memory)


def environment() -> dict[str, str]:
    """Environment of this process, in which Python may cache bytecode as it does for users."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _children_cpu() -> float | None:
    """CPU seconds of all ended descendants."""
    if sys.platform == "win32":
        return None
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def trainer(*arguments: str) -> list[str]:
    """Command line of Traindeck's trainer."""
    return [sys.executable, "-m", "trainer_core", *arguments]


def prepare_command(
    data: Sequence[Path], cache: Path, tokenizer: Path | None = None, more: Sequence[str] = ()
) -> list[str]:
    """`prepare` on files, with a given tokenizer or one that it trains."""
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
    """A tokenizer.json that `prepare` trained on synthetic texts."""
    sample, cache = folder / "sample.txt", folder / "sample-cache"
    texts.write(sample, texts.until(texts.endless("text", seed=1), megabytes), "text")
    more = ["--vocab-size", str(vocab_size), "--tokenizer-sample-mib", str(int(megabytes) + 1)]
    run(prepare_command([sample], cache, more=more), {"TRAINDECK_HOME": str(cache)})
    found, _ = finished_cache(cache)
    tokenizer = (found / "tokenizer.json").replace(folder / "tokenizer.json")
    remove(cache)
    sample.unlink()
    return tokenizer


def remove(folder: Path) -> None:
    """Remove a folder if it exists."""
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def work_folder(parent: str | None) -> Iterator[Path]:
    """A folder for large files that is removed at the end."""
    base = Path(parent) if parent else RESULTS
    base.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="work-", dir=base))
    try:
        yield folder
    finally:
        remove(folder)


# --- results ---------------------------------------------------------------------------------------


def log(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """Hardware, versions, commit and load."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec is not None else Path(sys.argv[0]).name
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
        "command": " ".join(["python", "-m", module, *sys.argv[1:]]),
    }


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _commit() -> str:
    """The commit, with a + for uncommitted changes."""
    command = ["git", "describe", "--always", "--dirty=+"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table with numbers right-aligned."""
    cells = [list(head), *([_format(value) for value in row] for row in rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(head))]
    right = [all(isinstance(row[column], int | float) for row in rows) for column in range(len(head))]
    aligned = [
        "| " + " | ".join(f"{cell:{'>' if to_right else '<'}{width}}"
                          for cell, width, to_right in zip(row, widths, right, strict=True)) + " |"
        for row in cells
    ]  # fmt: skip
    rule = "".join(
        f"| {'-' * (width - 1)}{':' if to_right else '-'} " for width, to_right in zip(widths, right, strict=True)
    )
    return "\n".join([aligned[0], rule + "|", *aligned[1:]])


def _format(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def report(name: str, lines: Sequence[str], document: Mapping[str, Any], machine: Mapping[str, Any]) -> None:
    """Print the result and write bench/results/NAME.json. `machine`: as before the first run."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, **document}, indent=1, ensure_ascii=False), encoding="utf-8")
    versions = ", ".join(f"{package} {version}" for package, version in machine["versions"].items())
    print(
        f"{machine['command']}\n{machine['cores']} cores ({machine['cpu']}), {machine['memory_gib']} GiB, "
        f"{machine['system']}, Python {machine['python']}, {versions}; commit {machine['commit']}; "
        f"load before: {machine['load_before'][0]}; {machine['date']}\n"
    )
    print("\n".join(lines))
    print(f"\n{path}")
