"""How long it takes to open a finished token cache of a billion tokens and to have batch k, for any k.

    python -m bench.opening
    python -m bench.opening --millions 100

The cache is written with the store's own writer (random tokens, documents of about 300), not encoded. Each k is
asked for in a fresh process: from after the imports to the batch in hand, through `prepare` and `Loader` as training
does it. Twice each: with the cache's files in memory, and after they were dropped from it (Linux).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from bench import measure, texts

if TYPE_CHECKING:
    from trainer_core.data.store import Block

TARGET_MS: Final = 50.0
VARIANTS: Final[dict[str, list[str]]] = {
    "windows": [],
    "windows, documents apart": ["--no-attend-across-documents"],
    "pairs": [],
    "pairs, packed": ["--packing"],
}
_DOCUMENT: Final = 300  # tokens, on average
_SEQUENCE, _BATCH = 1024, 32
_DRAWN: Final = 1 << 22  # tokens drawn at once


# --- a large cache ---------------------------------------------------------------------------------


def make(folder: Path, kind: texts.Kind, tokens: int) -> Path:
    """A cache of `tokens` training tokens for the small file that is returned, found as any finished cache is."""
    data, cache = folder / f"{kind}.parquet", folder / "cache"
    texts.write(data, texts.until(texts.endless(kind), 2), kind)
    more = ["--max-seq-len", str(_SEQUENCE), "--vocab-size", "8192"]
    measure.run(measure.prepare_command([data], cache, more=more), {"TRAINDECK_HOME": str(cache)})
    found, meta = measure.finished_cache(cache)
    for part in found.glob("sequences-*"):
        measure.remove(part)
    measure.remove(found / "train")
    meta["train"]["documents"] = fill(found / "train", kind, meta["vocab_size"], tokens)
    meta["train"]["tokens"] = tokens
    sizes = {name: size for name, size in meta["files"].items() if not name.startswith("train/")}
    written = {f"train/{file.name}": file.stat().st_size for file in (found / "train").iterdir()}
    meta["files"] = sizes | written
    (found / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    return data


def fill(folder: Path, kind: texts.Kind, vocab_size: int, tokens: int) -> int:
    """Write a split of random tokens; the number of its documents."""
    from trainer_core.data.store import Writer

    rng = np.random.default_rng(0)
    writer = Writer(folder, vocab_size)
    while writer.tokens < tokens:
        writer.add_block(_block(rng, kind, vocab_size, min(_DRAWN, tokens - writer.tokens)))
    writer.finish()
    return writer.documents


def _block(rng: np.random.Generator, kind: texts.Kind, vocab_size: int, tokens: int) -> Block:
    """Documents of random tokens that are `tokens` long together; most are short, some are twice a sequence."""
    from trainer_core.data.store import Block

    mean = np.log(_DOCUMENT) - 0.32
    lengths = np.clip(rng.lognormal(mean, 0.8, tokens // 20 + 1), 20, 2 * _SEQUENCE).astype(np.int64)
    begins = np.cumsum(lengths) - lengths
    begins = begins[begins <= max(0, tokens - 20)]
    ids = rng.integers(0, vocab_size, tokens)
    if kind == "text":
        return Block(ids, begins)
    ends = np.diff(begins, append=tokens)
    return Block(ids, begins, np.stack([ends // 4 + 1, ends], axis=1), np.ones(len(begins), np.int64))


# --- asking for a batch ----------------------------------------------------------------------------


def ask(data: Path, cache: Path, batch: int, flags: list[str]) -> dict[str, float]:
    """In a fresh process: milliseconds from after the imports to batch number `batch`; −1: the last one."""
    command = [sys.executable, "-m", "bench.opening", "--ask", str(data), str(cache), str(batch), *flags]
    document: dict[str, float] = json.loads(measure.run(command, {"TRAINDECK_HOME": str(cache)}).output)
    return document


def answer(data: str, cache: str, batch: int, flags: list[str]) -> None:
    """The other side of `ask`."""
    from trainer_core.config import Config
    from trainer_core.data.batches import Loader
    from trainer_core.data.prepare import prepare
    from trainer_core.report import Quiet

    config = Config(
        data=[data],
        cache_dir=cache,
        vocab_size=8192,
        max_seq_len=_SEQUENCE,
        batch_size=_BATCH,
        num_workers=0,
        packing="--packing" in flags,
        attend_across_documents="--no-attend-across-documents" not in flags,
    )
    begun = time.perf_counter()
    prepared = prepare(config, Quiet())
    opened = time.perf_counter()
    loader = Loader(prepared, config)
    wanted = loader.batches_per_epoch - 1 if batch < 0 else min(batch, loader.batches_per_epoch - 1)
    found = next(loader.iterate(0, wanted * _BATCH))
    had = time.perf_counter()
    assert prepared.reused
    assert found.tokens > 0
    times = {"open_ms": (opened - begun) * 1000, "batch_ms": (had - opened) * 1000, "ms": (had - begun) * 1000}
    print(json.dumps({**times, "batch": wanted, "batches": loader.batches_per_epoch}))


def evict(folder: Path) -> bool:
    """Drop a folder's files from the system's memory; False where it cannot be asked to."""
    if sys.platform != "linux":
        return False
    for file in (file for file in folder.rglob("*") if file.is_file()):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def load(folder: Path) -> None:
    """Read a folder's files into the system's memory: the variant before may have dropped them."""
    for file in (file for file in folder.rglob("*") if file.is_file()):
        with file.open("rb") as opened:
            while opened.read(1 << 24):
                pass


# --- measuring -------------------------------------------------------------------------------------


def measured(data: Path, cache: Path, flags: list[str]) -> dict[str, Any]:
    """All k, in memory and not."""
    first = ask(data, cache, 0, flags)  # the first one ever also arranges conversations into sequences
    batches = int(first["batches"])
    drawn = random.Random(0)
    places = [0, batches // 2, batches - 1, *(drawn.randrange(batches) for _ in range(3))]
    load(cache)
    warm = [ask(data, cache, place, flags) for place in places]
    cold = [ask(data, cache, place, flags) for place in places if evict(cache)]
    return {"batches": batches, "first_ever_ms": first["ms"], "in_memory": warm, "on_disk": cold}


def row(name: str, found: dict[str, Any], where: Literal["in_memory", "on_disk"]) -> list[Any]:
    times = [one["ms"] for one in found[where]]
    worst = max(found[where], key=lambda one: float(one["ms"]))
    what = "in memory" if where == "in_memory" else "on disk"
    span = measure.spread(times)
    return [name, what, found["batches"], *times[:3], span["median"], span["max"], worst["open_ms"], worst["batch_ms"]]


def main() -> None:
    if sys.argv[1:2] == ["--ask"]:
        answer(sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:])
        return
    parser = argparse.ArgumentParser(prog="python -m bench.opening", description=__doc__)
    parser.add_argument("--millions", type=float, default=1000, help="tokens")
    parser.add_argument("--work", help="folder for large files; default: bench/results")
    chosen = parser.parse_args()
    told, found = measure.machine(), {}
    with measure.work_folder(chosen.work) as folder:
        for kind in texts.COLUMNS:
            data = make(folder, kind, int(chosen.millions * 1e6))
            print(f"{kind} written", file=sys.stderr, flush=True)
            for name, flags in VARIANTS.items():
                if name.startswith("pairs") == (kind == "pairs"):
                    found[name] = measured(data, folder / "cache", flags)
            measure.remove(folder / "cache")
    head = ["", "files", "batches", "first, ms", "middle", "last", "median", "worst", "of it opening", "batch"]
    rows = [row(name, one, where) for name, one in found.items() for where in ("in_memory", "on_disk") if one[where]]
    shown = [measure.table(head, rows), "", f"target: under {TARGET_MS:.0f} ms for any batch", ""]
    shown += [f"{name}: the first opening ever took {one['first_ever_ms'] / 1000:.1f} s" for name, one in found.items()]
    measure.report("opening", shown, {"tokens": chosen.millions * 1e6, "variants": found}, told)


if __name__ == "__main__":
    main()
