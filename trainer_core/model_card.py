"""README.md of an exported model: what it is, what it learned from, how well, and how to load it.

Names of data are told without their folders, which are nobody else's business. No torch, no Qt.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from trainer_core.data.tokenizing import tokenizer_files
from trainer_core.messages import Language
from trainer_core.runs import checkpoint_dir, run_dir

CARD: Final = "README.md"
_LARGEST_HEADER: Final = 100 * 1024 * 1024
_WORDS: Final[dict[str, tuple[str, str]]] = {
    "intro": (
        "A language model trained with Traindeck {version}, {kind}.",
        "用 Traindeck {version} 训练的语言模型，{kind}。",
    ),
    "sft": ("to answer prompts", "用于回答提示"),
    "pretrain": ("to go on with a text", "用于续写文本"),
    "training": ("Training", "训练"),
    "data": ("Data", "数据"),
    "preset": ("Preset", "预设"),
    "step": ("Steps", "步数"),
    "tokens": ("Tokens learned from", "学习的词元数"),
    "samples": ("Sequences learned from", "学习的序列数"),
    "seconds": ("Hours in steps", "训练小时数"),
    "losses": ("Losses", "损失"),
    "eval_loss": ("Held-out loss of this checkpoint", "此检查点的评估损失"),
    "perplexity": ("Perplexity of this checkpoint", "此检查点的困惑度"),
    "best_loss": ("Lowest held-out loss of the run", "本次运行的最低评估损失"),
    "model": ("Model", "模型"),
    "parameters": ("Parameters", "参数量"),
    "architecture": ("Architecture", "架构"),
    "layers": ("Layers × width", "层数 × 宽度"),
    "window": ("Longest sequence in tokens", "最大序列长度（词元）"),
    "vocabulary": ("Vocabulary", "词表大小"),
    "loading": ("Loading", "加载"),
    "licence": (
        "No licence is stated. Before you pass the model on, look at the terms of the data that it learned from.",
        "未声明许可证。分发此模型之前，请查看其训练数据的条款。",
    ),
    "unknown": ("not known", "未知"),
    "comma": (", ", "、"),
}
_TEXT: Final = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
inputs = tokenizer("{prompt}", return_tensors="pt", add_special_tokens=False)
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=100)[0], skip_special_tokens=True))"""
_CHAT: Final = """from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
inputs = tokenizer.apply_chat_template(
    [{{"role": "user", "content": "{prompt}"}}], add_generation_prompt=True, return_tensors="pt", return_dict=True
)
answer = model.generate(**inputs, max_new_tokens=100)[0, inputs["input_ids"].shape[1] :]
print(tokenizer.decode(answer, skip_special_tokens=True))"""


def model_card(checkpoint: Path, name: str, language: Language) -> str:
    """The whole file. What cannot be found out is left out, never an error."""
    place = 1 if language == "zh" else 0
    said = {key: texts[place] for key, texts in _WORDS.items()}
    state, config = _json(checkpoint / "state.json"), _json(checkpoint / "config.json")
    knobs = run_dir.read_yaml(checkpoint.parent.parent / "config.yaml")
    task = tokenizer_files.task_of(checkpoint)
    counters = state.get("counters")
    tables = {
        "training": _training(knobs, counters if isinstance(counters, dict) else {}, said),
        "losses": _losses(checkpoint, counters if isinstance(counters, dict) else {}),
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
        said["intro"].format(version=state.get("traindeck", "?"), kind=said[task]),
    ]
    for title, rows in tables.items():
        shown = [f"| {said[key]} | {_cell(value)} |" for key, value in rows.items() if value not in (None, "")]
        if shown:
            lines += ["", f"## {said[title]}", "", "| | |", "| --- | --- |", *shown]
    prompt = ("12 + 30 = ?", "12 + 30 = ?") if task == "sft" else ("Once upon a time", "很久以前")
    code = (_CHAT if task == "sft" else _TEXT).format(name=name.replace('"', ""), prompt=prompt[place])
    lines += ["", f"## {said['loading']}", "", "```python", code, "```", "", said["licence"], ""]
    return "\n".join(lines)


def _training(knobs: dict[str, Any], counters: dict[str, Any], said: dict[str, str]) -> dict[str, Any]:
    data = knobs.get("data")
    names = [str(path) if str(path).startswith("builtin:") else Path(str(path)).name for path in data or []]
    seconds = counters.get("seconds")
    return {
        "data": said["comma"].join(names) or said["unknown"],
        "preset": knobs.get("preset"),
        "step": _count(counters.get("step")),
        "tokens": _count(counters.get("tokens")),
        "samples": _count(counters.get("samples")),
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
        "parameters": _count(_parameters(checkpoint / "model.safetensors")),
        "architecture": architectures[0] if isinstance(architectures, list) and architectures else None,
        "layers": f"{layers} × {width}" if layers and width else None,
        "window": _count(config.get("max_position_embeddings")),
        "vocabulary": _count(config.get("used_vocab_size") or config.get("vocab_size")),
    }


def _parameters(weights: Path) -> int | None:
    """Numbers in a safetensors file, by its header. Format: https://github.com/huggingface/safetensors#format"""
    try:
        with weights.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= _LARGEST_HEADER else {}
        return int(sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _count(value: Any) -> str | None:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else None


def _cell(value: Any) -> str:
    """Names of files are text, whatever stands in them."""
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
