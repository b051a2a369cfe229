"""The model of a run with the weights that training begins with, distributed over the ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trainer_core.base_model.source import BaseModel, read_config, resolve
from trainer_core.base_model.weight_files import find_weights
from trainer_core.base_model.weights import load_weights
from trainer_core.config import Config
from trainer_core.data.prepare import PreparedData
from trainer_core.data.tokenizing.tokenizer_files import read_new_tokens
from trainer_core.models import adapters, quantization
from trainer_core.models.build import build_model
from trainer_core.models.decoder import build_decoder
from trainer_core.models.language_model import LanguageModel
from trainer_core.models.model_config import LanguageModelConfig, ModelConfig
from trainer_core.models.transformers_model import TransformersModel, require_compatible
from trainer_core.run_context import RunContext
from trainer_core.train import adapter_checkpoint, checkpoint
from trainer_core.train.device import Precision
from trainer_core.train.model_shape import model_config_of, tuning_of
from trainer_core.train.parallel import Parallel, parallelize
from trainer_core.train.process_group import ProcessGroup


def find_base(config: Config, source: Path | None, context: RunContext) -> tuple[BaseModel | None, dict[str, Any]]:
    """The base model, and what checkpoints record of it. `source`: checkpoint to resume, which replaces it if it has
    all weights.
    """
    if not config.base_model:
        return None, {}
    if source is not None and not adapters.is_adapter(source):
        base = BaseModel(source, read_config(source), str(source), find_weights(source))
        return base, checkpoint.read_base(source)
    base = resolve(config.base_model, context, config.hub_endpoint, config.hub_send_token)
    return base, adapter_checkpoint.base_of(base)


def build(
    config: Config,
    prepared: PreparedData,
    base: BaseModel | None,
    context: RunContext,
    device: torch.device,
    precision: Precision,
    group: ProcessGroup,
) -> tuple[LanguageModel, Parallel]:
    """Build the model to train. Raises as `load_base`, `set_up_tuning` and `require_compatible`."""
    shape = model_config_of(config, prepared.vocab_size)
    new_tokens = list(read_new_tokens(prepared.folder).values()) if base is not None else []
    sharded = config.parallel == "fsdp" and group.world_size > 1
    if sharded and isinstance(shape, ModelConfig) and (base is None or not base.adapters):
        return _build_sharded(config, shape, base, new_tokens, context, device, precision, group)
    model = _build_whole(config, shape, base is None, device, precision, group.world_size)
    if base is not None:
        adapter_checkpoint.load_base(base, model, context, new_tokens)
    if isinstance(model, TransformersModel):
        if group.rank == 0:
            context.warn("model.through_transformers", model_type=model.model_type)
        several = prepared.packed or prepared.sides > 1
        documents = several if prepared.task != "pretrain" else not prepared.attend_across_documents
        require_compatible(model, config.tokenizer, documents)  # the tokenizer is in the folder of the base model
    adapters.set_up_tuning(model, tuning_of(config))
    return model, parallelize(model, group, config, precision, device)


def _build_whole(
    config: Config,
    shape: LanguageModelConfig,
    initialize: bool,
    device: torch.device,
    precision: Precision,
    world_size: int,
) -> LanguageModel:
    tuning = tuning_of(config)
    if config.method != "qlora":
        return build_model(device, shape, initialize, precision.base_dtype(tuning))
    assert isinstance(shape, ModelConfig)  # see `apply_base_model`
    compute_dtype = torch.bfloat16 if precision.name == "bf16" else torch.float32
    offload = quantization.offloads_embedding(shape.tie_embeddings, tuning, world_size)
    return quantization.build_quantized(device, shape, compute_dtype, initialize, offload)


def _build_sharded(
    config: Config,
    shape: ModelConfig,
    base: BaseModel | None,
    new_tokens: list[int],
    context: RunContext,
    device: torch.device,
    precision: Precision,
    group: ProcessGroup,
) -> tuple[LanguageModel, Parallel]:
    """Divide the weights before they have memory: no rank ever holds more than one whole matrix."""
    tuning = tuning_of(config)
    model = build_decoder(torch.device("meta"), shape, initialize=False, dtype=precision.base_dtype(tuning))
    adapters.set_up_tuning(model, tuning)
    parallel = parallelize(model, group, config, precision, device)
    if base is None:
        model.initialize()
    else:
        load_weights(base, model, context, new_tokens)
    if adapters.has_adapter(model):
        adapters.initialize_adapter(model)
    return model, parallel
