"""Batches of good and bad answers: two conversations a pair, labels, and the operations of training on batches."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.token_caches import VOCAB_SIZE, add_document
from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX, Batch, concat_batches
from trainer_core.data.loader import BatchLoader, SequenceDataset
from trainer_core.data.prepare import PreparedData, load_prepared
from trainer_core.data.report.sample_view import SampleViewer
from trainer_core.data.token_files import SPLITS, TokenFileWriter
from trainer_core.data.tokenizing.bpe import train as train_bpe
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.progress import NullReporter
from trainer_core.train.batch_division import without_labels

LENGTH = 16
# Tokens of the chosen and of the rejected conversation (0: none), of which the first 3 are the prompt.
PAIRS = [(5 + 3 * n % 9, 4 + 5 * n % 11) for n in range(23)]
LABELLED = [(6 + n % 5, 0) if n % 3 else (0, 4 + n % 7) for n in range(23)]


def build(folder: Path, rows: list[tuple[int, int]], sides: int, **knobs: Any) -> tuple[PreparedData, Config]:
    config = Config(**{"max_seq_len": LENGTH, "batch_size": 4, "objective": "dpo", **knobs})
    counts = {}
    for split in SPLITS:
        writer = TokenFileWriter(folder / split, VOCAB_SIZE)
        for number, (chosen, rejected) in enumerate(rows if split == "train" else ()):
            ids = [*range(10, 10 + chosen), *range(100 + number, 100 + number + rejected)]
            spans = [(3, chosen)] if chosen > 3 else []
            spans += [(chosen, chosen), *([(chosen + 3, chosen + rejected)] if rejected else [])]
            add_document(writer, ids, spans)
        counts[split] = writer.finish()
    meta = {"vocab_size": VOCAB_SIZE, "end_of_text": 0, **counts}
    return load_prepared(folder, "preference", meta, config, NullReporter(), sides), config


def batches_of(data: tuple[PreparedData, Config]) -> list[Batch]:
    loader = BatchLoader(*data)
    found = list(loader.iterate_epoch(0))
    loader.close()
    return found


def conversations_of(batch: Batch) -> list[tuple[int, list[int], list[int]]]:
    """Side, input ids and labels that count, of each conversation."""
    assert batch.segments is not None
    assert batch.preference is not None
    assert batch.positions is not None
    found = []
    for row, segments in enumerate(batch.segments):
        for number in range(int(segments.max()) + 1):
            inside = segments == number
            labels = batch.labels[row][inside]
            assert batch.positions[row][inside].tolist() == list(range(int(inside.sum())))
            kept = labels[labels != IGNORE_INDEX].tolist()
            found.append((int(batch.preference[row, number]), batch.input_ids[row][inside].tolist(), kept))
    return found


def expected_conversations(rows: list[tuple[int, int]]) -> list[tuple[int, list[int], list[int]]]:
    found = []
    for number, (chosen, rejected) in enumerate(rows):
        for side, first, length in ((1, 10, chosen), (-1, 100 + number, rejected)):
            ids = list(range(first, first + min(length, LENGTH + 1)))
            if length:
                found.append((side, ids[:-1], ids[3:]))
    return found


@pytest.mark.parametrize("packing", [False, True])
def test_a_pair_is_two_conversations_next_to_each_other(tmp_path: Path, packing: bool) -> None:
    data = build(tmp_path, PAIRS, 2, packing=packing)
    batches = batches_of(data)
    assert sorted(itertools.chain.from_iterable(map(conversations_of, batches))) == sorted(
        expected_conversations(PAIRS)
    )
    assert sum(batch.pairs for batch in batches) == sum(batch.samples for batch in batches) == len(PAIRS)
    for batch in batches:
        assert batch.preference is not None
        assert (batch.preference.dtype, batch.input_ids.shape[1] <= data[0].sequence_len == 2 * LENGTH) == (
            torch.int8,
            True,
        )
        assert batch.row_pairs == tuple((row != 0).sum() // 2 for row in batch.preference)
        assert (batch.preference[:, ::2] >= 0).all()
        assert torch.equal(batch.preference[:, 1::2], -batch.preference[:, ::2])
    assert (len(batches[0].row_documents[0]) > 2) == packing


def test_each_conversation_of_a_pair_is_truncated(tmp_path: Path) -> None:
    rows = [(40, 9), (7, 50), (30, 30), (3, 9), (40, 40)]
    data, config = build(tmp_path, rows, 2)
    assert (data.train.samples, data.truncated, data.dropped) == (4, 4, 1)  # the chosen one of (3, 9) has no answer
    [batch] = batches_of((data, config))
    usable = expected_conversations([row if row[0] > 3 else (0, 0) for row in rows])
    assert sorted(conversations_of(batch)) == sorted(usable)


def test_labelled_answers_count_as_pairs(tmp_path: Path) -> None:
    data = build(tmp_path, LABELLED, 1, objective="kto")
    batches = batches_of(data)
    assert data[0].sequence_len == LENGTH
    assert sorted(itertools.chain.from_iterable(map(with_one_segment, batches))) == sorted(
        expected_conversations(LABELLED)
    )
    assert all(batch.pairs == batch.samples == len(batch.row_pairs) for batch in batches)


def with_one_segment(batch: Batch) -> list[tuple[int, list[int], list[int]]]:
    segments, width = torch.full_like(batch.input_ids, -1), batch.input_ids.shape[1]
    for row, (length,) in enumerate(batch.row_documents):
        segments[row, :length] = 0
    positions = torch.arange(width).repeat(len(segments), 1)
    return conversations_of(replace(batch, segments=segments, positions=positions))


def test_a_pair_for_kto_counts_as_two(tmp_path: Path) -> None:
    batches = batches_of(build(tmp_path, [*PAIRS[:3], (6, 0)], 2, objective="kto"))
    assert [(batch.pairs, sum(batch.row_pairs), batch.samples) for batch in batches] == [(7, 7, 4)]


def with_reference(batch: Batch) -> Batch:
    assert batch.preference is not None
    values = torch.arange(batch.preference.numel(), dtype=torch.float32).reshape(batch.preference.shape)
    return replace(batch, reference=values * (batch.preference != 0))


def documents_of(values: Tensor | None, preference: Tensor | None) -> list[float]:
    assert values is not None
    assert preference is not None
    return values[preference != 0].tolist()


@pytest.mark.parametrize("packing", [False, True])
def test_rows_can_be_selected_and_concatenated(tmp_path: Path, packing: bool) -> None:
    batch = with_reference(batches_of(build(tmp_path, PAIRS, 2, packing=packing))[0])
    parts = batch.split_rows(1)
    assert [part.pairs for part in parts] == list(batch.row_pairs)
    assert sum(part.loss_weight for part in parts) == batch.loss_weight == batch.pairs
    merged = concat_batches(parts)
    assert (merged.pairs, merged.row_pairs) == (batch.pairs, batch.row_pairs)
    assert conversations_of(merged) == conversations_of(batch)
    assert documents_of(merged.reference, merged.preference) == documents_of(batch.reference, batch.preference)


def test_batches_with_different_numbers_of_conversations_are_concatenated(tmp_path: Path) -> None:
    data = build(tmp_path, PAIRS, 2, packing=True)
    first, *rest = map(with_reference, batches_of(data))
    narrow = replace(first, preference=None if first.preference is None else first.preference[:, :2])
    second = next(one for one in rest if one.input_ids.shape[1] == first.input_ids.shape[1])
    merged = concat_batches([replace(narrow, reference=None), second])
    assert merged.reference is None
    assert merged.preference is not None
    assert (merged.preference[: len(first.input_ids), 2:] == 0).all()


@pytest.mark.parametrize("selects_rows", [False, True])
def test_without_padding_conversations_keep_their_order(tmp_path: Path, selects_rows: bool) -> None:
    batch = with_reference(batches_of(build(tmp_path, PAIRS, 2, packing=True))[0])
    batch = batch.select_rows(slice(1, 3)) if selects_rows else batch
    flat = batch.without_padding()
    assert flat.preference is not None
    assert batch.preference is not None
    assert flat.cu_seqlens is not None
    assert flat.preference.shape == (1, len(flat.cu_seqlens.offsets) - 1)
    assert flat.preference[0].tolist() == batch.preference[batch.preference != 0].tolist()
    assert documents_of(flat.reference, flat.preference) == documents_of(batch.reference, batch.preference)
    lengths = flat.cu_seqlens.offsets.diff().tolist()
    ids = [part.tolist() for part in flat.input_ids[0].split(lengths)]
    assert ids == [one[1] for one in conversations_of(batch)]
    assert (flat.pairs, flat.row_pairs, flat.tokens) == (batch.pairs, (batch.pairs,), batch.tokens)


def test_a_batch_is_moved_with_its_preferences(tmp_path: Path) -> None:
    batch = with_reference(batches_of(build(tmp_path, PAIRS, 2))[0])
    moved = batch.to(torch.device("meta"))
    assert {tensor.device.type for tensor in moved.tensors()} == {"meta"}
    assert (moved.preference is not None, moved.reference is not None) == (True, True)


def test_a_batch_without_labels_has_no_pairs(tmp_path: Path) -> None:
    empty = without_labels(batches_of(build(tmp_path, PAIRS, 2))[0])
    assert (empty.loss_weight, empty.row_pairs) == (0, (0,))
    assert empty.preference is not None
    assert not empty.preference.any()


def test_a_sample_of_the_report_has_the_tokens_and_labels_of_the_loader(tmp_path: Path) -> None:
    data, _ = build(tmp_path, [(9, 7), (30, 12)], 2)
    codec = Codec(train_bpe([f"text {n}" for n in range(50)], 300, "qwen2", lambda: None))
    samples = SampleViewer(data.open_split("train"), codec, LENGTH).preference_samples(data.sequences["train"], 5)
    dataset = SequenceDataset(data, "train")
    for index, sample in enumerate(samples):
        item = dataset[index]
        ends = [*item.document_starts[1:], len(item.input_ids)]
        for place, (start, end) in enumerate(zip(item.document_starts, ends, strict=True)):
            tokens = [token for token in sample.tokens if token.document == place]
            assert [token.id for token in tokens[:-1]] == item.input_ids[start:end].tolist()
            labels = [token.id if token.in_loss else IGNORE_INDEX for token in tokens[1:]]
            assert labels == item.labels[start:end].tolist()
            assert (item.preference[place] > 0) == sample.answers[place].chosen


def test_other_data_is_weighted_by_tokens(tmp_path: Path) -> None:
    data = SequenceDataset(build(tmp_path, PAIRS, 2)[0], "train")
    batch = replace(data.collate([data[0]]), pairs=0)
    assert batch.loss_weight == batch.loss_tokens
