"""Samples of the data preview equal the training samples: tokens and labels."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.prepared_data import prepare_files
from tests.unit.model_folders import load_codec
from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX
from trainer_core.data.loader import SequenceDataset
from trainer_core.data.report.report import report_prepared_data
from trainer_core.data.report.sample_view import decode_tokens
from trainer_core.data.tokenizing.bpe import train
from trainer_core.data.tokenizing.tokenizer import Codec

KNOBS: dict[str, Any] = {"vocab_size": 320, "max_seq_len": 96, "validation_fraction": 0.1}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINDECK_HOME", str(tmp_path / "home"))


def build_rows(kind: str) -> list[dict[str, Any]]:
    if kind == "text":
        return [{"text": f"第{n}篇 text. " * (1 + n % 4)} for n in range(150)]
    return [
        {
            "messages": [
                {"role": "user", "content": f"{n}？"},
                {"role": "assistant", "content": "yes " * (n % 9)},
                {"role": "user", "content": "and"},
                {"role": "assistant", "content": "no"},
            ]
        }
        for n in range(150)
    ]


@pytest.mark.parametrize(
    ("kind", "separate_or_pack"), [("text", True), ("text", False), ("chat", True), ("chat", False)]
)
def test_preview_samples_equal_training_samples(tmp_path: Path, kind: str, separate_or_pack: bool) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in build_rows(kind)), encoding="utf-8")
    knobs = {**KNOBS, ("attend_across_documents" if kind == "text" else "packing"): separate_or_pack}
    result = prepare_files(data, **knobs)
    report = report_prepared_data(result, Config(data=[str(data)], **knobs))
    samples = SequenceDataset(result, "train")
    assert len(report.samples) == 5
    has_documents = False
    for index, sample in enumerate(report.samples):
        training_sample = samples[index]
        starts = [*training_sample.document_starts, len(training_sample.input_ids)]
        has_documents = has_documents or len(training_sample.document_starts) > 1
        if kind == "text":
            ids = [token.id for token in sample.tokens]
            assert ids == [*training_sample.input_ids.tolist(), ids[-1]]
            labels = [
                ids[position + 1] if sample.tokens[position + 1].in_loss else IGNORE_INDEX
                for position in range(len(ids) - 1)
            ]
            assert labels == training_sample.labels.tolist()
            continue
        assert {token.document for token in sample.tokens} == set(range(len(training_sample.document_starts)))
        for document, (start, stop) in enumerate(itertools.pairwise(starts)):
            tokens = [token for token in sample.tokens if token.document == document]
            assert [token.id for token in tokens[:-1]] == training_sample.input_ids[start:stop].tolist()
            assert [token.id if token.in_loss else IGNORE_INDEX for token in tokens[1:]] == training_sample.labels[
                start:stop
            ].tolist()
    assert has_documents == ((kind == "text" and not separate_or_pack) or (kind == "chat" and separate_or_pack))


# --- texts of tokens ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def codec() -> Codec:
    tokenizer: Tokenizer = train(["the cat sat. " * 50, "春眠不觉晓" * 20], 300, "qwen2", lambda: None)
    return Codec(tokenizer)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=("Cs",), exclude_characters="\ufffd"), max_size=60))
def test_token_texts_join_to_the_text(codec: Codec, text: str) -> None:
    ids = codec.encode(text)
    texts = decode_tokens(codec, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == codec.decode(ids, skip_special_tokens=False)
    assert "\ufffd" not in "".join(texts)


def test_a_character_of_several_tokens_is_shown_at_the_first(codec: Codec) -> None:
    assert decode_tokens(codec, codec.encode("a🙂b")) == ["a", "🙂", "", "", "", "b"]


@pytest.mark.parametrize("family", ["gemma", "mistral", "llama2", "unigram"])
def test_a_long_run_of_byte_tokens_is_shown_as_its_text(family: str) -> None:
    text = "什么是过拟合？怎样避免它😀" * 3
    codec = load_codec(family)
    ids = codec.encode(text)
    assert len(ids) > 2 * len(text)
    assert "".join(decode_tokens(codec, ids)).strip() == text


def test_invalid_bytes_do_not_delay_the_following_text(codec: Codec) -> None:
    emoji = codec.encode("🙂")
    texts = decode_tokens(codec, [emoji[0], emoji[0], *codec.encode("the cat")])
    assert "".join(texts).endswith("cat")
    assert "\ufffd" in "".join(texts)
    assert decode_tokens(codec, emoji[:2]) == ["\ufffd", ""]
    assert decode_tokens(codec, []) == []
