"""`export --format gguf`: llama.cpp computes the same tokens from the file as the trainer from the checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.core.llama_cpp import LlamaCpp
from tests.core.model_families import HF_CONFIGS
from tests.core.random_checkpoint import RandomCheckpoint, write_checkpoint
from trainer_core.export import command
from trainer_core.export.job import Quantization
from trainer_core.messages import TraindeckError, Value
from trainer_core.progress import NullReporter, StopRequested, Unit
from trainer_core.protocol import PhaseName
from trainer_core.runs import checkpoint_dir

TEXTS = [
    "Hello, how are you today?", "What is 12345 plus 30? It's 42,\n\n they'LL", "床前明月光，疑是地上霜。",
    " two  spaces\t", "def add(a, b):\n    return a + b\n", "émoji 😀 ñ ﬁ", "<|im_end|> and </s> are text",
]  # fmt: skip
NOT_COMPUTED = {"qwen3 with wide heads", "qwen3 with yarn", "gemma 3 with scaled positions"}
WINDOWS = {"mistral with a sliding window", "qwen2 with a sliding window", "qwen3 with a sliding window"}
EXACT = HF_CONFIGS.keys() - NOT_COMPUTED - WINDOWS
WIDE = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "head_dim": 64,
}


class RecordingReporter(NullReporter):
    def __init__(self) -> None:
        self.warnings: list[tuple[str, dict[str, Value]]] = []

    def warn(self, code: str, **params: Value) -> None:
        self.warnings.append((code, params))


def write_gguf(checkpoint: Path, target: Path, quantization: Quantization = "f32") -> Path:
    return command.export(checkpoint, target, NullReporter(), form="gguf", quantization=quantization).gguf_file


def read_field(path: Path, key: str) -> Any:
    field = gguf.GGUFReader(path).get_field(key)
    return None if field is None else field.contents()


def read_tensors(path: Path) -> dict[str, Any]:
    """Tensors in fp32, dequantized."""
    return {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}


def assert_equal_in_llama_cpp(checkpoint: RandomCheckpoint, path: Path, texts: Sequence[str] = TEXTS) -> None:
    llama = LlamaCpp(path)
    for text in texts:
        assert llama.encode(text) == checkpoint.codec.encode(text)
    prompt = checkpoint.codec.encode_prompt([("user", "How are you?"), ("assistant", "Yes."), ("user", "你好")])
    rendered = llama.render(("user", "How are you?"), ("assistant", "Yes."), ("user", "你好"))
    assert llama.encode(rendered, special=True) == prompt
    ids = checkpoint.codec.encode("The quick brown")
    expected = checkpoint.generate(ids, 32)
    assert len(set(expected)) > 4
    assert llama.generate(ids, 32) == expected


def test_tokens_ids_and_chats_are_equal_in_llama_cpp(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "检查点 one", HF_CONFIGS["llama with scaled frequencies"])
    assert_equal_in_llama_cpp(checkpoint, write_gguf(checkpoint.folder, tmp_path / "模型 one"))


@pytest.mark.parametrize("name", sorted(EXACT))
def test_each_family_and_feature_is_equal_in_llama_cpp(tmp_path: Path, name: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", HF_CONFIGS[name])
    texts = () if name == "mistral" else TEXTS  # see the next test
    assert_equal_in_llama_cpp(checkpoint, write_gguf(checkpoint.folder, tmp_path / "model"), texts)


@pytest.mark.parametrize("tokenizer", ["llama2", "smollm2", "deepseek"])
def test_other_tokenizers_of_llama_models_are_equal_in_llama_cpp(tmp_path: Path, tokenizer: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", HF_CONFIGS["llama with a tied head"], tokenizer)
    assert_equal_in_llama_cpp(checkpoint, write_gguf(checkpoint.folder, tmp_path / "model"))


@pytest.mark.parametrize(
    ("tokenizer", "reason"),
    [("unigram", "it is not byte-level or SentencePiece BPE"), ("own split", "it splits text in a way")],
)
def test_a_tokenizer_that_llama_cpp_lacks_is_refused(tmp_path: Path, tokenizer: str, reason: str) -> None:
    family = "unigram" if tokenizer == "unigram" else "llama3"
    checkpoint = write_checkpoint(tmp_path / "checkpoint", HF_CONFIGS["llama"], family)
    path = checkpoint.folder / "tokenizer.json"
    path.write_text(path.read_text(encoding="utf-8").replace("{1,3}", "{1,2}"), encoding="utf-8")
    checkpoint_dir.write_manifest(checkpoint.folder, 1, "final", None)
    with pytest.raises(TraindeckError) as caught:
        write_gguf(checkpoint.folder, tmp_path / "model")
    assert caught.value.code == "export.tokenizer"
    assert reason in str(caught.value.params["reason"])


def test_a_text_of_mistral_begins_with_a_space_unless_the_model_is_a_chat_model(tmp_path: Path) -> None:
    for task, reason in (("pretrain", "after special tokens"), ("sft", "before a text")):
        checkpoint = write_checkpoint(tmp_path / task, HF_CONFIGS["mistral"], task=task)
        reporter = RecordingReporter()
        path = command.export(checkpoint.folder, tmp_path / f"{task} out", reporter, form="gguf").gguf_file
        assert [code for code, params in reporter.warnings if reason in str(params["reason"])] == [
            "export.tokens_differ"
        ]
        llama = LlamaCpp(path)
        assert (llama.encode("Hello") == checkpoint.codec.encode("Hello")) == (task == "pretrain")


@pytest.mark.parametrize("name", sorted(NOT_COMPUTED))
def test_what_llama_cpp_does_not_compute_is_refused(tmp_path: Path, name: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", HF_CONFIGS[name])
    with pytest.raises(TraindeckError) as caught:
        write_gguf(checkpoint.folder, tmp_path / "model")
    assert caught.value.code == "export.not_computed"
    assert not (tmp_path / "model").exists()


def test_a_window_that_llama_cpp_ignores_limits_the_context(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", HF_CONFIGS["qwen2 with a sliding window"])
    reporter = RecordingReporter()
    path = command.export(checkpoint.folder, tmp_path / "model", reporter, form="gguf").gguf_file
    assert ("export.shorter_context", {"window": 8, "positions": 96}) in reporter.warnings
    assert read_field(path, "qwen2.context_length") == 8


def test_special_tokens_and_template_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", HF_CONFIGS["qwen3"])
    path, codec = write_gguf(checkpoint.folder, tmp_path / "model"), checkpoint.codec
    config = json.loads((checkpoint.folder / "tokenizer_config.json").read_bytes())
    assert read_field(path, "tokenizer.chat_template") == config["chat_template"]
    ends = {read_field(path, f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")} - {None}
    assert ends == codec.stop_token_ids
    assert read_field(path, "tokenizer.ggml.eos_token_id") == codec.tokenizer.token_to_id("<|im_end|>")
    assert read_field(path, "tokenizer.ggml.bos_token_id") == codec.end_of_text  # Qwen names none
    assert read_field(path, "tokenizer.ggml.add_bos_token") is False
    types = dict(zip(*(read_field(path, f"tokenizer.ggml.{key}") for key in ("tokens", "token_type")), strict=True))
    assert types["<|im_end|>"] == gguf.TokenType.CONTROL
    assert types["<think>"] == gguf.TokenType.USER_DEFINED


@pytest.mark.parametrize("quantization", ["f16", "bf16"])
def test_half_precision_equals_rounded_weights(tmp_path: Path, quantization: Quantization) -> None:
    dtype = {"f16": torch.float16, "bf16": torch.bfloat16}[quantization]
    exact = write_checkpoint(tmp_path / "exact", HF_CONFIGS["llama"])
    rounded = write_checkpoint(tmp_path / "rounded", HF_CONFIGS["llama"], dtype=dtype)
    one = write_gguf(exact.folder, tmp_path / "model", quantization)
    other = read_tensors(write_gguf(rounded.folder, tmp_path / "f32"))
    for name, tensor in read_tensors(one).items():
        if tensor.ndim > 1:
            assert np.array_equal(tensor, other[name]), name


def test_an_export_without_quantization_is_q8_0_without_padding_rows(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", {**HF_CONFIGS["qwen3"], **WIDE})
    exported = command.export(checkpoint.folder, tmp_path / "my model", NullReporter(), form="gguf")
    assert [path.name for path in exported.files] == ["Modelfile", "README.md", "my-model-Q8_0.gguf"]
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(exported.gguf_file).tensors}
    assert tensors["blk.0.attn_q.weight"].tensor_type is gguf.GGMLQuantizationType.Q8_0
    assert tensors["token_embd.weight"].shape.tolist() == [256, checkpoint.codec.vocab_size]
    assert checkpoint.model.config.vocab_size > checkpoint.codec.vocab_size
    exact = read_tensors(write_gguf(checkpoint.folder, tmp_path / "f32"))
    for name, tensor in read_tensors(exported.gguf_file).items():
        difference = np.abs(tensor - exact[name]).max() / np.abs(exact[name]).max()
        assert difference < 1 / 127, name


@pytest.mark.parametrize("quantization", ["q4_k_m", "q5_k_m", "q6_k"])
def test_k_quants_have_the_types_of_llama_quantize(tmp_path: Path, quantization: Quantization) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", {**HF_CONFIGS["qwen3"], **WIDE, "num_hidden_layers": 8})
    path = write_gguf(checkpoint.folder, tmp_path / "model", quantization)
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    plain = f"Q{quantization[1]}_K"
    assert types["blk.3.attn_q.weight"] == types["token_embd.weight"] == plain
    assert types["output.weight"] == "Q6_K"
    assert types["blk.3.attn_norm.weight"] == "F32"
    more_bits = [layer for layer in range(8) if types[f"blk.{layer}.attn_v.weight"] == "Q6_K"]
    assert more_bits == ([0, 3, 6, 7] if quantization != "q6_k" else [*range(8)])
    assert more_bits == [layer for layer in range(8) if types[f"blk.{layer}.ffn_down.weight"] == "Q6_K"]
    exact = read_tensors(write_gguf(checkpoint.folder, tmp_path / "f32"))
    for name, tensor in read_tensors(path).items():
        error = np.linalg.norm(tensor - exact[name]) / np.linalg.norm(exact[name])
        assert error < {"Q4_K": 0.09, "Q5_K": 0.05, "Q6_K": 0.03, "F32": 1e-7}[types[name]], name
    assert LlamaCpp(path).generate([5, 9, 17], 4)


def test_rows_that_k_quants_cannot_divide_have_wider_types(tmp_path: Path) -> None:
    sizes = {**WIDE, "hidden_size": 192, "intermediate_size": 320, "head_dim": 48}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", {**HF_CONFIGS["llama with a tied head"], **sizes})
    path = write_gguf(checkpoint.folder, tmp_path / "model", "q4_k_m")
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert types["blk.0.attn_q.weight"] == "Q5_0"
    assert types["token_embd.weight"] == "Q8_0"  # also the output layer
    assert LlamaCpp(path).generate([5, 9, 17], 4)


def test_a_value_that_f16_cannot_hold_is_refused(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", HF_CONFIGS["llama"])
    weights = load_file(checkpoint.folder / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"][3, 5] = 70_000.0
    save_file(weights, checkpoint.folder / "model.safetensors")
    checkpoint_dir.write_manifest(checkpoint.folder, 1, "final", None)
    with pytest.raises(TraindeckError) as caught:
        write_gguf(checkpoint.folder, tmp_path / "model", "f16")
    assert caught.value.code == "export.too_large"
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_an_architecture_that_transformers_computes_is_refused(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", HF_CONFIGS["llama"])
    (checkpoint.folder / "config.json").write_text('{"model_type": "olmo2"}', encoding="utf-8")
    with pytest.raises(TraindeckError) as caught:
        write_gguf(checkpoint.folder, tmp_path / "model")
    assert caught.value.code == "export.architecture"


def test_a_stop_between_two_tensors_leaves_no_files(tmp_path: Path) -> None:
    class StopLater(NullReporter):
        def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
            assert total is not None
            if done > total / 2:
                raise StopRequested("stopped")

    checkpoint = write_checkpoint(tmp_path / "checkpoint", HF_CONFIGS["llama"])
    with pytest.raises(StopRequested):
        command.export(checkpoint.folder, tmp_path / "model", StopLater(), form="gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", HF_CONFIGS["llama"])
    monkeypatch.setitem(sys.modules, "libgguf", None)
    with pytest.raises(TraindeckError) as caught:
        write_gguf(checkpoint.folder, tmp_path / "model", "q4_k_m")
    assert (caught.value.code, caught.value.params["package"]) == ("export.missing_package", "libgguf")
