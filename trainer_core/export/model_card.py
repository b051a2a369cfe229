"""README.md of an exported model: training data, losses, architecture, and how to load it.

Paths of data are reduced to their names, for privacy. No torch, no Qt.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from trainer_core.data.tokenizing import tokenizer_files
from trainer_core.messages import Language
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.texts import get

MODEL_CARD_FILE: Final = "README.md"
_TEXT_EXAMPLE: Final = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
inputs = tokenizer("{prompt}", return_tensors="pt", add_special_tokens=False)
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=100)[0], skip_special_tokens=True))"""
_CHAT_EXAMPLE: Final = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
inputs = tokenizer.apply_chat_template(
    [{{"role": "user", "content": "{prompt}"}}], add_generation_prompt=True, return_tensors="pt", return_dict=True
)
answer = model.generate(**inputs, max_new_tokens=100)[0, inputs["input_ids"].shape[1] :]
print(tokenizer.decode(answer, skip_special_tokens=True))"""


def model_card(checkpoint: Path, name: str, language: Language) -> str:
    """Return the content of the file. Unknown facts are omitted."""
    state, config = read_json(checkpoint / "state.json"), read_json(checkpoint / "config.json")
    knobs = run_dir.read_yaml(checkpoint.parent.parent / "config.yaml")
    task = tokenizer_files.read_task(checkpoint)
    counters = state.get("counters")
    counters = counters if isinstance(counters, dict) else {}
    tables = {
        "training": _training(knobs, counters, language),
        "losses": _losses(checkpoint, counters),
        "model": _model(checkpoint, config),
    }
    lines = [
        "---",
        "library_name: transformers",
        "pipeline_tag: text-generation",
        "tags:",
        "- traindeck",
        "---",
        "",
        f"# {name}",
        "",
        get(f"model_card.intro.{task}", language, version=state.get("traindeck", "?")),
    ]
    for title, rows in tables.items():
        known = {get(f"model_card.{key}", language): value for key, value in rows.items() if value not in (None, "")}
        shown = [f"| {label} | {_cell(value)} |" for label, value in known.items()]
        if shown:
            lines += ["", f"## {get(f'model_card.{title}', language)}", "", "| | |", "| --- | --- |", *shown]
    prompt = get("model_card.chat_prompt" if task == "sft" else "model_card.text_prompt", language)
    code = (_CHAT_EXAMPLE if task == "sft" else _TEXT_EXAMPLE).format(name=name.replace('"', ""), prompt=prompt)
    heading, licence = get("model_card.loading", language), get("model_card.licence", language)
    lines += ["", f"## {heading}", "", "```python", code, "```", "", licence, ""]
    return "\n".join(lines)


def _training(knobs: dict[str, Any], counters: dict[str, Any], language: Language) -> dict[str, Any]:
    data = knobs.get("data")
    names = [str(path) if str(path).startswith("builtin:") else Path(str(path)).name for path in data or []]
    seconds = counters.get("seconds")
    return {
        "data": get("model_card.comma", language).join(names) or get("model_card.unknown", language),
        "preset": knobs.get("preset"),
        "step": _format_count(counters.get("step")),
        "tokens": _format_count(counters.get("tokens")),
        "samples": _format_count(counters.get("samples")),
        "seconds": f"{seconds / 3600:.2f}" if isinstance(seconds, int | float) else None,
    }


def _losses(checkpoint: Path, counters: dict[str, Any]) -> dict[str, Any]:
    info = checkpoint_dir.read_info(checkpoint)
    loss = info.eval_loss if info is not None else None
    best = counters.get("best_loss")
    return {
        "eval_loss": None if loss is None else f"{loss:.4f}",
        "perplexity": None if loss is None or loss > 50 else f"{math.exp(loss):.2f}",
        "best_loss": f"{best:.4f}" if isinstance(best, float) and math.isfinite(best) else None,
    }


def _model(checkpoint: Path, config: dict[str, Any]) -> dict[str, Any]:
    architectures = config.get("architectures")
    layers, width = config.get("num_hidden_layers"), config.get("hidden_size")
    return {
        "parameters": _format_count(_count_parameters(checkpoint / "model.safetensors")),
        "architecture": architectures[0] if isinstance(architectures, list) and architectures else None,
        "layers": f"{layers} × {width}" if layers and width else None,
        "window": _format_count(config.get("max_position_embeddings")),
        "vocabulary": _format_count(config.get("used_vocab_size") or config.get("vocab_size")),
    }


def _count_parameters(weights: Path) -> int | None:
    try:
        with safe_open(weights, "numpy") as file:
            return sum(int(math.prod(file.get_slice(name).get_shape())) for name in file.keys())  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError):
        return None


def _format_count(value: Any) -> str | None:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else None


def _cell(value: Any) -> str:
    """Text as a table cell, without markup."""
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file; empty if it cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
