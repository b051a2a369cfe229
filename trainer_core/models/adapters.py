"""LoRA adapters, and which weights of a model are trained.

`peft` adds and computes the adapters (see also `lora_linear`); it is imported only where it is needed, because that
takes seconds. On disk an adapter has PEFT's format, so `PeftModel.from_pretrained` reads it:
https://huggingface.co/docs/peft/developer_guides/checkpoint

Load the weights of the base model first: adding an adapter renames them (`q_proj.weight` becomes
`q_proj.base_layer.weight`), and DoRA computes its initial magnitudes from them.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer_core.base_model import weight_files
from trainer_core.messages import TraindeckError
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.quantization import is_quantized
from trainer_core.models.sharding import copy_whole, whole_shape
from trainer_core.system import files

ADAPTER_FILE: Final = weight_files.ADAPTER_FILE
ADAPTER_CONFIG_FILE: Final = weight_files.ADAPTER_CONFIG_FILE
PREFIX: Final = "base_model.model."  # of names in the file
_ADAPTER_NAME: Final = "default"  # peft's; not in the file
_MAX_RANK: Final = 4096
_CONFIG_KEYS: Final = (
    "r", "lora_alpha", "lora_dropout", "target_modules", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern",
)  # fmt: skip
"""Keys of `adapter_config.json` that are read and written."""
_UNSUPPORTED: Final = (
    "bias", "fan_in_fan_out", "use_qalora", "lora_bias", "layer_replication", "trainable_token_indices",
)  # fmt: skip
"""Keys of features that are not implemented here: an adapter that uses one is refused."""


def set_up_tuning(model: LanguageModel, tuning: Mapping[str, Any]) -> None:
    """Add a new adapter and freeze all other weights, or freeze what the setting `freeze` matches.

    `tuning`: see `train.model_shape.tuning_of`. Raises `config.lora_targets`, `config.freeze_unmatched` or
    `config.all_frozen`.
    """
    if tuning["method"] == "full":
        _freeze(model, tuning["freeze"])
        return
    targets = sorted(tuning["lora_targets"]) or linear_layers(model)
    for name in targets:
        if name not in linear_layers(model):
            raise TraindeckError("config.lora_targets", name=name, known=", ".join(linear_layers(model)))
    values = {
        "r": tuning["lora_rank"],
        "lora_alpha": tuning["lora_alpha"],
        "lora_dropout": tuning["lora_dropout"],
        "target_modules": targets,
        "use_rslora": tuning["lora_variant"] == "rslora",
        "use_dora": tuning["lora_variant"] == "dora",
    }
    _add_adapter(model, values, tuning["lora_embeddings"])


def linear_layers(model: LanguageModel) -> list[str]:
    """Names of the linear layers of attention and MLP, without their path."""
    modules, types = model.backbone.named_modules(), model.linear_types
    return list(dict.fromkeys(name.rpartition(".")[2] for name, module in modules if isinstance(module, types)))


def _freeze(model: LanguageModel, patterns: list[str]) -> None:
    names = dict(model.named_parameters())
    for pattern in patterns:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            raise TraindeckError("config.freeze_unmatched", pattern=pattern, example=next(iter(names)))
        for name in matched:
            names[name].requires_grad_(False)
    if not any(weight.requires_grad for weight in names.values()):
        raise TraindeckError("config.all_frozen")


def _add_adapter(model: LanguageModel, values: Mapping[str, Any], embeddings: bool) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    from trainer_core.models.lora_linear import LoraLinear

    on_meta = next(model.parameters()).is_meta
    config = LoraConfig(task_type="CAUSAL_LM", **values)
    if not is_quantized(model):  # peft has a layer for NF4
        config._register_custom_module({nn.Linear: LoraLinear})
    inject_adapter_in_model(config, model, _ADAPTER_NAME, low_cpu_mem_usage=on_meta)
    if embeddings:  # in place, without the copies of peft's `modules_to_save`; tied weights stay tied
        config.modules_to_save = list(model.embeddings())
        for module in model.embeddings().values():
            module.weight.requires_grad_(True)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()  # also beside a base model in half precision


@torch.no_grad()
def initialize_adapter(model: LanguageModel) -> None:
    """Draw the weights of an adapter that was added on the device `meta`, with the numbers that peft draws elsewhere:
    its layers draw both matrices when they are created, then A again.
    """
    for layer in model.modules():
        if not hasattr(layer, "lora_A"):
            continue
        first, second = layer.lora_A[_ADAPTER_NAME].weight, layer.lora_B[_ADAPTER_NAME].weight  # type: ignore[index,union-attr]
        drawn = [nn.init.kaiming_uniform_(torch.empty(one.shape), a=math.sqrt(5)) for one in (first, second, first)]
        copy_whole(drawn[-1], first)
        copy_whole(torch.zeros(second.shape), second)


# --- what is trained -------------------------------------------------------------------------------------


def has_adapter(model: LanguageModel) -> bool:
    return hasattr(model, "peft_config")  # set by peft


def base_weights(model: LanguageModel) -> dict[str, Tensor]:
    """The weights without those of an adapter, by their names without an adapter. Tensors are not copied."""
    weights = model.state_dict(keep_vars=True).items()
    return {name.replace(".base_layer.", "."): weight for name, weight in weights if ".lora_" not in name}


def count_trainable(model: nn.Module) -> int:
    """Number of weights that are trained; a tied head counts once."""
    return sum(whole_shape(weight).numel() for weight in model.parameters() if weight.requires_grad)


def has_dropout(model: nn.Module) -> bool:
    """Whether training this model draws random numbers."""
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())


@contextlib.contextmanager
def adapters_disabled(model: nn.Module) -> Iterator[None]:
    """Context in which a model computes without its adapter. What is trained does not change."""
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "lora_A")]
    for layer in layers:  # not `enable_adapters`, which also changes `requires_grad`
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


# --- on disk ---------------------------------------------------------------------------------------------


def adapter_weights(model: LanguageModel) -> dict[str, Tensor]:
    """The trained weights by their names in PEFT's file. Tensors are not copied."""
    weights = model.state_dict(keep_vars=True).items()
    return {_name_in_file(name): weight for name, weight in weights if weight.requires_grad}


def _name_in_file(name: str) -> str:
    name = name.replace(f".{_ADAPTER_NAME}.", ".")
    return PREFIX + (name.removesuffix(".weight") if name.endswith("lora_magnitude_vector.weight") else name)


def adapter_config(model: LanguageModel, base_model: str) -> bytes:
    """Content of `adapter_config.json`. `base_model`: folder or name of the base model."""
    config = model.peft_config[_ADAPTER_NAME].to_dict()  # type: ignore[index,union-attr]
    targets = config["target_modules"]
    config["target_modules"] = targets if isinstance(targets, str) else sorted(targets)
    values = {name: config[name] for name in _CONFIG_KEYS}
    fixed = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "inference_mode": True}
    document = {**fixed, "base_model_name_or_path": base_model, **values, "modules_to_save": config["modules_to_save"]}
    return json.dumps(document, indent=1, ensure_ascii=False).encode("utf-8")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter instead of a whole model."""
    return (folder / ADAPTER_CONFIG_FILE).is_file()


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Read and check `adapter_config.json`. Raises `checkpoint.bad_adapter`."""
    try:
        with files.open_with_retry(folder / ADAPTER_CONFIG_FILE) as file:
            found = json.load(file)
        if found["peft_type"] != "LORA":
            raise ValueError(f"peft_type is {found['peft_type']!r:.40}")
    except (OSError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise _bad_adapter(folder, error) from error
    for name in _UNSUPPORTED:
        if found.get(name) not in (None, False, "none", [], {}):
            raise _bad_adapter(folder, f"{name} is {found[name]!r:.40}")
    ranks = found.get("rank_pattern") or {}
    for rank in (found.get("r"), *(ranks.values() if isinstance(ranks, dict) else [ranks])):
        if not isinstance(rank, int) or not 1 <= rank <= _MAX_RANK:  # untrusted: it determines how much is allocated
            raise _bad_adapter(folder, f"r is {rank!r:.40}")
    return dict(found)


def read_adapter(folder: Path) -> dict[str, Tensor]:
    """Read the weights of an adapter by name. Raises `checkpoint.bad_adapter`."""
    try:
        with files.open_with_retry(folder / ADAPTER_FILE):
            return load_file(folder / ADAPTER_FILE)
    except Exception as error:
        raise _bad_adapter(folder, error) from error


def load_adapter(folder: Path, model: LanguageModel) -> None:
    """Add the adapter of a folder to a model that has none, to be trained on. Raises `checkpoint.bad_adapter`."""
    found = read_adapter_config(folder)
    values = {name: found[name] for name in _CONFIG_KEYS if found.get(name) is not None}
    saved = set(found.get("modules_to_save") or ())
    if saved and saved != model.embeddings().keys():
        raise _bad_adapter(folder, f"modules_to_save is {sorted(saved)!r:.60}")
    try:
        _add_adapter(model, values, embeddings=bool(saved))
    except (TypeError, ValueError, ZeroDivisionError) as error:  # of peft, for values that it does not accept
        raise _bad_adapter(folder, error) from error
    load_adapter_weights(folder, model)


def load_adapter_weights(
    folder: Path, model: LanguageModel, store: Callable[[Tensor, Tensor], None] = copy_whole
) -> None:
    """Copy the weights of a folder into the adapter of a model, each with `store`. Raises `checkpoint.bad_adapter`."""
    found = read_adapter(folder)
    wanted = adapter_weights(model)
    for name in wanted.keys() | found.keys():
        if name not in found or name not in wanted or found[name].shape != whole_shape(wanted[name]):
            shape, expected = (
                list(whole_shape(weights[name])) if name in weights else None for weights in (found, wanted)
            )
            raise _bad_adapter(folder, f"{name} {shape} → {expected}")
    for name, weight in wanted.items():
        if not bool(found[name].isfinite().all()):
            raise _bad_adapter(folder, f"{name} is not finite")
        store(found[name], weight)


def _bad_adapter(folder: Path, reason: object) -> TraindeckError:
    return TraindeckError("checkpoint.bad_adapter", path=str(folder), reason=str(reason)[:200])


# --- merging ---------------------------------------------------------------------------------------------


@torch.no_grad()
def merge(model: LanguageModel) -> None:
    """Add the adapter to the weights of the model. It has its plain structure again, and all weights are trained."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()
            path, _, last = name.rpartition(".")
            setattr(model.get_submodule(path), last, module.get_base_layer())
    del model.peft_config
    model.requires_grad_(True)


def merged_weight(name: str, weight: Tensor, adapter: Mapping[str, Tensor], config: Mapping[str, Any]) -> Tensor:
    """One weight of the base model with the adapter added, in the dtype of `weight`: equals `merge`.

    LoRA (Hu et al. 2021): W + s B A with s = alpha / r, in rsLoRA (Kalajdzievski 2023) alpha / sqrt(r). In DoRA (Liu et
    al. 2024) each row of that sum is scaled to its trained magnitude.
    """
    if PREFIX + name in adapter:  # trained embeddings
        return adapter[PREFIX + name].to(weight.dtype)
    layer = PREFIX + name.removesuffix(".weight")
    if f"{layer}.lora_A.weight" not in adapter:
        return weight
    a, b = adapter[f"{layer}.lora_A.weight"].float(), adapter[f"{layer}.lora_B.weight"].float()
    scale = scale_of(layer, a.shape[0], config)
    merged = torch.addmm(weight.float(), b, a, alpha=scale)
    magnitude = adapter.get(f"{layer}.lora_magnitude_vector")
    if magnitude is not None:
        merged *= (magnitude.float() / torch.linalg.vector_norm(merged, dim=1)).unsqueeze(1)
    return merged.to(weight.dtype)


def scale_of(layer: str, rank: int, config: Mapping[str, Any]) -> float:
    """The factor of B A in a layer, by its name in PEFT's file."""
    from peft.utils.other import get_pattern_key

    alphas = dict(config.get("alpha_pattern") or {})
    alpha = float(alphas.get(get_pattern_key(list(alphas), layer), config["lora_alpha"]))
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
