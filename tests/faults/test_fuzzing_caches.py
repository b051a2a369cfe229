"""Damaged caches and tokenizers: the data is computed again, or an error with a code is raised."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainer_core.data import cache
from trainer_core.data.tokenizing import tokenizer
from trainer_core.messages import TraindeckError
from trainer_core.progress import NullReporter
from trainer_core.system.result_cache import MeasurementCache

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
file_contents = st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode())


@settings(max_examples=100, deadline=None)
@given(content=file_contents)
@example(content=b"[" * 100_000)
@example(content=b'{"\\"a\\"": 5}')
def test_a_damaged_measurement_cache_is_ignored(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        measurements = MeasurementCache(Path(folder, "engine.json"))
        measurements.path.write_bytes(content)
        assert measurements.get("a") is None
        measurements.store({"x": 1}, "a")
        assert measurements.get("a") == {"x": 1}


@settings(max_examples=100, deadline=None)
@given(content=file_contents, entry=json_values)
@example(content=b"[" * 100_000, entry=None)
def test_damaged_content_hashes_are_recomputed(content: bytes, entry: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file, hashes_file = Path(folder, "data.txt"), Path(folder, "contents.json")
        file.write_bytes(b"some words")
        hashes_file.write_bytes(b"{}")
        expected = cache.ContentHashes(Path(folder), NullReporter(), 10).get(file)
        status = file.stat()
        for damaged in (content, json.dumps({str(file): entry}).encode(), json.dumps(
            {str(file): [status.st_size, status.st_mtime_ns]}).encode()):  # fmt: skip
            hashes_file.write_bytes(damaged)
            assert cache.ContentHashes(Path(folder), NullReporter(), 10).get(file) == expected


@pytest.fixture(scope="module")
def valid_tokenizer() -> dict[str, Any]:
    """A small tokenizer.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    built = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    document: dict[str, Any] = json.loads(built.to_str())
    return document


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_tokenizer_is_loaded_or_raises_a_traindeck_error(
    valid_tokenizer: dict[str, Any], data: st.DataObject
) -> None:
    document = json.loads(json.dumps(valid_tokenizer))
    for name in data.draw(st.lists(st.sampled_from(sorted(document)), max_size=2)):
        document[name] = data.draw(json_values)
    for name in data.draw(st.lists(st.sampled_from(sorted(document["model"])), max_size=2)) if isinstance(
        document["model"], dict) and document["model"] else ():  # fmt: skip
        document["model"][name] = data.draw(json_values)
    content = data.draw(st.just(json.dumps(document).encode()) | file_contents)
    tokenizer_configs = st.fixed_dictionaries({}, optional={
        "chat_template": json_values | st.sampled_from(["{{ messages }}", "{% for", "{{ 1/0 }}", "{{ messages[9] }}"]),
        "eos_token": json_values, "added_tokens_decoder": json_values,
    })  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.json")
        path.write_bytes(content)
        Path(folder, "tokenizer_config.json").write_bytes(
            data.draw(tokenizer_configs.map(lambda value: json.dumps(value).encode()) | file_contents)
        )
        with contextlib.suppress(TraindeckError):
            codec, _ = tokenizer.load_user_tokenizer(path)
            codec.encode("ab")
            codec.require_template()
            codec.encode_prompt("a")
