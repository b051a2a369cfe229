"""Selects the rows to evaluate: held-out rows of a run, or a sample of given files. No torch, no Qt."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from trainer_core.config import Config
from trainer_core.data.column_mapping import Task
from trainer_core.data.columns import TOOLS_ROLE, Document, Turn, trim_after_last_answer
from trainer_core.data.documents import DocumentStream, choose_piece_chars
from trainer_core.data.order import keyed_hash
from trainer_core.data.prepare import report_skipped_files
from trainer_core.data.sources import DatasetScan, DatasetScans, common_task, scan_datasets
from trainer_core.data.split_files import HeldOutSelector, example_rank
from trainer_core.evaluation.report import Rows
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter, Reporter

_MAX_EXAMPLE_CANDIDATES: Final = 10_000  # first training rows, from which examples are drawn

Conversation = tuple[Turn, ...]


def select_rows(config: Config, size: int, all_rows: bool, reporter: Reporter) -> Rows:
    """A fixed uniform sample of `size` rows in data order (0: all).

    The candidates are the validation data of `config`, else with `all_rows` all of its data, else the rows that a run
    holds out. With the same data, a run's own evaluations generate answers for the first of the same sample. Of
    preferences, the chosen answers are the references.

    Raises as `scan_datasets` and `DocumentStream`, and `evaluate.no_rows`.
    """
    scans = scan_datasets(config, reporter.poll)
    report_skipped_files(scans.all, reporter)
    held_out = HeldOutSelector(1.0 if scans.validation or all_rows else config.validation_fraction)
    used = scans.validation or scans.train
    candidates = (
        one for one in _stream(used, scans, config, reporter) if one.split_unit in held_out and (one.text or one.turns)
    )
    if size:
        sample = heapq.nsmallest(size, enumerate(candidates), key=lambda one: example_rank(one[0]))
        rows = [document for _, document in sorted(sample, key=lambda one: one[0])]
    else:
        rows = list(candidates)
    if not rows:
        raise TraindeckError("evaluate.no_rows", path=", ".join(config.validation_data or config.data))
    task: Task = "pretrain" if common_task(scans.all) == "pretrain" else "sft"
    return Rows(task, rows, [str(file.path) for scan in used for file in scan.files])


def draw_examples(config: Config, count: int, excluded: Sequence[Document], reporter: Reporter) -> list[Conversation]:
    """`count` conversations from the training rows of `config`, none of them held out or equal to an `excluded` row.

    Raises as `select_rows`, and `evaluate.no_examples` if there are too few.
    """
    scans = scan_datasets(config, reporter.poll)
    held_out = HeldOutSelector(0.0 if scans.validation else config.validation_fraction)
    evaluated = {document.turns for document in excluded}
    candidates = islice(_stream(scans.train, scans, config, NullReporter()), _MAX_EXAMPLE_CANDIDATES)
    usable = (one for one in candidates if one.split_unit not in held_out and one.turns and one.turns not in evaluated)
    drawn = heapq.nsmallest(count, usable, key=lambda document: keyed_hash("few-shot", document.number))
    if len(drawn) < count:
        raise TraindeckError("evaluate.no_examples", wanted=count, found=len(drawn))
    return [document.turns for document in drawn]


def _stream(used: Sequence[DatasetScan], scans: DatasetScans, config: Config, reporter: Reporter) -> Iterator[Document]:
    piece_chars = choose_piece_chars(scans.all)  # as preparation cuts plain text
    for document in DocumentStream(used, config, reporter, piece_chars=piece_chars):
        reporter.poll()
        yield document


def in_context(turns: Sequence[Turn], system: str, examples: Sequence[Conversation]) -> list[Turn]:
    """The conversation up to its last answer. `system` replaces its system prompt; the examples follow that."""
    tools = [turn for turn in turns[:1] if turn[0] == TOOLS_ROLE]
    rest = trim_after_last_answer(turns[len(tools) :])
    own = [turn for turn in rest[:1] if turn[0] == "system"]
    shots = [turn for one in examples for turn in trim_after_last_answer(one) if turn[0] not in ("system", TOOLS_ROLE)]
    return [*tools, *([("system", system)] if system else own), *shots, *rest[len(own) :]]
