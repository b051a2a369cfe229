"""Reports are kept for the configuration they are true of."""

from __future__ import annotations

from pathlib import Path

from app.core.data_report_inputs import DataRejection, SourceStampCache, preview_key, sequence_key, source_stamp
from app.core.preview_cache import PreviewCache, PreviewResult
from trainer_core import protocol
from trainer_core.docgen.examples import EVENTS

REPORT: protocol.DataReport = EVENTS[protocol.DataReport]


def look(name: str) -> PreviewResult[protocol.DataReport]:
    found = PreviewResult(preview_key({}, [name]), protocol.DataReport)
    found.process(REPORT)
    return found


def test_a_report_depends_on_data_sequence_and_steps_and_on_nothing_else() -> None:
    key = preview_key({}, ["a"])
    for changed in ({"batch_size": 3}, {"max_seq_len": 9}, {"packing": True}, {"text_column": "t"}, {"max_epochs": 2}):
        assert preview_key(changed, ["a"]) != key
    for unimportant in (
        {"learning_rate": 1.0},
        {"hidden_dim": 8},
        {"cache_dir": "x"},
        {"seed": 4},
        {"use_wandb": True},
    ):
        assert preview_key(unimportant, ["a"]) == key
    assert preview_key({"batch_size": 16}, ["a"]) == key  # the default, said
    assert preview_key({}, ["b"]) != key


def test_a_stamp_changes_with_its_file_and_with_what_is_in_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "a.txt"
    file.parent.mkdir()
    file.write_text("one", encoding="utf-8")
    seen = [(source_stamp(str(file)), source_stamp(str(tmp_path)))]
    file.write_text("three", encoding="utf-8")
    seen.append((source_stamp(str(file)), source_stamp(str(tmp_path))))
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] != seen[1][1]
    (file.parent / "b.txt").write_text("", encoding="utf-8")
    assert source_stamp(str(tmp_path)) != seen[1][1]
    assert source_stamp(str(file)) == seen[1][0]


def test_data_that_is_built_in_or_gone_has_a_stamp_too(tmp_path: Path) -> None:
    assert source_stamp("builtin:python") == source_stamp(str(tmp_path / "gone")) == (0, 0, 0)


def test_files_are_asked_now_and_then_and_at_once_for_a_look_that_begins(tmp_path: Path) -> None:
    file, now = tmp_path / "a.txt", [0.0]
    stamps = SourceStampCache(lambda: now[0])
    file.write_text("one", encoding="utf-8")
    first = stamps.get([str(file)])
    file.write_text("three", encoding="utf-8")
    assert stamps.get([str(file)]) == first
    second = stamps.get([str(file)], refresh=True)
    assert second != first
    file.write_text("seventeen", encoding="utf-8")
    now[0] = 60.0
    assert stamps.get([str(file)]) not in (first, second)


def test_events_of_a_look_are_sorted_into_what_the_page_shows() -> None:
    found = look("a")
    warning = protocol.Warn(code="data.truncated")
    progress = protocol.Progress(phase="preparing", done=1)
    error = protocol.Error(code="data.empty")
    for event in (warning, progress, error, protocol.Phase(phase="done")):
        found.process(event)
    assert (found.report, found.warnings, found.progress, found.error) == (REPORT, [warning], progress, error)


def test_a_known_configuration_shows_its_own_report_and_another_the_last_one_shown() -> None:
    looks = PreviewCache[protocol.DataReport]()
    assert looks.lookup(preview_key({}, ["a"])) == (None, False)
    one, two = look("a"), look("b")
    looks.store(one)
    looks.store(two)
    assert looks.lookup(preview_key({}, ["a"])) == (one, True)
    assert looks.lookup(preview_key({}, ["c"])) == (one, False)
    assert looks.lookup(None) == (one, False)
    again = look("b")
    looks.store(again)
    assert looks.lookup(preview_key({}, ["b"])) == (again, True)


def test_what_an_earlier_look_found_is_not_shown_after_one_that_failed() -> None:
    looks = PreviewCache[protocol.DataReport]()
    one, two = look("a"), look("b")
    looks.store(one)
    looks.store(two)
    looks.invalidate(two.key)
    assert looks.lookup(two.key) == (None, False)
    assert looks.lookup(one.key) == (one, True)


def test_only_the_newest_few_are_kept() -> None:
    looks = PreviewCache[protocol.DataReport]()
    for number in range(20):
        looks.store(look(str(number)))
    assert looks.lookup(preview_key({}, ["19"]))[1]
    assert not looks.lookup(preview_key({}, ["0"]))[1]


def test_a_refusal_holds_while_the_files_and_how_they_are_read_stay_as_they_were() -> None:
    error, refusal = protocol.Error(code="data.mixed", exit_code=4), DataRejection()
    key = preview_key({}, ["a"], [(1, 2, 3)])
    assert refusal.error_for(key) is None
    refusal.record(key, error)
    assert refusal.error_for(key) is error
    assert refusal.error_for(preview_key({"batch_size": 3, "max_seq_len": 64}, ["a"], [(1, 2, 3)])) is error
    for mended in (
        preview_key({}, ["a"], [(1, 2, 4)]),
        preview_key({}, ["b"], [(1, 2, 3)]),
        preview_key({"text_column": "t"}, ["a"], [(1, 2, 3)]),
    ):
        assert refusal.error_for(mended) is None
    refusal.record(key, None)
    assert refusal.error_for(key) is None


def test_how_long_a_run_is_changes_nothing_of_the_sequences_in_the_data() -> None:
    key = sequence_key(preview_key({}, ["a"]))
    assert sequence_key(preview_key({"max_steps": 9, "batch_size": 3}, ["a"])) == key
    assert sequence_key(preview_key({"max_seq_len": 64}, ["a"])) != key
