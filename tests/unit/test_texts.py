"""The catalogue of texts: the same keys and parameters in both languages, no key missing or unused."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path
from typing import get_args, get_type_hints

from app.core.run_state import RunState as WindowRunState
from trainer_core import protocol, texts
from trainer_core.config import knobs
from trainer_core.data.builtin import BUILTIN_DATASETS
from trainer_core.messages import is_known
from trainer_core.runs.run_dir import RunState

ROOT = Path(__file__).resolve().parents[2]
COMPOSED_KEYS = (
    "launcher.", "bench.",  # tests/unit/test_launcher_texts.py
    "knob.", "knob_group.", "knob_unit.", "knob_value.", "knob_effect.", "message.", "fast_path.",
    "model_card.", "reason.", "position.",  # phrases of trainer_core/messages/data.py
    "console.phase.", "console.pause.", "console.unit.", "console.checkpoint_kind.", "console.loader_reason.",
    "console.done.", "console.bad_step_action.", "console.oom.", "console.oom_during.", "console.run_state.",
    "console.evaluation.name.", "console.evaluation.column.", "console.evaluation.verdict.",
    "console.run_table.", "console.model_table.", "console.models.", "console.fast_path_table.",
    "check.label.", "check.verdict.",
    "verification.check.", "verification.figures.", "verification.difference.", "verification.limitation.",
    "verification.head.", "export.format.", "evaluate.filter.",
    "common.state_", "common.phase_", "common.verdict_", "common.unit_", "common.pause_", "common.builtin_",
)  # fmt: skip
"""Prefixes of keys that are composed at run time. Tests of the composed names check them."""


def annotation(event: type, field: str) -> object:
    return get_type_hints(event)[field]


def parameters(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def iter_nodes(*folders: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield each node of the sources in these folders, and its file name."""
    for path in (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield node, path.name


def literal_keys() -> Iterator[str]:
    """Yield every string literal that is a key of the catalogue."""
    known = texts.catalogue("en")
    for node, _ in iter_nodes("app", "trainer_core"):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in known:
            yield node.value


def find_calls(name: str, *folders: str) -> Iterator[tuple[ast.Call, str]]:
    """Yield each call of a function or method `name`, and its location."""
    for node, file in iter_nodes(*folders):
        if isinstance(node, ast.Call) and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
            yield node, f"{file}:{node.lineno}"


def test_both_languages_have_the_same_keys_and_parameters() -> None:
    english, chinese = texts.catalogue("en"), texts.catalogue("zh")
    assert english.keys() == chinese.keys()
    for key, text in english.items():
        assert text
        assert chinese[key], key
        assert parameters(text) == parameters(chinese[key]), key


def test_every_key_in_the_sources_is_in_the_catalogue() -> None:
    known = texts.catalogue("en")
    tr_calls = list(find_calls("tr", "app"))
    assert len(tr_calls) > 500
    for call, location in tr_calls:
        if isinstance(call.args[0], ast.Constant):
            assert call.args[0].value in known, location


def test_the_terminal_passes_the_parameters_of_its_texts() -> None:
    known = texts.catalogue("en")
    text_calls = [
        *find_calls("get", "trainer_core/console", "trainer_core/messages", "trainer_core/runs"),
        *find_calls("text", "trainer_core/console"),
    ]
    checked = 0
    for call, location in text_calls:
        key = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else ""
        passed = {keyword.arg for keyword in call.keywords}
        if isinstance(key, str) and key.partition(".")[0] in ("console", "check", "data_report") and None not in passed:
            assert passed == parameters(known[key]), location
            checked += 1
    assert checked > 60


def test_texts_with_composed_keys_exist() -> None:
    known = texts.catalogue("en")
    composed = {
        "phase": protocol.PhaseName,
        "pause": protocol.PauseReason,
        "checkpoint_kind": protocol.CheckpointKind,
        "done": protocol.DoneReason,
        "loader_reason": annotation(protocol.Ready, "loader_reason"),
        "unit": annotation(protocol.Progress, "unit"),
        "bad_step_action": annotation(protocol.BadStep, "action"),
        "oom_during": annotation(protocol.OomRecovery, "during"),
        "run_state": RunState,
        "evaluation.name": annotation(protocol.ModelScores, "name"),
    }
    for group, names in composed.items():
        assert [name for name in get_args(names) if f"console.{group}.{name}" not in known] == (
            ["bytes"] if group == "unit" else []
        )


def test_states_phases_and_units_that_the_window_displays_have_a_text() -> None:
    groups = {
        "state": {*get_args(RunState), *(state.value for state in WindowRunState)},
        "phase": set(get_args(protocol.PhaseName)),
        "verdict": set(get_args(annotation(protocol.CheckReport, "verdict"))),
        "unit": {*get_args(annotation(protocol.Progress, "unit"))} - {"bytes"},
        "pause": {*get_args(protocol.PauseReason), "schedule_until"} - {"requested"},
        "builtin": {path.removeprefix("builtin:") for path in BUILTIN_DATASETS},
    }
    for group, names in groups.items():
        keys = {key for key in texts.catalogue("en") if key.startswith(f"common.{group}_")}
        assert keys == {f"common.{group}_{name}" for name in names}


def test_every_check_of_an_export_has_texts() -> None:
    checks = set(get_args(annotation(protocol.VerificationCheck, "name")))
    for group in ("check", "figures", "difference"):
        keys = {key for key in texts.catalogue("en") if key.startswith(f"verification.{group}.")}
        assert keys == {f"verification.{group}.{name}" for name in checks}


def test_every_key_is_used() -> None:
    used = {key for key in literal_keys() if not key.startswith(COMPOSED_KEYS)}
    assert {key for key in texts.catalogue("en") if not key.startswith(COMPOSED_KEYS)} == used


def test_every_setting_has_a_label_and_a_help_text() -> None:
    for language in ("en", "zh"):
        table = texts.catalogue(language)
        for name, knob in knobs().items():
            assert table[f"knob.{name}.label"]
            assert table[f"knob.{name}.help"].endswith("。" if language == "zh" else "."), name
            assert f"knob_group.{knob.group}" in table
            assert not knob.unit or f"knob_unit.{knob.unit}" in table
    named = {key.split(".")[1] for key in texts.catalogue("en") if key.startswith("knob.")}
    assert named == set(knobs())


def test_every_choice_is_translated_or_a_proper_name() -> None:
    names = {
        "jsonl", "json", "csv", "tsv", "parquet", "arrow", "tar", "gpt-2", "llama-bpe", "qwen2", "adamw",
        "adamw_8bit", "muon", "bf16", "fp16", "flash", "efficient", "cudnn", "math", "flash2", "flash3",
        "lora", "rslora", "dora", "qlora", "ddp", "fsdp", "deepspeed", "dpo", "ipo", "orpo", "kto", "simpo",
        "grpo", "dapo", "dr_grpo",
    }  # fmt: skip
    offered = {choice for knob in knobs().values() for choice in knob.choices}
    translated = {key.rpartition(".")[2] for key in texts.catalogue("zh") if key.startswith("knob_value.")}
    assert offered - names <= translated <= offered


def test_is_known_accepts_only_existing_message_codes() -> None:
    assert is_known("data.not_found")
    assert not is_known("data.no_such_code")
