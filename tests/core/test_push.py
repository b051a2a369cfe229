"""Command `push`: uploads the listed files, and only after confirmation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.core.trainer_process import environment, run
from tests.hub_upload_server import PART_BYTES, UploadHub, serve_uploads
from trainer_core import protocol
from trainer_core.export.push import prepare, upload
from trainer_core.messages import ExitCode, TraindeckError, format_message
from trainer_core.progress import NullReporter, StopRequested, Unit
from trainer_core.protocol import HubUpload, PhaseName

VERIFICATION = protocol.Verification(folder="out", format="gguf", dtype="q8_0", program="llama.cpp 1", passed=True)


@pytest.fixture(autouse=True)
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))  # of processes


@pytest.fixture
def server() -> Iterator[UploadHub]:
    with serve_uploads() as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of a GGUF export, and files that are not its own."""
    folder = tmp_path / "我的 my..model"
    (folder / "notes").mkdir(parents=True)
    (folder / "README.md").write_text("---\nlibrary_name: gguf\n---\n# 模型\n", encoding="utf-8")
    (folder / "Modelfile").write_text("FROM ./model.gguf\n", encoding="utf-8")
    (folder / "model.gguf").write_bytes(bytes(range(256)) * 1024)  # sent in parts
    (folder / "adapter.safetensors").write_bytes(b"\1" * 999)
    (folder / "verification.json").write_bytes(protocol.encode(VERIFICATION))
    for name in (".env", "notes/private.txt"):
        (folder / name).write_text("secret", encoding="utf-8")
    return folder


EXPORTED = ["Modelfile", "README.md", "adapter.safetensors", "model.gguf", "verification.json"]


def push(server: UploadHub, folder: Path, repository: str = "", public: bool = False) -> HubUpload:
    prepared = prepare(folder, repository, public, False, NullReporter(), server.endpoint, send_token=True)
    return upload(prepared, NullReporter())


def flags(server: UploadHub, folder: Path) -> tuple[str, ...]:
    return ("push", str(folder), "--hub-endpoint", server.endpoint, "--hub-send-token")


def contents(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in EXPORTED}


def refusal(server: UploadHub, folder: Path, repository: str = "", send_token: bool = True) -> str:
    """Code of the error; its sentences are complete in both languages."""
    with pytest.raises(TraindeckError) as caught:
        upload(prepare(folder, repository, False, False, NullReporter(), server.endpoint, send_token), NullReporter())
    for language in ("en", "zh"):
        assert "?" not in format_message(caught.value.code, caught.value.params, language)  # type: ignore[arg-type]
    assert "hf_secret" not in str(caught.value)
    return caught.value.code


def test_the_listed_files_arrive_in_a_new_private_repository(server: UploadHub, folder: Path) -> None:
    prepared = prepare(folder, "", False, False, NullReporter(), server.endpoint, send_token=True)
    plan = prepared.plan
    assert not server.writes
    assert (plan.account, plan.repository, plan.private, plan.exists) == ("wang", "wang/my-model", True, False)
    assert [file.name for file in plan.files] == EXPORTED
    assert {file.name: file.bytes for file in plan.files} == {n: len(c) for n, c in contents(folder).items()}
    assert upload(prepared, NullReporter()).url == f"{server.endpoint}/wang/my-model"
    assert server.models == {"wang/my-model": contents(folder)}
    assert server.public == {"wang/my-model": False}
    assert len(server.paths("/upload/")) == 1 + -(-(folder / "model.gguf").stat().st_size // PART_BYTES)
    assert len(server.paths("/commit/")) == 1
    sent = [headers for _, path, headers in server.requests if path.startswith(("/upload/", "/complete/"))]
    assert not any("authorization" in headers for headers in sent)  # another origin


def test_nothing_is_uploaded_without_a_confirmation(server: UploadHub, folder: Path) -> None:
    result = run(folder.parent, *flags(server, folder))
    assert (result.code, result.error.code) == (ExitCode.USAGE, "push.not_confirmed")
    assert len(result.events_of(HubUpload)) == 1  # listed
    assert not server.writes


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudoterminal")
@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", ExitCode.USAGE), (b"\3", ExitCode.USAGE)])
def test_the_terminal_asks_after_it_has_listed_the_files(
    server: UploadHub, folder: Path, answer: bytes, code: int
) -> None:
    import pty

    terminal, child = pty.openpty()
    command = [sys.executable, "-m", "trainer_core", *flags(server, folder)]
    shown = b""
    with subprocess.Popen(
        command, stdin=child, stdout=child, stderr=child, env=environment(folder.parent), start_new_session=True,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # its controlling terminal, for Ctrl+C
    ) as process:  # fmt: skip
        os.close(child)
        while b"Upload these files?" not in shown:
            shown += os.read(terminal, 4096)
        assert b"model.gguf" in shown
        assert not server.writes
        time.sleep(0.5)  # a Ctrl+C before the process waits for input would be lost
        os.write(terminal, answer)
        while process.poll() is None:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # closed
                break
    os.close(terminal)
    assert process.returncode == code
    assert bool(server.models) == (code == 0)


def test_an_unverified_or_different_export_is_refused(server: UploadHub, folder: Path) -> None:
    result = folder / "verification.json"
    result.write_bytes(protocol.encode(msgspec.structs.replace(VERIFICATION, passed=False)))
    assert refusal(server, folder) == "push.different"
    result.write_bytes(b"{}")
    assert refusal(server, folder) == "push.not_verified"
    result.unlink()
    assert refusal(server, folder) == "push.not_verified"
    assert not server.requests
    prepared = prepare(folder, "", False, True, NullReporter(), server.endpoint, send_token=True)
    upload(prepared, NullReporter())
    assert list(server.models) == ["wang/my-model"]
    (folder / "README.md").unlink()
    assert refusal(server, folder) == "push.no_export"
    assert refusal(server, folder / "missing") == "push.no_export"


def test_a_repository_that_exists_keeps_its_other_files_and_its_visibility(server: UploadHub, folder: Path) -> None:
    server.models["wang/m"], server.public["wang/m"] = {"other.txt": b"1", "README.md": b"old"}, True
    assert refusal(server, folder, "m") == "push.public"
    assert not server.writes
    assert not push(server, folder, "wang/m", public=True).private
    assert server.models["wang/m"] == {"other.txt": b"1", **contents(folder)}
    server.public["wang/m"] = False
    assert push(server, folder, "wang/m", public=True).private


def test_what_the_hub_refuses_is_said(server: UploadHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(server, folder, "a..b") == "push.bad_name"
    server.refused = {"/repos/create": 403}
    assert refusal(server, folder) == "push.forbidden"
    server.refused = {"/upload/": 403}
    assert refusal(server, folder) == "push.forbidden"
    server.refused = {"/commit/": 400}
    assert refusal(server, folder) == "push.failed"
    server.refused.clear()
    (folder / "README.md").write_text("no metadata", encoding="utf-8")
    assert refusal(server, folder) == "push.failed"
    assert server.models == {"wang/my-model": {}}  # created, without a commit
    server.accounts.clear()
    assert refusal(server, folder) == "push.no_login"
    server.endpoint = "http://127.0.0.1:9"
    assert refusal(server, folder) == "push.failed"
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "no token"))
    assert refusal(server, folder) == "push.no_login"


def test_no_mirror_gets_the_token_without_consent(server: UploadHub, folder: Path) -> None:
    assert refusal(server, folder, send_token=False) == "push.mirror"
    assert not server.requests


class Stopper(NullReporter):
    """Stops once content is being sent."""

    def __init__(self) -> None:
        self.sent, self.stopped = 0.0, 0.0

    def progress(self, phase: PhaseName, done: float, total: float | None, unit: Unit) -> None:
        self.sent = done

    def poll(self) -> None:
        if self.sent:
            self.stopped = time.monotonic()
            raise StopRequested


def test_a_stopped_upload_leaves_no_commit(server: UploadHub, folder: Path) -> None:
    server.holds_content = True
    stopper = Stopper()
    with pytest.raises(StopRequested):
        upload(prepare(folder, "", False, False, NullReporter(), server.endpoint, send_token=True), stopper)
    assert time.monotonic() - stopper.stopped < 1
    server.released.set()
    for thread in threading.enumerate():
        if thread.name == "download":
            thread.join(20)
            assert not thread.is_alive()
    assert server.models == {"wang/my-model": {}}
    assert not server.paths("/commit/")
