"""Configurations and presets with arbitrary content are resolved or rejected with a code."""

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

knob_names = st.sampled_from(sorted(knobs())) | st.text(max_size=12)
yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.dates() | st.binary(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3),
    max_leaves=8,
)
edge_cases = st.sampled_from(["auto", "on", "off", "0", "-1", "1e400", "nan", "1_0", "0x10", "", " ", "9" * 5000, "\0"])
mappings = st.dictionaries(knob_names, yaml_values | edge_cases, max_size=6)


def resolve_or_reject(values: dict[Any, Any]) -> None:
    """Resolve; an error must have a known code, and a configuration must survive a round trip."""
    rejection: TraindeckError | None = None
    try:
        config = resolve([ConfigLayer("first", values)])
    except TraindeckError as error:
        rejection = error
    if rejection is not None:
        assert is_known(rejection.code)
        assert len(str(rejection.params)) < 20_000
        return
    assert resolve([ConfigLayer("second", to_dict(config))]) == config


@settings(max_examples=150, deadline=None)
@given(values=mappings)
def test_any_mapping_is_resolved_or_rejected(values: dict[str, Any]) -> None:
    resolve_or_reject(values)


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
            resolve_or_reject(presets.read_mapping(file))
        with contextlib.suppress(TraindeckError):
            assert isinstance(presets.load("mine", Path(folder)).config(), Config)
        run = RunDir(Path(folder))
        run.config.write_bytes(content)
        assert isinstance(run_dir.summarize(run).data, list)


@settings(max_examples=80, deadline=None)
@given(preset=st.fixed_dictionaries({}, optional={
    "title": yaml_values, "summary": yaml_values, "fits": yaml_values, "origin": yaml_values,
    "extends": yaml_values | st.sampled_from(["mine", "cpu", "../cpu"]), "knobs": mappings | yaml_values,
}))  # fmt: skip
def test_any_preset_is_loaded_or_rejected(preset: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            text = yaml.safe_dump(preset, allow_unicode=True).encode("utf-8", "surrogatepass")
        except yaml.YAMLError:
            return
        Path(folder, "mine.yaml").write_bytes(text)
        with contextlib.suppress(TraindeckError):
            loaded = presets.load("mine", Path(folder))
            assert isinstance(loaded.localized(loaded.title, "zh"), str)
            loaded.config()
