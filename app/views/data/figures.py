"""What a data report says, as titles, figures and lines of context in the current language."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QCoreApplication

from app.views import words
from trainer_core.protocol import DataReport

Row = tuple[str, str]
"""(what, how much)"""

TILES: Final = ("documents", "tokens", "samples", "epoch", "steps")


def tile_title(name: str) -> str:
    return {
        "documents": QCoreApplication.translate("DataFigures", "Documents"),
        "tokens": QCoreApplication.translate("DataFigures", "Tokens"),
        "samples": QCoreApplication.translate("DataFigures", "Samples per epoch"),
        "epoch": QCoreApplication.translate("DataFigures", "Steps per epoch"),
        "steps": QCoreApplication.translate("DataFigures", "Steps in all"),
    }[name]


def tile(report: DataReport, name: str) -> tuple[str, str]:
    """The figure of a tile and the line below it."""
    match name:
        case "documents":
            return _short(report, report.total.documents), _read(report)
        case "tokens":
            return _short(report, report.total.tokens), _per_token(report)
        case "samples":
            return _short(report, report.samples_per_epoch), _to_train_on(report)
        case "epoch":
            return _short(report, report.steps_per_epoch), _steps(report)
        case _:
            exact = report.complete or report.limited
            return words.big(report.total_steps) if exact else _short(report, report.total_steps), _epochs(report)


def tile_tooltip(report: DataReport, name: str) -> str:
    """The figure of a tile in full, and what it counts where that is not plain."""
    figures = {
        "documents": report.total.documents,
        "tokens": report.total.tokens,
        "samples": report.samples_per_epoch,
        "epoch": report.steps_per_epoch,
        "steps": report.total_steps,
    }
    stretches = QCoreApplication.translate(
        "DataFigures", "Of plain text, what is held back and each stretch in between counts as a document."
    )
    return words.count(figures[name]) + (f"\n{stretches}" if name == "documents" and report.divided else "")


def _short(report: DataReport, value: float) -> str:
    return words.big(value) if report.complete else f"≈ {words.big(value)}"


def _about(report: DataReport, value: float) -> str:
    """A figure of all the data: marked where it is an estimate."""
    return words.count(value) if report.complete else f"≈ {words.count(value)}"


def _read(report: DataReport) -> str:
    if report.complete:
        return QCoreApplication.translate("DataFigures", "all read")
    text = QCoreApplication.translate("DataFigures", "{count} read")
    return text.format(count=words.count(report.read.documents))


def _per_token(report: DataReport) -> str:
    text = QCoreApplication.translate("DataFigures", "{count} characters each")
    return text.format(count=f"{report.read.characters / max(1, report.read.tokens):.2f}")


def _to_train_on(report: DataReport) -> str:
    text = QCoreApplication.translate("DataFigures", "{count} tokens at most")
    return text.format(count=words.count(report.max_seq_len))


def _steps(report: DataReport) -> str:
    short = report.steps_per_epoch - report.full_steps_per_epoch
    if short and report.complete:
        text = QCoreApplication.translate("DataFigures", "{count} full, one short")
        return text.format(count=words.count(report.full_steps_per_epoch))
    text = QCoreApplication.translate("DataFigures", "{count} samples each")
    return text.format(count=words.count(report.samples_per_step))


def _epochs(report: DataReport) -> str:
    epochs = report.total_steps / max(1, report.steps_per_epoch)
    if epochs == 1:
        return QCoreApplication.translate("DataFigures", "one epoch")
    return QCoreApplication.translate("DataFigures", "{count} epochs").format(count=f"{epochs:.3g}")


def rows(report: DataReport) -> list[Row]:
    """The other figures, those first that people act on."""
    return [*_fit(report), *_packing(report), *_counts(report)]


def _fit(report: DataReport) -> list[Row]:
    read = report.read
    longer = QCoreApplication.translate("DataFigures", "Longer than a sequence")
    found = [(longer, _of(report.longer, read.documents))]
    if report.task == "sft":
        cut = QCoreApplication.translate("DataFigures", "Tokens cut away")
        found.append((cut, _of(report.cut_tokens, read.tokens)))
        dropped = QCoreApplication.translate("DataFigures", "Left out: no room for a response")
        found.append((dropped, _of(report.dropped, read.documents)))
        if report.left_out_turns:
            turns = QCoreApplication.translate("DataFigures", "Tool messages left out")
            found.append((turns, words.count(report.left_out_turns)))
    else:
        left = QCoreApplication.translate("DataFigures", "Tokens left over at the end")
        found.append((left, words.count(report.left_out_tokens)))
    return found


def _packing(report: DataReport) -> list[Row]:
    if report.packs is None or report.fill is None:
        return []
    packed = QCoreApplication.translate("DataFigures", "Packed into sequences")
    filled = QCoreApplication.translate("DataFigures", "Filled with tokens")
    change = QCoreApplication.translate("DataFigures", "{packed}, unpacked {alone}")
    shares = change.format(packed=words.share(report.fill, 1), alone=words.share(report.fill_alone or 0, 1))
    return [(packed, words.count(report.packs)), (filled, shares)]


def _counts(report: DataReport) -> list[Row]:
    read, held_back = report.read, _about(report, report.validation_tokens)
    documents = [
        (QCoreApplication.translate("DataFigures", "Documents to train on"), _about(report, report.train_documents)),
        (QCoreApplication.translate("DataFigures", "Documents held back"), _about(report, report.validation_documents)),
    ]
    overlap = QCoreApplication.translate("DataFigures", "Validation rows also in training data")
    return [
        (QCoreApplication.translate("DataFigures", "Duplicates"), _of(report.duplicates, read.rows)),
        *([(overlap, _of(report.overlap, report.validation_rows))] if report.overlap else []),
        (QCoreApplication.translate("DataFigures", "Rows without text"), words.count(report.empty)),
        (QCoreApplication.translate("DataFigures", "Rows that cannot be used"), words.count(report.bad)),
        (QCoreApplication.translate("DataFigures", "Undecodable bytes"), _of(report.undecodable, report.read_bytes)),
        (QCoreApplication.translate("DataFigures", "Characters"), _about(report, report.total.characters)),
        *([] if report.divided else documents),  # how many stretches of text a split has says nothing
        (QCoreApplication.translate("DataFigures", "Tokens to train on"), _about(report, report.train_tokens)),
        (
            QCoreApplication.translate("DataFigures", "Tokens held back"),
            f"{held_back} ({words.share(report.validation_tokens, report.total.tokens)})",
        ),
        (QCoreApplication.translate("DataFigures", "Tokens per step"), words.count(report.tokens_per_step)),
        (QCoreApplication.translate("DataFigures", "Vocabulary"), words.count(report.vocab_size)),
    ]


def _of(part: int, whole: int) -> str:
    """`414 (0.27 %)`; a plain 0 where there is none."""
    return f"{words.count(part)} ({words.share(part, whole)})" if part else "0"


def used(roles: dict[str, str], columns: list[str]) -> str:
    """Which columns are used as what: `prompt: question, response: answer`."""
    names = {
        "text": QCoreApplication.translate("DataFigures", "text"),
        "prompt": QCoreApplication.translate("DataFigures", "prompt"),
        "response": QCoreApplication.translate("DataFigures", "response"),
        "input": QCoreApplication.translate("DataFigures", "input"),
        "system": QCoreApplication.translate("DataFigures", "system"),
        "messages": QCoreApplication.translate("DataFigures", "messages"),
        "tools": QCoreApplication.translate("DataFigures", "tools"),
    }
    if not roles:
        return ", ".join(columns)
    return ", ".join(
        column if column == role else f"{names.get(role, role)}: {column}" for role, column in roles.items()
    )


def state(report: DataReport) -> str:
    """How much of the data a report rests on."""
    if report.complete:
        text = QCoreApplication.translate("DataFigures", "All of it was read, {size}: every figure is exact.")
        if not (report.tokenizer or report.prepared):  # a look trains its own on a part of the text
            text = QCoreApplication.translate(
                "DataFigures",
                "All of it was read, {size}. A tokenizer yet to be trained may count tokens a little differently.",
            )
        return text.format(size=words.small_size(report.bytes))
    text = QCoreApplication.translate(
        "DataFigures", "{read} of {size} were read: figures with ≈ are estimates, the others are of that part."
    )
    return text.format(read=words.small_size(report.read_bytes), size=words.small_size(report.bytes))
