"""`generate --control stdin`: generation on command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.core.trainer_process import TINY, environment, finish, read_until, run, start, text_file
from trainer_core import protocol
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir

ENDLESS = 1_000_000
QUICK = (*TINY, "--max-steps", "2", "--eval-steps", "0", "--sample-steps", "0", "--save-steps", "1", "--keep-last", "3")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained runs: `text`, with the checkpoints of two steps, and `chat`."""
    folder = tmp_path_factory.mktemp("家 home")
    rows = ({"prompt": f"{n} 加 1？", "response": f"{n + 1}。"} for n in range(200))
    pairs = folder / "问答.jsonl"
    pairs.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    for name, data in (("text", text_file(folder)), ("chat", pairs)):
        result = run(folder, "train", *QUICK, "--data", str(data), "--run-dir", str(folder / "runs" / name))
        assert result.code == 0, result.stderr
    return folder


class Server:
    """A generation server process."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.process = start(
            home, "generate", *arguments, "--device", "cpu", "--control", "stdin", stdin=subprocess.PIPE
        )

    def send(self, command: protocol.AnyCommand | bytes) -> None:
        assert self.process.stdin is not None
        line = command if isinstance(command, bytes) else protocol.encode(command)
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def read_until(self, kind: type, **fields: object) -> list[protocol.AnyEvent]:
        def is_last(event: protocol.AnyEvent) -> bool:
            return isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())

        events = read_until(self.process, is_last)
        assert events, "the server exited"
        assert is_last(events[-1]), events
        return events

    def read_text(self, number: int) -> tuple[str, protocol.GenerationDone]:
        events = self.read_until(protocol.GenerationDone, id=number)
        text = "".join(
            event.piece for event in events if isinstance(event, protocol.GeneratedPiece) and event.id == number
        )
        assert isinstance(events[-1], protocol.GenerationDone)
        return text, events[-1]


@pytest.fixture
def serve(home: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start_server(*arguments: str) -> Server:
        servers.append(Server(home, *arguments))
        return servers[-1]

    yield start_server
    for server in servers:
        server.process.kill()
        server.process.communicate()


def generate_in_terminal(home: Path, model: str, prompt: str, *flags: str) -> str:
    command = [sys.executable, "-X", "utf8", "-m", "trainer_core", "generate", model, "--prompt", prompt, *flags]
    process = subprocess.run(command, env=environment(home), capture_output=True, check=True, cwd=home)
    return process.stdout.decode("utf-8").replace(os.linesep, "\n").removesuffix("\n")


def test_the_text_equals_that_of_the_terminal_for_the_same_seed(home: Path, serve: Callable[..., Server]) -> None:
    server = serve("text")
    (loaded,) = server.read_until(protocol.ModelLoaded)
    checkpoints = checkpoint_dir.list_checkpoints(RunDir(home / "runs" / "text").checkpoints)
    assert isinstance(loaded, protocol.ModelLoaded)
    assert (loaded.checkpoint, loaded.step, loaded.chat) == (str(checkpoints[-1]), 2, False)
    assert loaded.max_seq_len == 32
    server.send(protocol.Generate(id=1, prompt="Line 第", max_tokens=70, top_k=50, seed=11))
    text, done = server.read_text(1)
    assert (done.tokens, done.reason) == (70, "length")  # longer than the context window
    assert done.prompt_tokens > 0
    flags = ("--max-tokens", "70", "--top-k", "50", "--seed", "11", "--device", "cpu")
    assert f"Line 第{text}" == generate_in_terminal(home, "text", "Line 第", *flags)
    server.send(protocol.Generate(id=2, prompt="Line 第", max_tokens=70, top_k=50, seed=11))
    assert server.read_text(2)[0] == text
    server.send(protocol.Generate(id=3, prompt="Line 第", max_tokens=70, top_k=50, seed=12))
    assert server.read_text(3)[0] != text


def test_an_interrupt_ends_active_and_queued_requests(serve: Callable[..., Server]) -> None:
    server = serve("text")
    server.send(protocol.Generate(id=1, prompt="a", max_tokens=ENDLESS))  # before the model is loaded
    server.send(protocol.Generate(id=2, prompt="b", max_tokens=ENDLESS))
    server.read_until(protocol.GeneratedPiece, id=1)
    server.send(protocol.Interrupt(id=3))
    server.read_until(protocol.Ack, id=3)
    events = server.read_until(protocol.GenerationDone, id=1)
    assert isinstance(done := events[-1], protocol.GenerationDone)
    assert done.reason == "interrupted"
    assert len(events) <= 2  # at most one queued piece and the end
    text, done = server.read_text(2)
    assert (text, done.tokens, done.reason) == ("", 0, "interrupted")
    server.send(protocol.Generate(id=4, prompt="c", max_tokens=3))
    assert server.read_text(4)[1].reason in ("length", "end")


def leaves_processors_to_others(pid: int) -> bool:
    if sys.platform != "linux":
        return psutil.Process(pid).nice() != psutil.Process().nice()
    threads = [int(thread.name) for thread in Path(f"/proc/{pid}/task").iterdir()]
    return all(os.sched_getscheduler(thread) == os.SCHED_IDLE for thread in threads)


def test_a_conversation_continues_with_its_turns(home: Path, serve: Callable[..., Server]) -> None:
    server = serve(str(home / "runs" / "chat"))
    (loaded,) = server.read_until(protocol.ModelLoaded)
    assert isinstance(loaded, protocol.ModelLoaded)
    assert loaded.chat
    assert leaves_processors_to_others(server.process.pid)  # training goes first
    server.send(protocol.Generate(id=1, prompt="1 加 1？", max_tokens=5, seed=1))
    first_text, first_done = server.read_text(1)
    user = protocol.Turn(role="user", content="1 加 1？")
    server.send(protocol.Generate(id=2, turns=[user], max_tokens=5, seed=1))
    second_text, second_done = server.read_text(2)
    assert (second_text, second_done.prompt_tokens) == (first_text, first_done.prompt_tokens)
    turns = [user, protocol.Turn(role="assistant", content="2。"), protocol.Turn(role="user", content="和 3？")]
    server.send(protocol.Generate(id=3, turns=turns, max_tokens=5, seed=1))
    assert server.read_text(3)[1].prompt_tokens > first_done.prompt_tokens


def test_an_invalid_request_is_reported_and_the_next_processed(serve: Callable[..., Server]) -> None:
    server = serve("text")
    server.read_until(protocol.ModelLoaded)
    server.send(protocol.Generate(id=1, prompt="a", top_p=0.0))
    ack = server.read_until(protocol.Ack, id=1)[-1]
    assert isinstance(ack, protocol.Ack)
    assert (ack.accepted, ack.reason) == (False, "top_p must be > 0, <= 1")
    server.send(b'{"command":"generate","id":2,"prompt":3}\n')
    server.read_until(protocol.Warn, code="command.unknown")
    server.send(protocol.Generate(id=3, turns=[protocol.Turn(role="user", content="a")]))
    server.read_until(protocol.Warn, code="data.chat_refused")
    assert server.read_text(3)[1].reason == "failed"
    server.send(protocol.Generate(id=4, prompt="a", max_tokens=2, temperature=0))
    assert server.read_text(4)[1].tokens <= 2


@pytest.mark.parametrize("cause", ["stop", "end of input"])
def test_stop_and_end_of_input_end_the_process_during_generation(serve: Callable[..., Server], cause: str) -> None:
    server = serve("text")
    server.send(protocol.Generate(id=1, prompt="a", max_tokens=ENDLESS))
    server.read_until(protocol.GeneratedPiece)
    if cause == "stop":
        server.send(protocol.Stop())
    assert finish(server.process).code == 0  # closes the input, too


def test_generation_continues_after_its_checkpoint_was_removed(home: Path, serve: Callable[..., Server]) -> None:
    older = checkpoint_dir.list_checkpoints(RunDir(home / "runs" / "text").checkpoints)[0]
    server = serve(str(older))
    server.read_until(protocol.ModelLoaded, step=1)
    moved = older.with_name("away")
    older.rename(moved)
    try:
        server.send(protocol.Generate(id=1, prompt="a", max_tokens=4))
        assert server.read_text(1)[1].tokens <= 4
    finally:
        moved.rename(older)


def test_a_model_that_cannot_be_loaded_is_reported_with_a_code(home: Path, serve: Callable[..., Server]) -> None:
    serve("missing").read_until(protocol.Error, code="base_model.not_found", exit_code=2)
    damaged = checkpoint_dir.list_checkpoints(RunDir(home / "runs" / "chat").checkpoints)[0]
    weights = damaged / "model.safetensors"
    *content, last_byte = weights.read_bytes()
    weights.write_bytes(bytes((*content, last_byte ^ 1)))
    serve(str(damaged)).read_until(protocol.Error, code="checkpoint.damaged", exit_code=1)


@pytest.mark.parametrize("name", ["text", "chat"])
def test_an_exported_folder_generates_the_text_of_its_checkpoint(
    home: Path, serve: Callable[..., Server], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "导出 out"
    assert run(home, "export", name, str(folder)).code == 0
    texts = []
    for model in (name, str(folder)):
        server = serve(model)
        (loaded,) = server.read_until(protocol.ModelLoaded, chat=name == "chat", max_seq_len=32)
        server.send(protocol.Generate(id=1, prompt="第 1", max_tokens=20, seed=3))
        texts.append(server.read_text(1)[0])
    assert isinstance(loaded, protocol.ModelLoaded)
    assert (Path(loaded.checkpoint), loaded.step) == (folder, 0)
    assert texts[0] == texts[1] != ""


def test_a_run_without_a_base_model_has_none_to_compare_with(serve: Callable[..., Server]) -> None:
    serve("text", "--base").read_until(protocol.Error, code="base_model.none", exit_code=2)


def test_a_command_chooses_between_an_answer_and_a_continued_text(serve: Callable[..., Server]) -> None:
    server = serve("chat")
    prompts = {}
    for number, chat in enumerate((None, True, False)):
        server.send(protocol.Generate(id=number, prompt="1 加 1？", max_tokens=4, chat=chat))
        prompts[chat] = server.read_text(number)[1].prompt_tokens
    assert prompts[None] == prompts[True] > prompts[False]  # without the chat template
    server.send(protocol.Generate(id=9, turns=[protocol.Turn(role="user", content="?")], chat=False))
    server.read_until(protocol.Warn, code="data.chat_refused")


def test_json_output_without_commands_generates_one_text(home: Path) -> None:
    result = run(
        home, "generate", "text", "--prompt", "Line", "--max-tokens", "6", "--device", "cpu", "--output", "json"
    )
    assert result.code == 0
    assert [type(event) for event in result.events if not isinstance(event, protocol.GeneratedPiece)] == [
        protocol.ModelLoaded,
        protocol.GenerationDone,
    ]
    text = "".join(event.piece for event in result.events_of(protocol.GeneratedPiece))
    assert f"Line{text}" == generate_in_terminal(home, "text", "Line", "--max-tokens", "6", "--device", "cpu")
