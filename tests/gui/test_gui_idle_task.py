"""Long work on the event loop."""

from __future__ import annotations

from collections.abc import Iterator

from pytestqt.qtbot import QtBot

from app.core.idle_task import IdleTask


def test_a_task_that_fails_does_not_finish(qtbot: QtBot) -> None:
    def steps() -> Iterator[None]:
        yield
        raise ValueError("damaged")

    task, finished = IdleTask(), list[bool]()
    task.finished.connect(lambda: finished.append(True))
    with qtbot.captureExceptions() as caught:
        task.start(steps())
        qtbot.waitUntil(lambda: not task.is_running)
        qtbot.wait(20)
    assert [str(error) for _, error, _ in caught] == ["damaged"]
    assert not finished
