"""Batches: labels, an order that depends only on seed, epoch and position, and exact seeking."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from trainer_core.config import Config
from trainer_core.data.batch import IGNORE_INDEX, Batch, concat_batches
from trainer_core.data.loader import BatchLoader, LoaderSettings, SequenceDataset, choose_loader_settings
from trainer_core.data.prepare import PreparedData, prepare
from trainer_core.progress import NullReporter

LENGTH = 32


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def config_for(data: Path, cache: Path, **knobs: Any) -> Config:
    values = {"batch_size": 8, "max_seq_len": LENGTH, "vocab_size": 320, "cache_dir": str(cache), **knobs}
    return Config(data=[str(data)], **values)


@pytest.fixture(scope="module")
def text_data(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedData, Config]:
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"Line {i} of a text about {i * 7} things.\n" for i in range(1000)), encoding="utf-8")
    config = config_for(path, cache)
    return prepare(config, NullReporter()), config


@pytest.fixture(scope="module")
def chat_data(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedData, Config]:
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    rows = [{"prompt": f"Add {i}", "response": f"It is {i + 1}"} for i in range(200)]
    rows[50] = {"prompt": "too long " * 40, "response": "never seen"}
    rows[51] = {"prompt": "cut", "response": "in the middle " * 20}
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = config_for(path, cache)
    return prepare(config, NullReporter()), config


@pytest.fixture(scope="module")
def packed_data(chat_data: tuple[PreparedData, Config]) -> tuple[PreparedData, Config]:
    config = with_settings(chat_data[1], 0, packing=True, max_seq_len=96)
    return prepare(config, NullReporter()), config


def equal_batches(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(x.input_ids, y.input_ids)
        and torch.equal(x.labels, y.labels)
        and (x.loss_tokens, x.samples, x.sample_ids, x.epoch) == (y.loss_tokens, y.samples, y.sample_ids, y.epoch)
        and equal_tensors(x.segments, y.segments)
        and equal_tensors(x.positions, y.positions)
        and (x.cu_seqlens is None) == (y.cu_seqlens is None)
        for x, y in zip(first, second, strict=True)
    )


def equal_tensors(first: torch.Tensor | None, second: torch.Tensor | None) -> bool:
    return first is second if first is None or second is None else torch.equal(first, second)


def validation_batches(prepared: PreparedData, config: Config) -> list[Batch]:
    loader = BatchLoader(prepared, config, "validation")
    batches = list(loader.iterate_samples(np.arange(loader.samples)))
    loader.close()
    return batches


def with_settings(config: Config, workers: int, **knobs: Any) -> Config:
    values = {name: getattr(config, name) for name in Config.__struct_fields__}
    return Config(**{**values, "num_workers": workers, **knobs})


# --- samples ------------------------------------------------------------------------------


def test_text_windows_are_adjacent_and_labels_are_shifted_tokens(text_data: tuple[PreparedData, Config]) -> None:
    prepared, _ = text_data
    samples, split = SequenceDataset(prepared, "train"), prepared.open_split("train")
    tokens = torch.from_numpy(split.read(0, split.tokens))
    assert len(samples) == (split.tokens - 1) // LENGTH == prepared.train.samples
    for i in (0, 1, len(samples) - 1):
        inputs, labels = (torch.from_numpy(part) for part in samples[i][:2])
        assert torch.equal(inputs, tokens[i * LENGTH : (i + 1) * LENGTH])
        assert torch.equal(labels, tokens[i * LENGTH + 1 : (i + 1) * LENGTH + 1])


def test_validation_counts_every_held_out_token_once(text_data: tuple[PreparedData, Config]) -> None:
    prepared, config = text_data
    batches = validation_batches(prepared, config)
    assert sum(batch.loss_tokens for batch in batches) == prepared.validation.tokens - 1
    assert all(batch.input_ids.shape[1] == LENGTH for batch in batches)


def test_only_the_response_and_its_end_token_have_labels(chat_data: tuple[PreparedData, Config]) -> None:
    prepared, config = chat_data
    codec = prepared.load_codec()
    for batch in validation_batches(prepared, config):
        for inputs, labels in zip(batch.input_ids, batch.labels, strict=True):
            has_label = labels != IGNORE_INDEX
            response = codec.decode(labels[has_label].tolist(), skip_special_tokens=False)
            first = int(has_label.nonzero()[0])
            number = int(codec.decode(inputs[: first + 1].tolist()).split("Add")[1].split()[0])
            assert response == f"It is {number + 1}<|im_end|>"
            assert inputs[: first + 1].tolist() == codec.encode_prompt(f"Add {number}")
            assert labels[first - 1] == IGNORE_INDEX


def test_conversations_are_padded_on_the_right_to_a_multiple_of_eight(chat_data: tuple[PreparedData, Config]) -> None:
    prepared, config = chat_data
    for batch in BatchLoader(prepared, config).iterate_epoch(0):
        assert batch.input_ids.shape == batch.labels.shape
        assert batch.input_ids.shape[1] % 8 == 0
        assert batch.input_ids.shape[1] <= LENGTH
        assert batch.loss_tokens == int((batch.labels != IGNORE_INDEX).sum()) > 0
        assert batch.samples == len(batch.input_ids)
        assert batch.input_ids.dtype == batch.labels.dtype == torch.int64


def test_long_conversations_are_truncated_or_dropped(
    chat_data: tuple[PreparedData, Config],
) -> None:
    prepared, config = chat_data
    assert (prepared.dropped, prepared.truncated) == (1, 1)
    rows = [row.tolist() for batch in BatchLoader(prepared, config).iterate_epoch(0) for row in batch.input_ids]
    texts = [prepared.load_codec().decode(row) for row in rows]
    assert len(texts) == prepared.train.samples
    assert not [text for text in texts if "too long" in text]
    assert len([text for text in texts if "in the middle" in text]) == 1


# --- order -----------------------------------------------------------------------------------------


def test_each_epoch_contains_every_sample_once_in_another_order(text_data: tuple[PreparedData, Config]) -> None:
    prepared, config = text_data
    loader = BatchLoader(prepared, config)
    epochs = [torch.cat([batch.input_ids for batch in loader.iterate_epoch(epoch)]).tolist() for epoch in (0, 1)]
    all_samples = sorted(SequenceDataset(prepared, "train")[i][0].tolist() for i in range(loader.samples))
    assert [sorted(epoch) for epoch in epochs] == [all_samples, all_samples]
    assert epochs[0] != epochs[1]
    assert len(list(loader.iterate_epoch(0))) == -(-loader.samples // config.batch_size)


def test_batches_have_sample_ids_and_epoch(text_data: tuple[PreparedData, Config]) -> None:
    prepared, config = text_data
    samples = SequenceDataset(prepared, "train")
    for batch in BatchLoader(prepared, config).iterate_epoch(2):
        assert batch.epoch == 2
        assert [samples[number].input_ids.tolist() for number in batch.sample_ids] == batch.input_ids.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_seeking_yields_the_rest_of_the_epoch(
    text_data: tuple[PreparedData, Config],
    chat_data: tuple[PreparedData, Config],
    packed_data: tuple[PreparedData, Config],
    workers: int,
) -> None:
    for prepared, config in (text_data, chat_data, packed_data):
        expected = list(BatchLoader(prepared, with_settings(config, 0)).iterate_epoch(3))
        loader = BatchLoader(prepared, with_settings(config, workers))
        for start in (0, 5, len(expected) - 1, len(expected)):
            assert equal_batches(
                list(loader.iterate_epoch(3, min(start * config.batch_size, loader.samples))), expected[start:]
            )
        loader.close()


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_consecutive_epochs_equal_those_of_new_loaders(
    packed_data: tuple[PreparedData, Config], workers: int, persistent: bool
) -> None:
    prepared, config = packed_data
    expected = [list(BatchLoader(prepared, with_settings(config, 0)).iterate_epoch(epoch)) for epoch in range(4)]
    loader = BatchLoader(prepared, with_settings(config, workers, persistent_workers=persistent))
    for epoch in (0, 1, 2, 0, 3):
        assert equal_batches(list(loader.iterate_epoch(epoch)), expected[epoch])
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_abandoned_epoch_does_not_affect_the_next(text_data: tuple[PreparedData, Config], workers: int) -> None:
    prepared, config = text_data
    expected = list(BatchLoader(prepared, config).iterate_epoch(1))
    loader = BatchLoader(prepared, with_settings(config, workers))
    abandoned = loader.iterate_epoch(0)
    next(abandoned)
    assert equal_batches(list(loader.iterate_epoch(1)), expected)
    loader.close()


def test_loading_does_not_use_the_global_generators(text_data: tuple[PreparedData, Config]) -> None:
    prepared, config = text_data
    for workers in (0, 2):
        state = torch.get_rng_state()
        loader = BatchLoader(prepared, with_settings(config, workers))
        list(loader.iterate_epoch(0))
        loader.close()
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("columns", [("text",), ("prompt", "response")])
@pytest.mark.parametrize("packing", [False, True])
def test_an_epoch_without_a_token_cache_has_the_same_content(
    tmp_path: Path, cache: Path, columns: tuple[str, ...], packing: bool
) -> None:
    path = tmp_path / "rows.parquet"
    rows = [{name: f"{name} {n} " + "word " * (n % 9) for name in columns} for n in range(3000)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    config = config_for(path, cache, packing=packing, max_seq_len=64)
    cached, direct = (
        list(BatchLoader(prepare(settings, NullReporter()), settings).iterate_epoch(1))
        for settings in (config, with_settings(config, 0, token_cache=False))
    )
    assert sum(batch.loss_tokens for batch in cached) == sum(batch.loss_tokens for batch in direct)
    assert sum(batch.samples for batch in cached) == sum(batch.samples for batch in direct)
    if not packing:  # with packing, only adjacent conversations share a sequence
        assert trained_tokens(cached) == trained_tokens(direct)


def trained_tokens(batches: list[Batch]) -> list[list[int]]:
    """The trained tokens of all sequences, sorted."""
    return sorted(
        [token for token, label in zip(inputs, labels, strict=True) if label != IGNORE_INDEX]
        for batch in batches
        for inputs, labels in zip(batch.input_ids.tolist(), batch.labels.tolist(), strict=True)
    )


# --- processes and files ---------------------------------------------------------------------------


def test_close_ends_the_loader_processes(text_data: tuple[PreparedData, Config]) -> None:
    prepared, config = text_data
    before = {child.pid for child in psutil.Process().children()}
    loader = BatchLoader(prepared, with_settings(config, 2))
    next(loader.iterate_epoch(0))
    started = {child.pid for child in psutil.Process().children()} - before
    assert len(started) >= loader.settings.num_workers > 0  # limited to the number of cores
    loader.close()
    assert {child.pid for child in psutil.Process().children()} <= before


def test_validation_starts_no_processes(text_data: tuple[PreparedData, Config]) -> None:
    prepared, config = text_data
    before = {child.pid for child in psutil.Process().children()}
    validation_batches(prepared, with_settings(config, 2))
    assert {child.pid for child in psutil.Process().children()} <= before


def test_the_data_set_is_picklable_without_its_tokens(
    chat_data: tuple[PreparedData, Config], packed_data: tuple[PreparedData, Config]
) -> None:
    for prepared, _ in (chat_data, packed_data):
        samples = SequenceDataset(prepared, "train")
        first = samples[10]
        restored = pickle.loads(pickle.dumps(samples))
        assert restored[10].input_ids.tolist() == first.input_ids.tolist()
        assert restored[10].labels.tolist() == first.labels.tolist()
        assert list(restored[10].document_starts) == list(first.document_starts)
        assert len(pickle.dumps(samples)) < 8000


def test_a_cache_can_be_deleted_after_close(text_data: tuple[PreparedData, Config], tmp_path: Path) -> None:
    prepared, config = text_data
    copied = replace(prepared, folder=Path(shutil.copytree(prepared.folder, tmp_path / "copy")))
    loader = BatchLoader(copied, config)
    next(loader.iterate_epoch(0))
    loader.close()
    mapped_files = (
        [entry.path for entry in psutil.Process().memory_maps()] if hasattr(psutil.Process, "memory_maps") else []
    )
    assert not [path for path in mapped_files if str(tmp_path) in path]
    shutil.rmtree(copied.folder)


def test_parts_of_a_batch_have_their_own_loss_tokens(chat_data: tuple[PreparedData, Config]) -> None:
    prepared, config = chat_data
    batch = next(BatchLoader(prepared, config).iterate_epoch(0))
    assert batch.loss_tokens == sum(batch.row_loss_tokens) == int((batch.labels != IGNORE_INDEX).sum())
    without_counts = replace(batch, row_loss_tokens=())
    for part, computed in zip(batch.split_rows(3), without_counts.split_rows(3), strict=True):
        assert part.loss_tokens == sum(part.row_loss_tokens) == computed.loss_tokens
    merged = concat_batches(batch.split_rows(3))
    assert (merged.loss_tokens, merged.row_loss_tokens) == (batch.loss_tokens, batch.row_loss_tokens)
    assert torch.equal(merged.labels, batch.labels)


# --- selected settings ------------------------------------------------------------------------


SMALL_DATA, HUGE_DATA = 10**9, 10**12


def settings_for(
    device: str, cores: int, gigabytes: float, data: int = SMALL_DATA, system: str = "linux", **knobs: Any
) -> LoaderSettings:
    return choose_loader_settings(Config(**knobs), device, data, cores, int(gigabytes * 1e9), system)


def workers(*machine: Any, **knobs: Any) -> tuple[int, str]:
    choice = settings_for(*machine, **knobs)
    return choice.num_workers, choice.reason


def test_loader_processes_are_used_only_for_data_larger_than_memory() -> None:
    assert workers("cpu", 8, 32) == (0, "cpu")
    assert workers("cuda", 16, 64) == (0, "gpu")
    assert workers("cuda", 16, 64, HUGE_DATA) == (4, "disk")
    assert workers("cuda", 4, 64, HUGE_DATA) == (2, "disk")
    assert workers("cuda", 1, 64, HUGE_DATA) == (0, "disk")
    assert workers("cuda", 16, 64, HUGE_DATA, "win32") == (1, "disk")
    assert workers("cuda", 16, 64, token_cache=False) == (4, "encoding")
    assert workers("cuda", 16, 12, HUGE_DATA) == (0, "low_memory")


def test_num_workers_is_limited_to_the_cores() -> None:
    assert workers("cuda", 16, 64, num_workers=8) == (8, "set")
    assert workers("cuda", 16, 12, num_workers=2) == (2, "set")
    assert workers("cuda", 6, 64, num_workers=64) == (6, "set")
    assert workers("cuda", 64, 64, num_workers=64) == (16, "set")
    assert workers("cuda", 16, 64, low_memory=True, num_workers=8) == (0, "low_memory")


def test_memory_is_pinned_for_cuda_if_free_memory_suffices() -> None:
    assert settings_for("cuda", 16, 64).pin_memory
    assert not settings_for("cuda", 16, 12).pin_memory
    assert not settings_for("cuda", 16, 64, pin_memory=False).pin_memory
    assert not settings_for("cuda", 16, 64, low_memory=True).pin_memory
    assert not settings_for("cpu", 16, 64).pin_memory
