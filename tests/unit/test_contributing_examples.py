"""The examples of CONTRIBUTING.md work in a copy of the sources."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.compile(r"```(\w+)\n# (\S+/\S+)\n(.*?)```", re.DOTALL)


def apply_diff(text: str, diff: str) -> str:
    """Apply hunks without line numbers, separated by `@@`. The old lines of each must occur exactly once."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        assert text.count(old) == 1, old
        text = text.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
    return text


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the sources to which all examples were applied."""
    copy = tmp_path_factory.mktemp("traindeck")
    for name in ("app", "presets", "trainer_core"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for kind, name, content in EXAMPLE.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        path = copy / name
        assert path.exists() == (kind == "diff"), name
        text = apply_diff(path.read_text(encoding="utf-8"), content) if kind == "diff" else content
        path.write_text(text, encoding="utf-8")
    return copy


def run(tree: Path, *arguments: str) -> str:
    """Run Python in the copy and return its stdout."""
    env = {**os.environ, "PYTHONPATH": str(tree), "TRAINDECK_HOME": str(tree / "home"), "PYTHONUTF8": "1"}
    result = subprocess.run(
        [sys.executable, "-P", *arguments], cwd=tree, env=env, capture_output=True, encoding="utf-8", check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def preview(tree: Path, path: Path) -> dict[str, Any]:
    """Return the data report of a file."""
    lines = run(tree, "-m", "trainer_core", "prepare", "--preview", "--data", str(path), "--output", "json")
    [report] = [event for event in map(json.loads, lines.splitlines()) if event["type"] == "data_report"]
    assert isinstance(report, dict)
    return report


def test_the_preset_is_listed_and_inherits_values(tree: Path) -> None:
    assert "laptop" in run(tree, "-m", "trainer_core", "presets", "--output", "plain")
    code = "from trainer_core import presets; c = presets.load('laptop').config(); print(c.n_layers, c.batch_size)"
    assert run(tree, "-c", code).split() == ["4", "4"]


def test_the_data_format_is_read_and_counts_bad_records(tree: Path, tmp_path: Path) -> None:
    path = tmp_path / "questions.records"
    records = [f"prompt: What is {i} plus 1?\nresponse: It is {i + 1}.\n" for i in range(200)]
    path.write_text("\n".join([*records, "no colon\n"]), encoding="utf-8")
    report = preview(tree, path)
    assert report["sources"][0]["format"] == "records"
    assert (report["train_documents"] + report["validation_documents"], report["bad"]) == (200, 1)


def test_the_model_family_equals_transformers(tree: Path) -> None:
    code = """
import torch
from transformers import SeedOssConfig, SeedOssForCausalLM
from trainer_core.messages import TraindeckError
from trainer_core.models import hf_config
from trainer_core.models.decoder import Decoder

sizes = dict(vocab_size=97, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
             intermediate_size=64, max_position_embeddings=32, head_dim=16)
reference = SeedOssForCausalLM(SeedOssConfig(**sizes)).eval()
torch.nn.init.normal_(reference.model.layers[0].self_attn.q_proj.bias)
decoder = Decoder(hf_config.from_hf_config(reference.config.to_dict(), "x")).eval()
decoder.load_state_dict(reference.state_dict(), strict=False)
ids = torch.randint(0, 97, (2, 20))
with torch.no_grad():
    torch.testing.assert_close(decoder(ids), reference(ids).logits, rtol=1e-4, atol=1e-5)
try:
    hf_config.from_hf_config(SeedOssConfig(**sizes, attention_out_bias=True).to_dict(), "x")
except TraindeckError as error:
    print(error.code)
"""
    assert run(tree, "-c", code).split()[-1] == "model.unsupported"


def test_the_plot_shows_the_metric(tree: Path) -> None:
    code = """
from app.core.metrics.metric_store import MetricStore
from app.pages.plots import plot_specs
from trainer_core import protocol

store = MetricStore()
store.add(protocol.Eval(step=1, loss=2.0, perplexity=7.5, tokens=100, seconds=0.1))
[curve] = plot_specs.curve_specs("perplexity", store, [], None)
names = plot_specs.detail_plots(store, [])
print(*names, plot_specs.title("perplexity", store), store.last_value(curve.series))
"""
    assert run(tree, "-c", code).split()[-3:] == ["perplexity", "Perplexity", "7.5"]


def test_the_setting_has_a_flag_a_range_and_texts_in_both_languages(tree: Path) -> None:
    assert "--label-smoothing" in run(tree, "-m", "trainer_core", "train", "--help")
    code = """
from trainer_core import config, texts
knob = config.knobs()["label_smoothing"]
print(knob.flag, *(texts.get("knob.label_smoothing.label", language) for language in ("en", "zh")))
"""
    assert run(tree, "-c", code).split() == ["--label-smoothing", "Label", "smoothing", "标签平滑"]
