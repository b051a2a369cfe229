"""Conversations of the chat page: one JSON file each, in a folder that only its user can read."""

from __future__ import annotations

import contextlib
import functools
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from app.core.conversation import Turn
from trainer_core.system import files

MAX_CONVERSATIONS: Final = 100
_MAX_BYTES: Final = 2 * 1024**2  # of one file


@dataclass(slots=True)
class ModelTurns:
    """A model and its turns, oldest first."""

    run: str = ""  # path of a run or a model folder
    checkpoint: str = ""  # as `GenerationSession.checkpoint`; empty: the newest
    turns: list[Turn] = field(default_factory=list)


@dataclass(slots=True)
class Conversation:
    """One model, or two that were compared."""

    system: str = ""  # system prompt
    models: list[ModelTurns] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The first prompt."""
        return next((turn.prompt for model in self.models for turn in model.turns), "")


class ConversationStore:
    """The newest `MAX_CONVERSATIONS` conversations in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list_all(self) -> list[tuple[Path, Conversation]]:
        """All readable conversations, the one that changed last first."""
        listed = []
        for path in self._paths():
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                listed.append((path, msgspec.json.decode(path.read_bytes(), type=Conversation)))
        return listed

    def save(self, conversation: Conversation, path: Path | None) -> Path:
        """Write a conversation, to a new file if `path` is None, and delete the oldest files beyond the limit.

        The first turns of a conversation that is too large are left out. Raises `OSError`.
        """
        path = path or self.folder / f"{time.time_ns()}.json"
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        while len(content := msgspec.json.encode(conversation)) > _MAX_BYTES and conversation.title:
            models = [
                ModelTurns(model.run, model.checkpoint, model.turns[(len(model.turns) + 1) // 2 :])
                for model in conversation.models
            ]
            conversation = Conversation(conversation.system, models)
        files.write_atomic(path, content)
        self.delete(*self._paths()[MAX_CONVERSATIONS:])
        return path

    def delete(self, *paths: Path) -> None:
        """Delete conversations. Raises `OSError`."""
        for path in paths:
            files.retry_sharing_violation(functools.partial(path.unlink, missing_ok=True))

    def _paths(self) -> list[Path]:
        """All files, the newest first."""
        with contextlib.suppress(OSError):
            return sorted(self.folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        return []
