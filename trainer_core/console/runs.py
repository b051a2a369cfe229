"""Output of the command `runs`: a table, how to resume an interrupted run, and why runs failed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from trainer_core.console.tables import format_table
from trainer_core.messages import Language, format_message_parts
from trainer_core.messages.data import translate_reason
from trainer_core.runs.run_dir import RunSummary
from trainer_core.texts import get

_MAX_FAILURES: Final = 3  # the newest failed runs


def format_runs(summaries: Sequence[RunSummary], folder: Path, language: Language) -> str:
    """Return a table of `summaries` in their order (newest first), followed by hints."""
    if not summaries:
        return get("console.runs.none", language, folder=folder)
    rows = [
        (
            get("common.name_on_host", language, name=summary.name, host=summary.host)
            if summary.host
            else summary.name,
            get(f"console.run_state.{summary.state}", language),
            str(summary.step),
            "-" if summary.best_loss is None else f"{summary.best_loss:.4f}",
        )
        for summary in summaries
    ]
    lines = format_table(
        [get(f"console.run_table.{name}", language) for name in ("run", "state", "step", "loss")], rows
    )
    interrupted = next((one for one in summaries if one.state == "interrupted" and one.resumable), None)
    if interrupted is not None:
        name = interrupted.name
        lines.append(
            get("console.runs.interrupted", language, name=name, step=interrupted.step, argument=_shell_quoted(name))
        )
    failed = [summary for summary in summaries if summary.state == "failed" and summary.error is not None]
    if failed:
        lines += ["", *(_format_failure(summary, language) for summary in failed[:_MAX_FAILURES])]
    return "\n".join(lines)


def _format_failure(summary: RunSummary, language: Language) -> str:
    code, params = summary.error or ("", {})
    reason = format_message_parts(code, params, language)[0]
    return get("console.runs.failed", language, name=summary.name, reason=reason)


def format_verification(name: str, problems: Mapping[str, str | None], language: Language) -> str:
    """Return a line with the result for a checkpoint, and a line for each damaged file."""
    found = [f"  {translate_reason(problem, language)}" for problem in problems.values() if problem]
    result = get("console.checkpoint_damaged" if found else "console.checkpoint_intact", language, name=name)
    return "\n".join([result, *found])


def _shell_quoted(name: str) -> str:
    return name if re.fullmatch(r"[\w.-]+", name) else f'"{name}"'
