"""Export of a LoRA adapter as a GGUF file, which llama.cpp adds to a GGUF file of the base model (`--lora`).

Source: `convert_lora_to_gguf.py` of llama.cpp. Torch and `gguf` are imported only with this module.
"""

from __future__ import annotations

import contextlib
from typing import Final

import gguf
from torch import Tensor

from trainer_core.export import gguf_tensors
from trainer_core.export.checkpoint_files import read_hashes
from trainer_core.export.gguf_model import file_name, read_decoder_config
from trainer_core.export.job import OVERHEAD_BYTES, UNQUANTIZED, ExportRequest
from trainer_core.export.model_card import MODEL_CARD_FILE, model_card
from trainer_core.export.peft_folder import require_adapter
from trainer_core.messages import TraindeckError
from trainer_core.models import adapters
from trainer_core.models.model_config import ModelConfig
from trainer_core.runs.checkpoint_dir import ADAPTER_FILE
from trainer_core.system import files

_LOADING: Final = "llama-cli -m BASE.gguf --lora {file}"


def write(job: ExportRequest) -> None:
    """Raises `export.not_adapter`, `export.adapter_kind`, `export.architecture`, `export.quantization`,
    `checkpoint.damaged`, `checkpoint.bad_adapter` or `disk.full`.
    """
    require_adapter(job)
    quantization = job.quantization
    if quantization is None or quantization not in UNQUANTIZED:
        raise TraindeckError("export.quantization", given=str(quantization), allowed=", ".join(UNQUANTIZED))
    config = read_decoder_config(job.checkpoint)
    read_hashes(job.checkpoint, ["config.json", ADAPTER_FILE, adapters.ADAPTER_CONFIG_FILE], verify=True)
    tensors, alpha = _tensors(job, config)
    path = job.folder / file_name(job)
    with files.translate_os_errors(path):
        needed = sum(tensor.nbytes for tensor in tensors.values()) + OVERHEAD_BYTES
        if files.free_bytes(job.folder) < needed:
            raise files.disk_full_error(job.folder, needed)
        with contextlib.closing(gguf.GGUFWriter(path, gguf_tensors.ARCHITECTURES[config.family])) as writer:
            writer.add_type(gguf.GGUFType.ADAPTER)
            writer.add_name(job.name)
            writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
            writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
            writer.add_file_type(gguf_tensors.FILE_TYPES[quantization])
            for name, tensor in tensors.items():
                kind = gguf_tensors.tensor_type(name, tuple(tensor.shape), quantization, config)
                writer.add_tensor(name, gguf_tensors.encode(name, tensor, kind), raw_dtype=kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        files.fsync_file(path)
    parameters, loading = sum(tensor.numel() for tensor in tensors.values()), _LOADING.format(file=path.name)
    card = model_card(job.checkpoint, job.name, job.language, parameters, "gguf", loading)
    files.write_atomic(job.folder / MODEL_CARD_FILE, card.encode("utf-8"))


def _tensors(job: ExportRequest, config: ModelConfig) -> tuple[dict[str, Tensor], float]:
    """Factors A (rank, inputs) and B (outputs, rank) by name, and alpha, in fp32. llama.cpp adds alpha / rank B A."""
    weights, values = adapters.read_adapter(job.checkpoint), adapters.read_adapter_config(job.checkpoint)
    translate, alpha = gguf_tensors.tensor_names(config), float(values["lora_alpha"])
    found: dict[str, Tensor] = {}
    for key, weight in weights.items():
        layer, _, part = key.removeprefix(adapters.PREFIX).rpartition(".lora_")
        if part not in ("A.weight", "B.weight"):
            what = "DoRA" if "magnitude" in part else "lora_embeddings"
            raise TraindeckError("export.adapter_kind", what=what)
        name, weight = f"{layer}.weight", weight.float()
        if part == "B.weight":
            rank = weight.shape[1]
            scale = adapters.scale_of(adapters.PREFIX + layer, rank, values)
            weight = gguf_tensors.to_gguf_layout(name, weight * (scale * rank / alpha), config)
        found[f"{translate(name)}.lora_{part[0].lower()}"] = weight
    return found, alpha
