"""Reports are kept for the configuration they are true of."""

from __future__ import annotations

from pathlib import Path

from app.state.data_looks import Refusal, Stamps, about_sequences, key_of, stamp_of
from app.state.looks import Look, Looks
from trainer_core import protocol
from trainer_core.reference.examples import EVENTS

REPORT: protocol.DataReport = EVENTS[protocol.DataReport]


def look(name: str) -> Look[protocol.DataReport]:
    found = Look(key_of({}, [name]), protocol.DataReport)
    found.add(REPORT)
    return found


def test_a_report_depends_on_data_sequence_and_steps_and_on_nothing_else() -> None:
    key = key_of({}, ["a"])
    for changed in ({"batch_size": 3}, {"max_seq_len": 9}, {"packing": True}, {"text_column": "t"}, {"max_epochs": 2}):
        assert key_of(changed, ["a"]) != key
    for unimportant in (
        {"learning_rate": 1.0},
        {"hidden_dim": 8},
        {"cache_dir": "x"},
        {"seed": 4},
        {"use_wandb": True},
    ):
        assert key_of(unimportant, ["a"]) == key
    assert key_of({"batch_size": 16}, ["a"]) == key  # the default, said
    assert key_of({}, ["b"]) != key


def test_a_stamp_changes_with_its_file_and_with_what_is_in_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "a.txt"
    file.parent.mkdir()
    file.write_text("one", encoding="utf-8")
    seen = [(stamp_of(str(file)), stamp_of(str(tmp_path)))]
    file.write_text("three", encoding="utf-8")
    seen.append((stamp_of(str(file)), stamp_of(str(tmp_path))))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]
    (file.parent / "b.txt").write_text("", encoding="utf-8")
    assert stamp_of(str(tmp_path)) != seen[1][1]
    assert stamp_of(str(file)) == seen[1][0]


def test_data_that_is_built_in_or_gone_has_a_stamp_too(tmp_path: Path) -> None:
    assert stamp_of("builtin:python") == stamp_of(str(tmp_path / "gone")) == (0, 0, 0)


def test_files_are_asked_now_and_then_and_at_once_for_a_look_that_begins(tmp_path: Path) -> None:
    file, now = tmp_path / "a.txt", [0.0]
    stamps = Stamps(lambda: now[0])
    file.write_text("one", encoding="utf-8")
    first = stamps.of([str(file)])
    file.write_text("three", encoding="utf-8")
    assert stamps.of([str(file)]) == first
    second = stamps.of([str(file)], fresh=True)
    assert second != first
    file.write_text("seventeen", encoding="utf-8")
    now[0] = 60.0
    assert stamps.of([str(file)]) not in (first, second)


def test_events_of_a_look_are_sorted_into_what_the_page_shows() -> None:
    found = look("a")
    warning = protocol.Warn(code="data.truncated")
    progress = protocol.Progress(phase="preparing", done=1)
    error = protocol.Error(code="data.empty")
    for event in (warning, progress, error, protocol.Phase(phase="done")):
        found.add(event)
    assert (found.report, found.warnings, found.progress, found.error) == (REPORT, [warning], progress, error)


def test_a_known_configuration_shows_its_own_report_and_another_the_last_one_shown() -> None:
    looks = Looks[protocol.DataReport]()
    assert looks.show(key_of({}, ["a"])) == (None, False)
    one, two = look("a"), look("b")
    looks.keep(one)
    looks.keep(two)
    assert looks.show(key_of({}, ["a"])) == (one, True)
    assert looks.show(key_of({}, ["c"])) == (one, False)
    assert looks.show(None) == (one, False)
    again = look("b")
    looks.keep(again)
    assert looks.show(key_of({}, ["b"])) == (again, True)


def test_what_an_earlier_look_found_is_not_shown_after_one_that_failed() -> None:
    looks = Looks[protocol.DataReport]()
    one, two = look("a"), look("b")
    looks.keep(one)
    looks.keep(two)
    looks.drop(two.key)
    assert looks.show(two.key) == (None, False)
    assert looks.show(one.key) == (one, True)


def test_only_the_newest_few_are_kept() -> None:
    looks = Looks[protocol.DataReport]()
    for number in range(20):
        looks.keep(look(str(number)))
    assert looks.show(key_of({}, ["19"]))[1]
    assert not looks.show(key_of({}, ["0"]))[1]


def test_a_refusal_holds_while_the_files_and_how_they_are_read_stay_as_they_were() -> None:
    error, refusal = protocol.Error(code="data.mixed", exit_code=4), Refusal()
    key = key_of({}, ["a"], [(1, 2, 3)])
    assert refusal.of(key) is None
    refusal.take(key, error)
    assert refusal.of(key) is error
    assert refusal.of(key_of({"batch_size": 3, "max_seq_len": 64}, ["a"], [(1, 2, 3)])) is error
    for mended in (
        key_of({}, ["a"], [(1, 2, 4)]), key_of({}, ["b"], [(1, 2, 3)]), key_of({"text_column": "t"}, ["a"], [(1, 2, 3)])
    ):  # fmt: skip
        assert refusal.of(mended) is None
    refusal.take(key, None)
    assert refusal.of(key) is None


def test_how_long_a_run_is_changes_nothing_of_the_sequences_in_the_data() -> None:
    key = about_sequences(key_of({}, ["a"]))
    assert about_sequences(key_of({"max_steps": 9, "batch_size": 3}, ["a"])) == key
    assert about_sequences(key_of({"max_seq_len": 64}, ["a"])) != key
