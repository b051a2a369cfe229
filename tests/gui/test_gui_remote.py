"""Training on another machine, by clicks, with a real OpenSSH server on this one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from PySide6.QtWidgets import QMessageBox, QPushButton
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.run_state import RunState
from app.core.settings import RemoteMachine, SettingsStore
from app.pages.setup.machines_dialog import MachinesDialog
from tests import ssh_server
from tests.gui.conftest import MakeWindow, click, wait_for_state
from tests.gui.queue_window import OpenWindow, enqueue, row_texts, wait_for_states, window_opener  # noqa: F401
from tests.gui.test_gui_real import TINY
from tests.ssh_server import HOST, SshServer
from trainer_core.remote import ssh
from trainer_core.runs import checkpoint_dir, file_locks
from trainer_core.runs.run_dir import RunDir

pytestmark = pytest.mark.skipif(not ssh_server.is_available, reason="needs ssh and sshd")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    running = SshServer(tmp_path / "ssh")
    monkeypatch.setenv(ssh.COMMAND_VARIABLE, running.command)
    yield running
    running.stop()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Path]:
    folder = ssh_server.install(tmp_path / "far 主机")
    yield folder
    for lock in [*folder.glob("runs/*/keeper/lock"), *folder.glob("runs/*/run.lock")]:
        if (owner := file_locks.read_owner(lock)) is not None and owner.alive:
            psutil.Process(owner.pid).kill()


def open_dialog(controller: Controller) -> MachinesDialog:
    controller.window.menus.actions["machines"].trigger()
    return controller.window.findChildren(MachinesDialog)[-1]


def add_machine(qtbot: QtBot, controller: Controller, far: Path) -> None:
    dialog = open_dialog(controller)
    qtbot.keyClicks(dialog.host, HOST)
    dialog.folder.setText(str(far))
    click(qtbot, dialog.add)
    qtbot.waitUntil(lambda: dialog.list.count() == 1, timeout=30_000)
    assert "Traindeck: installed" in dialog.status.text()
    click(qtbot, dialog.close_button)


def fill_form(controller: Controller, steps: int, name: str) -> None:
    for setting, value in {**TINY, "max_steps": str(steps)}.items():
        controller.form.set_text(setting, value)
    controller.form.set_run_name(name)


def test_a_host_is_added_and_trains_through_three_cuts_until_its_model_is_here(
    make_window: MakeWindow, qtbot: QtBot, server: SshServer, far: Path, home: Path
) -> None:
    controller = make_window(None)
    window, machine = controller.window, controller.active_run.machine
    assert window.setup.machine.isHidden()
    add_machine(qtbot, controller, far)
    assert window.setup.machine.currentText() == HOST
    seen: list[str] = []  # phases and codes
    controller.active_run.event_received.connect(
        lambda event: seen.append(getattr(event, "phase", None) or getattr(event, "code", ""))
    )
    fill_form(controller, 4000, "run 一")
    click(qtbot, window.run_bar.start)
    for cut in range(1, 4):
        before = machine.step
        qtbot.waitUntil(lambda before=before: machine.step > before + 40, timeout=120_000)
        qtbot.waitUntil(lambda: server.cut() > 0, timeout=60_000)  # it may be reconnecting
        qtbot.waitUntil(lambda cut=cut: seen.count("remote.connection_lost") == cut, timeout=30_000)
        lost = len(seen) - seen[::-1].index("remote.connection_lost")
        qtbot.waitUntil(lambda lost=lost: "connecting" in seen[lost - 2 :], timeout=30_000)
    wait_for_state(qtbot, controller, RunState.FINISHED, 120)
    here, there = RunDir(home / "runs" / "run 一"), RunDir(far / "runs" / "run 一")
    assert here.events.read_bytes() == there.events.read_bytes()
    steps, _ = controller.active_run.record.metrics.series("train_loss")
    assert list(steps) == list(range(1, 4001))
    checkpoints = checkpoint_dir.list_checkpoints(here.checkpoints)
    assert checkpoints
    assert not any(map(checkpoint_dir.find_problem, checkpoints))
    assert Path(machine.run_dir) == here.path
    window.show_page("runs")
    qtbot.waitUntil(lambda: window.runs.model.rowCount() == 1)
    assert window.runs.model.index(0, 1).data() == f"run 一 on {HOST}"
    window.show_page("chat")
    chat, session = window.chat, window.chat.models.all_sessions[0]
    qtbot.waitUntil(lambda: chat.columns[0].checkpoint.currentText().startswith("Newest: Step 4,000"), timeout=20_000)
    chat.row.fields["max_tokens"].setValue(8)
    chat.prompt.setPlainText("def ")
    click(qtbot, chat.write)
    qtbot.waitUntil(lambda: bool(session.turns) and not session.is_busy, timeout=60_000)
    assert session.turns[-1].text


def test_a_window_that_is_closed_leaves_the_run_which_another_window_stops(
    make_window: MakeWindow, qtbot: QtBot, server: SshServer, far: Path, home: Path
) -> None:
    first = make_window(None)
    add_machine(qtbot, first, far)
    fill_form(first, 100_000, "a")
    click(qtbot, first.window.run_bar.start)
    qtbot.waitUntil(lambda: first.active_run.machine.step > 20, timeout=120_000)
    first.window.close()
    box = first.window.findChildren(QMessageBox)[-1]
    leave = box.findChild(QPushButton, "closeAndContinue")
    assert HOST in leave.text()
    click(qtbot, leave)
    first.active_run.process.kill()  # as the end of the program does
    qtbot.waitUntil(lambda: not first.active_run.process.is_running, timeout=10_000)
    there = RunDir(far / "runs" / "a")
    size = there.events.stat().st_size
    qtbot.waitUntil(lambda: there.events.stat().st_size > size, timeout=30_000)
    assert SettingsStore().load().machine is not None
    second = make_window(None)
    assert second.form.machine is not None
    qtbot.waitUntil(lambda: bool(second.window.interrupted_run_bar.isVisible()), timeout=10_000)
    click(qtbot, second.window.interrupted_run_bar.buttons["resumeInterrupted"])
    machine = second.active_run.machine
    qtbot.waitUntil(lambda: machine.state is RunState.TRAINING and machine.step > 40, timeout=60_000)
    assert second.active_run.host == HOST
    runs = second.window.runs
    second.window.show_page("runs")
    qtbot.waitUntil(lambda: runs.model.rowCount() == 1)
    runs.table.selectRow(0)
    runs.run_actions["fetch"].trigger()
    qtbot.waitUntil(lambda: runs.remote_job.is_complete, timeout=30_000)
    assert checkpoint_dir.list_checkpoints(RunDir(home / "runs" / "a").checkpoints)
    click(qtbot, second.window.run_bar.pause)
    wait_for_state(qtbot, second, RunState.PAUSED)
    click(qtbot, second.window.run_bar.stop)
    wait_for_state(qtbot, second, RunState.STOPPED, 60)
    assert RunDir(home / "runs" / "a").events.read_bytes() == there.events.read_bytes()


def test_a_machine_that_cannot_be_reached_is_not_added_and_a_removed_one_is_not_offered(
    make_window: MakeWindow, qtbot: QtBot, server: SshServer, far: Path
) -> None:
    controller = make_window()
    add_machine(qtbot, controller, far)
    dialog = open_dialog(controller)
    dialog.host.setText("host.invalid")
    click(qtbot, dialog.add)
    qtbot.waitUntil(lambda: "host.invalid" in dialog.status.text(), timeout=30_000)
    assert dialog.list.count() == 1
    dialog.list.setCurrentRow(0)
    click(qtbot, dialog.remove)
    assert dialog.list.count() == 0
    assert controller.form.machine is None
    assert controller.window.setup.machine.isHidden()
    click(qtbot, dialog.close_button)


def test_a_queued_run_keeps_its_machine(open_window: OpenWindow, qtbot: QtBot) -> None:
    controller = open_window()
    controller.form.set_machine(RemoteMachine(HOST, "~/训练"))
    enqueue(qtbot, controller, "a")
    controller.form.set_machine(None)
    assert row_texts(controller, 0)[0] == f"a on {HOST}"
    click(qtbot, controller.window.queue.start_button)
    wait_for_states(qtbot, controller, "a:done")
    assert controller.active_run.host == HOST
