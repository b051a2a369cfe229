"""What `runs` prints: a table of the runs, and what to type for one that broke off."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from trainer_core.console.tables import table
from trainer_core.messages import Language, what_and_do
from trainer_core.runs.run_dir import RunState, RunSummary

_HEAD: Final[dict[Language, tuple[str, ...]]] = {
    "en": ("run", "state", "step", "best loss"),
    "zh": ("运行", "状态", "步", "最佳损失"),
}
_STATES: Final[dict[RunState, str]] = {
    "running": "正在运行",
    "finished": "已完成",
    "stopped": "已停止",
    "failed": "失败",
    "interrupted": "意外中断",
}
_BROKE_OFF: Final[dict[Language, str]] = {  # its process is gone: the machine was restarted, say
    "en": "{name} broke off at step {step}; go on with: train --resume {typed}",
    "zh": "{name} 在第 {step} 步中断；继续：train --resume {typed}",
}
_EXPLAINED: Final = 3  # runs that failed, the newest
_NONE: Final[dict[Language, str]] = {"en": "No runs in {folder} yet.", "zh": "{folder} 中还没有运行。"}


def as_text(summaries: Sequence[RunSummary], folder: Path, language: Language) -> str:
    """The newest first, as they come."""
    if not summaries:
        return _NONE[language].format(folder=folder)
    rows = [
        (
            summary.name,
            _STATES[summary.state] if language == "zh" else summary.state,
            str(summary.step),
            "-" if summary.best_loss is None else f"{summary.best_loss:.4f}",
        )
        for summary in summaries
    ]
    lines = table(_HEAD[language], rows)
    broken = next((summary for summary in summaries if summary.state == "interrupted" and summary.resumable), None)
    if broken is not None:
        lines.append(_BROKE_OFF[language].format(name=broken.name, step=broken.step, typed=_typed(broken.name)))
    failed = [summary for summary in summaries if summary.state == "failed" and summary.error is not None]
    if failed:
        lines += ["", *(_reason(summary, language) for summary in failed[:_EXPLAINED])]
    return "\n".join(lines)


def _reason(summary: RunSummary, language: Language) -> str:
    """Why a run failed: its folder holds the rest, in log.txt and events.jsonl."""
    code, params = summary.error or ("", {})
    return f"{summary.name}{'：' if language == 'zh' else ': '}{what_and_do(code, params, language)[0]}"


def _typed(name: str) -> str:
    """As a shell takes it for one word."""
    return name if re.fullmatch(r"[\w.-]+", name) else f'"{name}"'
