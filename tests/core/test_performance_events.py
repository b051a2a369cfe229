"""Performance events, FLOP counts and garbage collection."""

from __future__ import annotations

import gc
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.core.engines import FP32, build_decoder, random_batch, tiny_model_config
from tests.core.model_families import HF_CONFIGS
from tests.core.trainer_process import text_file
from tests.core.training import build_trainer, copy_weights, losses, pairs_file, tiny_config
from trainer_core import protocol
from trainer_core.base_model.catalogue import Shape, estimate_seconds
from trainer_core.config import Config
from trainer_core.data.batch import concat_batches
from trainer_core.models import cpu_ops, hf_config
from trainer_core.models.decoder import Decoder
from trainer_core.run_context import PauseState
from trainer_core.system.gpu_specs import PeakFlops, lookup_peak
from trainer_core.train import flops
from trainer_core.train.gc_control import GarbageCollector
from trainer_core.train.trainer import Trainer


def config(folder: Path, **values: object) -> Config:
    small = {"batch_size": 4, "eval_steps": 0, "max_steps": 6, "cpu_threads": 1, "perf_steps": 3, "eval_batches": 1}
    return tiny_config(folder, text_file(folder), **{**small, **values})


# --- performance events ---------------------------------------------------------------------------------


def test_performance_events_have_their_own_interval(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, perf_steps=2, log_steps=5))
    trainer.run()
    events = sink.events_of(protocol.Performance)
    assert [event.step for event in events] == [2, 4, 6]
    for event in events:
        assert 0 <= event.data_ratio < 0.5
        assert 0.5 < event.compute_ratio <= 1
        assert event.flops_per_token == flops.flops_per_token(trainer.model, trainer.config.max_seq_len)
        assert (event.mfu, event.peak_flops, event.memory_peak, event.energy_j) == (None, None, None, None)


def test_attention_flops_count_all_heads_and_the_positions_within_a_sliding_window() -> None:
    """Gemma's heads are wider than the model; two of its three layers attend to 8 positions."""
    model = Decoder(hf_config.from_hf_config(HF_CONFIGS["gemma 3"], "x"))
    length, heads = 60, 6 * 16
    pairs = [length / 2, *[sum(min(position, 8) for position in range(length)) / length] * 2]
    expected = 6 * model.count_parameters() + sum(12 * heads * count for count in pairs)
    assert flops.flops_per_token(model, length) == pytest.approx(expected, rel=0.01)


def test_products_of_onednn_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_decoder(tiny_model_config(hidden_dim=256, n_heads=4, n_layers=2, max_seq_len=128))
    batch = random_batch(128, rows=1)
    counted = flops.profile(model, batch, FP32, step=1)
    monkeypatch.setattr(cpu_ops, "_MIN_MULTIPLICATIONS", 2**60)
    assert flops.profile(model, batch, FP32, step=1) == counted
    assert counted.formula < counted.total < 1.3 * counted.formula, "it includes the masked half of attention"


@pytest.mark.parametrize("tied", [True, False])
def test_the_estimate_before_the_start_counts_the_same_flops_without_attention(tied: bool) -> None:
    model = build_decoder(tiny_model_config(tie_embeddings=tied))
    shape = Shape(
        model_type="qwen3", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, vocab_size=model.config.vocab_size, tie_word_embeddings=tied,
    )  # fmt: skip
    for full in (True, False):
        model.requires_grad_(full)
        seconds = estimate_seconds(shape, model.count_parameters(), full, tokens=10, flops_per_s=2)
        assert seconds == 5 * flops.flops_per_token(model, length=0)


def test_energy_is_reported_since_the_previous_event_and_per_token(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, perf_steps=2))
    joules = iter([10.0, 25.0, 45.0])
    trainer.reports.energy = lambda: next(joules)
    trainer.run()
    first, second, third = sink.events_of(protocol.Performance)
    assert (first.energy_j, second.energy_j, third.energy_j) == (None, 15.0, 20.0)
    tokens = [event.tokens for event in sink.events_of(protocol.Step)]
    assert second.energy_per_million_tokens_j == pytest.approx(15e6 / (tokens[3] - tokens[1]))


class PauseAtStep:
    """Pause condition that runs `action` once after a step, then pauses for `pauses` checks."""

    def __init__(self, trainer: Trainer, step: int, action: Callable[[], object] = bool, pauses: int = 0) -> None:
        self._trainer, self._step, self._action, self._checks, self._pauses = trainer, step, action, 0, pauses

    def __call__(self) -> PauseState | None:
        if self._trainer.state.counters.step != self._step:
            return None
        self._checks += 1
        if self._checks == 1:
            self._action()
        return PauseState("schedule") if self._checks <= self._pauses else None


@pytest.mark.parametrize("cause", ["pause", "rollback"])
def test_no_energy_is_reported_for_an_interval_with_a_pause_or_rollback(tmp_path: Path, cause: str) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, perf_steps=2, max_steps=10))
    joules = itertools.count(0, 10)
    trainer.reports.energy = lambda: float(next(joules))
    counters = trainer.state.counters
    rollback = PauseAtStep(trainer, 5, lambda: trainer.reports.start(counters.tokens, counters.samples))
    trainer.context.pause_conditions.append(PauseAtStep(trainer, 5, pauses=2) if cause == "pause" else rollback)
    trainer.run()
    events = sink.events_of(protocol.Performance)
    assert [event.energy_j for event in events] == [None, 10.0, None, 10.0, 10.0]
    assert events[2].energy_per_million_tokens_j is None


def test_gradient_noise_is_reported_in_sequences_with_several_micro_batches(tmp_path: Path) -> None:
    accumulated, sink = build_trainer(
        tmp_path, config(tmp_path, gradient_accumulation_steps=3, perf_steps=20, max_steps=20), "accumulated"
    )
    accumulated.run()
    (event,) = sink.events_of(protocol.Performance)
    scale = accumulated.noise.read()
    samples_per_token = accumulated.state.counters.samples / accumulated.state.counters.tokens
    assert event.gradient_noise == (None if scale is None else pytest.approx(scale * samples_per_token))
    assert accumulated.noise.mean[0] == 10, "measured a few times between two events, not in every step"
    single, sink = build_trainer(tmp_path, config(tmp_path), "single")
    single.run()
    assert sink.events_of(protocol.Performance)[0].gradient_noise is None


def test_telemetry_does_not_change_training(tmp_path: Path) -> None:
    settings = {"gradient_accumulation_steps": 2, "dropout": 0.1}
    profiled, sink = build_trainer(tmp_path, config(tmp_path, **settings, perf_steps=1, flops_steps=1), "profiled")
    profiled.run()
    unprofiled, unprofiled_sink = build_trainer(
        tmp_path, config(tmp_path, **settings, perf_steps=0, log_steps=6), "unprofiled"
    )
    unprofiled.telemetry = unprofiled.clock.enabled = False
    unprofiled.run()
    assert len(sink.events_of(protocol.FlopsProfile)) == len(sink.events_of(protocol.Performance)) == 6
    assert not unprofiled_sink.events_of(protocol.Step)
    assert all(map(torch.equal, copy_weights(profiled), copy_weights(unprofiled)))


@pytest.mark.parametrize("low_memory", [False, True])
def test_saving_time_is_reported_separately(tmp_path: Path, low_memory: bool) -> None:
    """A background save costs the time of a copy; with `low_memory`, the time of the write."""
    trainer, sink = build_trainer(tmp_path, config(tmp_path, save_steps=2, max_steps=4, low_memory=low_memory))
    trainer.run()
    saving = [event.time_ms.checkpoint for event in sink.events_of(protocol.Step)]
    assert [time > 0 for time in saving] == [False, False, True, False]
    seconds = [event.seconds for event in sink.events_of(protocol.Checkpoint)]
    if low_memory:
        assert saving[2] / 1000 >= 0.9 * seconds[0]
    assert trainer.state.counters.seconds == pytest.approx(trainer.clock.seconds)


def test_intervals_can_be_changed_during_training(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, perf_steps=1, max_steps=4))
    trainer.context.live_settings["perf_steps"](4.0)
    trainer.context.live_settings["flops_steps"](3.0)
    trainer.run()
    assert [event.step for event in sink.events_of(protocol.Performance)] == [4]
    assert [event.step for event in sink.events_of(protocol.FlopsProfile)] == [3]
    for name in ("log_steps", "sample_steps", "perf_steps", "flops_steps"):
        protocol.decode_command(protocol.encode(protocol.Set(name=name, value=5)))  # type: ignore[arg-type]


# --- FLOPs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"qk_norm": True, "n_kv_heads": 1}, {"tie_embeddings": False}])
def test_the_flops_profile_matches_the_formula_except_causal_attention(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    trainer, sink = build_trainer(
        tmp_path, config(tmp_path, flops_steps=1, max_steps=1, hidden_dim=64, max_seq_len=32, **settings)
    )
    trainer.run()
    (event,) = sink.events_of(protocol.FlopsProfile)
    shape, tokens = trainer.model.config, 4 * 32
    assert event.tokens == tokens
    attention = shape.n_layers * shape.max_seq_len * shape.hidden_dim * tokens
    vectors = sum(weight.numel() for weight in trainer.model.parameters() if weight.dim() == 1)
    matrices = event.formula - 6 * tokens * vectors - 6 * attention
    # All pairs of positions: 12 FLOPs each, or 14 by kernels that recompute the scores in backward.
    assert event.total in (matrices + 12 * attention, matrices + 14 * attention)
    names = [row.module for row in event.rows]
    assert names[:2] == ["model.layers.0.self_attn", "model.layers.0.mlp"]
    assert names[-1] == "lm_head"
    assert sum(row.share for row in event.rows) == pytest.approx(1.0, abs=0.01)
    mlp = next(row for row in event.rows if row.module.endswith("mlp"))
    assert mlp.forward == 2 * tokens * 3 * shape.hidden_dim * shape.mlp.dim
    assert mlp.backward == 2 * mlp.forward


def documents_file(folder: Path) -> Path:
    """Texts of many lengths."""
    texts = (" ".join(f"word {n} of {length}" for n in range(length)) for length in range(1, 60))
    path = folder / "documents.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")
    return path


@pytest.mark.parametrize("data", ["conversations", "packed", "text", "documents"])
def test_mfu_counts_positions_without_padding_and_attention_within_documents(tmp_path: Path, data: str) -> None:
    settings = {"max_seq_len": 256, "max_steps": 2, "perf_steps": 2, "batch_size": 2}
    settings |= {"packing": data == "packed", "attend_across_documents": data != "documents"}
    files = {"text": text_file, "documents": documents_file}
    file = files.get(data, pairs_file)(tmp_path)
    trainer, sink = build_trainer(tmp_path, tiny_config(tmp_path, file, **settings))
    trainer.reports._peak = PeakFlops(1e9, "test GPU")
    batches = list(itertools.islice(trainer.train_data.iterate_epoch(0), 2))
    trainer.run()
    (event,) = sink.events_of(protocol.Performance)
    lengths: list[int] = []
    for batch in batches:
        assert (batch.segments is not None) == (data in ("packed", "documents"))
        for index in batch.sample_ids:
            item = trainer.train_data._dataset[index]
            lengths += np.diff([*item.document_starts, len(item.input_ids)]).tolist()
    positions, pairs = sum(lengths), sum(length**2 for length in lengths)
    parts = [part for batch in batches for part in batch.split_rows(1)]
    assert (
        sum(part.attention_pairs for part in parts)
        == concat_batches(batches[0].split_rows(1)).attention_pairs + batches[1].attention_pairs
        == pairs
    )
    assert (pairs / positions < 256) == (data != "text")
    assert event.flops_per_token == flops.flops_per_token(trainer.model, pairs / positions)
    spent = sum(step.time_ms.forward + step.time_ms.backward for step in sink.events_of(protocol.Step)) / 1000
    assert event.mfu is not None
    assert 0 < event.mfu * 1e9 < positions * event.flops_per_token / spent


@pytest.mark.parametrize(
    ("card", "bf16", "tf32"),
    [
        ("NVIDIA GeForce RTX 3090", 71.2, 35.6),
        ("NVIDIA GeForce RTX 4090", 165.2, 82.6),
        ("NVIDIA GeForce RTX 5090", 209.5, 104.8),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 88.2, 44.1),
        ("NVIDIA RTX A6000", 154.8, 77.4),
        ("NVIDIA A100-SXM4-80GB", 312.0, 156.0),
        ("NVIDIA H100 80GB HBM3", 989.4, 494.7),
        ("NVIDIA H100 PCIe", 756.0, 378.0),
        ("NVIDIA L40S", 362.05, 183.0),
        ("NVIDIA B300 SXM6 AC", 2250.0, 1125.0),
        ("NVIDIA RTX 5000 Ada Generation", 261.1, 130.6),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 503.8, 251.9),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 438.9, 219.4),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 468.0, 234.0),
    ],
)
def test_peak_flops_match_the_data_sheets(card: str, bf16: float, tf32: float) -> None:
    for precision, tera in (("bf16", bf16), ("fp16", bf16), ("tf32", tf32)):
        peak = lookup_peak(card, precision)
        assert peak is not None
        assert peak.flops_per_s / 1e12 == pytest.approx(tera, abs=0.06)
        assert peak.name.endswith(precision)
    assert lookup_peak(card, "fp32") is None


@pytest.mark.parametrize(
    ("card", "fp16"),
    [("NVIDIA GeForce RTX 2080 Ti", 53.8), ("NVIDIA GeForce RTX 2070", 29.9), ("NVIDIA TITAN RTX", 130.5),
     ("Tesla V100-SXM2-16GB", 125.0)],
)  # fmt: skip
def test_cards_before_ampere_have_a_peak_in_fp16_only(card: str, fp16: float) -> None:
    peak = lookup_peak(card, "fp16")
    assert peak is not None
    assert peak.flops_per_s / 1e12 == pytest.approx(fp16, abs=0.06)
    assert lookup_peak(card, "bf16") is lookup_peak(card, "tf32") is None


@pytest.mark.parametrize(
    "card",
    ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 2080 SUPER", "NVIDIA GeForce RTX 2070 with Max-Q Design",
     "NVIDIA RTX PRO 5000 Blackwell", "NVIDIA RTX 5000 Ada Generation Laptop GPU",
     "NVIDIA A10G", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "CPU (2 threads)",
     "NVIDIA GeForce RTX 5090 D", "NVIDIA GeForce GTX 1080 Ti"],
)  # fmt: skip
def test_cards_with_similar_names_have_no_peak(card: str) -> None:
    assert lookup_peak(card, "bf16") is None


# --- garbage collection ----------------------------------------------------------------------------------------------


def test_garbage_collection_is_disabled_in_steps(tmp_path: Path) -> None:
    trainer, _ = build_trainer(tmp_path, config(tmp_path))
    states = []
    step = trainer._step

    def record(window: list) -> None:  # type: ignore[type-arg]
        states.append((gc.isenabled(), gc.get_freeze_count() > 0))
        step(window)

    trainer._step = record  # type: ignore[method-assign]
    trainer.run()
    assert set(states) == {(False, True)}
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_garbage_is_collected_between_steps_when_due(monkeypatch: pytest.MonkeyPatch) -> None:
    collected: list[None] = []
    garbage = GarbageCollector()
    with garbage.disabled():
        monkeypatch.setattr(gc, "collect", lambda: collected.append(None))
        garbage.collect_if_due()
        assert not collected
        garbage._due = 0.0
        garbage.collect_if_due()
        assert collected == [None]


def test_step_events_report_the_mean_loss_of_their_interval(tmp_path: Path) -> None:
    trainer, sink = build_trainer(tmp_path, config(tmp_path, log_steps=4, max_steps=6))
    trainer.run()
    single, single_kept = build_trainer(tmp_path, config(tmp_path, log_steps=1, max_steps=6), "single")
    single.run()
    each = losses(single_kept)
    assert losses(sink) == pytest.approx([sum(each[:4]) / 4, sum(each[4:]) / 2], rel=1e-6)
