"""Runs that train a LoRA adapter: exact resume, recovery, checkpoints, generation and export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.core.llama_cpp import LlamaCpp
from tests.core.trainer_process import text_file
from tests.core.training import (
    OUT_OF_MEMORY,
    build_trainer,
    copy_weights,
    corrupt_gradients,
    first_epoch,
    limit_batch_size,
    losses,
    oom_config,
    recovery_actions,
    tiny_config,
)
from trainer_core import protocol
from trainer_core.base_model import source
from trainer_core.config import Config
from trainer_core.export import command
from trainer_core.generation import generate
from trainer_core.messages import TraindeckError
from trainer_core.models import adapters
from trainer_core.models.decoder import Decoder
from trainer_core.progress import NullReporter
from trainer_core.runs import checkpoint_dir
from trainer_core.train import adapter_checkpoint
from trainer_core.train.checkpoint_writer import write_tensors
from trainer_core.train.trainer import Trainer

LORA: dict[str, Any] = {
    "method": "lora",
    "lora_rank": 4,
    "gradient_accumulation_steps": 2,
    "batch_size": 6,
    "cpu_threads": 1,
}


def lora_config(folder: Path, **values: object) -> Config:
    return tiny_config(folder, text_file(folder), **{**LORA, "compile": "off", **values})


def base_weights(trainer: Trainer) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.model.parameters() if not weight.requires_grad]


def newest(trainer: Trainer) -> Path:
    return checkpoint_dir.list_checkpoints(trainer.run_dir.checkpoints)[-1]


def save_base(trainer: Trainer, folder: Path, dtype: torch.dtype = torch.float32) -> None:
    """Save the base model of a run as a folder, and record it."""
    folder.mkdir()
    model = Decoder(trainer.model.config)
    trained = {name.replace(".base_layer", ""): weight for name, weight in trainer.model.state_dict().items()}
    model.load_state_dict({name: trained[name] for name in model.state_dict()})
    tensors = {name: weight.to(dtype) for name, weight in model.state_dict().items() if name != "lm_head.weight"}
    write_tensors(folder / "model.safetensors", tensors)
    for name, content in trainer.sample_writer.companions().items():
        (folder / name).write_bytes(content)
    trainer.state.base = adapter_checkpoint.base_of(source.resolve(str(folder), NullReporter()))


@pytest.fixture
def trained(tmp_path: Path) -> Trainer:
    """A finished run, with its base model in `tmp_path / 基础`."""
    trainer, _ = build_trainer(tmp_path, lora_config(tmp_path, learning_rate=3e-2))
    save_base(trainer, tmp_path / "基础")
    trainer.run()
    return trainer


@pytest.mark.parametrize(
    ("variant", "dropout", "precision"), [("lora", 0.0, "bf16"), ("lora", 0.1, "no"), ("dora", 0.1, "no")]
)
def test_a_resumed_run_is_exact_and_leaves_the_base_unchanged(
    tmp_path: Path, variant: str, dropout: float, precision: str
) -> None:
    values: dict[str, Any] = {"lora_variant": variant, "lora_dropout": dropout, "save_steps": 3, "keep_last": 9}
    values |= {"mixed_precision": precision, "sample_steps": 3, "eval_steps": 3}
    whole, events = build_trainer(tmp_path, lora_config(tmp_path, **values), "whole")
    before = base_weights(whole)
    assert {weight.dtype for weight in before} == {torch.bfloat16 if precision == "bf16" else torch.float32}
    assert all(weight.dtype is torch.float32 for weight in adapters.adapter_weights(whole.model).values())
    whole.run()
    assert all(map(torch.equal, before, base_weights(whole)))
    resumed, later = build_trainer(tmp_path, lora_config(tmp_path, **values), "resumed")
    resumed.resume(whole.run_dir.checkpoints / "step-00000003")
    resumed.run()
    assert losses(later) == losses(events)[3:]
    for name in (adapters.ADAPTER_FILE, adapters.ADAPTER_CONFIG_FILE, "optimizer.safetensors"):
        assert (newest(resumed) / name).read_bytes() == (newest(whole) / name).read_bytes()
    assert losses(events)[-1] < losses(events)[0]


def test_a_checkpoint_holds_only_what_is_trained(trained: Trainer) -> None:
    folder = newest(trained)
    names = {file.name for file in folder.iterdir()}
    assert {adapters.ADAPTER_FILE, adapters.ADAPTER_CONFIG_FILE, "config.json", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    size = adapters.count_trainable(trained.model) * 4
    assert (folder / adapters.ADAPTER_FILE).stat().st_size < size + 8192
    assert (folder / "optimizer.safetensors").stat().st_size < 2 * size + 40_000
    recorded = json.loads((folder / "state.json").read_text(encoding="utf-8"))["base"]
    assert recorded == trained.state.base
    assert set(recorded["identity"]) == {"model.safetensors"}


def test_generation_and_export_use_base_and_adapter(trained: Trainer, tmp_path: Path) -> None:
    import peft
    import transformers

    folder, ids = newest(trained), torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        expected = trained.model.eval()(ids)
        loaded = generate.load_model(folder, torch.device("cpu"))
        torch.testing.assert_close(loaded.model(ids), expected, rtol=1e-4, atol=1e-5)
        target = command.export(folder, tmp_path / "模型 out", NullReporter()).folder
        exported = transformers.AutoModelForCausalLM.from_pretrained(target, attn_implementation="eager")
        torch.testing.assert_close(exported(ids).logits, expected, rtol=1e-4, atol=1e-5)
        base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "基础", attn_implementation="eager")
        assert not torch.allclose(base(ids).logits, expected, atol=1e-3)
        adapted = peft.PeftModel.from_pretrained(base, folder)
        torch.testing.assert_close(adapted(ids).logits, expected, rtol=1e-4, atol=1e-5)
    names = {file.name for file in target.iterdir()}
    assert not {adapters.ADAPTER_FILE, adapters.ADAPTER_CONFIG_FILE, "state.json"} & names
    assert "| Parameters |" in (target / "README.md").read_text(encoding="utf-8")


def test_an_export_loads_in_the_dtype_of_its_base_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    trainer, _ = build_trainer(tmp_path, lora_config(tmp_path))
    save_base(trainer, tmp_path / "base", torch.bfloat16)
    trainer.run()
    assert transformers.AutoModelForCausalLM.from_pretrained(export(newest(trainer), tmp_path)).dtype is torch.bfloat16


def greedy(trainer: Trainer, ids: list[int], count: int) -> list[int]:
    found = list(ids)
    with torch.no_grad():
        for _ in range(count):
            logits = trainer.model.eval()(torch.tensor([found]))[0, -1, : trainer.model.config.n_tokens]
            found.append(int(logits.argmax()))
    return found[len(ids) :]


def test_llama_cpp_computes_the_merged_model_and_base_with_adapter(trained: Trainer, tmp_path: Path) -> None:
    folder, base, ids = newest(trained), tmp_path / "基础", [5, 17, 40, 9]
    checkpoint_dir.write_manifest(base, 0, "final", None)
    expected = greedy(trained, ids, 12)
    merged = command.export(folder, tmp_path / "merged", NullReporter(), form="gguf", quantization="f32")
    alone = command.export(base, tmp_path / "alone", NullReporter(), form="gguf", quantization="f32")
    adapter = command.export(folder, tmp_path / "adapter", NullReporter(), form="gguf-adapter")
    assert [path.name for path in adapter.files] == ["README.md", "adapter-F32.gguf"]
    assert LlamaCpp(merged.gguf_file).generate(ids, 12) == expected
    assert LlamaCpp(alone.gguf_file, adapter.gguf_file).generate(ids, 12) == expected
    assert LlamaCpp(alone.gguf_file).generate(ids, 12) != expected


def test_an_adapter_exported_for_peft_names_and_fits_its_base(trained: Trainer, tmp_path: Path) -> None:
    import peft
    import transformers

    (tmp_path / "基础" / "README.md").write_text("---\nlicense: mit\n---\n", encoding="utf-8")
    target = command.export(newest(trained), tmp_path / "适配器", NullReporter(), form="peft").folder
    card = (target / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: peft\n")
    assert "\nlicense: mit\n" in card
    assert "The license of the base model is mit." in card
    assert sorted(path.name for path in target.iterdir()) == [
        "README.md", "adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    config = peft.PeftConfig.from_pretrained(target)
    assert config.base_model_name_or_path == str(tmp_path / "基础")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "基础", attn_implementation="eager")
    ids = torch.arange(20).unsqueeze(0)
    with torch.no_grad():
        expected = trained.model.eval()(ids)
        adapted = peft.PeftModel.from_pretrained(base, target)
        torch.testing.assert_close(adapted(ids).logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("values", [{"lora_variant": "dora"}, {"lora_embeddings": True}], ids=str)
def test_an_adapter_that_llama_cpp_lacks_is_refused(tmp_path: Path, values: dict[str, Any]) -> None:
    trainer, _ = build_trainer(tmp_path, lora_config(tmp_path, max_steps=1, **values))
    save_base(trainer, tmp_path / "base")
    trainer.run()
    with pytest.raises(TraindeckError) as caught:
        command.export(newest(trainer), tmp_path / "out", NullReporter(), form="gguf-adapter")
    assert caught.value.code == "export.adapter_kind"


def test_another_base_model_is_refused(trained: Trainer, tmp_path: Path) -> None:
    other, _ = build_trainer(tmp_path, lora_config(tmp_path, seed=7), "other")
    save_base(other, tmp_path / "other base")
    folder = newest(trained)
    with pytest.raises(TraindeckError) as caught:
        other.resume(folder)
    assert caught.value.code == "checkpoint.other_base"
    assert caught.value.exit_code == 2
    base = tmp_path / "基础" / "model.safetensors"
    base.write_bytes((tmp_path / "other base" / "model.safetensors").read_bytes())  # the folder of the run has changed
    for use in (lambda: generate.load_model(folder, torch.device("cpu")), lambda: export(folder, tmp_path)):
        with pytest.raises(TraindeckError) as caught:
            use()
        assert caught.value.code == "checkpoint.other_base"
    base.parent.rename(tmp_path / "moved")
    with pytest.raises(TraindeckError) as caught:
        export(folder, tmp_path)
    assert caught.value.code == "checkpoint.no_base"
    assert not (tmp_path / "out").exists()


def export(checkpoint: Path, folder: Path) -> Path:
    return command.export(checkpoint, folder / "out", NullReporter()).folder


@pytest.mark.parametrize(
    "values", [{"lora_rank": 8}, {"lora_alpha": 16}, {"lora_variant": "rslora"}, {"method": "full"}], ids=str
)
def test_an_adapter_is_not_resumed_with_other_settings(
    trained: Trainer, tmp_path: Path, values: dict[str, object]
) -> None:
    other, _ = build_trainer(tmp_path, lora_config(tmp_path, **values), "other")
    other.state.base = trained.state.base
    with pytest.raises(TraindeckError) as caught:
        other.resume(newest(trained))
    assert caught.value.code == "checkpoint.mismatch"
    assert str(next(iter(values))) in caught.value.params["reason"]


def test_oom_recovery_trains_the_same_adapter(tmp_path: Path) -> None:
    values: dict[str, Any] = {"method": "lora", "max_steps": 4}
    expected, _ = build_trainer(tmp_path, oom_config(tmp_path, **values), "whole")
    expected.run()
    trainer, sink = build_trainer(tmp_path, oom_config(tmp_path, **values), "halved")
    limit_batch_size(trainer, 3)
    trainer.run()
    assert [action for action, *_ in recovery_actions(sink)] == ["halved", "halved"]
    for one, other in zip(copy_weights(trainer), copy_weights(expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", ["selective", "full"])
def test_activation_checkpointing_trains_the_same_adapter(tmp_path: Path, mode: str) -> None:
    stored, events = build_trainer(tmp_path, lora_config(tmp_path), "stored")
    stored.run()
    recomputed, later = build_trainer(tmp_path, lora_config(tmp_path, activation_checkpointing=mode), "recomputed")
    recomputed.run()
    assert losses(later) == losses(events)


def test_activation_checkpointing_draws_the_same_dropout(tmp_path: Path) -> None:
    trained = []
    for mode in ("off", "full"):
        config = lora_config(tmp_path, lora_dropout=0.2, max_steps=3, activation_checkpointing=mode)
        trainer, _ = build_trainer(tmp_path, config, mode)
        trainer.run()
        trained.append(copy_weights(trainer))
    assert all(map(torch.equal, *trained))


def test_a_repeated_step_draws_the_same_dropout(tmp_path: Path) -> None:
    values: dict[str, Any] = {"lora_dropout": 0.2, "max_steps": 3}
    plain, events = build_trainer(tmp_path, lora_config(tmp_path, **values), "plain")
    plain.run()
    trainer, later = build_trainer(tmp_path, lora_config(tmp_path, **values), "failing")
    trainer.set_up()
    compute, failures = trainer.engine.loss, iter([False, True])  # the second micro-batch of the first step fails

    def loss(batch: Any, *grad_scale: Any) -> torch.Tensor:
        result = compute(batch, *grad_scale)
        if next(failures, False):
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return result

    trainer.engine.loss = loss  # type: ignore[method-assign]
    trainer.oom.split = lambda batches: batches  # type: ignore[method-assign]
    trainer.run()
    assert losses(later) == losses(events)
    assert all(map(torch.equal, copy_weights(plain), copy_weights(trainer)))


def test_dora_is_not_compiled_and_the_reason_is_reported(tmp_path: Path) -> None:
    trainer, _ = build_trainer(tmp_path, lora_config(tmp_path, lora_variant="dora", compile="on", max_steps=1))
    trainer.set_up()
    path = trainer.engine.fast_paths["compile"]
    assert (path.used, path.reason, path.params) == (False, "path.unsupported", {"what": "DoRA"})
    trainer.close()


def test_a_bad_step_changes_no_weight_of_the_adapter(tmp_path: Path) -> None:
    config = lora_config(tmp_path, max_steps=1)
    trainer, sink = build_trainer(tmp_path, config)
    before = copy_weights(trainer)
    corrupt_gradients(trainer, *first_epoch(trainer, 1))
    trainer.run()
    assert [event.action for event in sink.events_of(protocol.BadStep)] == ["skipped"]
    assert all(map(torch.equal, before, copy_weights(trainer)))


def test_frozen_weights_of_full_tuning_do_not_change(tmp_path: Path) -> None:
    config = tiny_config(tmp_path, text_file(tmp_path), freeze=["model.layers.0.*"], max_steps=3, compile="off")
    trainer, _ = build_trainer(tmp_path, config)
    before = dict(zip(dict(trainer.model.named_parameters()), copy_weights(trainer), strict=True))
    trainer.run()
    for name, weight in trainer.model.named_parameters():
        assert torch.equal(weight, before[name]) == name.startswith("model.layers.0."), name
    assert (newest(trainer) / "model.safetensors").is_file()
