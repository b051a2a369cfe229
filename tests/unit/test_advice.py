"""Advice as a whole: calm, true of a healthy run, never in the way, in both languages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.advising import CONFIG, GIB, GPU, HOST, READY, Series
from trainer_core import protocol
from trainer_core.config import Config, knobs, to_dict
from trainer_core.messages import codes as message_codes
from trainer_core.messages import template
from trainer_core.train.advice import Advisor
from trainer_core.train.advice.advisor import MAX_ACTIVE, REPEAT_INTERVAL_S, RULES
from trainer_core.train.advice.rule import Finding, Rule, RunHistory, Verdict

RECORDED = Path(__file__).parent / "recorded" / "quickstart_cpu.jsonl"


def recorded() -> list[protocol.AnyEvent]:
    """The quick start on a CPU with two processors, 60 steps, as it was; its progress left out."""
    return [protocol.decode_event(line) for line in RECORDED.read_bytes().splitlines()]


def test_a_healthy_run_on_a_cpu_gets_no_advice() -> None:
    adviser = Advisor(Config(max_steps=60))
    assert [advice for event in recorded() for advice in adviser.process(event)] == []


def test_a_healthy_run_on_a_gpu_gets_no_advice() -> None:
    run = Series().train()
    for _ in range(20):
        run.steps(10).looks(30).performance(2, mfu=0.4).evaluations(2.2 - 0.001 * run.newest / 100)
    assert run.codes == []


def test_advice_is_said_once_however_long_it_holds() -> None:
    assert Series().train().steps(500, data=50.0).codes == ["data_bound"]


def test_what_sways_about_a_threshold_is_not_said_again_and_again() -> None:
    run = Series().train()
    for _ in range(100):
        run.steps(6, data=30.0).steps(6, data=18.0)  # 23% and 15%
    assert run.codes == ["data_bound"]


def test_what_comes_and_goes_is_left_alone_for_a_while_and_then_for_good() -> None:
    run = Series().train()
    for _ in range(10):
        run.steps(6, data=50.0).steps(4)
    assert run.codes == ["data_bound", "-data_bound"]
    for _ in range(10):
        run.now += REPEAT_INTERVAL_S
        run.steps(6, data=50.0).steps(4)
    assert run.codes == ["data_bound", "-data_bound"] * MAX_ACTIVE


def test_a_rule_that_fails_ends_alone(caplog: Any) -> None:
    class Broken(Rule):
        code = "advice.broken"

        def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
            raise ZeroDivisionError

    class Works(Rule):
        code = "advice.data_bound"
        activate_after = 1

        def evaluate(self, event: protocol.AnyEvent, run: RunHistory) -> Verdict:
            return Finding({})

    adviser = Advisor(CONFIG, rules=(Broken, Works))
    assert [advice.code for advice in adviser.process(protocol.Phase(phase="training"))] == ["advice.data_bound"]
    adviser.process(protocol.Phase(phase="training"))
    assert len([record for record in caplog.records if "advice.broken" in record.message]) == 1


# --- any events at all -----------------------------------------------------------------------------------

amounts = st.one_of(st.integers(-1, 2**62), st.sampled_from([0, 1, GIB, 12 * GIB]))
numbers = st.one_of(st.none(), st.floats(-1e9, 1e9), st.sampled_from([0.0, 0.5, 1.0, 2.0]))
shares = st.one_of(st.none(), st.floats(0, 1))
numbers_or_zero = numbers.map(lambda value: value or 0.0)
times = st.builds(protocol.StepTime, **dict.fromkeys(protocol.StepTime.__struct_fields__, numbers_or_zero))
steps = st.builds(
    protocol.Step,
    step=st.integers(-5, 3000),
    loss=numbers,
    grad_norm=numbers,
    time_ms=times,
    bad_steps=st.integers(0, 9),
)
maybe = st.one_of(st.none(), amounts)
gpus = st.builds(
    protocol.Gpu,
    utilization=shares,
    vram_used=maybe,
    vram_total=maybe,
    torch_reserved=maybe,
    shared_used=maybe,
    clock_mhz=st.one_of(st.none(), st.integers(0, 3000)),
    throttle=st.lists(st.sampled_from(["power", "thermal", "power_brake", "unheard_of"])),
)
hosts = st.builds(protocol.Host, ram_used=amounts, ram_total=amounts, disk_free=amounts, on_battery=st.booleans())
events = st.one_of(
    steps,
    st.builds(protocol.Hardware, gpus=st.lists(gpus, max_size=2), host=hosts),
    st.builds(protocol.Performance, memory_peak=maybe, mfu=shares, gradient_noise=numbers),
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
def test_any_events_in_any_order_at_any_time_are_taken(told: list[tuple[Any, int, float]], spills: bool) -> None:
    adviser = Advisor(CONFIG, cores=4, spills=spills)
    for event, times_told, now in told:
        for second in range(times_told):
            event.t = now + second
            for advice in adviser.process(event):
                protocol.decode_event(protocol.encode(advice))
    assert len(adviser._standings) == len(RULES), "no rule failed"


# --- what is said ----------------------------------------------------------------------------------------


def test_every_rule_has_its_words_and_every_word_its_rule() -> None:
    codes = [rule.code for rule in RULES]
    assert sorted(codes) == sorted(message_codes("advice."))
    assert all(template(code, "en")[1] and template(code, "zh")[1] for code in codes)


def everything_wrong() -> list[protocol.Advice]:
    """All advice that there is, each of a run in which it is true."""
    full = {"vram_used": int(11.9 * GIB), "torch_reserved": int(11.2 * GIB)}
    ready = msgspec.structs.replace(READY, task="sft", truncated=500)
    low = Series(msgspec.structs.replace(CONFIG, lr_schedule="constant", compile="off")).train(ready)
    low.steps(6, data=50.0).bad(3).looks(10, shared_used=0).looks(60, shared_used=GIB, **full, throttle=["thermal"])
    low.looks(60, vram_used=12 * GIB, torch_reserved=GIB, host={"on_battery": True, "ram_used": 32 * GIB})
    low.tell(protocol.Checkpoint(step=1, path="a", bytes=GIB, seconds=1, kind="regular", kept=["a"]))
    low.looks(60, throttle=["power_brake"], host={"disk_free": 1}).steps(20, bad_steps=3).looks(60, utilization=0.2)
    low.performance(3, mfu=0.05, memory_peak=GIB)
    for _ in range(2):
        move = {"during": "forward", "batch_size": 4, "gradient_accumulation_steps": 8}
        low.tell(protocol.OomRecovery(step=low.newest, action="halved", **move))  # type: ignore[arg-type]
        low.steps(1)
    low.looks(2, **full).steps(4, forward=900.0).losses(4.0, 4.0)
    low.looks(1, host={"slept_s": 0.0}).looks(1, host={"slept_s": 7200.0})
    several = Series(msgspec.structs.replace(CONFIG, ranks=2)).train().steps(8, sync=99.5)
    still = Series().train()
    for _ in range(6):
        still.steps(5).evaluations(2.2)
    apart = Series().train().evaluations(2.0)
    for train in (1.6, 1.3, 1.0):
        apart.steps(10, loss=train).evaluations(2.5)
    return [*low.said, *several.said, *still.said, *apart.said]


def test_all_advice_that_there_is_tells_its_figures_and_knobs_that_exist() -> None:
    said = [advice for advice in everything_wrong() if not advice.resolved]
    assert {advice.code for advice in said} == set(message_codes("advice."))
    for advice in said:
        for language in ("en", "zh"):
            named = {part.split("}")[0] for part in "".join(template(advice.code, language)).split("{")[1:]}
            assert named <= set(advice.params), advice.code
        assert set(advice.suggested_settings) <= set(knobs())
        msgspec.convert({**to_dict(CONFIG), **advice.suggested_settings}, Config)


def test_advice_costs_a_run_nothing_that_one_could_measure() -> None:
    adviser = Advisor(CONFIG)
    told = [protocol.Hardware(t=float(second), gpus=[GPU], host=HOST) for second in range(2000)]
    start = time.perf_counter()
    for event in told:
        adviser.process(event)
    assert (time.perf_counter() - start) / len(told) < 2e-3  # seconds an event; mostly 20 µs
