"""Export page: options, progress, the verification, and other programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.controller import Controller
from app.core.export_options import ExportOptions
from app.pages.export.page import ExportPage
from app.services.export_job import ExportJob
from app.services.trainer_process import TrainerProcess
from tests.core.trainer_process import TINY, run, text_file
from tests.gui.conftest import ROOT, MakeWindow, click
from tests.gui.runs_page import add_run
from trainer_core import protocol
from trainer_core.messages import ExitCode
from trainer_core.protocol import Verification, VerificationCheck

FAILED = Verification(
    folder="out",
    format="gguf",
    dtype="q8_0",
    program="llama.cpp 1",
    passed=False,
    checks=[
        VerificationCheck(name="tokens", passed=True, compared=51, equal=51),
        VerificationCheck(
            name="template", passed=False, compared=4, equal=3, place="Hi", expected="<user> Hi", found="<user>Hi"
        ),
    ],
    limitations=["non_nfc"],
    expected_prompt="<user> Hi",
    found_prompt="<user>Hi",
)


def open_export(qtbot: QtBot, controller: Controller, folder: Path) -> ExportPage:
    folder.mkdir(exist_ok=True)
    page = controller.window.export
    controller.window.show_page("export")
    qtbot.waitUntil(lambda: page.options.choice.selected_checkpoint is not None, timeout=10_000)
    page.options.folder.setText(str(folder))
    return page


def replace_exporter(page: ExportPage, code: str) -> None:
    """Run `code` instead of the trainer; `argv` has the arguments of `export`."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom sys import argv\nfrom pathlib import Path\n{code}"
    page.job.process._command = [sys.executable, "-c", program]


def exporter_code(event: Verification, exit_code: int) -> str:
    """Writes a GGUF file and emits `event`."""
    return (
        "folder = Path(argv[3]); folder.mkdir()\n"
        "(folder / 'model.gguf').write_bytes(b'GGUF')\n"
        f"sys.stdout.buffer.write({protocol.encode(event)!r})\n"
        f"sys.exit({exit_code})\n"
    )


def test_a_failed_verification_is_displayed_with_both_prompts(
    make_window: MakeWindow, qtbot: QtBot, home: Path, tmp_path: Path
) -> None:
    add_run(home, "甲")
    page = open_export(qtbot, make_window(), tmp_path / "模型")
    replace_exporter(page, exporter_code(FAILED, ExitCode.NOT_VERIFIED))
    target = page.options.target
    assert target is not None
    assert target.name == "甲-step-00000060-q8_0"
    click(qtbot, page.start)
    qtbot.waitUntil(lambda: not page.job.is_running, timeout=20_000)
    view = page.verification
    assert page.status.text() == f"Exported to {target}"
    assert view.verdict.text() == "Not verified: llama.cpp 1 computes something else than the checkpoint."
    assert [check.name for check in view.model.rows] == ["tokens", "template"]
    cells = [view.model.index(1, column).data() for column in range(3)]
    assert cells[:2] == ["Chat template", "different"]
    assert "expected <user> Hi, found <user>Hi" in cells[2]
    assert [prompt.toPlainText() for prompt in view.prompts] == ["<user> Hi", "<user>Hi"]
    assert view.notes.text().startswith("Texts that are not in Unicode normal form C")
    next_target = page.options.target
    assert next_target is not None
    assert next_target != target  # the next export does not meet the first one


def test_only_adapters_are_exported_as_such_and_each_format_has_its_quantizations(
    make_window: MakeWindow, qtbot: QtBot, home: Path, tmp_path: Path
) -> None:
    path = add_run(home, "a")
    page = open_export(qtbot, make_window(), tmp_path / "out")
    options = page.options
    assert [options.format.itemData(n) for n in range(options.format.count())] == ["gguf", "hf"]
    options.format.setCurrentIndex(1)
    options.format.activated.emit(1)
    assert options.options == ExportOptions("hf", "")
    (path / "checkpoints" / "step-00000060" / "adapter_model.safetensors").write_bytes(b"\0")
    options.choice.select(path, None)
    assert [options.format.itemData(n) for n in range(options.format.count())] == ["gguf", "hf", "peft"]
    assert options.options == ExportOptions("hf", "")  # stays selected
    options.folder.setText("missing")
    assert not page.start.isEnabled()


def test_a_stop_ends_the_export_and_nothing_is_offered(
    make_window: MakeWindow, qtbot: QtBot, home: Path, tmp_path: Path
) -> None:
    add_run(home, "a")
    page = open_export(qtbot, make_window(), tmp_path / "out")
    replace_exporter(page, f"sys.stdin.readline(); sys.exit({ExitCode.STOPPED:d})")
    click(qtbot, page.start)
    click(qtbot, page.stop)
    assert page.status.text() == "stopping"
    qtbot.waitUntil(lambda: page.minimumSizeHint().width() <= 598)  # of the page in the narrowest window
    qtbot.waitUntil(lambda: not page.job.is_running, timeout=20_000)
    assert page.status.text() == "Stopped. Nothing was written."
    assert not page.programs.open_folder.isEnabled()
    assert page.window().focusWidget() is page.start


def test_exporting_a_damaged_checkpoint_shows_an_error(
    make_window: MakeWindow, qtbot: QtBot, home: Path, tmp_path: Path
) -> None:
    add_run(home, "a")
    page = open_export(qtbot, make_window(), tmp_path / "out")
    page.options.format.setCurrentIndex(1)
    page.options.format.activated.emit(1)
    click(qtbot, page.start)
    qtbot.waitUntil(lambda: not page.job.is_running, timeout=60_000)
    assert "is damaged" in page.status.text()
    assert not list((tmp_path / "out").iterdir())


def test_a_model_is_added_to_lm_studio_and_ollama(
    make_window: MakeWindow, qtbot: QtBot, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, programs = tmp_path / "user", tmp_path / "programs"
    monkeypatch.setattr(Path, "home", lambda: user)
    monkeypatch.setenv("PATH", str(programs))
    add_run(home, "a")
    page = open_export(qtbot, make_window(), tmp_path / "out")
    replace_exporter(page, exporter_code(FAILED, 0))
    click(qtbot, page.start)
    qtbot.waitUntil(lambda: page.job.target is not None and not page.job.is_running, timeout=20_000)
    buttons = page.programs
    assert not buttons.lm_studio.isEnabled()
    assert "LM Studio's folder of models was not found" in buttons.lm_studio.toolTip()
    assert buttons.ollama.toolTip() == "Ollama is not installed, or not in PATH"
    (user / ".lmstudio" / "models").mkdir(parents=True)
    programs.mkdir()
    if os.name == "posix":
        (programs / "ollama").write_text('#!/bin/sh\necho "$@" > called\n', encoding="utf-8")
        (programs / "ollama").chmod(0o755)
    buttons.retranslate()
    click(qtbot, buttons.lm_studio)
    added = user / ".lmstudio" / "models" / "traindeck" / "a-step-00000060-q8_0" / "model.gguf"
    qtbot.waitUntil(lambda: page.status.text() == f"Added to LM Studio: {added}", timeout=10_000)
    assert added.read_bytes() == b"GGUF"
    if os.name == "posix":
        click(qtbot, buttons.ollama)
        qtbot.waitUntil(lambda: "ollama run a-step-00000060-q8_0" in page.status.text(), timeout=10_000)
        target = page.job.target
        assert target is not None
        assert (target / "called").read_text().split() == ["create", "a-step-00000060-q8_0", "-f", "Modelfile"]


@pytest.mark.skipif(os.name != "posix", reason="the program is a shell script")
def test_a_model_is_added_to_ollama_during_the_next_export(
    make_window: MakeWindow, qtbot: QtBot, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "programs" / "ollama"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nwhile [ ! -e release ]; do sleep 0.05; done\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    add_run(home, "a")
    page = open_export(qtbot, make_window(), tmp_path / "out")
    replace_exporter(page, exporter_code(FAILED, 0))
    click(qtbot, page.start)
    qtbot.waitUntil(lambda: page.job.target is not None and not page.job.is_running, timeout=20_000)
    target, messages = page.job.target, list[tuple[str, str]]()
    assert target is not None
    page.programs.message_ready.connect(lambda text, level: messages.append((text, level)))
    click(qtbot, page.programs.ollama)
    replace_exporter(page, "sys.stdin.readline()")
    click(qtbot, page.start)
    assert page.job.is_running
    (target / "release").touch()
    qtbot.waitUntil(lambda: len(messages) == 2, timeout=10_000)
    text, level = messages[1]
    assert "ollama run a-step-00000060-q8_0" in text
    assert level == ""


def test_closing_the_window_waits_for_the_export_to_clean_up(qtbot: QtBot, tmp_path: Path) -> None:
    partial = tmp_path / ".out.exporting-1"
    program = (
        "import pathlib, sys, time\n"
        f"partial = pathlib.Path({str(partial)!r})\n"
        "partial.mkdir()\n"
        "sys.stdin.read()\n"
        "time.sleep(0.5)\n"
        "partial.rmdir()\n"
    )
    job = ExportJob(TrainerProcess(command=[sys.executable, "-c", program]))
    job.start(tmp_path / "run" / "checkpoints" / "step-00000001", tmp_path / "out", ExportOptions())
    qtbot.waitUntil(partial.is_dir, timeout=20_000)
    job.shutdown()
    assert not partial.exists()


def test_a_real_checkpoint_is_exported_and_verified(
    make_window: MakeWindow, qtbot: QtBot, home: Path, tmp_path: Path
) -> None:
    pytest.importorskip("xllamacpp")
    home.mkdir(parents=True, exist_ok=True)
    flags = (*TINY, "--max-steps", "2", "--eval-steps", "0", "--sample-steps", "0")
    data = ("--data", str(text_file(home)), "--run-dir", str(home / "runs" / "真 run"))
    assert run(home, "train", *flags, *data).code == 0
    page = open_export(qtbot, make_window(), tmp_path / "模型 export")
    qtbot.waitUntil(lambda: page.options.size_label.text().startswith("about"), timeout=10_000)
    click(qtbot, page.start)
    qtbot.waitUntil(lambda: not page.job.is_running, timeout=180_000)
    assert page.job.failure == ""
    assert page.verification.verdict.text().startswith("Verified: llama.cpp")
    assert page.job.target is not None
    assert list(page.job.target.glob("*.gguf"))
