"""NF4 quantization of frozen linear layers through `bitsandbytes`, and its import.

NF4 with double quantization (Dettmers et al. 2023, QLoRA): 4 bits per weight, one scale for 64 weights in 8 bits, one
fp32 scale for 256 of these scales. It is deterministic: the same weights give the same bits on the same kind of device.

Layers whose input width 64 does not divide are not quantized: `bitsandbytes` 0.50.2 restores them wrongly on a CPU.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Final, TypeGuard

import torch
from torch import Tensor, nn

from trainer_core.messages import TraindeckError
from trainer_core.models.decoder import Decoder, Embedding
from trainer_core.models.model_config import ModelConfig

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # peft imports it; it warns of an optional kernel

_BLOCK: Final = 64  # weights that share a scale


def import_bitsandbytes(device: torch.device, setting: str) -> ModuleType:
    """Import `bitsandbytes` and check that it computes on `device`. Takes seconds.

    Raises `config.bitsandbytes`; `setting` is what needs it, such as `method qlora`.
    """
    try:
        import bitsandbytes

        if device.type != "meta":  # a native library that is missing is reported only when it is called
            bitsandbytes.functional.quantize_4bit(torch.zeros(64, device=device), quant_type="nf4")
    except Exception as error:  # import and native library can fail in any way
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200].rstrip(".")
        raise TraindeckError("config.bitsandbytes", setting=setting, reason=reason) from error
    return bitsandbytes


def is_quantizable(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a layer of the backbone is stored in NF4."""
    return isinstance(layer, nn.Linear) and layer.in_features % _BLOCK == 0


class OffloadedEmbedding(Embedding):
    """A frozen embedding in system memory: copies the rows of the tokens to their device. Synchronizes with a GPU."""

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids.to(self.weight.device)).to(ids.device)


def offloads_embedding(tie_embeddings: bool, tuning: Mapping[str, Any], world_size: int) -> bool:
    """Whether QLoRA keeps the input embedding in system memory: if it is frozen and no head multiplies by it. Several
    processes would each hold a copy there.
    """
    return not tie_embeddings and not tuning["lora_embeddings"] and world_size == 1


def build_quantized(
    device: torch.device,
    config: ModelConfig,
    compute_dtype: torch.dtype,
    initialize: bool = False,
    offload_embedding: bool = False,
) -> Decoder:
    """Build a model whose linear layers in attention and MLP are for NF4 and compute in `compute_dtype`.

    Embeddings, head and layers that are not quantizable are stored in `compute_dtype`, norms and biases in fp32.
    `offload_embedding`: see `offloads_embedding`.
    Weights are drawn from torch's generator if `initialize`; otherwise they are undefined until `store_weight` has set
    each: those of NF4 layers have no memory before. Raises `config.bitsandbytes`.
    """
    linear_4bit = import_bitsandbytes(device, "method qlora").nn.Linear4bit
    with torch.device("meta"):
        model = Decoder(config, initialize=False)
        for name, layer in list(model.model.named_modules()):
            if is_quantizable(layer):
                shape = layer.in_features, layer.out_features, layer.bias is not None
                quantized = linear_4bit(*shape, compute_dtype, quant_type="nf4")
                # Its inference format on such CPUs replaces the weights that training reads.
                quantized.support_avx512bf16_for_cpu = False
                model.model.set_submodule(name, quantized)
        if offload_embedding:
            model.model.embed_tokens = OffloadedEmbedding(config.vocab_size, config.hidden_dim)
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if type(weight) is nn.Parameter:
                dtype = compute_dtype if weight.dim() > 1 else torch.float32
                where = torch.device("cpu") if isinstance(module, OffloadedEmbedding) else device
                setattr(module, name, nn.Parameter(torch.empty_like(weight, device=where, dtype=dtype)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, buffer.to(device))
    if config.tie_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    model.is_loaded_in_4bit = True  # type: ignore[assignment] # peft reads it
    for weight in list(model.parameters()) if initialize else []:
        store_weight(torch.empty(weight.shape).normal_(std=0.02), weight, device)
    return model


def is_quantized(model: nn.Module) -> bool:
    """Whether `build_quantized` built the model."""
    return hasattr(model, "is_loaded_in_4bit")


@torch.no_grad()
def store_weight(tensor: Tensor, weight: Tensor, device: torch.device) -> None:
    """Copy `tensor` into `weight` of a model of `build_quantized`; the weight of an NF4 layer is quantized.

    `tensor`: any floating dtype and device. Takes the memory of one tensor more.
    """
    layer = getattr(weight, "module", None)
    if layer is None:
        weight.copy_(tensor)
        return
    nf4_weight: Any = type(weight)
    layer.weight = nf4_weight(tensor.to(device, layer.compute_dtype), quant_type="nf4", module=layer).to(device)
    state = layer.weight.quant_state
    for name, part in (("scales", state.absmax), ("offset", state.offset), ("scales_of_scales", state.state2.absmax)):
        layer.register_buffer(name, part, persistent=False)  # so that a pause moves it with the model
