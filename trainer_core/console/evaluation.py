"""Output of the command `evaluate`: a table of scores with their confidence intervals. No torch, no Qt."""

from __future__ import annotations

from functools import partial
from typing import Final

from trainer_core import protocol
from trainer_core.console.tables import format_table
from trainer_core.messages import Language
from trainer_core.texts import get

SCORES: Final = {  # name in `ModelScores` and the format of its value
    "loss": "{:.4f}", "perplexity": "{:,.2f}", "exact_match": "{:.1%}", "bleu4": "{:.1f}", "chrf": "{:.1f}",
    "judged": "{:.1%}",
}  # fmt: skip
_GAINS: Final = {"judged": "{:+.1%}", "exact_match": "{:+.1%}", "loss": "{:+.4f}"}


def format_evaluation(event: protocol.Evaluation, language: Language) -> str:
    """Return the table of an evaluation, and where its results are."""
    shown = measured_scores(event)
    head = [get(f"console.evaluation.column.{name}", language) for name in ("name", *shown)]
    rows = [
        [get(f"console.evaluation.name.{one.name}", language), *map(partial(format_score, one), shown)]
        for one in event.scores
    ]
    lines = format_table(head, rows)
    lines += format_gains(event, language) + format_notes(event, language)
    if event.results:
        lines.append(get("console.evaluation.results", language, path=event.results))
    return "\n".join(lines)


def measured_scores(event: protocol.Evaluation) -> list[str]:
    """Return the names of the scores that a model has."""
    return [name for name in SCORES if any(getattr(one, name) is not None for one in event.scores)]


def format_gains(event: protocol.Evaluation, language: Language) -> list[str]:
    """Return a sentence for each model but the first: whether it is better."""
    return [_format_gain(event, one, language) for one in event.scores if one.gain is not None]


def format_notes(event: protocol.Evaluation, language: Language) -> list[str]:
    """Return the truncated answers and the numbers of rows."""
    lines = []
    for one in event.scores:
        if one.truncated_by_limit or one.truncated_by_context:
            counts = {"limit": one.truncated_by_limit, "context": one.truncated_by_context, "rows": event.rows}
            name = get(f"console.evaluation.name.{one.name}", language)
            lines.append(get("console.evaluation.truncated", language, name=name, **counts))
    lines.append(get("console.evaluation.rows", language, rows=event.rows, tokens=event.scores[0].tokens))
    if event.refused:
        lines.append(get("console.evaluation.refused", language, count=event.refused))
    if event.not_in_loss:
        lines.append(get("console.evaluation.not_in_loss", language, count=event.not_in_loss))
    return lines


def format_task_scores(event: protocol.TaskScores, language: Language) -> str:
    """Return the table of scores of `lm-eval`, and where all of its results are."""
    head = [get(f"console.evaluation.column.{name}", language) for name in ("task", "metric", "value")]
    values = (f"{one.value:.4f}" + ("" if one.stderr is None else f" ± {one.stderr:.4f}") for one in event.scores)
    rows = [[one.task, one.metric, value] for one, value in zip(event.scores, values, strict=True)]
    return "\n".join([*format_table(head, rows), get("console.evaluation.task_results", language, path=event.path)])


def _format_gain(event: protocol.Evaluation, scores: protocol.ModelScores, language: Language) -> str:
    """Return whether a model is better than the first one."""
    assert scores.gain is not None
    bounds = _bounds(scores.gain)
    if event.main_score == "loss":  # a gain is a lower loss
        bounds = -bounds[0], -bounds[2], -bounds[1]
    value, low, high = map(_GAINS[event.main_score].format, bounds)
    verdict = "better" if scores.gain.low > 0 else "worse" if scores.gain.high < 0 else "unclear"
    names = [get(f"console.evaluation.name.{one.name}", language) for one in (scores, event.scores[0])]
    params = {"name": names[0], "first": names[1], "gain": f"{value} ({low} … {high})"}
    column = get(f"console.evaluation.column.{event.main_score}", language)
    return get(f"console.evaluation.verdict.{verdict}", language, score=column, **params)


def _bounds(score: protocol.Score) -> tuple[float, float, float]:
    return score.value, score.low, score.high


def format_score(scores: protocol.ModelScores, name: str) -> str:
    """Return a value with its interval, such as `93.0% (89.0%–96.0%)`."""
    score = getattr(scores, name)
    if score is None:
        return "-"
    value, low, high = (SCORES[name].format(one) for one in _bounds(score))
    return f"{value} ({low}–{high})"
