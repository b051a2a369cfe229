"""The advisor: repetition of advice, robustness, and messages of all rules."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.simulated_run import CONFIG, GIB, GPU, HOST, READY, RewardedRun, SimulatedRun, config_with
from trainer_core import protocol
from trainer_core.config import Config, knobs, to_dict
from trainer_core.messages import codes as message_codes
from trainer_core.messages import template
from trainer_core.train.advice.advisor import RULES, Advisor, rules_for
from trainer_core.train.advice.rule import MAX_REPEATS, REPEAT_INTERVAL_S, Rule, RuleMatch, RunHistory, Verdict

RECORDED = Path(__file__).parent / "recorded" / "quickstart_cpu.jsonl"  # 60 steps on two cores, without progress events


def test_a_healthy_run_on_a_cpu_gets_no_advice() -> None:
    advisor = Advisor(Config(max_steps=60))
    events = map(protocol.decode_event, RECORDED.read_bytes().splitlines())
    assert [advice for event in events for advice in advisor.process(event)] == []


def test_a_healthy_run_on_a_gpu_gets_no_advice() -> None:
    run = SimulatedRun().start_training()
    for _ in range(20):
        run.steps(10).hardware(30).performance(2, mfu=0.4).evals(2.2 - 0.001 * run.last_step / 100)
    assert run.codes == []


def test_lasting_advice_is_emitted_once() -> None:
    assert SimulatedRun().start_training().steps(500, data=50.0).codes == ["data_bound"]


def test_a_value_that_varies_around_a_threshold_gives_advice_once() -> None:
    run = SimulatedRun().start_training()
    for _ in range(100):
        run.steps(6, data=30.0).steps(6, data=18.0)  # 23% and 15%
    assert run.codes == ["data_bound"]


def test_recurring_advice_is_repeated_after_an_interval_and_a_limited_number_of_times() -> None:
    run = SimulatedRun().start_training()
    for _ in range(10):
        run.steps(6, data=50.0).steps(4)
    assert run.codes == ["data_bound", "-data_bound"]
    for _ in range(10):
        run.now += REPEAT_INTERVAL_S
        run.steps(6, data=50.0).steps(4)
    assert run.codes == ["data_bound", "-data_bound"] * MAX_REPEATS


def test_a_rule_that_raises_is_disabled_and_logged_once(caplog: Any) -> None:
    class Broken(Rule[protocol.Phase], code="advice.broken"):
        def evaluate(self, event: protocol.Phase, run: RunHistory) -> Verdict:
            raise ZeroDivisionError

    class Works(Rule[protocol.Phase], code="advice.data_bound", activate_after=1):
        def evaluate(self, event: protocol.Phase, run: RunHistory) -> Verdict:
            return RuleMatch({})

    advisor = Advisor(CONFIG, rules=(Broken, Works))
    assert [advice.code for advice in advisor.process(protocol.Phase(phase="training"))] == ["advice.data_bound"]
    advisor.process(protocol.Phase(phase="training"))
    assert len([record for record in caplog.records if "advice.broken" in record.message]) == 1


# --- random events -------------------------------------------------------------------------------------

amounts = st.one_of(st.integers(-1, 2**62), st.sampled_from([0, 1, GIB, 12 * GIB]))
numbers = st.one_of(st.none(), st.floats(-1e9, 1e9), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
shares = st.one_of(st.none(), st.floats(0, 1))
times = st.builds(
    protocol.StepTime, **dict.fromkeys(protocol.StepTime.__struct_fields__, numbers.map(lambda value: value or 0.0))
)
steps = st.builds(
    protocol.Step,
    step=st.integers(-5, 3000),
    loss=numbers,
    grad_norm=numbers,
    time_ms=times,
    bad_steps=st.integers(0, 9),
)
optional_amounts = st.one_of(st.none(), amounts)
gpus = st.builds(
    protocol.Gpu,
    utilization=shares,
    vram_used=optional_amounts,
    vram_total=optional_amounts,
    torch_reserved=optional_amounts,
    shared_used=optional_amounts,
    clock_mhz=st.one_of(st.none(), st.integers(0, 3000)),
    throttle=st.lists(st.sampled_from(["power", "thermal", "power_brake", "unknown"])),
)
hosts = st.builds(protocol.Host, ram_used=amounts, ram_total=amounts, disk_free=amounts, on_battery=st.booleans())
events = st.one_of(
    steps,
    st.builds(protocol.Hardware, gpus=st.lists(gpus, max_size=2), host=hosts),
    st.builds(protocol.Performance, memory_peak=optional_amounts, mfu=shares, gradient_noise=numbers),
    st.builds(protocol.Eval, step=st.integers(0, 3000), loss=numbers),
    st.builds(protocol.BadStep, step=st.integers(0, 3000), epoch=st.just(0), samples=st.just([])),
    st.builds(protocol.OomRecovery, step=st.integers(0, 3000), batch_size=st.integers(1, 64)),
    st.builds(protocol.Checkpoint, step=st.integers(0, 3000), bytes=amounts),
    st.builds(protocol.Ready, sources=st.just([]), fast_paths=st.just([])),
    st.builds(protocol.Phase),
    st.builds(protocol.Hello, config=st.just({}), fast_paths=st.just([])),
    st.builds(protocol.Advice, suggested_settings=st.just({})),
    st.builds(protocol.Done),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(events, st.integers(1, 30), st.floats(-100, 1e6)), max_size=40), st.booleans())
def test_any_sequence_of_events_is_processed(sequence: list[tuple[Any, int, float]], can_spill: bool) -> None:
    advisor = Advisor(CONFIG, cores=4, can_spill=can_spill)
    for event, repeats, now in sequence:
        for second in range(repeats):
            event.t = now + second
            for advice in advisor.process(event):
                protocol.decode_event(protocol.encode(advice))
    assert len(advisor._rules) == len(rules_for(CONFIG)), "no rule was disabled"


# --- messages ----------------------------------------------------------------------------------------


def test_every_rule_has_a_message_and_every_message_a_rule() -> None:
    codes = [rule.code for rule in RULES]
    assert sorted(codes) == sorted(message_codes("advice."))
    assert all(template(code, "en")[1] and template(code, "zh")[1] for code in codes)


def all_advice() -> list[protocol.Advice]:
    """Return advice of every rule."""
    full_gpu = {"vram_used": int(11.9 * GIB), "torch_reserved": int(11.2 * GIB)}
    ready = msgspec.structs.replace(READY, task="sft", truncated=500)
    run = SimulatedRun(config_with(lr_schedule="constant", compile="off")).start_training(ready)
    run.steps(6, data=50.0).bad_steps(3).hardware(10, shared_used=0).hardware(
        60, shared_used=GIB, **full_gpu, throttle=["thermal"]
    )
    run.hardware(60, vram_used=12 * GIB, torch_reserved=GIB, host={"on_battery": True, "ram_used": 32 * GIB})
    run.emit(protocol.Checkpoint(step=1, path="a", bytes=GIB, seconds=1, kind="regular", kept=["a"]))
    run.hardware(60, throttle=["power_brake"], host={"disk_free": 1}).steps(20, bad_steps=3).hardware(
        60, utilization=0.2
    )
    run.performance(3, mfu=0.05, memory_peak=GIB)
    for _ in range(2):
        recovery = {"during": "forward", "batch_size": 4, "gradient_accumulation_steps": 8}
        run.emit(protocol.OomRecovery(step=run.last_step, action="halved", **recovery))  # type: ignore[arg-type]
        run.steps(1)
    run.hardware(2, **full_gpu).steps(4, forward=900.0).losses(4.0, 4.0)
    run.hardware(1, host={"slept_s": 0.0}).hardware(1, host={"slept_s": 7200.0})
    ranks = SimulatedRun(config_with(nproc_per_node=2)).start_training().steps(8, sync=99.5)
    plateau = SimulatedRun().start_training()
    for _ in range(6):
        plateau.steps(5).evals(2.2)
    overfitting = SimulatedRun().start_training().evals(2.0)
    for train in (1.6, 1.3, 1.0):
        overfitting.steps(10, loss=train).evals(2.5)
    rewarded = RewardedRun(method="lora", kl_beta=0.1).rollouts(4)
    for values in (
        {"no_signal_ratio": 1.0},
        {"entropy": 0.01},
        {"kl": 1.0},
        {"answer_tokens": 90.0},
        {"truncated_ratio": 1.0},
    ):
        rewarded.rollouts(3, **values)
    return [*run.advice, *ranks.advice, *plateau.advice, *overfitting.advice, *rewarded.advice]


def test_all_advice_has_the_parameters_of_its_message_and_valid_settings() -> None:
    emitted = [advice for advice in all_advice() if not advice.resolved]
    assert {advice.code for advice in emitted} == set(message_codes("advice."))
    for advice in emitted:
        for language in ("en", "zh"):
            placeholders = {part.split("}")[0] for part in "".join(template(advice.code, language)).split("{")[1:]}
            assert placeholders <= set(advice.params), advice.code
        assert set(advice.suggested_settings) <= set(knobs())
        msgspec.convert({**to_dict(CONFIG), **advice.suggested_settings}, Config)


def test_advice_takes_less_than_two_milliseconds_per_event() -> None:
    advisor = Advisor(CONFIG)
    events = [protocol.Hardware(t=float(second), gpus=[GPU], host=HOST) for second in range(2000)]
    start = time.perf_counter()
    for event in events:
        advisor.process(event)
    assert (time.perf_counter() - start) / len(events) < 2e-3  # usually 20 µs
