"""What is said of the queue and its items, in the current language."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from PySide6.QtCore import QCoreApplication

from app.state.queue import Item
from app.views import words
from trainer_core.config import knobs

if TYPE_CHECKING:
    from app.state.run_machine import RunMachine

_SOURCES: Final = 4  # of the data that are named


def state(item: Item, *, restarting: bool = False) -> str:
    """In a word or two. `restarting`: its trainer is started again in a moment."""
    if item.state == "waiting":
        return QCoreApplication.translate("Queue", "Waiting")
    if item.state == "running" and restarting:
        return QCoreApplication.translate("Queue", "Restarting")
    return words.disk_state("finished" if item.state == "done" else item.state)


def difference(item: Item) -> str:
    """What differs from the preset, and the preset."""
    known = {name: value for name, value in item.changes.items() if name in knobs()}
    return f"{words.settings(known)}  ·  {item.preset}" if known else item.preset


def progress(machine: RunMachine) -> str:
    """How far the run is that is being trained."""
    if machine.total_steps and machine.step:
        parts = [f"{words.count(machine.step)} / {words.count(machine.total_steps)}"]
        if machine.eta_s is not None:
            left = QCoreApplication.translate("Queue", "{time} left")
            parts.append(left.format(time=words.duration(machine.eta_s)))
        return "  ·  ".join(parts)
    return words.state(machine.state)


def result(item: Item) -> str:
    """What came of it."""
    if item.state == "failed":
        return failure(item)
    if item.state == "waiting" or item.state == "running":
        return "–"
    if item.best_loss is not None:
        return QCoreApplication.translate("Queue", "best loss {loss}").format(loss=words.loss(item.best_loss))
    if item.steps:
        return QCoreApplication.translate("Queue", "step {step}").format(step=words.count(item.steps))
    return "–"


def failure(item: Item) -> str:
    """Why it failed, and what to do, in a sentence."""
    if item.error:
        return words.message(item.error, item.params)
    text = QCoreApplication.translate("Queue", "The trainer ended unexpectedly (code {code}).")
    return text.format(code="–" if item.exit_code is None else item.exit_code)


def details(item: Item) -> str:
    """Everything that there is to say about an item, in lines."""
    lines = []
    if item.state == "failed":
        lines.append(failure(item))
    elif item.state == "interrupted":
        if item.resumable:
            text = QCoreApplication.translate(
                "Queue", "Broken off at step {step}, when the program ended. Resume goes on from its last checkpoint."
            )
        else:
            text = QCoreApplication.translate(
                "Queue", "Broken off when the program ended, before its first checkpoint. Put it back in line."
            )
        lines.append(text.format(step=words.count(item.steps)))
    settings = QCoreApplication.translate("Queue", "Settings: {settings}").format(settings=difference(item))
    more = f", … (+{len(item.data) - _SOURCES})" if len(item.data) > _SOURCES else ""
    names = ", ".join(words.data_name(path) for path in item.data[:_SOURCES])
    data = QCoreApplication.translate("Queue", "Data: {data}").format(data=names + more)
    times = [QCoreApplication.translate("Queue", "Added: {when}").format(when=words.when(item.added))]
    if item.started:
        times.append(QCoreApplication.translate("Queue", "Started: {when}").format(when=words.when(item.started)))
    if item.ended:
        times.append(QCoreApplication.translate("Queue", "Ended: {when}").format(when=words.when(item.ended)))
    return "\n".join([*lines, settings, data, "  ·  ".join(times)])
