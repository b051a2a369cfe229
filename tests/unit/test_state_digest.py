"""A long run's arrays: the same run as from its events, in whichever parts; what is stale or damaged is noticed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from app.opening import RunRecord
from app.state.measurements import digest
from app.state.runs import history
from tests.gui import demo_run
from trainer_core import children, protocol
from trainer_core.config import Config

SERIES = (
    "train_loss", "tokens_per_s", "learning_rate", "grad_norm", "mfu", "time_backward", "time_checkpoint", "eval_loss",
    "perplexity", "gradient_noise", "data_ratio", "rss", "ram_used", "vram_used.0", "vram_total.0", "gpu_util.0",
    "power.0",
)  # fmt: skip


def write(run: Path, lines: list[bytes]) -> Path:
    run.mkdir(parents=True, exist_ok=True)
    (run / "events.jsonl").write_bytes(b"".join(lines))
    return run


def demo_lines(steps: int = 600, began: float = 1e9, resumed: int | None = None) -> list[bytes]:
    config = Config(batch_size=4)
    found = []
    for event in demo_run.events(config, steps=steps, every=1, gpu=True, done=resumed is None, began=began):
        if isinstance(event, protocol.Hello):
            event.resumed_from_step = resumed
        if isinstance(event, protocol.Step) and event.step <= (resumed or 0):
            continue
        found.append(protocol.encode(event))
    return found


def from_events(run: Path) -> RunRecord:
    record = RunRecord()
    for event in history.load_events(run):
        record.add(event)
    return record


def from_arrays(run: Path, parts: int = 1) -> RunRecord:
    digest.forget(run)
    for events, begin, end, out in cuts(run, parts):
        digest.make(Path(events), begin, end, Path(out), lambda share: None)
    paths = digest.known(run)
    assert len(paths) == parts
    record = RunRecord()
    for _, block in digest.blocks(paths):
        record.add_block(block)
    return record


def cuts(run: Path, parts: int) -> list[tuple[Path, int, int, Path]]:
    size = (run / "events.jsonl").stat().st_size
    edges = [size * place // parts for place in range(parts + 1)]
    return [(run / "events.jsonl", begin, end, run / digest.FOLDER / f"{begin}.part") for begin, end in pairwise(edges)]


def assert_same(one: RunRecord, other: RunRecord) -> None:
    for name in SERIES:
        for axis in ("step", "tokens", "time"):
            for mine, theirs in zip(one.metrics.series(name, axis), other.metrics.series(name, axis), strict=True):
                np.testing.assert_array_equal(mine, theirs, err_msg=f"{name} {axis}")
    assert one.metrics.checkpoints() == other.metrics.checkpoints()
    assert one.metrics.bad_steps() == other.metrics.bad_steps()
    assert one.metrics.best_eval() == other.metrics.best_eval()
    assert one.metrics.gpu_names == other.metrics.gpu_names
    assert list(one.log) == list(other.log)
    assert one.samples == other.samples
    assert one.computing.performance == other.computing.performance
    assert one.metrics.series("train_loss")[0].size > 100


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_arrays_hold_the_same_run_as_its_events_in_however_many_parts(tmp_path: Path, parts: int) -> None:
    run = write(tmp_path / "运行 1", demo_lines())
    assert_same(from_arrays(run, parts), from_events(run))


def test_steps_that_were_done_again_are_there_once(tmp_path: Path) -> None:
    first = demo_lines()
    without_hello = [line for line in demo_lines()[200:400] if b'"step"' in line]
    run = write(tmp_path / "run", [*first, *demo_lines(700, 1e9 + 9000, resumed=300), *without_hello])
    assert_same(from_arrays(run, 3), from_events(run))
    steps = from_arrays(run, 2).metrics.series("train_loss")[0]
    assert np.all(np.diff(steps) > 0)


def test_lines_that_are_no_events_are_left_out_and_missing_values_are_nan(tmp_path: Path) -> None:
    lines = demo_lines()
    lines[50] = lines[50][: len(lines[50]) // 2] + b"\n"
    lines[60] = b"\x00\xff not json\n"
    lines[70] = b'{"type":"step","t":"yesterday"}\n'
    lines[80] = b"\n"
    lines = [line.replace(b'"mfu":0.41', b'"mfu":null') if n % 3 else line for n, line in enumerate(lines)]
    lines[-1] = lines[-1].rstrip(b"\n")
    run = write(tmp_path / "run", lines)
    found = from_arrays(run, 2)
    assert_same(found, from_events(run))
    assert np.isnan(found.metrics.series("mfu")[1]).any()


def test_gpus_that_come_go_and_change_their_name_are_told_apart(tmp_path: Path) -> None:
    def card(index: int, name: str, number: int) -> protocol.Gpu:
        hot = ["thermal", "power"] if number % 7 == 0 else []
        return protocol.Gpu(index=index, name=name, power_w=float(number), vram_used=None, throttle=hot)

    lines, host = demo_lines(), protocol.Host(ram_used=1, ram_total=2, rss=3, cpu=0.5, disk_free=4)
    for number in range(400):
        cards = [card(0, "old" if number < 250 else "new", number), card(3, "beside", 2 * number)]
        found = cards[number % 3 :] if number > 20 else cards[:1]
        lines.insert(3 * number + 40, protocol.encode(protocol.Hardware(t=1e9 + number, seq=1, gpus=found, host=host)))
    run = write(tmp_path / "run", lines)
    found_run = from_arrays(run, 2)
    assert_same(found_run, from_events(run))
    assert found_run.metrics.gpu_names[3] == "beside"
    for name in ("power.3", "hot.0", "hot.3", "vram_used.3"):
        mine, theirs = (one.metrics.series(name)[1] for one in (found_run, from_events(run)))
        np.testing.assert_array_equal(mine, theirs)


def test_arrays_of_events_that_grew_or_were_touched_are_not_taken(tmp_path: Path) -> None:
    run = write(tmp_path / "run", demo_lines(50))
    from_arrays(run)
    with (run / "events.jsonl").open("ab") as file:
        file.write(demo_lines(50)[-1])
    assert digest.known(run) == []


def test_a_missing_part_is_noticed(tmp_path: Path) -> None:
    run = write(tmp_path / "run", demo_lines(50))
    from_arrays(run, 3)
    digest.known(run)[1].unlink()
    assert digest.known(run) == []


def test_arrays_of_other_columns_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write(tmp_path / "run", demo_lines(50))
    from_arrays(run)
    monkeypatch.setattr(digest, "LAYOUT", "another version")
    assert digest.known(run) == []


def test_no_damage_goes_unnoticed(tmp_path: Path) -> None:
    """A byte changed anywhere, or an end cut off anywhere: it is an error, or it was none of the content."""
    run = write(tmp_path / "run", demo_lines(60))
    whole = from_arrays(run)
    [path] = digest.known(run)
    content = path.read_bytes()
    dice, noticed = random.Random(3), 0
    for number in range(300):
        at = dice.randrange(len(content))
        if number % 3:
            path.write_bytes(content[:at] + bytes([content[at] ^ (1 << dice.randrange(8))]) + content[at + 1 :])
        else:
            path.write_bytes(content[:at])
        record = RunRecord()
        try:
            for _, block in digest.blocks(digest.known(run) or [tmp_path / "none"]):
                record.add_block(block)
        except (digest.DamagedError, OSError):
            noticed += 1
            continue
        assert_same_figures(record, whole)
    assert noticed > 200


def assert_same_figures(one: RunRecord, other: RunRecord) -> None:
    np.testing.assert_array_equal(one.metrics.series("train_loss")[1], other.metrics.series("train_loss")[1])


def test_a_process_makes_its_parts_and_tells_how_far_it_is(tmp_path: Path) -> None:
    run = write(tmp_path / "带 空格", demo_lines(3000))
    paths, commands = digest.wanted(run, most=2)
    for arguments in commands:
        command = [sys.executable, "-P", "-X", "utf8", "-m", "app.state.measurements.digest", *arguments]
        done = subprocess.run(command, env=children.environment(), capture_output=True, check=True)
        told = [json.loads(line) for line in done.stdout.split()]
        assert told == sorted(told)
        assert told[-1] == 1.0
    assert digest.known(run) == paths
    record = RunRecord()
    for _, block in digest.blocks(digest.known(run)):
        record.add_block(block)
    assert_same(record, from_events(run))


def test_a_run_that_is_thinned_as_it_is_read_keeps_its_extremes_and_its_end(tmp_path: Path) -> None:
    lines = demo_lines(6000)
    spiked = next(number for number, line in enumerate(lines) if b'"step":4321,' in line and b'"type":"step"' in line)
    event = protocol.decode_event(lines[spiked])
    assert isinstance(event, protocol.Step)
    event.loss = 77.0
    lines[spiked] = protocol.encode(event)
    run = write(tmp_path / "run", lines)
    whole = from_arrays(run)
    thinned = RunRecord()
    for _, block in digest.blocks(digest.known(run)):
        thinned.add_block(block, 40)
    x, y = thinned.metrics.series("train_loss")
    assert x.size < 1000
    assert y.max() == 77.0
    assert abs(float(x[y.argmax()]) - 4321) < 100
    assert np.all(np.diff(x) > 0)
    assert x[-1] == whole.metrics.series("train_loss")[0][-1] == 6000
    assert thinned.metrics.checkpoints() == whole.metrics.checkpoints()
    for name in ("vram_used.0", "rss", "grad_norm"):
        values = whole.metrics.series(name)[1]
        assert thinned.metrics.series(name)[1].max() == values[np.isfinite(values)].max()
