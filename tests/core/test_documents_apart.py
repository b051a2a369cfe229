"""Documents in one sequence do not see each other: each is learnt exactly as if it stood alone."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.made_cache import END, VOCABULARY, Chat, conversations, texts
from trainer_core.config import Config
from trainer_core.data.loader import IGNORE_INDEX, PADDING_SEGMENT, Batch, BatchLoader
from trainer_core.data.prepare import PreparedData
from trainer_core.models.attention import document_mask
from trainer_core.models.decoder import Decoder, ModelConfig
from trainer_core.train.loss import batch_loss

LENGTH = 24
Losses = dict[tuple[int, ...], list[float]]  # of the learned tokens of a document, by its tokens


def chats() -> list[Chat]:
    """Conversations of two answers or one; some are cut, and some have nothing left to learn then."""
    drawn, made = random.Random(1), []
    for number in range(60):
        length = drawn.randint(4, 30)
        start = drawn.randint(1, length - 2)
        spans = [(start, length)] if number % 3 else [(1, 3), (max(3, start), length)]
        made.append(([drawn.randrange(1, VOCABULARY) for _ in range(length)], spans))
    return made


def config(**knobs: object) -> Config:
    return Config(max_seq_len=LENGTH, batch_size=5, **knobs)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return conversations(tmp_path_factory.mktemp("cache"), config(packing=True), chats())


@pytest.fixture(scope="module")
def alone(packed: PreparedData) -> PreparedData:
    return conversations(packed.folder.with_name("alone"), config(), chats())


@pytest.fixture(scope="module")
def model() -> Decoder:
    torch.manual_seed(0)
    shape = ModelConfig(
        VOCABULARY, hidden_dim=32, n_layers=2, n_heads=4, n_kv_heads=2, mlp_dim=48, max_seq_len=LENGTH, qk_norm=True
    )
    drawn = Decoder(shape)
    with torch.no_grad():
        for weight in drawn.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return drawn


def segments_of(batch: Batch) -> torch.Tensor:
    """The segments of a batch; of one without any they are told by hand: whole rows."""
    if batch.segments is not None:
        return batch.segments
    return torch.zeros_like(batch.input_ids)


def losses(model: Decoder, batches: Iterable[Batch]) -> Losses:
    """The loss of each learned token, document by document."""
    found: Losses = {}
    for batch in batches:
        mask = None if batch.segments is None else document_mask(batch.segments)
        with torch.no_grad():
            logits = model(batch.input_ids, positions_BT=batch.positions, mask_B1TS=mask)
        each = F.cross_entropy(logits.transpose(1, 2), batch.labels, ignore_index=IGNORE_INDEX, reduction="none")
        segments = segments_of(batch)
        for row, segment in {(row, int(number)) for row, line in enumerate(segments) for number in line}:
            here = (segments[row] == segment) & (batch.labels[row] != IGNORE_INDEX)
            if here.any():
                tokens = tuple(batch.labels[row][here].tolist())
                assert tokens not in found
                found[tokens] = each[row][here].tolist()
    return found


def assert_close(some: Losses, others: Losses) -> None:
    assert some.keys() == others.keys()
    for tokens, values in some.items():
        assert values == pytest.approx(others[tokens], rel=1e-4, abs=1e-5)


# --- conversations ---------------------------------------------------------------------------------


def test_every_conversation_has_the_losses_that_it_has_alone(
    model: Decoder, packed: PreparedData, alone: PreparedData
) -> None:
    together = list(BatchLoader(packed, config()).iterate_epoch(0))
    one_by_one = list(BatchLoader(alone, Config(max_seq_len=LENGTH, batch_size=1)).iterate_epoch(0))
    assert packed.train.samples < alone.train.samples
    assert any(batch.segments is not None for batch in together)
    assert all(batch.segments is None for batch in one_by_one)
    assert_close(losses(model, together), losses(model, one_by_one))


def test_a_window_of_packs_has_the_gradient_of_the_same_conversations_alone(
    model: Decoder, packed: PreparedData, alone: PreparedData
) -> None:
    gradients, counted = [], []
    for prepared in (packed, alone):
        window = list(BatchLoader(prepared, config()).iterate_epoch(0))  # one step over all of an epoch
        tokens = sum(batch.loss_tokens for batch in window)
        model.zero_grad()
        for batch in window:
            (batch_loss(model, batch) / tokens).backward()
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
        counted.append((tokens, sum(batch.samples for batch in window)))
    assert counted[0] == counted[1]
    assert counted[1][1] == alone.train.samples  # conversations, not sequences
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_the_answers_of_a_conversation_are_learned_and_nothing_else(alone: PreparedData) -> None:
    shown = {}
    for batch in BatchLoader(alone, config()).iterate_epoch(0):
        for inputs, labels in zip(batch.input_ids.tolist(), batch.labels.tolist(), strict=True):
            shown[tuple(inputs[:3])] = labels
    for ids, spans in chats():
        learned = {at for start, stop in spans for at in range(start, stop) if 1 <= at <= LENGTH}
        if not learned:
            assert tuple(ids[:3]) not in shown
            continue
        labels = shown[tuple(ids[:3])]
        assert {at + 1 for at, label in enumerate(labels) if label != IGNORE_INDEX} == learned
        assert all(labels[at - 1] == ids[at] for at in learned)


def test_padding_is_a_segment_of_its_own_that_teaches_nothing(packed: PreparedData) -> None:
    for batch in BatchLoader(packed, config()).iterate_epoch(0):
        if batch.segments is None:  # long conversations alone: padding comes last, and nobody looks back at it
            continue
        padding = batch.segments == PADDING_SEGMENT
        assert (batch.labels[padding] == IGNORE_INDEX).all()
        assert (batch.input_ids[padding] == END).all()
        assert batch.positions is not None
        assert int(batch.positions.max()) < LENGTH
        assert batch.input_ids.shape[1] % 8 == 0


# --- plain text ------------------------------------------------------------------------------------


def written() -> list[list[int]]:
    """Texts of 0 to 60 tokens: some end with a window, some fill more than one."""
    drawn = random.Random(2)
    lengths = [LENGTH - 1, 0, 5, LENGTH, 60, 0, 0, *(drawn.randint(0, 60) for _ in range(40))]
    return [[drawn.randrange(1, VOCABULARY) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def divided(tmp_path_factory: pytest.TempPathFactory) -> PreparedData:
    return texts(tmp_path_factory.mktemp("cache"), config(attend_across_documents=False), written())


def test_the_part_of_a_text_in_a_window_has_the_losses_that_it_has_alone(model: Decoder, divided: PreparedData) -> None:
    found = losses(model, BatchLoader(divided, config()).iterate_epoch(0))
    expected: Losses = {}
    start = 0  # of the document, in all tokens
    for ids in written():
        tokens = [*ids, END]
        end = min(start + len(tokens), divided.train.samples * LENGTH + 1)  # the rest makes no whole window
        for window in range(start // LENGTH, -(-end // LENGTH)):
            first, last = max(start, window * LENGTH), min(end - 1, (window + 1) * LENGTH)
            part = tokens[first - start : last + 1 - start]
            if len(part) > 1:
                inputs, labels = torch.tensor([part[:-1]]), torch.tensor(part[1:])
                with torch.no_grad():
                    each = F.cross_entropy(model(inputs)[0], labels, reduction="none")
                expected[tuple(part[1:])] = each.tolist()
        start += len(tokens)
    expected.pop((END,), None), found.pop((END,), None)  # of several texts; they say nothing
    assert_close(found, expected)


def test_a_text_is_never_asked_for_the_first_token_of_the_next(divided: PreparedData) -> None:
    for batch in BatchLoader(divided, config()).iterate_epoch(0):
        ends = batch.input_ids == END
        assert (batch.labels[ends] == IGNORE_INDEX).all()
        assert (batch.labels[~ends] != IGNORE_INDEX).all()
        assert batch.samples == len(batch.input_ids)


def test_attending_across_documents_divides_nothing(divided: PreparedData) -> None:
    whole = texts(divided.folder.with_name("whole"), config(), written())
    pairs = zip(
        BatchLoader(divided, config()).iterate_epoch(0), BatchLoader(whole, config()).iterate_epoch(0), strict=True
    )
    for apart, together in pairs:
        assert torch.equal(apart.input_ids, together.input_ids)
        assert together.segments is None
        assert together.positions is None
        assert together.loss_tokens == together.labels.numel()


def test_a_window_without_a_boundary_needs_no_mask(tmp_path: Path) -> None:
    prepared = texts(tmp_path, config(attend_across_documents=False), [[1] * (LENGTH * 10)])
    assert all(batch.segments is None for batch in BatchLoader(prepared, config()).iterate_epoch(0))
