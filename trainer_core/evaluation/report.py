"""Scores of evaluated rows, and the files that keep them. No torch, no Qt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from trainer_core import protocol
from trainer_core.data.column_mapping import Task
from trainer_core.data.columns import Document, trim_after_last_answer
from trainer_core.evaluation import scores
from trainer_core.evaluation.judge import Judge
from trainer_core.system import files

FOLDER: Final = "evaluations"  # in the folder of a run
SUMMARY_SUFFIX: Final = ".summary.json"  # of the event, beside the rows
_KEPT_TEXT_CHARS: Final = 240  # of a text

MainScore = Literal["judged", "exact_match", "loss"]


@dataclass(slots=True)
class RowResult:
    """What a model makes of a row. `loss`: summed over `tokens`, in nats."""

    loss: float = 0.0
    tokens: int = 0
    reference: str = ""
    answer: str = ""
    finish_reason: str = ""  # end, limit or context

    @property
    def is_exact(self) -> bool:
        return scores.is_exact(self.answer, self.reference, self.finish_reason)


def main_score(task: Task, judge: Judge | None) -> MainScore:
    """The score by which models are compared."""
    return "loss" if task == "pretrain" else "judged" if judge else "exact_match"


def score_models(
    task: Task, results: Mapping[str, Sequence[RowResult]], judge: Judge | None, seed: int
) -> list[protocol.ModelScores]:
    """Scores of each model over all rows, and the gain over the first one. `seed`: of the intervals."""
    first, *_ = results.values()
    bootstrap = scores.Bootstrap(len(first), seed)
    found = []
    for name, own in results.items():
        found.append(_score_rows(task, own, judge, bootstrap, name=name))
        if own is not first:
            found[-1].gain = _gain(main_score(task, judge), own, first, judge, bootstrap)
    return found


def _score_rows(
    task: Task, results: Sequence[RowResult], judge: Judge | None, bootstrap: scores.Bootstrap, name: Any
) -> protocol.ModelScores:
    tokens = [one.tokens for one in results]
    loss = bootstrap.ratio([one.loss for one in results], tokens)
    found = protocol.ModelScores(name=name, loss=loss, perplexity=scores.perplexity(loss), tokens=sum(tokens))
    if task == "sft":
        texts, references = [one.answer for one in results], [one.reference for one in results]
        reasons = [one.finish_reason for one in results]
        found.exact_match = bootstrap.mean([float(one.is_exact) for one in results])
        found.bleu4 = bootstrap.corpus(scores.bleu(), texts, references)
        found.chrf = bootstrap.corpus(scores.chrf(), texts, references)
        found.judged = bootstrap.mean([float(judge(text)) for text in texts]) if judge else None
        found.truncated_by_limit, found.truncated_by_context = reasons.count("limit"), reasons.count("context")
    return found


def _gain(
    name: MainScore,
    results: Sequence[RowResult],
    first: Sequence[RowResult],
    judge: Judge | None,
    bootstrap: scores.Bootstrap,
) -> protocol.Score | None:
    """Improvement over the results of the first model, of the same rows in each resample."""
    if name == "loss":
        stats = [[one.loss, one.tokens, other.loss, other.tokens] for one, other in zip(results, first, strict=True)]
        return bootstrap.score(stats, lambda sums: float(sums[2] / sums[3] - sums[0] / sums[1]))

    def value(one: RowResult) -> bool:
        return judge(one.answer) if judge else one.is_exact

    return bootstrap.mean([float(value(one)) - value(other) for one, other in zip(results, first, strict=True)])


def write_results(
    path: Path,
    event: protocol.Evaluation,
    documents: Sequence[Document],
    results: Mapping[str, Sequence[RowResult]],
    judge: Judge | None,
) -> None:
    """Write one JSON object per row to `path`, and the event beside it. Raises `disk.full` or `disk.not_writable`."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(event.task, documents, results, judge))
    with files.translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, lines.encode("utf-8", "replace"))
        files.write_atomic(path.with_suffix(SUMMARY_SUFFIX), protocol.encode(event))


def _rows(
    task: Task, documents: Sequence[Document], results: Mapping[str, Sequence[RowResult]], judge: Judge | None
) -> Iterator[dict[str, Any]]:
    bleu, chrf = scores.bleu(), scores.chrf()
    for index, document in enumerate(documents):
        row: dict[str, Any] = {"row": document.number}
        if task == "pretrain":
            row["text"] = document.text[:_KEPT_TEXT_CHARS]
        else:
            before = trim_after_last_answer(document.turns)[:-1]
            row["prompt"] = [{"role": turn[0], "content": turn[1]} for turn in before]
            row["reference"] = next(iter(results.values()))[index].reference
        row["models"] = {}
        for name, found in results.items():
            one = found[index]
            values: dict[str, Any] = {"loss": one.loss / one.tokens if one.tokens else None, "tokens": one.tokens}
            if task == "sft":
                values |= {"answer": one.answer, "finish_reason": one.finish_reason, "exact_match": one.is_exact}
                for metric, computed in (("bleu4", bleu), ("chrf", chrf)):
                    values[metric] = round(computed.sentence_score(one.answer, [one.reference]).score, 4)
                if judge:
                    values["judged"] = judge(one.answer)
            row["models"][name] = values
        yield row
