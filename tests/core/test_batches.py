"""Batches: right labels, an order that nothing but (seed, epoch, k) decides, and exact seeking."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from trainer_core.config import Config
from trainer_core.data import template
from trainer_core.data.batches import IGNORED, Batch, Loader, Samples, choose
from trainer_core.data.prepare import Prepared, prepare
from trainer_core.report import Quiet

LENGTH = 32


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def config_for(data: Path, cache: Path, **knobs: Any) -> Config:
    values = {"batch_size": 8, "max_seq_len": LENGTH, "vocab_size": 320, "cache_dir": str(cache), **knobs}
    return Config(data=[str(data)], **values)


@pytest.fixture(scope="module")
def plain(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Config]:
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"Line {i} of a text about {i * 7} things.\n" for i in range(1000)), encoding="utf-8")
    config = config_for(path, cache)
    return prepare(config, Quiet()), config


@pytest.fixture(scope="module")
def paired(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Prepared, Config]:
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    rows = [{"prompt": f"Add {i}", "response": f"It is {i + 1}"} for i in range(200)]
    rows[50] = {"prompt": "too long " * 40, "response": "never seen"}
    rows[51] = {"prompt": "cut", "response": "in the middle " * 20}
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    config = config_for(path, cache)
    return prepare(config, Quiet()), config


def same(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.input_ids, y.input_ids) and torch.equal(x.labels, y.labels) and x.tokens == y.tokens
        for x, y in zip(a, b, strict=True)
    )


def with_workers(config: Config, workers: int, **knobs: Any) -> Config:
    values = {name: getattr(config, name) for name in Config.__struct_fields__}
    return Config(**{**values, "num_workers": workers, **knobs})


# --- what a sample is ------------------------------------------------------------------------------


def test_windows_of_text_follow_each_other_and_labels_are_the_next_tokens(plain: tuple[Prepared, Config]) -> None:
    prepared, _ = plain
    samples, split = Samples(prepared, "train"), prepared.split("train")
    tokens = torch.from_numpy(split.read(0, split.tokens))
    assert len(samples) == (split.tokens - 1) // LENGTH == prepared.train.samples
    for i in (0, 1, len(samples) - 1):
        inputs, labels = (torch.from_numpy(part) for part in samples[i])
        assert torch.equal(inputs, tokens[i * LENGTH : (i + 1) * LENGTH])
        assert torch.equal(labels, tokens[i * LENGTH + 1 : (i + 1) * LENGTH + 1])


def test_validation_counts_every_held_out_token_once(plain: tuple[Prepared, Config]) -> None:
    prepared, config = plain
    batches = list(Loader(prepared, config, "validation").iterate(0))
    assert sum(batch.tokens for batch in batches) == prepared.validation.tokens - 1
    assert all(batch.input_ids.shape[1] == LENGTH for batch in batches)


def test_only_the_response_and_its_end_are_learned(paired: tuple[Prepared, Config]) -> None:
    prepared, config = paired
    codec = prepared.codec()
    for batch in Loader(prepared, config, "validation").iterate(0):
        for inputs, labels in zip(batch.input_ids, batch.labels, strict=True):
            counted = labels != IGNORED
            response = codec.decode(labels[counted].tolist(), skip_special_tokens=False)
            text = codec.decode(inputs.tolist(), skip_special_tokens=False)
            prompt = text.split(template.USER_HEAD)[1].split(template.IM_END)[0]
            assert response == template.render_response(f"It is {int(prompt.split()[1]) + 1}")
            first = int(counted.nonzero()[0])
            assert codec.decode(inputs[: first + 1].tolist(), False) == template.render_prompt(prompt)
            assert labels[first - 1] == IGNORED


def test_pairs_are_padded_on_the_right_to_a_multiple_of_eight(paired: tuple[Prepared, Config]) -> None:
    prepared, config = paired
    for batch in Loader(prepared, config).iterate(0):
        assert batch.input_ids.shape == batch.labels.shape
        assert batch.input_ids.shape[1] % 8 == 0
        assert batch.input_ids.shape[1] <= LENGTH
        assert batch.tokens == int((batch.labels != IGNORED).sum()) > 0
        assert batch.samples == len(batch.input_ids)
        assert batch.input_ids.dtype == batch.labels.dtype == torch.int64


def test_a_pair_without_room_for_a_response_is_never_shown_and_a_long_one_is_cut(
    paired: tuple[Prepared, Config],
) -> None:
    prepared, config = paired
    assert (prepared.dropped, prepared.truncated) == (1, 1)
    shown = [row.tolist() for batch in Loader(prepared, config).iterate(0) for row in batch.input_ids]
    texts = [prepared.codec().decode(row) for row in shown]
    assert len(texts) == prepared.train.samples
    assert not [text for text in texts if "too long" in text]
    assert len([text for text in texts if "in the middle" in text]) == 1


# --- order -----------------------------------------------------------------------------------------


def test_an_epoch_shows_every_sample_once_and_the_next_in_another_order(plain: tuple[Prepared, Config]) -> None:
    prepared, config = plain
    loader = Loader(prepared, config)
    epochs = [torch.cat([batch.input_ids for batch in loader.iterate(epoch)]).tolist() for epoch in (0, 1)]
    everything = sorted(Samples(prepared, "train")[i][0].tolist() for i in range(loader.samples))
    assert [sorted(epoch) for epoch in epochs] == [everything, everything]
    assert epochs[0] != epochs[1]
    assert len(list(loader.iterate(0))) == loader.batches_per_epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_at_any_batch_gives_exactly_the_rest_of_the_epoch(
    plain: tuple[Prepared, Config], paired: tuple[Prepared, Config], workers: int
) -> None:
    for prepared, config in (plain, paired):
        expected = list(Loader(prepared, with_workers(config, 0)).iterate(3))
        loader = Loader(prepared, with_workers(config, workers))
        for start in (0, 5, len(expected) - 1, len(expected)):
            assert same(list(loader.iterate(3, start)), expected[start:])
        loader.close()


def test_leaving_an_epoch_half_way_does_not_disturb_the_next(plain: tuple[Prepared, Config]) -> None:
    prepared, config = plain
    expected = list(Loader(prepared, config).iterate(1))
    loader = Loader(prepared, with_workers(config, 2))
    abandoned = loader.iterate(0)
    next(abandoned)
    assert same(list(loader.iterate(1)), expected)
    loader.close()


def test_loading_draws_nothing_from_the_global_generators(plain: tuple[Prepared, Config]) -> None:
    prepared, config = plain
    for workers in (0, 2):
        state = torch.get_rng_state()
        loader = Loader(prepared, with_workers(config, workers))
        list(loader.iterate(0))
        loader.close()
        assert torch.equal(torch.get_rng_state(), state)


def test_ranks_share_out_each_batch(plain: tuple[Prepared, Config]) -> None:
    prepared, config = plain
    together = Loader(prepared, with_workers(config, 0, batch_size=16))
    halves = [Loader(prepared, config, rank=rank, world=2) for rank in (0, 1)]
    # A single sample left over at the end goes to neither of two ranks (see `order.Plan`).
    shared = halves[0].batches_per_epoch
    assert halves[1].batches_per_epoch == shared >= together.batches_per_epoch - 1
    parts = zip(*(half.iterate(2) for half in halves), strict=True)
    for whole, (first, second) in zip(together.iterate(2), parts, strict=False):
        assert torch.equal(whole.input_ids, torch.cat([first.input_ids, second.input_ids]))


# --- processes and files ---------------------------------------------------------------------------


def test_closing_ends_the_loader_processes(plain: tuple[Prepared, Config]) -> None:
    prepared, config = plain
    before = {child.pid for child in psutil.Process().children()}
    loader = Loader(prepared, with_workers(config, 2))
    next(loader.iterate(0))
    started = {child.pid for child in psutil.Process().children()} - before
    assert len(started) >= loader.choice.num_workers > 0  # never more than there are cores
    loader.close()
    assert {child.pid for child in psutil.Process().children()} <= before


def test_samples_can_be_sent_to_a_process_that_was_spawned(paired: tuple[Prepared, Config]) -> None:
    samples = Samples(paired[0], "train")
    first = samples[60]
    again = pickle.loads(pickle.dumps(samples))
    assert [part.tolist() for part in again[60]] == [part.tolist() for part in first]
    assert len(pickle.dumps(samples)) < 2000  # no arrays in it


def test_a_cache_can_be_deleted_once_it_is_closed(plain: tuple[Prepared, Config], tmp_path: Path) -> None:
    prepared, config = plain
    moved = replace(prepared, folder=Path(shutil.copytree(prepared.folder, tmp_path / "copy")))
    loader = Loader(moved, config)
    next(loader.iterate(0))
    loader.close()
    maps = [entry.path for entry in psutil.Process().memory_maps()] if hasattr(psutil.Process, "memory_maps") else []
    assert not [path for path in maps if str(tmp_path) in path]
    shutil.rmtree(moved.folder)


def test_loading_is_chosen_by_cores_memory_and_device() -> None:
    def chosen(device: str, cores: int, gigabytes: float, **knobs: Any) -> tuple[int, bool, str]:
        choice = choose(Config(**knobs), device, cores, int(gigabytes * 1e9))
        return choice.num_workers, choice.pin_memory, choice.reason

    assert chosen("cpu", 8, 32) == (0, False, "cpu")
    assert chosen("cuda", 16, 64) == (4, True, "gpu")
    assert chosen("cuda", 4, 64) == (2, True, "gpu")
    assert chosen("cuda", 16, 12) == (0, False, "low_memory")
    assert chosen("cuda", 16, 64, low_memory=True, num_workers=8) == (0, False, "low_memory")
    assert chosen("cuda", 16, 64, num_workers=8, pin_memory=False) == (8, False, "set")
    assert chosen("cuda", 16, 12, num_workers=2) == (2, False, "set")
    assert chosen("cuda", 6, 64, num_workers=64) == (6, True, "set")
