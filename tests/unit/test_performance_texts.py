"""Formatting of performance figures, in both languages and on a terminal."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.cells import cell_len

from trainer_core import performance_texts, protocol
from trainer_core.console import performance
from trainer_core.console.display import ConsoleSink
from trainer_core.docgen.examples import EVENTS
from trainer_core.messages import Language
from trainer_core.protocol import FastPath

READY: protocol.Ready = EVENTS[protocol.Ready]
COMPILED: protocol.Compiled = EVENTS[protocol.Compiled]
PERFORMANCE: protocol.Performance = EVENTS[protocol.Performance]


@pytest.mark.parametrize(
    ("joules", "text"), [(942.0, "0.262 Wh"), (36_000.0, "10 Wh"), (4.7e6, "1.31 kWh"), (1.0, "0.000278 Wh")]
)
def test_energy_is_formatted_in_watt_hours(joules: float, text: str) -> None:
    assert performance_texts.format_energy(joules) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (0.262, "0.262"), (13.1, "13.1"), (999.7, "1,000"), (65_536.0, "65,500")]
)
def test_figures_have_three_significant_digits_without_an_exponent(value: float, text: str) -> None:
    assert performance_texts.format_significant(value) == text


def test_flops_have_an_si_prefix() -> None:
    assert performance_texts.format_flops(165.2e12, "/s") == "165 TFLOP/s"
    assert performance_texts.format_flops(2.53e11) == "253 GFLOP"


def test_speedups_and_errors_are_short() -> None:
    assert [performance_texts.format_speedup(times) for times in (1.834, 12.3)] == ["×1.83", "×12"]
    assert [performance_texts.format_error(difference) for difference in (0.0, 2.24e-4)] == ["0", "2e-4"]


def test_thread_counts_are_translated_and_kernel_names_are_not() -> None:
    threads = FastPath(name="threads", used=True, choice="2 threads")
    assert performance_texts.fast_path_choice(threads, "zh") == "2 个线程"
    assert performance_texts.fast_path_parts(threads, "en") == ("2 threads", "")
    assert performance_texts.fast_path_choice(FastPath(name="attention", used=True, choice="flash"), "zh") == "flash"


def test_reasons_are_translated_and_an_unknown_path_keeps_its_name() -> None:
    missing = FastPath(name="flash9", used=False, reason="path.not_installed", params={"package": "flash-attn"})
    assert performance_texts.fast_path_label(missing, "zh") == "flash9"
    assert performance_texts.fast_path_reason(missing, "zh") == "未安装 flash-attn。"
    assert performance_texts.fast_path_reason(FastPath(name="x", used=True), "en") == ""


def test_flops_of_layers_are_summed() -> None:
    rows = [
        protocol.FlopsRow(module=f"model.layers.{layer}.mlp", forward=1.0, backward=2.0, share=0.25)
        for layer in range(3)
    ]
    rows.append(protocol.FlopsRow(module="lm_head", forward=1.0, backward=2.0, share=0.25))
    layers, head = performance_texts.group_by_module(rows)
    assert (layers.module, layers.count, layers.forward, layers.share) == ("model.layers.*.mlp", 3, 3.0, 0.75)
    assert (head.module, head.count) == ("lm_head", 1)


# --- on a terminal ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "fast paths: Compiled model (inductor) ×1.83, Attention (flash) ×1.31"),
        ("zh", "加速途径：编译模型（inductor）×1.83、注意力（flash）×1.31"),
    ],
)
def test_one_line_lists_the_fast_paths_in_use(language: Language, text: str) -> None:
    assert performance.format_execution(READY.fast_paths, None, language) == text


def test_the_compiled_event_shows_the_compile_time() -> None:
    assert performance.format_execution(COMPILED.fast_paths, COMPILED.compile_s, "en").endswith(" · compiled in 34.2 s")


def test_a_run_without_fast_paths_shows_none_and_an_older_trainer_nothing() -> None:
    assert performance.format_execution([], None, "en") == ""
    unused = [FastPath(name="compile", used=False, reason="path.no_compiler")]
    assert performance.format_execution(unused, None, "en") == "fast paths: none"


def test_a_log_lists_every_path_with_its_reason() -> None:
    stream = io.StringIO()
    ConsoleSink(stream, "en").write(READY)
    lines = [line.split() for line in stream.getvalue().splitlines()]
    assert ["FlashAttention-3", "no", "-", "-", "flash-attn-3", "is", "not", "installed."] in lines
    assert ["Attention", "yes", "flash", "×1.31", "2e-4", "The", "fastest", "that"] in [line[:8] for line in lines]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_columns_of_the_table_are_aligned(language: Language) -> None:
    paths = [
        FastPath(name="compile", used=True, reason="path.on", error=5e-7, speedup=1.63),
        FastPath(name="attention", used=False, choice="flash", reason="path.slower", error=0.01, speedup=12.0),
        FastPath(name="muon", used=True, reason="path.by_name"),
    ]
    header, rule, *rows = performance.format_fast_path_table(paths, language)[:5]
    ends = [cell_len(rule[: index + 1]) for index in range(len(rule) - 1) if rule[index : index + 2] == "- "]
    for line in (header, *rows):  # between columns, both cells of the gap are empty
        assert [_cells(line)[end - 1 : end + 1] for end in ends] == ["  "] * 5
    assert "×12" in rows[-1]  # paths in use come first


def _cells(line: str) -> str:
    """`line` with one character per terminal cell."""
    return "".join(character + "_" * (cell_len(character) - 1) for character in line)


def test_reasons_are_wrapped_in_a_narrow_terminal() -> None:
    reason = "path.failed", {"reason": "g++: error: " + "it does not compile " * 10}
    paths = [FastPath(name="compile", used=False, reason=reason[0], params=reason[1])]
    lines = performance.format_fast_path_table(paths, "en", width=80)
    assert max(map(cell_len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).count("it does not compile") == 10


@pytest.mark.parametrize(("language", "noise"), [("en", "noise 210 sequences"), ("zh", "210")])
def test_performance_figures_are_on_one_line(language: Language, noise: str) -> None:
    stream = io.StringIO()
    ConsoleSink(stream, language).write(PERFORMANCE)
    (line,) = stream.getvalue().splitlines()
    assert "0.262 Wh" in line
    assert noise in line


def test_missing_figures_are_omitted() -> None:
    event = protocol.Performance(step=5, data_ratio=0.012, compute_ratio=0.9, flops_per_token=1.0)
    assert performance.format_performance(event, "en") == "perf      5  computing 90.0%  waiting for data 1.2%"


@pytest.mark.parametrize(
    ("action", "language", "text"),
    [
        ("skipped", "en", "bad step 231: gradient norm 48.7, usually 0.91; skipped (epoch 0, samples 1204, 88,"),
        ("rolled_back", "zh", "第 231 步异常：梯度范数 48.7，通常为 0.91；已回退到最近完好的检查点（轮次 0，样本 1204"),
    ],
)
def test_a_bad_step_shows_the_action_and_its_samples(action: str, language: Language, text: str) -> None:
    event = msgspec.structs.replace(EVENTS[protocol.BadStep], action=action)
    assert performance.format_bad_step(event, language).startswith(text)


def test_at_most_eight_samples_of_a_bad_step_are_listed() -> None:
    event = protocol.BadStep(step=1, kind="not_finite", action="skipped", samples=list(range(500)))
    assert performance.format_bad_step(event, "en").endswith("samples 0, 1, 2, 3, 4, 5, 6, 7 …)")
