"""README.md of an exported model: training data, losses, architecture, and how to load it.

Paths of data are reduced to their names, for privacy. No torch, no Qt.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from trainer_core.data.tokenizing import tokenizer_files
from trainer_core.messages import Language
from trainer_core.runs import checkpoint_dir, run_dir
from trainer_core.texts import get

MODEL_CARD_FILE: Final = "README.md"
_HEADER: Final = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- traindeck
---

# {name}

{intro}
"""
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


def model_card(checkpoint: Path, name: str, language: Language, parameters: int, loading: str = "") -> str:
    """Return the content of the file. Unknown facts are omitted.

    `loading`: how to load the model, as a block of code; empty: with transformers.
    """

    def text(key: str, **params: object) -> str:
        return get(f"model_card.{key}", language, **params)

    state, task = read_json(checkpoint / "state.json"), tokenizer_files.read_task(checkpoint)
    lines = [_HEADER.format(name=name, intro=text(f"intro.{task}", version=state.get("traindeck", "?")))]
    for title, facts in _facts(checkpoint, state, parameters).items():
        if isinstance(facts.get("data"), list):
            facts["data"] = text("comma").join(facts["data"]) or text("unknown")
        if rows := [f"| {text(key)} | {_cell(value)} |" for key, value in facts.items() if value]:
            lines += [f"## {text(title)}", "", "| | |", "| --- | --- |", *rows, ""]
    prompt, example = text("text_prompt"), _TEXT_EXAMPLE
    if task == "sft":
        prompt, example = text("chat_prompt"), _CHAT_EXAMPLE
    code = loading or f"```python\n{_LOADING}{example}\n```".format(name=name.replace('"', ""), prompt=prompt)
    return "\n".join([*lines, f"## {text('loading')}", "", code, "", text("licence"), ""])


def _facts(checkpoint: Path, state: dict[str, Any], parameters: int) -> dict[str, dict[str, Any]]:
    """Facts by table; None or empty if unknown. The files may be damaged."""
    knobs, config = run_dir.read_yaml(checkpoint.parent.parent / "config.yaml"), read_json(checkpoint / "config.json")
    info, counters = checkpoint_dir.read_info(checkpoint), state.get("counters")
    counters = counters if isinstance(counters, dict) else {}
    data, seconds = knobs.get("data"), counters.get("seconds")
    paths = list(map(str, data)) if isinstance(data, list) else []
    loss = info.eval_loss if info is not None else None
    architectures, width = config.get("architectures"), config.get("hidden_size")
    return {
        "training": {
            "data": [path if path.startswith("builtin:") else Path(path).name for path in paths],
            "base_model": _model_name(str(knobs.get("base_model") or "")),
            "preset": knobs.get("preset"),
            "step": _number(counters.get("step")),
            "tokens": _number(counters.get("tokens")),
            "samples": _number(counters.get("samples")),
            "seconds": _number(seconds / 3600, ".2f") if isinstance(seconds, int | float) else None,
        },
        "losses": {
            "eval_loss": _number(loss, ".4f"),
            "perplexity": None if loss is None or loss > 50 else f"{math.exp(loss):.2f}",
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


def read_json(path: Path) -> dict[str, Any]:
    """An object in a JSON file; empty if it cannot be read."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
