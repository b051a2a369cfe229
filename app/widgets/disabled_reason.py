"""Tooltips of disabled buttons: why they are disabled."""

from __future__ import annotations

from typing import Final

from PySide6.QtCore import QEvent, QObject
from PySide6.QtGui import QHelpEvent
from PySide6.QtWidgets import QAbstractButton, QToolTip

from app.texts import tr

_REASONS: Final = {  # texts by object name; other buttons set their tooltips
    "pause": "disabled.not_training",
    "resume": "disabled.no_stopped_run",
    "stop": "disabled.no_active_run",
    "removeData": "disabled.select_data",
    "resetAll": "disabled.no_changes",
    "showAll": "disabled.all_shown",
    "sampleNow": "disabled.not_training",
    "sampleBack": "disabled.first_sample",
    "sampleNext": "disabled.last_sample",
    "saveNow": "disabled.not_training",
    "newChat": "disabled.no_finished_text",
    "copyTurn": "disabled.no_text",
    "editTurn": "disabled.no_finished_text",
    "correctTurn": "disabled.no_answer",
    "chatAgain": "disabled.no_finished_text",
    "chatHistory": "disabled.generating",
    "undoCorrection": "disabled.no_own_correction",
    "addCorrections": "disabled.data_added",
    "openConversation": "disabled.select_conversation",
    "deleteConversations": "disabled.select_conversation",
    "openRun": "disabled.select_run",
    "resumeRun": "disabled.select_stopped_run",
    "showRuns": "disabled.select_run",
    "moreForRuns": "disabled.no_runs",
    "resumeFrom": "disabled.select_earlier_checkpoint",
    "generateFrom": "disabled.select_checkpoint",
    "exportFrom": "disabled.select_checkpoint",
    "queueOpen": "disabled.select_queued",
    "queueUp": "disabled.select_queued",
    "queueDown": "disabled.select_queued",
    "queueRemove": "disabled.select_queued",
    "queueCompare": "disabled.no_results",
}


class _DisabledReason(QObject):
    """Shows a text instead of the tooltip of its parent while that is disabled."""

    def __init__(self, button: QAbstractButton, key: str) -> None:
        super().__init__(button)
        self._key = key
        button.installEventFilter(self)

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802 - Qt's name
        if isinstance(event, QHelpEvent) and isinstance(watched, QAbstractButton) and not watched.isEnabled():
            QToolTip.showText(event.globalPos(), tr(self._key), watched)
            return True
        return super().eventFilter(watched, event)


def explain_disabled(button: QAbstractButton) -> None:
    """Let the tooltip of a button say why it is disabled, if its object name has a reason."""
    if (key := _REASONS.get(button.objectName())) is not None:
        _DisabledReason(button, key)
