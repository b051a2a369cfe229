"""Scores of evaluated rows, and the files that keep them. No torch, no Qt."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from trainer_core import protocol
from trainer_core.data.column_mapping import Task
from trainer_core.data.columns import Document, trim_after_last_answer
from trainer_core.evaluation import scores
from trainer_core.evaluation.judge import Judge
from trainer_core.messages import TraindeckError
from trainer_core.system import files

FOLDER: Final = "evaluations"  # in the folder of a run
SUMMARY_SUFFIX: Final = ".summary.json"  # of the event, beside the rows
_KEPT_TEXT_CHARS: Final = 240  # of a text

MainScore = Literal["judged", "exact_match", "loss"]


class Rows(NamedTuple):
    """Rows to evaluate, and the paths of the files of the data, which `Document.file` numbers."""

    task: Task
    documents: list[Document]
    files: list[str]


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


def comparable_losses(results: Mapping[str, Sequence[RowResult]]) -> list[bool]:
    """Whether the loss of each row is over the same tokens for every model.

    A model whose context has no room for any answer, as with many examples, has no loss and does not count.
    """
    counted = [own for own in results.values() if any(one.tokens for one in own)] or [*results.values()]
    return [row[0].tokens > 0 and len({one.tokens for one in row}) == 1 for row in zip(*counted, strict=True)]


def score_models(
    task: Task, results: Mapping[str, Sequence[RowResult]], judge: Judge | None, seed: int
) -> list[protocol.ModelScores]:
    """Scores of each model over the same rows, and the gain over the first one. `seed`: of the intervals."""
    first, *_ = results.values()
    bootstrap, in_loss = scores.Bootstrap(len(first), seed), comparable_losses(results)
    found = []
    for name, own in results.items():
        found.append(_score_rows(task, own, in_loss, judge, bootstrap, name=name))
        if own is not first:
            found[-1].gain = _gain(main_score(task, judge), own, first, judge, bootstrap)
    return found


def _score_rows(
    task: Task,
    results: Sequence[RowResult],
    in_loss: Sequence[bool],
    judge: Judge | None,
    bootstrap: scores.Bootstrap,
    name: Any,
) -> protocol.ModelScores:
    tokens = [one.tokens * counts for one, counts in zip(results, in_loss, strict=True)]
    loss = bootstrap.ratio([one.loss if counts else 0.0 for one, counts in zip(results, in_loss, strict=True)], tokens)
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


def require_own_results(path: Path, data: Sequence[str]) -> None:
    """Raises as `require_replaceable` unless results can be written to `path`, and their summary beside it."""
    require_replaceable(path, _holds_rows, data)
    require_replaceable(path.with_suffix(SUMMARY_SUFFIX), _is_summary, data)


def require_replaceable(path: Path, is_own: Callable[[Path], bool], data: Sequence[str] = ()) -> None:
    """Raises `evaluate.overwrites` if a file at `path` is part of `data` or not `is_own`, and `disk.not_writable`."""
    places = {path.resolve(), *path.resolve().parents}
    with files.translate_os_errors(path):
        is_data = any(Path(one).resolve() in places for one in data)
        if path.exists() and (is_data or not path.is_file() or not is_own(path)):
            raise TraindeckError("evaluate.overwrites", path=str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        files.require_writable(path)


def _holds_rows(path: Path) -> bool:
    """Whether a file has no content, or begins with a row of results."""
    with path.open("rb") as file:
        line = file.readline()
    with contextlib.suppress(ValueError):
        found = json.loads(line)
        return isinstance(found, dict) and {"row", "models"} <= found.keys()
    return not line


def _is_summary(path: Path) -> bool:
    with contextlib.suppress(protocol.ProtocolError):
        return isinstance(protocol.decode_event(path.read_bytes()), protocol.Evaluation)
    return False


def write_results(
    path: Path,
    event: protocol.Evaluation,
    rows: Rows,
    results: Mapping[str, Sequence[RowResult]],
    judge: Judge | None,
) -> None:
    """Write one JSON object per row to `path`, and the event beside it. Raises `disk.full` or `disk.not_writable`."""
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _lines(rows, results, judge))
    with files.translate_os_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, lines.encode("utf-8", "replace"))
        files.write_atomic(path.with_suffix(SUMMARY_SUFFIX), protocol.encode(event))


def _lines(rows: Rows, results: Mapping[str, Sequence[RowResult]], judge: Judge | None) -> Iterator[dict[str, Any]]:
    bleu, chrf = scores.bleu(), scores.chrf()
    for index, document in enumerate(rows.documents):
        row: dict[str, Any] = {"file": rows.files[document.file], "row": document.row}
        if rows.task == "pretrain":
            row["text"] = document.text[:_KEPT_TEXT_CHARS]
        else:
            before = trim_after_last_answer(document.turns)[:-1]
            row["prompt"] = [{"role": turn[0], "content": turn[1]} for turn in before]
            row["reference"] = next(iter(results.values()))[index].reference
        row["models"] = {}
        for name, found in results.items():
            one = found[index]
            values: dict[str, Any] = {"loss": one.loss / one.tokens if one.tokens else None, "tokens": one.tokens}
            if rows.task == "sft":
                values |= {"answer": one.answer, "finish_reason": one.finish_reason, "exact_match": one.is_exact}
                for metric, computed in (("bleu4", bleu), ("chrf", chrf)):
                    values[metric] = round(computed.sentence_score(one.answer, [one.reference]).score, 4)
                if judge:
                    values["judged"] = judge(one.answer)
            row["models"][name] = values
        yield row
