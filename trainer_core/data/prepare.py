"""From the data that a person chose to a token cache that training reads: `prepare`.

No torch, no Qt.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from trainer_core.config import Config
from trainer_core.data import cache, direct
from trainer_core.data.arrange import SPLITS, arrange, fill_without_packing
from trainer_core.data.columns import TOOLS, Task, Turn
from trainer_core.data.direct import DirectSplit
from trainer_core.data.encode import Notes, encode_all
from trainer_core.data.order import keyed_hash
from trainer_core.data.sequences import windows
from trainer_core.data.sources import Look, Looks, Skipped, cache_root, common_task, look_at_all
from trainer_core.data.split_files import HeldOut, example_rank, is_example
from trainer_core.data.store import PLACES, FilesAreShortError, Split
from trainer_core.data.stream import Stream, piece_size
from trainer_core.data.tokenizing.bpe import train
from trainer_core.data.tokenizing.encoder import EncoderDiffers
from trainer_core.data.tokenizing.tokenizer import Codec, load_given
from trainer_core.data.tokenizing.tokenizer_files import find
from trainer_core.messages import TraindeckError
from trainer_core.protocol import Source
from trainer_core.report import Quiet, Reporter, StopRequested

_MIB: Final = 1024 * 1024
_ROLES: Final = ("text", "system", "prompt", "input", "response", "messages", "tools")  # of columns
_MUCH_OVERLAP: Final = 0.01  # share of the rows that were held back by chance
_PROMPT: Final = 64  # characters of a beginning that is given to the model


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """`documents` counts rows, or texts and the parts of them that a split has; `samples` the sequences of an epoch."""

    documents: int
    tokens: int
    samples: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """Data ready to train on. Picklable; holds no file open."""

    fingerprint: str
    folder: Path
    task: Task
    tokenizer: Path
    vocab_size: int
    end_of_text: int  # the id of `<|endoftext|>` or its like, which also pads
    max_seq_len: int
    packed: bool  # several conversations share a sequence
    attend_across_documents: bool
    train: SplitCounts
    validation: SplitCounts
    truncated: int  # conversations cut at max_seq_len, of both splits
    dropped: int  # conversations of which nothing to learn would be left
    bytes: int
    sources: tuple[Source, ...]
    reused: bool  # the cache was there already
    token_cache: bool = True  # the tokens of the training data are on disk
    fill: float | None = None  # packed: the share of positions of the training sequences that hold tokens
    fill_alone: float | None = None  # packed: what it would be with one conversation a sequence
    validation_sources: tuple[Source, ...] = ()  # empty: part of the training data is held back
    report: dict[str, Any] = field(default_factory=dict)  # what the stream came across; see `stream.Counts`

    def split(self, name: str) -> Split:
        """The tokens of `train` or `validation`."""
        kind = DirectSplit if (self.folder / name / PLACES).exists() else Split
        return kind(self.folder / name, self.vocab_size)

    def codec(self) -> Codec:
        return Codec.load(self.tokenizer)

    def held_out_chats(self, n: int) -> list[list[Turn]]:
        """Up to `n` held-out conversations: always the same ones, spread over the data. Empty for plain text."""
        if self.task != "sft":
            return []
        return [[tuple(turn) for turn in row["turns"]] for row in self._chosen("validation", n)]

    def held_out_beginnings(self, n: int) -> list[str]:
        """Up to `n` beginnings of held-out texts (of training texts where none are held out)."""
        found = self._chosen("validation", 4 * n) or self._chosen("train", 4 * n)
        return [text for text in (_opening(row["text"]) for row in found) if text][:n]

    def _chosen(self, split: str, n: int) -> list[dict[str, Any]]:
        """At most `n` of the kept texts in random order: of held-out data a uniform sample of all documents."""
        documents = 0 if split == "train" else self.validation.documents
        numbered = ((text["number"], text) for text in self.split(split).texts())
        ranked = ((example_rank(number), number, text) for number, text in numbered if is_example(number, documents))
        return [text for _, _, text in heapq.nsmallest(n, ranked)]


def _opening(text: str) -> str:
    """A short beginning that ends between two words, where the text has such a place."""
    text = text.strip()
    if len(text) <= _PROMPT:
        return text
    end = max(text.rfind(" ", _PROMPT // 3, _PROMPT), text.rfind("\n", _PROMPT // 3, _PROMPT))
    return text[: end if end > 0 else _PROMPT // 2].rstrip()


def prepare(config: Config, reporter: Reporter) -> Prepared:
    """Look at the data, train or load the tokenizer, encode all of it; or find that done already.

    Raises `TraindeckError` (`data.…`, `disk.…`) and what `reporter.poll` raises; a cache that is not
    whole is never taken for one.
    """
    if not config.data:
        raise TraindeckError("data.none_given")
    reporter.progress("preparing", 0, None, "files")
    looks = look_at_all(config, reporter.poll)
    tell_skipped(looks.all, reporter)
    task = common_task(looks.all)
    if not config.token_cache:
        direct.check(looks.train)
    versions = _versions(looks.all)
    inputs = cache.inputs_of(looks, task, config, reporter)
    name = cache.fingerprint(inputs)
    folder = cache_root(config) / name
    meta = cache.read_meta(folder)
    reused = meta is not None
    notes = Notes(reporter)
    while meta is None:
        _make(folder, looks, versions, inputs, config, notes)
        meta = cache.read_meta(folder)
    notes.repeat(meta["warnings"])
    cache.remember(config, name)
    prepared = _described(name, folder, task, meta, looks, config, reporter, reused)
    _check(prepared, config, reporter)
    return prepared


def at_hand(config: Config, reporter: Reporter) -> Prepared | None:
    """What `prepare` would give at once; None where something would have to be read or made. Raises as it does."""
    if not config.data:
        raise TraindeckError("data.none_given")
    looks = look_at_all(config, reporter.poll)
    task = common_task(looks.all)
    if not cache.are_known(looks.all, config):
        return None
    name = cache.fingerprint(cache.inputs_of(looks, task, config, reporter))
    folder = cache_root(config) / name
    meta = cache.read_meta(folder)
    if meta is None:
        return None
    tell_skipped(looks.all, reporter)
    prepared = _described(name, folder, task, meta, looks, config, reporter, reused=True)
    _check(prepared, config, reporter)
    return prepared


def tell_skipped(looks: Sequence[Look], reporter: Reporter) -> None:
    """Say which files of folders are left out, and why."""
    for one in looks:
        for skipped in one.skipped:
            logging.getLogger(__name__).info("skipped %s: %s", skipped.path, skipped.reason)  # each, in log.txt
        others = [skipped for skipped in one.skipped if skipped.code == "data.other_task"]
        unusable = [skipped for skipped in one.skipped if skipped.code != "data.other_task"]
        if others:
            reporter.warn("data.other_task", count=len(others), path=one.path, first=others[0].path)
        if unusable:
            told = {"first": unusable[0].path, "reason": unusable[0].reason}
            reporter.warn("data.files_skipped", count=len(unusable), path=one.path, **told)


def _versions(looks: list[Look]) -> dict[Path, tuple[int, int]]:
    """Size and time of change of every file."""
    found: dict[Path, tuple[int, int]] = {}
    for file in (file for one in looks for file in one.files if file.format != "tasks"):
        try:
            status = file.path.stat()
        except OSError as error:
            raise TraindeckError("data.changed_while_read", path=str(file.path)) from error
        found[file.path] = status.st_size, status.st_mtime_ns
    return found


def _make(
    folder: Path,
    looks: Looks,
    versions: dict[Path, tuple[int, int]],
    inputs: cache.Inputs,
    config: Config,
    notes: Notes,
) -> None:
    """Make the cache, or go on with one that was begun."""
    why = cache.why_new(config, inputs)
    needed = looks.bytes // 2  # a token takes two bytes, and stands for four or so of text
    with cache.making(folder, notes, needed) as working:
        if working is None:
            return
        journal = cache.read_journal(working)
        if why is not None and not journal:
            notes.say(why[0], **why[1])
        if "position" in journal:
            notes.say("cache.going_on")
        try:
            meta = _encode(working, looks, config, notes, fast=journal.get("fast", True))
        except StopRequested:
            if "position" in cache.read_journal(working):
                notes.say("cache.kept")
            raise
        except EncoderDiffers:
            logging.getLogger(__name__).warning("gigatoken and tokenizers differ on this data; tokenizers is used")
            cache.write_journal(working, {"fast": False})
            meta = _encode(working, looks, config, notes, fast=False)
        except FilesAreShortError:
            logging.getLogger(__name__).warning("what was prepared before is damaged; beginning again")
            cache.write_journal(working, {"fast": journal.get("fast", True)})
            meta = _encode(working, looks, config, notes, fast=journal.get("fast", True))
        now = _versions(looks.all)
        for path, version in versions.items():
            if now[path] != version:
                raise TraindeckError("data.changed_while_read", path=str(path))
        if not config.token_cache:
            direct.write_index(working, looks.train, meta["fast"])
        cache.write_meta(working, meta, inputs)


def _encode(working: Path, looks: Looks, config: Config, notes: Notes, fast: bool) -> dict[str, Any]:
    notes.begin(cache.read_journal(working).get("warnings", ()))
    tokenizer = _tokenizer(working, looks, config, notes)
    counts = encode_all(working, tokenizer, looks, config, notes, fast)
    codec = Codec.load(tokenizer)
    return {"vocab_size": codec.vocab_size, "end_of_text": codec.end_of_text, "fast": fast, **counts}


# --- tokenizer -------------------------------------------------------------------------------------


def _tokenizer(working: Path, looks: Looks, config: Config, reporter: Reporter) -> Path:
    """The tokenizer of the cache in the making: from an earlier process, given, or trained now on training data."""
    path = working / "tokenizer.json"
    if config.tokenizer:
        codec, missing = load_given(find(config.tokenizer))
        if missing:
            reporter.warn("data.tokenizer_extended", path=config.tokenizer, tokens=", ".join(missing))
        if common_task(looks.all) == "sft":
            codec.require_template()  # of the copy, it would be told by a path that nobody knows
        if not path.exists():
            codec.save(path)
    elif not path.exists():
        _trained(looks, config, reporter).save(path)
    return path


class _Ears(Quiet):
    """Hears a stop also where rows are passed over, and says nothing: what is wrong with rows is said once."""

    def __init__(self, poll: Callable[[], None]) -> None:
        self._poll = poll

    def poll(self) -> None:
        self._poll()


def _trained(looks: Looks, config: Config, reporter: Reporter) -> Codec:
    def poll() -> None:
        reporter.progress("preparing", stream.done, stream.total + looks.bytes, "bytes")
        reporter.poll()

    stream = Stream(looks.train, config, _Ears(poll), piece=piece_size(looks.all))
    held_out = HeldOut(0.0 if looks.validation else config.validation_fraction)
    return Codec(train(_sample(stream, held_out, config), config.vocab_size, config.pre_tokenizer, poll))


def _sample(stream: Stream, held_out: HeldOut, config: Config) -> Iterator[str]:
    """Training texts, thinned evenly over the data where it is more than a tokenizer needs."""
    limit = config.tokenizer_sample_mib * _MIB
    kept = min(1.0, limit / max(1, stream.total))
    taken = 0
    for number, document in enumerate(stream):
        if keyed_hash("sample", number) >= kept * 2**64 or document.unit in held_out:
            continue
        for turn in document.turns:
            if turn[0] != TOOLS:  # ChatML leaves tools out
                yield "\n".join(turn[:2])
                taken += len(turn[1])
        yield document.text
        taken += len(document.text)
        if taken > limit * 1.25:  # compressed files hold more text than bytes
            return


# --- what came out ---------------------------------------------------------------------------------


def _described(
    name: str,
    folder: Path,
    task: Task,
    meta: dict[str, Any],
    looks: Looks,
    config: Config,
    reporter: Reporter,
    reused: bool,
) -> Prepared:
    truncated = dropped = 0
    packed, fill, fill_alone = config.packing and task == "sft", None, None
    if task == "sft":
        arranged = arrange(folder, meta["vocab_size"], config, reporter)
        samples = {split: one.samples for split, one in arranged.items()}
        truncated, dropped = (sum(getattr(one, what) for one in arranged.values()) for what in ("truncated", "dropped"))
        if packed:
            fill = arranged["train"].fill(config.max_seq_len)
            fill_alone = fill_without_packing(folder, config)
    else:
        samples = {split: windows(meta[split]["tokens"], config.max_seq_len, split) for split in SPLITS}
    counts = {
        split: SplitCounts(meta[split]["documents"], meta[split]["tokens"], number) for split, number in samples.items()
    }
    return Prepared(
        fingerprint=name,
        folder=folder,
        task=task,
        tokenizer=folder / "tokenizer.json",
        vocab_size=meta["vocab_size"],
        end_of_text=meta["end_of_text"],
        max_seq_len=config.max_seq_len,
        token_cache=config.token_cache,
        fill=fill,
        fill_alone=fill_alone,
        packed=packed,
        attend_across_documents=config.attend_across_documents,
        train=counts["train"],
        validation=counts["validation"],
        truncated=truncated,
        dropped=dropped,
        bytes=looks.bytes,
        sources=tuple(map(describe, looks.train)),
        validation_sources=tuple(map(describe, looks.validation)),
        reused=reused,
        report=meta["report"],
    )


def describe(one: Look) -> Source:
    """What was found at a path, for display."""
    layout = one.layouts[0]
    used = {role: getattr(layout, role) for role in _ROLES if getattr(layout, role) in one.columns}
    skipped = one.skipped[0] if one.skipped else Skipped("", "", "")
    return Source(
        path=one.path,
        format=one.format,
        encoding=one.encoding,
        compression=one.compression,
        columns=list(used.values()),
        found=list(one.columns),
        used=used,
        files=len(one.files),
        bytes=one.bytes,
        skipped=len(one.skipped),
        first_skipped=skipped.path,
        first_skipped_reason=skipped.code,
        split=one.split,
    )


def _check(prepared: Prepared, config: Config, reporter: Reporter) -> None:
    documents = prepared.train.documents + prepared.validation.documents
    bad, first = prepared.report.get("bad", 0), prepared.report.get("first_bad", {})
    if bad and (config.on_bad_row == "stop" or not documents):  # a cache that was made with other settings
        raise TraindeckError("data.bad_row", **first)
    if 0 < config.bad_row_limit < bad:
        raise TraindeckError("data.too_many_bad_rows", count=bad, **first)
    if not documents:
        raise TraindeckError("data.empty", path=", ".join(config.data))
    if not prepared.train.samples and prepared.task == "pretrain":
        raise TraindeckError("data.too_short", tokens=prepared.train.tokens, needed=config.max_seq_len + 1)
    if not prepared.train.samples:
        raise TraindeckError("data.too_few_samples", samples=0, needed=1)
    limit = config.max_seq_len
    if prepared.truncated:
        reporter.warn("data.truncated", count=prepared.truncated, total=documents, limit=limit)
    if prepared.dropped:
        reporter.warn("data.samples_dropped", count=prepared.dropped, total=documents, limit=limit)
    if not prepared.validation.samples and prepared.validation_sources:
        reporter.warn("data.validation_unusable")
    elif not prepared.validation.samples and config.validation_fraction > 0:
        reporter.warn("data.no_validation")
    overlap, rows = (prepared.report.get(name, 0) for name in ("overlap", "validation_rows"))
    warn_of_overlap(overlap, rows, reporter, given=bool(prepared.validation_sources))


def warn_of_overlap(count: int, total: int, reporter: Reporter, *, given: bool) -> None:
    """Says how many validation rows also occur in the training data: any of data that was `given`, else many."""
    if count > (0 if given else _MUCH_OVERLAP * total):
        reporter.warn("data.overlap", count=count, total=total, percent=f"{100 * count / total:.3g}")


def to_dict(prepared: Prepared) -> dict[str, Any]:
    """Plain values, for printing."""
    return {**asdict(prepared), "folder": str(prepared.folder), "tokenizer": str(prepared.tokenizer)}
