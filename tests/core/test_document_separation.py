"""Separated documents of a sequence have the losses and gradients of each document alone."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.core.shapes import model_shape
from tests.token_caches import (
    END_OF_TEXT,
    VOCAB_SIZE,
    Conversation,
    build_conversation_cache,
    build_text_cache,
)
from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX, PADDING_SEGMENT, Batch
from trainer_core.data.loader import BatchLoader
from trainer_core.data.prepare import PreparedData
from trainer_core.models.attention import document_mask, per_document_attention, sdpa
from trainer_core.models.decoder import Decoder
from trainer_core.train.loss import batch_loss

LENGTH = 24
DocumentLosses = dict[tuple[int, ...], list[float]]  # losses of the trained tokens of each document, by these tokens


def random_conversations() -> list[Conversation]:
    """Conversations with one or two responses, some too long, some without trained tokens after truncation."""
    generator, conversations = random.Random(1), []
    for number in range(60):
        length = generator.randint(4, 30)
        start = generator.randint(1, length - 2)
        spans = [(start, length)] if number % 3 else [(1, 3), (max(3, start), length)]
        conversations.append(([generator.randrange(1, VOCAB_SIZE) for _ in range(length)], spans))
    return conversations


def config(**knobs: object) -> Config:
    return Config(max_seq_len=LENGTH, batch_size=5, **knobs)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def packed_data(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return build_conversation_cache(tmp_path_factory.mktemp("cache"), config(packing=True), random_conversations())


@pytest.fixture(scope="module")
def unpacked_data(packed_data: PreparedData) -> PreparedData:
    return build_conversation_cache(packed_data.folder.with_name("alone"), config(), random_conversations())


@pytest.fixture(scope="module")
def model() -> Decoder:
    torch.manual_seed(0)
    shape = model_shape(VOCAB_SIZE, 32, 2, max_seq_len=LENGTH, qk_norm=True)
    decoder = Decoder(shape)
    with torch.no_grad():
        for weight in decoder.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return decoder


def segments_of(batch: Batch) -> torch.Tensor:
    """The segments of a batch; whole rows if it has none."""
    if batch.segments is not None:
        return batch.segments
    return torch.zeros_like(batch.input_ids)


def document_losses(model: Decoder, batches: Iterable[Batch]) -> DocumentLosses:
    """The loss of each trained token by document."""
    result: DocumentLosses = {}
    for batch in batches:
        mask = None if batch.segments is None else document_mask(batch.segments)
        with torch.no_grad():
            logits = model(batch.input_ids, positions_BT=batch.positions, mask_B1TS=mask)
        token_losses = F.cross_entropy(
            logits.transpose(1, 2), batch.labels, ignore_index=IGNORE_INDEX, reduction="none"
        )
        segments = segments_of(batch)
        for row, segment in {(row, int(number)) for row, line in enumerate(segments) for number in line}:
            selected = (segments[row] == segment) & (batch.labels[row] != IGNORE_INDEX)
            if selected.any():
                tokens = tuple(batch.labels[row][selected].tolist())
                assert tokens not in result
                result[tokens] = token_losses[row][selected].tolist()
    return result


def assert_close(actual: DocumentLosses, expected: DocumentLosses) -> None:
    assert actual.keys() == expected.keys()
    for tokens, values in actual.items():
        assert values == pytest.approx(expected[tokens], rel=1e-4, abs=1e-5)


# --- conversations ---------------------------------------------------------------------------------


def test_packed_conversations_have_the_losses_of_unpacked_ones(
    model: Decoder, packed_data: PreparedData, unpacked_data: PreparedData
) -> None:
    packed_batches = list(BatchLoader(packed_data, config()).iterate_epoch(0))
    single_batches = list(BatchLoader(unpacked_data, Config(max_seq_len=LENGTH, batch_size=1)).iterate_epoch(0))
    assert packed_data.train.samples < unpacked_data.train.samples
    assert any(batch.segments is not None for batch in packed_batches)
    assert all(batch.segments is None for batch in single_batches)
    assert_close(document_losses(model, packed_batches), document_losses(model, single_batches))


def test_packed_conversations_and_those_without_padding_have_the_gradients_of_padded_ones(
    model: Decoder, packed_data: PreparedData, unpacked_data: PreparedData
) -> None:
    gradients, counts = [], []
    for prepared, varlen in ((packed_data, False), (unpacked_data, False), (packed_data, True), (unpacked_data, True)):
        model.set_attention(per_document_attention if varlen else sdpa)
        window = list(BatchLoader(prepared, config()).iterate_epoch(0))  # one step over all of an epoch
        tokens = sum(batch.loss_tokens for batch in window)
        model.zero_grad()
        for batch in window:
            for part in batch.split_rows(2 if varlen else 5):
                (batch_loss(model, part, varlen=varlen) / tokens).backward()
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
        counts.append((tokens, sum(batch.samples for batch in window)))
    model.set_attention(sdpa)
    assert len(set(counts)) == 1
    assert counts[1][1] == unpacked_data.train.samples  # conversations, not sequences
    for others in gradients[1:]:
        for one, other in zip(gradients[0], others, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_only_responses_have_labels(unpacked_data: PreparedData) -> None:
    labels_by_row = {}
    for batch in BatchLoader(unpacked_data, config()).iterate_epoch(0):
        for inputs, labels in zip(batch.input_ids.tolist(), batch.labels.tolist(), strict=True):
            labels_by_row[tuple(inputs[:3])] = labels
    for ids, spans in random_conversations():
        trained = {position for start, stop in spans for position in range(start, stop) if 1 <= position <= LENGTH}
        if not trained:
            assert tuple(ids[:3]) not in labels_by_row
            continue
        labels = labels_by_row[tuple(ids[:3])]
        assert {position + 1 for position, label in enumerate(labels) if label != IGNORE_INDEX} == trained
        assert all(labels[position - 1] == ids[position] for position in trained)


def test_padding_is_a_separate_segment_without_labels(packed_data: PreparedData) -> None:
    for batch in BatchLoader(packed_data, config()).iterate_epoch(0):
        if batch.segments is None:  # one document per row: no token attends to the padding after it
            continue
        padding = batch.segments == PADDING_SEGMENT
        assert (batch.labels[padding] == IGNORE_INDEX).all()
        assert (batch.input_ids[padding] == END_OF_TEXT).all()
        assert batch.positions is not None
        assert int(batch.positions.max()) < LENGTH
        assert batch.input_ids.shape[1] % 8 == 0


# --- plain text ------------------------------------------------------------------------------------


def random_texts() -> list[list[int]]:
    """Texts of 0 to 60 tokens: some end at a window boundary, some span several windows."""
    generator = random.Random(2)
    lengths = [LENGTH - 1, 0, 5, LENGTH, 60, 0, 0, *(generator.randint(0, 60) for _ in range(40))]
    return [[generator.randrange(1, VOCAB_SIZE) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def separated(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return build_text_cache(tmp_path_factory.mktemp("cache"), config(attend_across_documents=False), random_texts())


def test_the_part_of_a_text_in_a_window_has_the_losses_of_that_part_alone(
    model: Decoder, separated: PreparedData
) -> None:
    result = document_losses(model, BatchLoader(separated, config()).iterate_epoch(0))
    expected: DocumentLosses = {}
    start = 0  # of the document, in all tokens
    for ids in random_texts():
        tokens = [*ids, END_OF_TEXT]
        end = min(start + len(tokens), separated.train.samples * LENGTH + 1)  # the rest fills no window
        for window in range(start // LENGTH, -(-end // LENGTH)):
            first, last = max(start, window * LENGTH), min(end - 1, (window + 1) * LENGTH)
            part = tokens[first - start : last + 1 - start]
            if len(part) > 1:
                inputs, labels = torch.tensor([part[:-1]]), torch.tensor(part[1:])
                with torch.no_grad():
                    token_losses = F.cross_entropy(model(inputs)[0], labels, reduction="none")
                expected[tuple(part[1:])] = token_losses.tolist()
        start += len(tokens)
    expected.pop((END_OF_TEXT,), None), result.pop((END_OF_TEXT,), None)  # not unique
    assert_close(result, expected)


def test_the_first_token_of_a_text_is_never_a_label(separated: PreparedData) -> None:
    for batch in BatchLoader(separated, config()).iterate_epoch(0):
        ends = batch.input_ids == END_OF_TEXT
        assert (batch.labels[ends] == IGNORE_INDEX).all()
        assert (batch.labels[~ends] != IGNORE_INDEX).all()
        assert batch.samples == len(batch.input_ids)


def test_attending_across_documents_creates_no_segments(separated: PreparedData) -> None:
    joined = build_text_cache(separated.folder.with_name("whole"), config(), random_texts())
    pairs = zip(
        BatchLoader(separated, config()).iterate_epoch(0), BatchLoader(joined, config()).iterate_epoch(0), strict=True
    )
    for separate, together in pairs:
        assert torch.equal(separate.input_ids, together.input_ids)
        assert together.segments is None
        assert together.positions is None
        assert together.loss_tokens == together.labels.numel()


def test_a_window_within_one_document_has_no_segments(tmp_path: Path) -> None:
    prepared = build_text_cache(tmp_path, config(attend_across_documents=False), [[1] * (LENGTH * 10)])
    assert all(batch.segments is None for batch in BatchLoader(prepared, config()).iterate_epoch(0))
