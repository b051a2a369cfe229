"""Child processes and tables of the benchmarks."""

from __future__ import annotations

import sys

import pytest

from bench import processes, results
from bench.processes import ChildProcess

EVENTS = 'print(\'{"type":"step","step":1}\', "text", \'{"type":"step","step":2}\', sep="\\n", flush=True)'


def run_code(code: str) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", code])


def test_lines_of_json_are_events_and_all_lines_are_output() -> None:
    child = run_code(f"{EVENTS}; print('{{\"type\":\"st', end='')")
    assert child.wait(30) == 0
    assert child.events == [{"type": "step", "step": 1}, {"type": "step", "step": 2}]
    assert child.output.splitlines()[1:] == ["text", '{"type":"step","step":2}', '{"type":"st']


def test_waiting_for_events_ends_with_the_output() -> None:
    child = run_code(EVENTS)
    assert child.wait_until(lambda events: len(events.of("step")) == 2, 30)
    assert not child.wait_until(lambda events: len(events.of("step")) == 3, 30)
    assert not child.output_is_open
    child.wait(30)


def test_a_failing_command_is_reported_with_its_reason() -> None:
    with pytest.raises(RuntimeError, match=r"^ValueError: a reason \(exit code 1\)\n"):
        processes.run([sys.executable, "-c", "raise ValueError('a reason')"])


def test_a_command_is_killed_at_its_timeout() -> None:
    child = run_code("import time; time.sleep(60)")
    with pytest.raises(RuntimeError, match="took more than 0 s"):
        child.wait(0.1)
    assert child.exit_code not in (None, 0)


def test_memory_of_a_process_tree_is_measured() -> None:
    child = "import time; content = bytearray(50_000_000); time.sleep(1)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    memory = processes.run([sys.executable, "-c", parent], sample_memory=True).memory
    assert memory is not None
    assert memory["processes"] >= 2  # on Windows, python.exe of a virtual environment starts another one
    assert memory["peak"] > 50_000_000
    assert sum(memory["each"]) == memory["peak"]


def test_columns_of_numbers_are_right_aligned() -> None:
    table = results.markdown_table(
        [{"name": "a", "count": 1200, "s": 3.14159}, {"name": "bcde", "count": 7, "s": 250.4}]
    )
    assert table.splitlines() == [
        "| name | count |    s |",
        "| ---- | ----: | ---: |",
        "| a    | 1,200 | 3.14 |",
        "| bcde |     7 |  250 |",
    ]
