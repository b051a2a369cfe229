"""Export of a whole model in the layout of Hugging Face.

    FOLDER/
        model.safetensors  config.json  tokenizer.json  tokenizer_config.json   copies of the checkpoint's
        generation_config.json  README.md                                       new

Weights are written anew in another dtype, for an adapter, which is merged into its base model, and for models that
transformers computes; `config.json` then has the dtype of these weights. Torch is imported only for that.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from trainer_core.base_model.weight_files import ADAPTER_FILE, read_header
from trainer_core.data.tokenizing.tokenizer import Codec
from trainer_core.export.checkpoint_files import copy_files, read_hashes, read_json
from trainer_core.export.job import UNQUANTIZED, ExportRequest
from trainer_core.export.model_card import MODEL_CARD_FILE, model_card
from trainer_core.messages import TraindeckError
from trainer_core.models import hf_config
from trainer_core.system import files

_WEIGHTS: Final = "model.safetensors"
EXPORTED_FILES: Final = ("tokenizer_config.json", "config.json", "tokenizer.json", _WEIGHTS)
"""Nothing else: the checkpoint may be untrusted."""
_DTYPE_NAMES: Final = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
_TEMPERATURE: Final = 0.8  # the default of `generate`


def write(job: ExportRequest) -> None:
    """Raises `export.quantization`, `export.too_large`, `checkpoint.damaged`, `data.bad_tokenizer` or `disk.full`."""
    if job.quantization not in (None, *UNQUANTIZED):
        raise TraindeckError("export.quantization", allowed=", ".join(UNQUANTIZED), given=str(job.quantization))
    checkpoint, weights = job.checkpoint, job.folder / _WEIGHTS
    is_adapter = (checkpoint / ADAPTER_FILE).is_file()
    is_decoder = hf_config.is_decoder(read_json(checkpoint / "config.json"))
    rewrites = is_adapter or not is_decoder or job.quantization is not None
    required = ["config.json", "tokenizer.json", ADAPTER_FILE if is_adapter else _WEIGHTS]
    hashes = read_hashes(checkpoint, required, verify=rewrites)
    copied = [name for name in EXPORTED_FILES if name in hashes and not (rewrites and name == _WEIGHTS)]
    copy_files(job, {name: hashes[name] for name in copied})
    if rewrites:
        _write_weights(job, weights)
    card = model_card(checkpoint, job.name, job.language, _count_parameters(weights), "transformers")
    documents = {
        "config.json": _config_of(weights),
        "generation_config.json": _generation_config(job.folder),
        MODEL_CARD_FILE: card.encode("utf-8"),
    }
    for name, content in documents.items():
        files.write_atomic(job.folder / name, content)


def _write_weights(job: ExportRequest, weights: Path) -> None:
    import torch

    from trainer_core.train.adapter_checkpoint import write_merged

    dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    write_merged(job.checkpoint, weights, job.reporter, dtypes.get(job.quantization or ""))


def _count_parameters(weights: Path) -> int:
    return sum(math.prod(entry.shape) for entry in read_header(weights).values())


def _config_of(weights: Path) -> bytes:
    """Content of config.json with the dtype of the weights, in which transformers loads them."""
    largest = max(read_header(weights).values(), key=lambda entry: entry.size)
    config = {**read_json(weights.parent / "config.json"), "torch_dtype": _DTYPE_NAMES[largest.dtype]}
    return json.dumps(config, indent=1).encode("utf-8")


def _generation_config(folder: Path) -> bytes:
    """Content of generation_config.json: end tokens, and sampling as in `generate`."""
    config = read_json(folder / "config.json")
    codec = Codec.load(folder / "tokenizer.json")
    first = config.get("eos_token_id")
    ends = [first, *sorted(codec.stop_token_ids - {first})] if isinstance(first, int) else sorted(codec.stop_token_ids)
    generation: dict[str, Any] = {
        "bos_token_id": config.get("bos_token_id"),
        "eos_token_id": ends,
        "pad_token_id": config.get("pad_token_id"),
        "do_sample": True,
        "temperature": _TEMPERATURE,
    }
    used, rows = config.get("used_vocab_size") or 0, config.get("vocab_size") or 0
    if isinstance(used, int) and isinstance(rows, int) and 0 < used < rows <= used + 1024:
        generation["suppress_tokens"] = list(range(used, rows))  # padding rows of the embedding
    return json.dumps(generation, indent=1).encode("utf-8")
