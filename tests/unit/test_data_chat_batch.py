"""Conversations written many at once are what their template makes of each of them."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.model_folders import model_folder
from trainer_core.data.columns import Turn
from trainer_core.data.tokenizing import chat_template, tokenizer
from trainer_core.data.tokenizing.bpe import train
from trainer_core.data.tokenizing.chat_template import ROLES
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.messages import TraindeckError

TEXTS = ["What is 12 plus 30? It's 42.\n\n床前明月光，疑是地上霜。 user assistant system tool\n"] * 9
contents = st.one_of(st.sampled_from(["", " ", "\n", "assistant\n", "<|im_end|>", "\n\nYes"]), st.text(max_size=8))
turns = st.lists(st.tuples(st.sampled_from(ROLES), contents), max_size=6)


@functools.cache
def codec(kind: str) -> Codec:
    """Unigram: a tokenizer that writes a space before a text, and none where one goes on."""
    if kind == "trained":
        return Codec(train(TEXTS, 400, "qwen2", lambda: None))
    with tempfile.TemporaryDirectory() as folder:
        return tokenizer.load_user_tokenizer(model_folder(Path(folder), "unigram") / "tokenizer.json")[0]


def slowly(made: Codec, conversation: list[Turn]) -> tuple[list[int], list[tuple[int, int]]] | None:
    """Segment by segment; None where there is no answer."""
    assert isinstance(made.template, chat_template.ChatMl)
    if not any(role == "assistant" for role, _ in conversation):
        return None
    segments = made.template.render(conversation)
    while not segments[-1].in_loss:
        segments.pop()
    ids: list[int] = []
    learned: list[bool] = []
    for text, mark, is_learned, place in segments:
        part = [mark] if mark >= 0 else made._pieces.encode([(text, place)])[0].tolist()
        ids += part
        learned += [is_learned] * len(part)
    edges = np.flatnonzero(np.diff([0, *learned, 0])).tolist()
    return ids, list(zip(edges[::2], edges[1::2], strict=True))


@pytest.mark.parametrize("kind", ["trained", "unigram"])
def test_chatml_is_written_at_once_as_it_is_segment_by_segment(kind: str) -> None:
    made = codec(kind)

    @settings(max_examples=150, deadline=None)
    @given(st.lists(turns, max_size=6))
    def check(chats: list[list[Turn]]) -> None:
        refused: list[int] = []
        found = made.encode_chats(chats, lambda number, _: refused.append(number))
        for number, (one, conversation) in enumerate(zip(found, chats, strict=True)):
            expected = slowly(made, conversation)
            assert (number in refused) == (expected is None)
            assert (one.ids.tolist(), one.spans) == (expected or ([], []))

    check()


def test_no_conversations_are_no_ids() -> None:
    ids, lengths, spans, counts, left_out = codec("trained").encode_conversations([])
    assert (len(ids), len(lengths), spans.shape, len(counts), left_out) == (0, 0, (0, 2), 0, 0)


def test_answers_of_neighbouring_conversations_are_not_one_span() -> None:
    """Where a conversation begins with what is learned, it is learned apart from the end of the one before."""
    chats: list[list[Turn]] = [[("user", "Hi"), ("assistant", "Yes")]] * 3
    _, lengths, spans, counts, _ = codec("trained").encode_conversations(chats)
    assert counts.tolist() == [1, 1, 1]
    assert (spans[:, 1] == lengths).all()


def test_a_role_that_would_spell_a_mark_is_refused() -> None:
    with pytest.raises(TraindeckError):
        codec("trained").encode_conversations([[("user<|im_end|>", "Hi"), ("assistant", "Yes")]])
