"""README.md of an exported model: training data, settings, losses, architecture, licence, and how to load it.

Paths of data are reduced to their names, for privacy. No torch, no Qt.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from pathlib import Path
from typing import Any, Final, Literal

from trainer_core.data.tokenizing import tokenizer_files
from trainer_core.export.base_record import BaseRecord, read_base
from trainer_core.export.checkpoint_files import read_json
from trainer_core.messages import Language
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.texts import get

MODEL_CARD_FILE: Final = "README.md"
Library = Literal["transformers", "peft", "gguf"]
_SETTINGS: Final = (
    "method", "lora_rank", "lora_alpha", "lora_variant", "learning_rate", "lr_schedule", "optimizer", "batch_size",
    "gradient_accumulation_steps", "max_seq_len", "max_epochs", "mixed_precision", "seed",
)  # fmt: skip
_LICENSE_IDS: Final = {"Llama 2": "llama2", "Llama 3.1": "llama3.1", "Llama 3.2": "llama3.2", "Qwen Research": "other"}
"""Names of the catalogue that are not identifiers of the hub, in lower case."""
_READY_LINES: Final = 1000  # of events.jsonl, in which the event is searched
_LOADING: Final = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
"""
_TEXT_EXAMPLE: Final = """inputs = tokenizer("{prompt}", return_tensors="pt", add_special_tokens=False)
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=100)[0], skip_special_tokens=True))"""
_CHAT_EXAMPLE: Final = """inputs = tokenizer.apply_chat_template(
    [{{"role": "user", "content": "{prompt}"}}], add_generation_prompt=True, return_tensors="pt", return_dict=True
)
answer = model.generate(**inputs, max_new_tokens=100)[0, inputs["input_ids"].shape[1] :]
print(tokenizer.decode(answer, skip_special_tokens=True))"""


def model_card(
    checkpoint: Path, name: str, language: Language, parameters: int, library: Library, loading: str = ""
) -> str:
    """Return the content of the file. Unknown facts are omitted.

    `loading`: code or command that loads the model; empty: code for transformers.
    """

    def text(key: str, **params: object) -> str:
        return get(f"model_card.{key}", language, **params)

    state, task = read_json(checkpoint / "state.json"), tokenizer_files.read_task(checkpoint)
    base = read_base(checkpoint)
    intro = text(f"intro.{task}", version=state.get("traindeck", "?"))
    lines = [*_header(library, base), "", f"# {name}", "", intro, ""]
    tables = {**_facts(checkpoint, state, parameters, language), "settings": _settings(checkpoint, language)}
    for title, facts in tables.items():
        if rows := [f"| {label} | {_cell(value)} |" for label, value in facts.items() if value]:
            lines += [f"## {text(title)}", "", "| | |", "| --- | --- |", *rows, ""]
    prompt, example = text("text_prompt"), _TEXT_EXAMPLE
    if task == "sft":
        prompt, example = text("chat_prompt"), _CHAT_EXAMPLE
    code = loading or (_LOADING + example).format(name=name.replace('"', ""), prompt=prompt)
    fence = "```" if library == "gguf" else "```python"
    licence = text("base_licence", licence=base.license) if base and base.license else text("licence")
    return "\n".join([*lines, f"## {text('loading')}", "", fence, code.rstrip("\n"), "```", "", licence, ""])


def _header(library: Library, base: BaseRecord | None) -> list[str]:
    """YAML metadata: https://huggingface.co/docs/hub/model-cards"""
    lines = ["---", f"library_name: {library}", "pipeline_tag: text-generation"]
    if base is not None and base.license:
        lines.append(f"license: {_LICENSE_IDS.get(base.license, base.license.lower())}")
    if base is not None and base.revision:
        lines.append(f"base_model: {base.name}")
    return [*lines, "tags:", "- traindeck", "---"]


def _facts(
    checkpoint: Path, state: dict[str, Any], parameters: int, language: Language
) -> dict[str, dict[str, str | None]]:
    """Facts by table and label; None or empty if unknown. The files may be damaged."""
    run = checkpoint.parent.parent
    knobs, config, ready = run_dir.read_yaml(run / "config.yaml"), read_json(checkpoint / "config.json"), _ready(run)
    info, counters = checkpoint_dir.read_info(checkpoint), state.get("counters")
    counters = counters if isinstance(counters, dict) else {}
    seconds, loss = counters.get("seconds"), info.eval_loss if info is not None else None
    reward, is_rewarded = info.eval_reward if info is not None else None, knobs.get("objective") == "grpo"
    is_likelihood = reward is None or is_rewarded  # else the loss is that of preferences
    architectures, width = config.get("architectures"), config.get("hidden_size")
    tables = {
        "training": {
            "data": _data_names(knobs.get("data"), language),
            "documents": _number(ready.get("train_documents")),
            "document_tokens": _number(ready.get("train_tokens")),
            "validation_documents": _number(ready.get("validation_documents")),
            "base_model": _model_name(str(knobs.get("base_model") or "")),
            "preset": knobs.get("preset"),
            "step": _number(counters.get("step")),
            "tokens": _number(counters.get("tokens")),
            "samples": _number(counters.get("samples")),
            "seconds": _number(seconds / 3600, ".2f") if isinstance(seconds, int | float) else None,
        },
        "losses": {
            "eval_loss": _number(loss, ".4f"),
            "perplexity": f"{math.exp(loss):.2f}" if is_likelihood and loss is not None and loss <= 50 else None,
            "reward": _number(reward, ".4f") if is_rewarded else None,
            "reward_accuracy": None if is_rewarded else _number(reward, ".1%"),
            "best_loss": _number(counters.get("best_loss"), ".4f"),
        },
        "model": {
            "parameters": _number(parameters),
            "architecture": architectures[0] if isinstance(architectures, list) and architectures else None,
            "layers": f"{config.get('num_hidden_layers')} × {width}" if width else None,
            "window": _number(config.get("max_position_embeddings")),
            "vocabulary": _number(config.get("used_vocab_size") or config.get("vocab_size")),
        },
    }
    return {
        title: {get(f"model_card.{key}", language): value for key, value in facts.items()}
        for title, facts in tables.items()
    }


def _settings(checkpoint: Path, language: Language) -> dict[str, str | None]:
    """Values of settings by label."""
    knobs = run_dir.read_yaml(checkpoint.parent.parent / "config.yaml")
    is_full = knobs.get("method", "full") == "full"
    names = [name for name in _SETTINGS if name in knobs and not (is_full and name.startswith("lora_"))]
    return {get(f"knob.{name}.label", language): str(knobs[name]) for name in names}


def _data_names(data: Any, language: Language) -> str:
    """Names of the sources, without their folders."""
    paths = list(map(str, data)) if isinstance(data, list) else []
    names = [path if path.startswith("builtin:") else Path(path).name for path in paths]
    return get("model_card.comma", language).join(names) or get("model_card.unknown", language)


def _ready(run: Path) -> dict[str, Any]:
    """The newest of the first events `ready` of a run; empty if unknown."""
    found: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError), (run / "events.jsonl").open("rb") as lines:
        for line in itertools.islice(lines, _READY_LINES):
            if b'"ready"' in line:
                event = json.loads(line)
                found = event if isinstance(event, dict) and event.get("type") == "ready" else found
    return found


def _model_name(origin: str) -> str:
    """Name of a base model: of a folder, of the run of a checkpoint, or on a hub."""
    path = Path(origin)
    if not path.is_absolute():
        return origin
    run = run_dir.RunDir(path.parent.parent)
    return run.path.name if path.parent == run.checkpoints else path.name


def _number(value: Any, form: str = ",") -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return format(value, form) if is_number else None


def _cell(value: Any) -> str:
    """Text as a table cell, without markup."""
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
