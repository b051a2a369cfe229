"""Cache keys and cached results of data previews and checks."""

from __future__ import annotations

from app.core.preview_keys import PreviewResult, check_key, offered_settings, preview_key, sequence_key
from trainer_core import protocol
from trainer_core.config import knobs
from trainer_core.docgen.examples import EVENTS

REPORT: protocol.DataReport = EVENTS[protocol.DataReport]


def test_a_preview_depends_on_data_base_model_sequence_length_and_steps_only() -> None:
    key = preview_key({}, ["a"])
    for values in ({"base_model": "org/name"}, {"method": "lora"}, {"objective": "dpo"}, {"thinking": "keep"}):
        assert preview_key(values, ["a"]) != key, values
    for values in ({"batch_size": 3}, {"max_seq_len": 9}, {"packing": True}, {"text_column": "t"}, {"max_epochs": 2}):
        assert preview_key(values, ["a"]) != key, values
    for values in ({"learning_rate": 1.0}, {"hidden_dim": 8}, {"cache_dir": "x"}, {"seed": 4}, {"use_wandb": True}):
        assert preview_key(values, ["a"]) == key, values
    assert preview_key({"batch_size": 16}, ["a"]) == key  # the default value
    assert preview_key({}, ["b"]) != key


def test_a_check_depends_on_settings_that_affect_memory_speed_length_and_disk_only() -> None:
    key = check_key({}, ["a"])
    for values in ({"batch_size": 3}, {"hidden_dim": 8}, {"optimizer": "muon"}, {"keep_last": 9}, {"max_steps": 9}):
        assert check_key(values, ["a"]) != key, values
    for values in ({"learning_rate": 1.0}, {"seed": 4}, {"use_wandb": True}, {"sample_prompts": ["a"]}):
        assert check_key(values, ["a"]) == key, values
    assert check_key({"batch_size": knobs()["batch_size"].default}, ["a"]) == key
    assert check_key({}, ["b"]) != key


def test_the_sequences_do_not_depend_on_the_length_of_the_run() -> None:
    key = sequence_key(preview_key({}, ["a"]))
    assert sequence_key(preview_key({"max_steps": 9, "batch_size": 3}, ["a"])) == key
    assert sequence_key(preview_key({"max_seq_len": 64}, ["a"])) != key


def test_alternatives_of_a_check_contain_settings_only() -> None:
    [alternative] = EVENTS[protocol.CheckReport].alternatives
    assert set(offered_settings(alternative)) <= set(knobs())


def test_events_are_collected_in_the_result() -> None:
    result = PreviewResult(preview_key({}, ["a"]), protocol.DataReport)
    warning = protocol.Warn(code="data.truncated")
    progress = protocol.Progress(phase="preparing", done=1)
    for event in (REPORT, warning, progress, protocol.Phase(phase="done")):
        result.process(event)
    assert (result.report, result.warnings, result.progress) == (REPORT, [warning], progress)
