"""Options of the Export page, and models for LM Studio and Ollama."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from app.core import export_options
from app.core.export_options import FORMATS, ExportOptions
from trainer_core import texts
from trainer_core.export.job import Format, Quantization


def test_the_page_offers_what_the_command_accepts() -> None:
    assert set(FORMATS) < set(get_args(Format))
    assert {name for names in FORMATS.values() for name in names} - {""} == set(get_args(Quantization))
    for form, names in FORMATS.items():
        assert f"export.format.{form}" in texts.catalogue("en")
        for name in names:
            arguments = ExportOptions(form, name).arguments()
            assert arguments[:2] == ["--format", form]
            assert ("--quantization" in arguments) == bool(name)


@pytest.mark.parametrize(("quantization", "mib"), [("f32", 4.0), ("bf16", 2.0), ("q8_0", 1.0625)])
def test_the_size_follows_from_the_number_of_weights(quantization: str, mib: float) -> None:
    assert ExportOptions("gguf", quantization).estimate_bytes(2**20) == mib * 2**20
    assert ExportOptions("hf", "").estimate_bytes(2**20) is None


def test_a_model_is_linked_into_lm_studio_and_replaced_by_a_later_one(tmp_path: Path) -> None:
    models = tmp_path / ".lmstudio" / "models"
    assert export_options.find_lm_studio(tmp_path) is None
    models.mkdir(parents=True)
    assert export_options.find_lm_studio(tmp_path) == models
    file = tmp_path / "我的 model" / "m-Q8_0.gguf"
    file.parent.mkdir()
    for content in (b"first", b"second"):
        file.unlink(missing_ok=True)
        file.write_bytes(content)
        for _ in range(2):
            target = export_options.add_to_lm_studio(file, models)
        assert target == models / "traindeck" / "我的 model" / "m-Q8_0.gguf"
        assert target.read_bytes() == content
        assert Path(target).samefile(file)
    assert [path.name for path in target.parent.iterdir()] == ["m-Q8_0.gguf"]


def test_a_file_that_cannot_be_linked_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "m.gguf").write_bytes(b"GGUF")
    target = export_options.add_to_lm_studio(tmp_path / "out" / "m.gguf", tmp_path / "models")
    assert target.read_bytes() == b"GGUF"
