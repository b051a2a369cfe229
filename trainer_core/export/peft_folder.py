"""Export of the adapter of a LoRA run in the format of PEFT.

    FOLDER/
        adapter_model.safetensors  tokenizer.json  tokenizer_config.json   copies of the checkpoint's
        adapter_config.json  README.md                                     new

`adapter_config.json` names the base model as others find it. No torch.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from trainer_core.base_model.weight_files import ADAPTER_CONFIG_FILE, ADAPTER_FILE, read_header
from trainer_core.export.base_record import BaseRecord, read_base
from trainer_core.export.checkpoint_files import copy_files, read_hashes, read_json
from trainer_core.export.job import ExportRequest
from trainer_core.export.model_card import MODEL_CARD_FILE, model_card
from trainer_core.messages import TraindeckError
from trainer_core.system import files

_COPIED: Final = (ADAPTER_FILE, "tokenizer.json", "tokenizer_config.json")
_LOADING: Final = """from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("{name}")
model = AutoModelForCausalLM.from_pretrained("{base}"{revision})
{resize}model = PeftModel.from_pretrained(model, "{name}")
"""


def write(job: ExportRequest) -> None:
    """Raises `export.not_adapter`, `export.quantization`, `export.stacked_adapter`, `checkpoint.damaged` or
    `disk.full`.
    """
    base = require_adapter(job)
    if job.quantization is not None:
        raise TraindeckError("export.quantization", given=job.quantization, allowed="--format gguf-adapter")
    hashes = read_hashes(job.checkpoint, [*_COPIED, ADAPTER_CONFIG_FILE, "config.json"], verify=False)
    copy_files(job, {name: hashes[name] for name in _COPIED})
    parameters = sum(math.prod(entry.shape) for entry in read_header(job.folder / ADAPTER_FILE).values())
    rows = read_json(job.checkpoint / "config.json").get("vocab_size", 0)
    card = model_card(job.checkpoint, job.name, job.language, parameters, "peft", _loading(job, base, rows))
    documents = {ADAPTER_CONFIG_FILE: _adapter_config(job, base), MODEL_CARD_FILE: card.encode("utf-8")}
    for name, content in documents.items():
        files.write_atomic(job.folder / name, content)


def require_adapter(job: ExportRequest) -> BaseRecord:
    """The base model of an adapter. Raises `export.not_adapter` or `export.stacked_adapter`."""
    base = read_base(job.checkpoint)
    if base is None or not (job.checkpoint / ADAPTER_CONFIG_FILE).is_file():
        raise TraindeckError("export.not_adapter")
    if base.is_adapter:
        raise TraindeckError("export.stacked_adapter", base=base.name)
    return base


def _adapter_config(job: ExportRequest, base: BaseRecord) -> bytes:
    values: dict[str, Any] = read_json(job.checkpoint / ADAPTER_CONFIG_FILE)
    values |= {"base_model_name_or_path": base.name, "revision": base.revision or None}
    return json.dumps(values, indent=1, ensure_ascii=False).encode("utf-8")


def _loading(job: ExportRequest, base: BaseRecord, rows: int) -> str:
    """Code that loads the adapter. A tokenizer with new tokens needs a larger embedding than that of the base."""
    return _LOADING.format(
        name=job.name.replace('"', ""),
        base=base.name.replace("\\", "/").replace('"', ""),
        revision=f', revision="{base.revision}"' if base.revision else "",
        resize=f"model.resize_token_embeddings({rows})\n" if 0 < base.rows < rows else "",
    )
