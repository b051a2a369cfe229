"""Export of a whole model as one GGUF file for llama.cpp, LM Studio and Ollama.

    FOLDER/
        NAME-Q8_0.gguf  Modelfile  README.md

The file is written one tensor at a time, with adapters merged. `gguf` and torch are imported only with this module.
"""

from __future__ import annotations

import contextlib
import math
import re
from pathlib import Path
from typing import Final

import gguf
import numpy as np
import torch

from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.data.tokenizing.tokenizer_files import read_task
from trainer_core.export import gguf_tensors, gguf_tokenizer
from trainer_core.export.checkpoint_files import read_hashes, read_json
from trainer_core.export.gguf_metadata import add_architecture
from trainer_core.export.job import MODELFILE, OVERHEAD_BYTES, ExportRequest
from trainer_core.export.model_card import MODEL_CARD_FILE, model_card
from trainer_core.export.ollama import modelfile
from trainer_core.messages import TraindeckError
from trainer_core.models import hf_config
from trainer_core.models.model_config import ModelConfig
from trainer_core.runs.checkpoint_dir import ADAPTER_FILE
from trainer_core.system import files
from trainer_core.train.adapter_checkpoint import MergedWeights

_IGNORED_SUFFIX: Final = ".rotary_emb.inv_freq"  # a buffer that older versions of transformers saved
_SHELL_CHARACTERS: Final = re.compile(r"[\s!-*,/:-@\[-^`{-~\u2018-\u201f]+")  # a name without them needs no quotes
_MAX_STEM_BYTES: Final = 200  # of 255 on Linux
_LOADING: Final = "llama-cli -m {file}"


def write(job: ExportRequest) -> None:
    """Raises `export.architecture`, `export.not_computed`, `export.tokenizer`, `export.too_large`,
    `data.bad_tokenizer`, `checkpoint.damaged` or `disk.full`.
    """
    checkpoint, quantization = job.checkpoint, job.quantization
    assert quantization is not None
    config = read_decoder_config(checkpoint)
    weights_file = ADAPTER_FILE if (checkpoint / ADAPTER_FILE).is_file() else "model.safetensors"
    read_hashes(checkpoint, ["config.json", "tokenizer.json", weights_file], verify=True)
    codec = Codec.load(checkpoint / "tokenizer.json")
    tokenizer = gguf_tokenizer.read(checkpoint, codec, config.n_tokens)
    path = job.folder / file_name(job)
    writer = gguf.GGUFWriter(path, gguf_tensors.ARCHITECTURES[config.family])
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(job.name)
    writer.add_file_type(gguf_tensors.FILE_TYPES[quantization])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_architecture(writer, config, job.reporter)
    gguf_tokenizer.add(writer, tokenizer, job.reporter)
    parameters = _write_tensors(job, writer, path, config)
    card = model_card(checkpoint, job.name, job.language, parameters, "gguf", _LOADING.format(file=path.name))
    files.write_atomic(job.folder / MODEL_CARD_FILE, card.encode("utf-8"))
    document = modelfile(path.name, codec, is_chat=read_task(checkpoint) == "sft")
    files.write_atomic(job.folder / MODELFILE, document.encode("utf-8"))


def file_name(job: ExportRequest) -> str:
    """Such as `my-model-Q8_0.gguf`; llama.cpp and LM Studio read the quantization from the name."""
    stem = files.truncate_name(_SHELL_CHARACTERS.sub("-", job.name).strip("-"), _MAX_STEM_BYTES)
    return f"{stem or 'model'}-{str(job.quantization).upper()}.gguf"


def read_decoder_config(checkpoint: Path) -> ModelConfig:
    """Architecture of a checkpoint. Raises `export.architecture` for one that our decoder does not compute."""
    values = read_json(checkpoint / "config.json")
    if not hf_config.is_decoder(values):
        families = ", ".join(gguf_tensors.ARCHITECTURES)
        raise TraindeckError("export.architecture", family=str(values.get("model_type")), families=families)
    return hf_config.read_decoder(values, str(checkpoint))


def _write_tensors(job: ExportRequest, writer: gguf.GGUFWriter, path: Path, config: ModelConfig) -> int:
    """Write everything to the file, one tensor at a time. Returns the number of weights. Raises `disk.full`."""
    assert job.quantization is not None
    weights, translate = MergedWeights(job.checkpoint, job.reporter), gguf_tensors.tensor_names(config)
    factors = gguf_tensors.rope_factors_tensor(config)
    types: dict[str, gguf.GGMLQuantizationType] = {}  # by name in the checkpoint
    for name, weight in weights.shapes.items():
        if name.endswith(_IGNORED_SUFFIX) or (name == "lm_head.weight" and config.tie_embeddings):
            continue
        shape = tuple(gguf_tensors.to_gguf_layout(name, weight, config).shape)
        types[name] = gguf_tensors.tensor_type(translate(name), shape, job.quantization, config)
        _add_info(writer, translate(name), shape, types[name])
    if factors is not None:
        _add_info(writer, gguf_tensors.ROPE_FACTORS, tuple(factors.shape), gguf.GGMLQuantizationType.F32)
    total = sum(info.nbytes for info in writer.tensors[0].values())
    with files.translate_os_errors(path, total), contextlib.closing(writer):
        if files.free_bytes(job.folder) < total + OVERHEAD_BYTES:
            raise files.disk_full_error(job.folder, total + OVERHEAD_BYTES)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done = 0
        for name, kind in types.items():
            weight = gguf_tensors.to_gguf_layout(name, weights.read(name, torch.float32), config)
            content = gguf_tensors.encode(name, weight, kind)
            writer.write_tensor_data(content)
            done += content.nbytes
            job.reporter.progress("saving", done, total, "bytes")
            job.reporter.poll()
        if factors is not None:
            writer.write_tensor_data(factors.numpy())
    files.fsync_file(path)
    return sum(weights.shapes[name].numel() for name in types)


def _add_info(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    writer.add_tensor_info(name, shape, np.dtype(np.float32), math.prod(shape) // block * size, kind)
