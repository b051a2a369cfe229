"""Events as lines of a terminal, in both languages."""

from __future__ import annotations

from datetime import datetime
from typing import get_args

import msgspec
import pytest

from trainer_core import protocol
from trainer_core.console.events import escape_control_characters, format_event, format_progress
from trainer_core.docgen.examples import EVENTS
from trainer_core.messages import Language

BOTH: tuple[Language, ...] = ("en", "zh")


def test_control_characters_are_replaced_by_symbols() -> None:
    assert escape_control_characters("a\x1b[2Jb\x00\x7f\r") == "a␛[2Jb␀␡␍"
    assert escape_control_characters("def f():\n\treturn '中文'") == "def f():\n\treturn '中文'"


@pytest.mark.parametrize("language", BOTH)
def test_every_event_can_be_formatted(language: Language) -> None:
    for event in EVENTS.values():
        assert isinstance(format_event(event, language), str)


def test_oom_recovery_is_shown_with_the_change_and_the_allocation() -> None:
    halved = protocol.OomRecovery(
        step=1, action="halved", during="forward", batch_size=16, gradient_accumulation_steps=4,
        requested=64 * 2**20, free=10 * 2**20, total=24 * 2**30,
    )  # fmt: skip
    assert format_event(halved, "en") == (
        "out of memory at step 1 (forward, requested 64 MiB, 10 MiB free): "
        "micro-batch 16, accumulation 4; nothing was lost"
    )
    assert format_event(halved, "zh") == (
        "第 1 步内存不足（前向，申请 64 MiB，可用 10 MiB）：微批 16，累积 4；没有丢失任何内容"
    )
    unknown = msgspec.structs.replace(halved, requested=None, action="checkpointing")
    assert format_event(unknown, "en") == (
        "out of memory at step 1 (forward): activation checkpointing enabled; nothing was lost"
    )
    grown = msgspec.structs.replace(halved, action="grown", during="none", requested=None)
    assert format_event(grown, "en") == "enough memory since step 1: micro-batch 16, accumulation 4"


def test_non_finite_values_are_shown_in_both_languages() -> None:
    step: protocol.Step = msgspec.structs.replace(EVENTS[protocol.Step], loss=None, grad_norm=float("nan"))
    assert "loss not finite" in format_event(step, "en")
    assert "norm not finite" in format_event(step, "en")
    assert "损失 非有限值" in format_event(step, "zh")
    assert "nan" not in format_event(step, "zh")


def test_a_loss_scale_is_shown_in_full() -> None:
    event: protocol.Performance = msgspec.structs.replace(EVENTS[protocol.Performance], loss_scale=65536.0)
    assert "loss scale 65,536 (" in format_event(event, "en")


def test_the_threads_of_a_cpu_are_translated() -> None:
    hello: protocol.Hello = msgspec.structs.replace(EVENTS[protocol.Hello], devices=["2 × CPU (1 thread)"])
    assert "2 × CPU（1 个线程）" in format_event(hello, "zh")
    assert "2 × CPU (1 thread)" in format_event(hello, "en")


def test_a_small_source_is_shown_in_kib() -> None:
    ready: protocol.Ready = msgspec.structs.replace(
        EVENTS[protocol.Ready], sources=[protocol.Source(path="a.txt", format="text", bytes=1631)]
    )
    assert format_event(ready, "en").startswith("a.txt: text · 1.6 KiB\n")


def test_the_speed_of_a_finished_run_is_an_average() -> None:
    done = protocol.Done(reason="finished", steps=5, total_steps=5, tokens_per_s=118.0, model="m")
    assert "118 tokens/s on average" in format_event(done, "en")
    assert "平均 118 词元/秒" in format_event(done, "zh")


@pytest.mark.parametrize("language", BOTH)
def test_step_and_evaluation_fit_into_80_columns(language: Language) -> None:
    times = protocol.StepTime(data=0, transfer=0, forward=0, backward=0, optimizer=0, other=0)
    step = protocol.Step(
        step=123_456, epoch=1.25, tokens=0, samples=0, loss=4.1234, learning_rate=3e-4, grad_norm=1.25,
        tokens_per_s=98_765.0, samples_per_s=0, time_ms=times,
    )  # fmt: skip
    with_answers = protocol.Eval(
        step=123_456, loss=4.1234, perplexity=61.77, tokens=1, seconds=1, best=True, bleu4=98.7, exact_match=0.895,
        examples=1024, truncated_by_limit=123, truncated_by_context=456, neutral_loss_en=4.1234, neutral_loss_zh=9.8765,
    )  # fmt: skip
    without_answers = protocol.Eval(
        step=123_456, loss=4.1234, perplexity=61.77, tokens=10_409_600, seconds=1, best=True
    )
    rewarded = msgspec.structs.replace(with_answers, bleu4=None, reward=-10.125)
    assert "-10.125" in (format_event(rewarded, language) or "")
    assert "10,409,600" in (format_event(without_answers, language) or "")
    for event in (step, with_answers, without_answers, rewarded):
        for text in (format_event(event, language) or "").splitlines():
            columns = sum(2 if ord(character) > 0x2E80 else 1 for character in text)
            assert columns <= 80, text


def test_a_comparison_says_whether_a_model_is_better_than_the_first() -> None:
    def scores(name: str, *gain: float) -> protocol.ModelScores:
        difference = protocol.Score(value=gain[0], low=gain[1], high=gain[2]) if gain else None
        return protocol.ModelScores(name=name, gain=difference, truncated_by_limit=2)  # type: ignore[arg-type]

    models = [scores("base"), scores("system", 0.01, -0.02, 0.04), scores("tuned", 0.5, 0.4, 0.6)]
    event = protocol.Evaluation(task="sft", rows=9, main_score="exact_match", scores=models)
    lines = (format_event(event, "en") or "").splitlines()
    assert "base + system prompt: no clear difference from base, exact match +1.0% (-2.0% … +4.0%)" in lines
    assert "tuned: better than base, exact match +50.0% (+40.0% … +60.0%)" in lines
    assert "tuned: 2 of 9 answers reached the token limit, 0 the context length" in lines
    event = protocol.Evaluation(
        task="pretrain", rows=9, main_score="loss", scores=[models[0], scores("tuned", -0.5, -0.6, -0.4)]
    )
    assert "微调后：不如基础模型，损失 +0.5000 (+0.4000 … +0.6000)" in (format_event(event, "zh") or "").splitlines()


def test_an_evaluation_shows_truncated_answers_by_setting() -> None:
    complete = protocol.Eval(
        step=1, loss=1.0, perplexity=2.7, tokens=1, seconds=1, bleu4=1.0, exact_match=0.5, examples=64
    )  # fmt: skip
    assert "truncated" not in (format_event(complete, "en") or "")
    assert "截断" not in (format_event(complete, "zh") or "")
    truncated = msgspec.structs.replace(complete, truncated_by_limit=3, truncated_by_context=2)
    assert "truncated answers: 3 by eval_max_new_tokens, 2 by max_seq_len, of 64" in (
        format_event(truncated, "en") or ""
    )
    assert "64 个回答中被截断的：eval_max_new_tokens 3 个，max_seq_len 2 个" in (format_event(truncated, "zh") or "")


def test_progress_in_bytes_has_the_unit_of_the_total() -> None:
    event = protocol.Progress(phase="preparing", done=1_919_533, total=17_386_428, unit="bytes", eta_s=61.0)
    assert format_progress(event, "en") == "1.8/16.6 MiB  about 1:01 left"
    large = protocol.Progress(phase="preparing", done=700 * 2**20, total=50 * 2**30, unit="bytes")
    assert format_progress(large, "zh") == format_progress(large, "en") == "0.7/50.0 GiB"


def test_a_stop_before_the_first_step_reports_nothing_saved() -> None:
    done = protocol.Done(reason="stopped", steps=0, total_steps=60)
    assert "There is nothing to save" in format_event(done, "en")
    resumed = protocol.Done(reason="stopped", steps=40, total_steps=60)
    assert "at step 40" in format_event(resumed, "en")


def test_advice_is_shown_with_the_suggested_flags() -> None:
    params = {"percent": 34, "ms": 41.7, "workers": 0}
    settings = {"num_workers": 2, "token_cache": True, "learning_rate": 1e-05, "packing": False}
    advice = protocol.Advice(code="advice.data_bound", params=dict(params), suggested_settings=settings)
    text = format_event(advice, "en")
    assert "34% of each step (41.7 ms)" in text
    assert text.endswith("(At the next start: --num-workers 2 --token-cache --learning-rate 1e-05 --no-packing)")
    assert "下次启动：--num-workers 2" in format_event(advice, "zh")
    advice.resolved = True
    assert format_event(advice, "en").startswith("Resolved: Training waits for data")


def test_a_pause_is_shown_with_its_reason_and_end() -> None:
    now = datetime(2026, 11, 21, 10, 30).timestamp()
    requested = protocol.Phase(phase="paused", reason="requested", t=now)
    assert (format_event(requested, "en"), format_event(requested, "zh")) == ("[paused]", "[已暂停]")
    scheduled = protocol.Phase(phase="paused", reason="schedule", until=now + 7.5 * 3600, t=now)
    assert format_event(scheduled, "en") == "[paused by schedule until 18:00]"
    assert format_event(scheduled, "zh") == "[按计划暂停，至 18:00]"
    scheduled.until = now + 24 * 3600
    assert format_event(scheduled, "en").endswith("until 2026-11-22 10:30]")
    for reason in get_args(protocol.PauseReason):
        assert format_event(protocol.Phase(phase="paused", reason=reason, t=now), "en").startswith("[paused")


def test_the_time_to_start_is_shown_by_phase() -> None:
    assert "ready after 6.8 s (starting 4.2, preparing data 2.6)" in format_event(EVENTS[protocol.Ready], "en")
    assert "启动用时 6.8 秒（启动 4.2，准备数据 2.6）" in format_event(EVENTS[protocol.Ready], "zh")
