"""Configurations and presets that hold anything: they become a configuration, or are refused by a code."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trainer_core import presets
from trainer_core.config import Config, ConfigLayer, knobs, resolve, to_dict
from trainer_core.messages import TraindeckError, is_known
from trainer_core.runs import run_dir
from trainer_core.runs.run_dir import RunDir

names = st.sampled_from(sorted(knobs())) | st.text(max_size=12)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.dates() | st.binary(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
likely = st.sampled_from(["auto", "on", "off", "0", "-1", "1e400", "nan", "1_0", "0x10", "", " ", "9" * 5000, "\0"])
mappings = st.dictionaries(names, anything | likely, max_size=6)


def resolved_or_refused(values: dict[Any, Any]) -> None:
    refusal: TraindeckError | None = None
    try:
        config = resolve([ConfigLayer("here", values)])
    except TraindeckError as error:
        refusal = error
    if refusal is not None:
        assert is_known(refusal.code)
        assert len(str(refusal.params)) < 20_000
        return
    assert resolve([ConfigLayer("again", to_dict(config))]) == config


@settings(max_examples=150, deadline=None)
@given(values=mappings)
def test_any_mapping_is_resolved_or_rejected(values: dict[str, Any]) -> None:
    resolved_or_refused(values)


@settings(max_examples=150, deadline=None)
@given(content=st.one_of(
    mappings.map(lambda values: yaml.safe_dump(values, allow_unicode=True).encode("utf-8", "surrogatepass")),
    st.text(st.sampled_from("abz:-[]{}&*!|>'\"%#,? \n\t0129.~<=éあ"), max_size=60).map(str.encode),
    st.binary(max_size=60),
))  # fmt: skip
@example(content=b"a: &a [*a]\n")
@example(content=b"batch_size: " + b"9" * 5000)
@example(content=b"batch_size: 2001-99-99")
@example(content=b"? {a: b}\n: c")
@example(content=b"!!python/object/apply:os.system [echo]")
@example(content=b"[" * 50_000)
def test_any_file_is_resolved_or_rejected(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "mine.yaml")
        file.write_bytes(content)
        with contextlib.suppress(TraindeckError):
            resolved_or_refused(presets.read_mapping(file))
        with contextlib.suppress(TraindeckError):
            assert isinstance(presets.load("mine", Path(folder)).config(), Config)
        run = RunDir(Path(folder))
        run.config.write_bytes(content)
        assert isinstance(run_dir.summarize(run).data, list)


@settings(max_examples=80, deadline=None)
@given(preset=st.fixed_dictionaries({}, optional={
    "title": anything, "summary": anything, "fits": anything, "origin": anything,
    "extends": anything | st.sampled_from(["mine", "cpu", "../cpu"]), "knobs": mappings | anything,
}))  # fmt: skip
def test_any_preset_is_loaded_or_rejected(preset: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            text = yaml.safe_dump(preset, allow_unicode=True).encode("utf-8", "surrogatepass")
        except yaml.YAMLError:
            return
        Path(folder, "mine.yaml").write_bytes(text)
        with contextlib.suppress(TraindeckError):
            made = presets.load("mine", Path(folder))
            assert isinstance(made.localized(made.title, "zh"), str)
            made.config()
