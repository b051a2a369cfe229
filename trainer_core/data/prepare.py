"""Preparation of the training data: scans it and builds or reuses a token cache.

No torch, no Qt.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from trainer_core.config import Config
from trainer_core.data import cache, uncached
from trainer_core.data.column_mapping import Task
from trainer_core.data.columns import TOOLS_ROLE, Turn, conversations_of
from trainer_core.data.documents import DocumentStream, choose_piece_chars
from trainer_core.data.encoder import WarningRecorder, encode_documents
from trainer_core.data.order import keyed_hash
from trainer_core.data.sequences import SequenceLayout, build_sequences, count_text_sequences
from trainer_core.data.sources import (
    DatasetScan,
    DatasetScans,
    SkippedFile,
    cache_root,
    common_task,
    count_sides,
    scan_datasets,
)
from trainer_core.data.split_files import HeldOutSelector, example_rank, is_example
from trainer_core.data.token_files import SPLITS, Split, TruncatedFileError
from trainer_core.data.tokenizing.bpe import train
from trainer_core.data.tokenizing.encoder import EncoderMismatchError
from trainer_core.data.tokenizing.tokenizer import Codec, load_user_tokenizer
from trainer_core.data.tokenizing.tokenizer_files import TokenizerConfig, find_tokenizer, read_new_tokens
from trainer_core.data.uncached import OnTheFlySplit
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter, Reporter, StopRequested
from trainer_core.protocol import Source

_MIB: Final = 1024 * 1024
_OVERLAP_WARNING_FRACTION: Final = 0.01  # of the validation rows
_PROMPT_CHARS: Final = 64  # characters


@dataclass(frozen=True, slots=True)
class SplitCounts:
    """`documents`: rows, or texts and parts of texts. `samples`: sequences per epoch."""

    documents: int
    tokens: int
    samples: int


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Data ready for training. Picklable; holds no open files."""

    folder: Path
    task: Task
    vocab_size: int
    end_of_text: int  # token id, also used for padding
    max_seq_len: int
    packed: bool  # several conversations share a sequence
    attend_across_documents: bool
    token_cache: bool  # False: the training data is encoded on the fly
    train: SplitCounts
    validation: SplitCounts
    sequences: Mapping[str, SequenceLayout]  # of both splits; empty for plain text
    sides: int = 0  # conversations of a row of preferences, at most; 0 for other data
    objective: str = "likelihood"
    bytes: int = 0  # of the sources
    sources: tuple[Source, ...] = ()
    validation_sources: tuple[Source, ...] = ()  # empty: part of the training data is held out
    report: dict[str, Any] = field(default_factory=dict)  # see `documents.RowCounts` and `CacheWriter.report`

    @property
    def sequence_len(self) -> int:
        """Positions of a full sequence."""
        return self.max_seq_len * max(1, self.sides)

    @property
    def fingerprint(self) -> str:
        return self.folder.name

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer.json"

    @property
    def truncated(self) -> int:
        """Conversations cut at max_seq_len, of both splits."""
        return sum(one.truncated for one in self.sequences.values())

    @property
    def dropped(self) -> int:
        """Conversations without trained tokens after truncation, of both splits."""
        return sum(one.dropped for one in self.sequences.values())

    def open_split(self, name: str) -> Split:
        """Open `train` or `validation`."""
        on_the_fly = name == "train" and not self.token_cache
        return (OnTheFlySplit if on_the_fly else Split)(self.folder / name, self.vocab_size)

    def load_codec(self) -> Codec:
        return Codec.load(self.tokenizer)

    def held_out_chats(self, n: int) -> list[list[Turn]]:
        """A fixed sample of up to `n` held-out conversations, of preferences the chosen ones. Empty for plain text."""
        if self.task == "pretrain":
            return []
        found = [[tuple(turn) for turn in row["turns"]] for row in self._sample_texts("validation", n)]
        return [turns for turns in found if turns]

    def held_out_prompts(self, n: int) -> list[str]:
        """Up to `n` beginnings of held-out texts, or of training texts if none are held out."""
        found = self._sample_texts("validation", 4 * n) or self._sample_texts("train", 4 * n)
        return [text for text in (_first_words(row["text"]) for row in found) if text][:n]

    def _sample_texts(self, split: str, n: int) -> list[dict[str, Any]]:
        """Up to `n` of the kept texts in random order. For held-out data, a uniform sample of all documents."""
        documents = 0 if split == "train" else self.validation.documents
        kept = [text for text in self.open_split(split).texts() if is_example(text["number"], documents)]
        return heapq.nsmallest(n, kept, key=lambda text: example_rank(text["number"]))


def _first_words(text: str) -> str:
    """A short beginning of the text that ends between two words, if possible."""
    text = text.strip()
    return text if len(text) <= _PROMPT_CHARS else text[:_PROMPT_CHARS].rsplit(maxsplit=1)[0]


def prepare(config: Config, reporter: Reporter) -> PreparedData:
    """Scan the data, train or load the tokenizer and encode everything, or reuse a complete cache.

    Raises `TraindeckError` (`data.…`, `disk.…`) and what `reporter.poll` raises.
    """
    reporter.progress("preparing", 0, None, "files")
    scans = scan_datasets(config, reporter.poll)
    report_skipped_files(scans.all, reporter)
    if not config.token_cache:
        uncached.require_parquet(scans.train)
    versions = _file_versions(scans)
    folder = cache_root(config) / cache.fingerprint(scans, config, reporter)
    recorder = WarningRecorder(reporter)

    def write(working: Path) -> dict[str, Any]:
        if "position" in cache.read_journal(working):
            recorder.emit("cache.resuming")
        meta = _encode_or_restart(working, scans, config, recorder)
        for path, version in _file_versions(scans).items():
            if versions[path] != version:
                raise TraindeckError("data.changed_while_read", path=str(path))
        return meta if config.token_cache else {**meta, "files_by_number": uncached.describe_files(scans.train)}

    # A token takes two bytes and stands for about four of text.
    meta = cache.read_meta(folder) or cache.build(folder, recorder, write, needed=scans.bytes // 2)
    for code, params in meta["warnings"]:
        recorder.emit(code, **params)
    return _load_and_validate(folder, meta, scans, config, reporter)


def load_if_cached(config: Config, reporter: Reporter) -> PreparedData | None:
    """The result of `prepare` if no file must be read or written for it, else None. Raises the same errors."""
    scans = scan_datasets(config, reporter.poll)
    if not cache.are_hashes_cached(scans.all, config):
        return None
    folder = cache_root(config) / cache.fingerprint(scans, config, reporter)
    meta = cache.read_meta(folder)
    if meta is None:
        return None
    report_skipped_files(scans.all, reporter)
    return _load_and_validate(folder, meta, scans, config, reporter)


def report_skipped_files(scans: Sequence[DatasetScan], reporter: Reporter) -> None:
    """Warn about files of folders that are not read; each is logged."""
    for one in scans:
        for skipped in one.skipped:
            logging.getLogger(__name__).info("skipped %s: %s", skipped.path, skipped.reason)
        others = [skipped for skipped in one.skipped if skipped.code == "data.other_task"]
        unusable = [skipped for skipped in one.skipped if skipped.code != "data.other_task"]
        if others:
            reporter.warn("data.other_task", count=len(others), path=one.path, first=others[0].path)
        if unusable:
            first = {"first": unusable[0].path, "reason": unusable[0].reason}
            reporter.warn("data.files_skipped", count=len(unusable), path=one.path, **first)


def _file_versions(scans: DatasetScans) -> dict[Path, list[int]]:
    files = [file for one in scans.all for file in one.files if file.format != "tasks"]
    return {file.path: cache.file_version(file.path) for file in files}


def _encode_or_restart(working: Path, scans: DatasetScans, config: Config, recorder: WarningRecorder) -> dict[str, Any]:
    """Encode the data. Starts again if gigatoken is not exact for it, or if files of an earlier process are damaged."""
    while True:
        fast = cache.read_journal(working).get("fast", True)
        try:
            return _encode_data(working, scans, config, recorder, fast)
        except StopRequested:
            if "position" in cache.read_journal(working):
                recorder.emit("cache.kept")
            raise
        except EncoderMismatchError:
            fast = False
            logging.getLogger(__name__).warning("gigatoken and tokenizers differ on this data; using tokenizers")
        except TruncatedFileError:
            logging.getLogger(__name__).warning("the files of the interrupted preparation are damaged; starting again")
        cache.write_journal(working, {"fast": fast})


def _encode_data(
    working: Path, scans: DatasetScans, config: Config, recorder: WarningRecorder, fast: bool
) -> dict[str, Any]:
    recorder.restore(cache.read_journal(working).get("warnings", ()))
    tokenizer = ensure_tokenizer(working, scans, config, recorder)
    return encode_documents(working, tokenizer, scans, config, recorder, fast)


# --- tokenizer -------------------------------------------------------------------------------------


def ensure_tokenizer(working: Path, scans: DatasetScans, config: Config, reporter: Reporter) -> Path:
    """The tokenizer of the cache: of an interrupted process, set by the user, or trained now on the training data."""
    path = working / "tokenizer.json"
    if config.tokenizer:
        codec, missing = load_user_tokenizer(find_tokenizer(config.tokenizer), config.thinking)
        if missing:
            reporter.warn("data.tokenizer_extended", path=config.tokenizer, tokens=", ".join(missing))
        if common_task(scans.all) != "pretrain":
            codec.require_template()  # here, since the error names the path
        if not path.exists():
            codec.save(path)
    elif not path.exists():
        _train_tokenizer(scans, config, reporter).save(path)
    return path


def _train_tokenizer(scans: DatasetScans, config: Config, reporter: Reporter) -> Codec:
    class Poller(NullReporter):
        """Emits no warnings about rows: they are emitted when the data is encoded."""

        def poll(self) -> None:
            reporter.progress("preparing", stream.bytes_done, stream.total_bytes + scans.bytes, "bytes")
            reporter.poll()

    poller = Poller()
    stream = DocumentStream(scans.train, config, poller, piece_chars=choose_piece_chars(scans.all))
    held_out = HeldOutSelector(0.0 if scans.validation else config.validation_fraction)
    texts = _iter_tokenizer_texts(stream, held_out, config)
    model = train(texts, config.vocab_size, config.pre_tokenizer, poller.poll)
    return Codec(model, TokenizerConfig(thinking=config.thinking))


def _iter_tokenizer_texts(stream: DocumentStream, held_out: HeldOutSelector, config: Config) -> Iterator[str]:
    """Training texts; of large data, a uniform sample of `tokenizer_sample_mib`."""
    limit = config.tokenizer_sample_mib * _MIB
    kept = min(1.0, limit / max(1, stream.total_bytes))
    taken = 0
    for number, document in enumerate(stream):
        if keyed_hash("sample", number) >= kept * 2**64 or document.split_unit in held_out:
            continue
        for turn in chain.from_iterable(conversations_of(document.content)):
            if turn[0] != TOOLS_ROLE:  # ChatML does not contain tools
                yield "\n".join(turn[:2])
                taken += len(turn[1])
        yield document.text
        taken += len(document.text)
        if taken > limit * 1.25:  # compressed files hold more text than their size
            return


# --- result ----------------------------------------------------------------------------------------


def _load_and_validate(
    folder: Path, meta: dict[str, Any], scans: DatasetScans, config: Config, reporter: Reporter
) -> PreparedData:
    train, validation = (tuple(map(summarize_source, part)) for part in (scans.train, scans.validation))
    prepared = replace(
        load_prepared(folder, common_task(scans.all), meta, config, reporter, count_sides(scans.all)),
        bytes=scans.bytes,
        sources=train,
        validation_sources=validation,
        report=meta["report"],
    )
    _validate(prepared, config, reporter)
    return prepared


def load_prepared(
    folder: Path, task: Task, meta: dict[str, Any], config: Config, reporter: Reporter, sides: int = 0
) -> PreparedData:
    """Prepared data from a complete cache. Assigns conversations to sequences.

    Raises `model.new_tokens` if LoRA would not train tokens in the data that the base model does not know.
    """
    new = read_new_tokens(folder)
    used = [name for name, number in new.items() if task != "pretrain" or number == meta["end_of_text"]]
    if used and config.method != "full" and not config.lora_embeddings:
        raise TraindeckError("model.new_tokens", path=config.tokenizer, tokens=", ".join(used))
    sequences: dict[str, SequenceLayout] = {}
    if task != "pretrain":
        sequences = build_sequences(folder, meta["vocab_size"], config, reporter, sides=sides)
    counts = {}
    for name in SPLITS:
        documents, tokens = meta[name]["documents"], meta[name]["tokens"]
        text_samples = count_text_sequences(tokens, config.max_seq_len, name)
        counts[name] = SplitCounts(documents, tokens, sequences[name].samples if sequences else text_samples)
    return PreparedData(
        folder=folder,
        task=task,
        vocab_size=meta["vocab_size"],
        end_of_text=meta["end_of_text"],
        max_seq_len=config.max_seq_len,
        packed=config.packing and task != "pretrain",
        attend_across_documents=config.attend_across_documents,
        token_cache=config.token_cache,
        train=counts["train"],
        validation=counts["validation"],
        sequences=sequences,
        sides=sides,
        objective=config.objective,
    )


def summarize_source(one: DatasetScan) -> Source:
    """A scan in the form of the wire protocol."""
    roles = {role: name for role, name in one.files[0].mapping.columns.items() if name in one.columns}
    skipped = one.skipped[0] if one.skipped else SkippedFile("", "", "")
    return Source(
        path=one.path,
        format=one.summarize("format"),
        encoding=one.summarize("encoding"),
        compression=one.summarize("compression"),
        columns=list(roles.values()),
        all_columns=list(one.columns),
        column_roles=roles,
        files=len(one.files),
        bytes=one.bytes,
        skipped=len(one.skipped),
        first_skipped=skipped.path,
        first_skipped_reason=skipped.code,
        split=one.split,
    )


def _validate(prepared: PreparedData, config: Config, reporter: Reporter) -> None:
    documents = prepared.train.documents + prepared.validation.documents
    bad, first = prepared.report.get("bad", 0), prepared.report.get("first_bad", {})
    if bad and (config.on_bad_row == "stop" or not documents):  # a cache built with other settings
        raise TraindeckError("data.bad_row", **first)
    if 0 < config.bad_row_limit < bad:
        raise TraindeckError("data.too_many_bad_rows", count=bad, **first)
    if not documents and prepared.report.get("equal_pairs"):
        raise TraindeckError("data.pairs_equal", count=prepared.report["equal_pairs"])
    if not documents:
        raise TraindeckError("data.empty", path=", ".join(config.data))
    if not prepared.train.samples and prepared.task == "pretrain":
        raise TraindeckError("data.too_short", tokens=prepared.train.tokens, needed=config.max_seq_len + 1)
    if not prepared.train.samples:
        raise TraindeckError(all_dropped_code(config), limit=config.max_seq_len)
    warn_about_data(prepared, config, reporter)


def all_dropped_code(config: Config) -> str:
    """Message code for conversations of which none fits."""
    return "data.references_too_long" if config.uses_rewards else "data.answers_cut_off"


def warn_about_data(prepared: PreparedData, config: Config, reporter: Reporter) -> None:
    """Warn about truncated and dropped conversations, useless pairs, missing validation data, and its overlap: of any
    row if it was given by the user, else of over 1 %."""
    documents, limit = prepared.train.documents + prepared.validation.documents, config.max_seq_len
    if prepared.truncated:
        reporter.warn("data.truncated", count=prepared.truncated, total=documents, limit=limit)
    if prepared.dropped:
        code = "data.pairs_dropped" if prepared.sides else "data.samples_dropped"
        code = "data.references_dropped" if config.uses_rewards else code
        reporter.warn(code, count=prepared.dropped, total=documents, limit=limit)
    if equal := prepared.report.get("equal_pairs", 0):
        reporter.warn("data.pairs_equal", count=equal)
    if swapped := prepared.report.get("swapped_pairs", 0):
        reporter.warn("data.pairs_swapped", count=swapped, total=documents)
    if not prepared.validation.samples and prepared.validation_sources:
        reporter.warn("data.validation_unusable")
    elif not prepared.validation.samples and config.validation_fraction > 0:
        reporter.warn("data.no_validation")
    count, total = (prepared.report.get(name, 0) for name in ("overlap", "validation_rows"))
    if count > (0 if prepared.validation_sources else _OVERLAP_WARNING_FRACTION * total):
        reporter.warn("data.overlap", count=count, total=total, percent=f"{100 * count / total:.3g}")
