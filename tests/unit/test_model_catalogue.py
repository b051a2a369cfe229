"""Catalogue of models to fine-tune: consistent entries, and the table of the command `models`."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from huggingface_hub import constants
from rich.cells import cell_len

from trainer_core import presets
from trainer_core.base_model import catalogue
from trainer_core.base_model.catalogue import CatalogueModel, Shape
from trainer_core.base_model.summary import count_trained, summarize
from trainer_core.config import Config
from trainer_core.console.models import format_models, to_document
from trainer_core.messages import Language

MODELS = catalogue.load()
BY_NAME = {model.name: model for model in MODELS}
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)


def count_parameters(shape: Shape) -> int:
    """Linear layers, biases of q, k and v (Qwen2), RMSNorms, embeddings, and the head if it is not tied."""
    linear = sum(inputs * outputs for inputs, outputs in shape.linear_layers())
    biases = sum(outputs for _, outputs in shape.linear_layers()[:3]) if shape.model_type == "qwen2" else 0
    norms = (4 if shape.model_type == "gemma3_text" else 2) * shape.hidden_size
    if shape.model_type in ("qwen3", "gemma3_text"):  # of queries and keys
        norms += 2 * shape.head_dim
    embeddings = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
    return shape.num_hidden_layers * (linear + biases + norms) + shape.hidden_size + embeddings


@each_model
def test_the_stated_number_of_parameters_is_that_of_the_shape(model: CatalogueModel) -> None:
    assert model.parameters == pytest.approx(count_parameters(model.shape), rel=0.005)


@each_model
def test_the_matrices_are_all_weights_but_vectors(model: CatalogueModel) -> None:
    matrices = sum(rows * columns for _, (rows, columns) in model.shape.matrices())
    assert 0.999 * count_parameters(model.shape) < matrices < count_parameters(model.shape)


def test_a_model_of_the_catalogue_is_summarized_without_a_request(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    found = summarize("HuggingFaceTB/SmolLM2-135M-Instruct@main")
    assert (found.parameters, found.license, found.context) == (134_515_008, "Apache-2.0", 8192)
    assert (found.download_bytes, found.is_local) == (269_060_552, False)
    lora = Config(base_model=found.name, method="lora")
    assert count_trained(found, lora) == 4_884_480
    assert count_trained(found, Config(base_model=found.name)) == found.parameters
    unknown = summarize("org/model")
    assert (unknown.error, unknown.parameters, count_trained(unknown, lora)) == (None, 0, None)


@each_model
def test_the_download_has_two_bytes_a_parameter(model: CatalogueModel) -> None:
    shape = model.shape
    head = shape.vocab_size * shape.hidden_size if shape.tie_word_embeddings else 0  # some files hold it twice
    assert any(
        model.download_bytes == pytest.approx(2 * stored, rel=0.001)
        for stored in (model.parameters, model.parameters + head)
    )


@each_model
def test_an_entry_is_complete(model: CatalogueModel) -> None:
    for hub_id in (model.id, model.modelscope or model.id):
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", hub_id, re.ASCII)
    assert set(model.purpose) == {"en", "zh"}
    assert model.purpose["en"].isascii()
    assert re.search("[\u4e00-\u9fff]", model.purpose["zh"])
    assert all(re.fullmatch("[a-z]{2}", code) for code in model.languages)
    assert len(set(model.languages)) == len(model.languages)
    assert model.license
    assert model.source
    assert model.context >= 2048
    assert model.shape.num_attention_heads % model.shape.num_key_value_heads == 0


def test_names_and_ids_are_unique_and_the_smallest_model_is_first() -> None:
    assert len(BY_NAME) == len({model.id for model in MODELS}) == len(MODELS) >= 20
    sizes = [model.parameters for model in MODELS]
    assert sizes == sorted(sizes)
    assert 0.1e9 < sizes[0] < sizes[-1] < 15e9


def test_licenses_that_must_be_accepted_are_those_of_llama_and_gemma() -> None:
    must_accept = {model.license for model in MODELS if model.gated}
    assert must_accept == {"Gemma", "Llama 2", "Llama 3.1", "Llama 3.2"}
    assert not must_accept & {model.license for model in MODELS if not model.gated}


def test_the_memory_estimates_are_the_sums_in_their_docstrings() -> None:
    model = BY_NAME["Llama-3.1-8B"]
    widths = (4096 + 4096) + 2 * (4096 + 1024) + (4096 + 4096) + 3 * (4096 + 14336)
    weights, adapter = 2 * 8_030_261_248, 16 * 16 * widths * 32
    activations = 2 * 2048 * 4096 * 32 + 4 * 2048 * widths
    logits = 8 * (256 * 2**20 // (4 * 128256)) * 128256
    others = adapter + activations + logits + 2**30
    assert catalogue.estimate_memory(model.shape, model.parameters, "lora") == weights + others
    linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    others_bf16 = 8_030_261_248 - linear - 128256 * 4096  # the input embedding is in system memory
    quantized = int(linear * (0.5 + 1 / 64 + 1 / 4096)) + 2 * 4096 * 14336 + 2 * others_bf16
    assert catalogue.estimate_memory(model.shape, model.parameters, "qlora") == quantized + others < 8 * 2**30


def test_on_a_cpu_frozen_weights_may_take_four_bytes() -> None:
    model = BY_NAME["Qwen3-0.6B"]
    on_cpu = catalogue.estimate_memory(model.shape, model.parameters, "lora", on_gpu=False)
    assert on_cpu - catalogue.estimate_memory(model.shape, model.parameters, "lora") == 2 * model.parameters


def test_an_unknown_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    text = catalogue.PATH.read_text(encoding="utf-8")
    path.write_text(text.replace("instruct: true", "chatty: true"), encoding="utf-8")
    with pytest.raises(msgspec.ValidationError, match="chatty"):
        catalogue.load(path)


def test_the_catalogue_is_no_preset() -> None:
    assert catalogue.PATH.is_file()
    assert catalogue.PATH.stem not in presets.names()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_table_lists_every_model_within_100_columns(language: Language) -> None:
    lines = format_models(MODELS, language).splitlines()
    assert max(map(cell_len, lines)) <= 100
    for model in MODELS:
        row = next(number for number, line in enumerate(lines) if line.startswith(f"{model.id} "))
        assert lines[row].endswith(f"{model.license} *" if model.gated else model.license)
        assert lines[row + 1].strip() == model.purpose[language]
    assert ("参数量" in lines[0]) == (language == "zh")


def test_a_row_has_the_figures_of_its_model() -> None:
    text = format_models([BY_NAME["Qwen3-0.6B"], BY_NAME["Mistral-7B-Instruct-v0.3"]], "en")
    rows = [line.split() for line in text.splitlines() if "/" in line]
    assert rows[0] == [
        "Qwen/Qwen3-0.6B", "0.60", "B", "1.4", "GiB", "40,960", "4/3", "zh", "en", "+117", "Apache-2.0",
    ]  # fmt: skip
    assert rows[1][-2:] == ["-", "Apache-2.0"]


def test_the_document_has_name_fields_and_memory() -> None:
    model = BY_NAME["Qwen3-0.6B"]
    document = to_document(model)
    assert document["name"] == "Qwen3-0.6B"
    assert document["shape"]["head_dim"] == 128
    assert document["lora_memory"] == catalogue.estimate_memory(model.shape, model.parameters, "lora")
    assert document["qlora_memory"] == catalogue.estimate_memory(model.shape, model.parameters, "qlora")
