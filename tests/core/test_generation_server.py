"""A model that writes on command: the same text as in a terminal, interrupted at once, never lost by a bad command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.core.trainer import TINY, environment, finish, read_until, run, start, text_file
from trainer_core import protocol
from trainer_core.runs import checkpoint_dir
from trainer_core.runs.run_dir import RunDir

FOREVER = 1_000_000
QUICK = (*TINY, "--max-steps", "2", "--eval-steps", "0", "--sample-steps", "0", "--save-steps", "1", "--keep-last", "3")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained runs: `text`, with the checkpoints of two steps, and `chat`."""
    folder = tmp_path_factory.mktemp("家 home")
    rows = ({"prompt": f"{n} 加 1？", "response": f"{n + 1}。"} for n in range(200))
    pairs = folder / "问答.jsonl"
    pairs.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    for name, data in (("text", text_file(folder)), ("chat", pairs)):
        ended = run(folder, "train", *QUICK, "--data", str(data), "--run-dir", str(folder / "runs" / name))
        assert ended.code == 0, ended.stderr
    return folder


class Service:
    """A writing trainer, asked and read in turn."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.process = start(
            home, "generate", *arguments, "--device", "cpu", "--control", "stdin", stdin=subprocess.PIPE
        )

    def send(self, command: protocol.AnyCommand | bytes) -> None:
        assert self.process.stdin is not None
        line = command if isinstance(command, bytes) else protocol.encode(command)
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def until(self, kind: type, **fields: object) -> list[protocol.AnyEvent]:
        def last(event: protocol.AnyEvent) -> bool:
            return isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())

        seen = read_until(self.process, last)
        assert seen, "it ended"
        assert last(seen[-1]), seen
        return seen

    def written(self, number: int) -> tuple[str, protocol.GenerationDone]:
        seen = self.until(protocol.GenerationDone, id=number)
        text = "".join(
            event.piece for event in seen if isinstance(event, protocol.GeneratedPiece) and event.id == number
        )
        assert isinstance(seen[-1], protocol.GenerationDone)
        return text, seen[-1]


@pytest.fixture
def serve(home: Path) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def make(*arguments: str) -> Service:
        made.append(Service(home, *arguments))
        return made[-1]

    yield make
    for service in made:
        service.process.kill()
        service.process.communicate()


def in_terminal(home: Path, model: str, prompt: str, *flags: str) -> str:
    command = [sys.executable, "-X", "utf8", "-m", "trainer_core", "generate", model, "--prompt", prompt, *flags]
    done = subprocess.run(command, env=environment(home), capture_output=True, check=True, cwd=home)
    return done.stdout.decode("utf-8").replace(os.linesep, "\n").removesuffix("\n")


def test_the_pieces_make_up_what_a_terminal_shows_for_the_same_seed(home: Path, serve: Callable[..., Service]) -> None:
    service = serve("text")
    (loaded,) = service.until(protocol.ModelLoaded)
    checkpoints = checkpoint_dir.list_checkpoints(RunDir(home / "runs" / "text").checkpoints)
    assert isinstance(loaded, protocol.ModelLoaded)
    assert (loaded.checkpoint, loaded.step, loaded.chat) == (str(checkpoints[-1]), 2, False)
    assert loaded.max_seq_len == 32
    service.send(protocol.Generate(id=1, prompt="Line 第", max_tokens=70, top_k=50, seed=11))
    text, over = service.written(1)
    assert (over.tokens, over.reason) == (70, "length")  # more than the window holds
    assert over.prompt_tokens > 0
    flags = ("--max-tokens", "70", "--top-k", "50", "--seed", "11", "--device", "cpu")
    assert f"Line 第{text}" == in_terminal(home, "text", "Line 第", *flags)
    service.send(protocol.Generate(id=2, prompt="Line 第", max_tokens=70, top_k=50, seed=11))
    assert service.written(2)[0] == text
    service.send(protocol.Generate(id=3, prompt="Line 第", max_tokens=70, top_k=50, seed=12))
    assert service.written(3)[0] != text


def test_an_interrupt_ends_the_text_and_what_waits_and_keeps_the_process(serve: Callable[..., Service]) -> None:
    service = serve("text")
    service.send(protocol.Generate(id=1, prompt="a", max_tokens=FOREVER))  # before the model is there
    service.send(protocol.Generate(id=2, prompt="b", max_tokens=FOREVER))
    service.until(protocol.GeneratedPiece, id=1)
    service.send(protocol.Interrupt(id=3))
    service.until(protocol.Ack, id=3)
    later = service.until(protocol.GenerationDone, id=1)
    assert isinstance(over := later[-1], protocol.GenerationDone)
    assert over.reason == "interrupted"
    assert len(later) <= 2  # the piece that waited, and the end: no token after the interrupt was heard
    text, over = service.written(2)
    assert (text, over.tokens, over.reason) == ("", 0, "interrupted")
    service.send(protocol.Generate(id=4, prompt="c", max_tokens=3))
    assert service.written(4)[1].reason in ("length", "end")


def test_a_conversation_goes_on_with_its_turns(home: Path, serve: Callable[..., Service]) -> None:
    service = serve(str(home / "runs" / "chat"))
    (loaded,) = service.until(protocol.ModelLoaded)
    assert isinstance(loaded, protocol.ModelLoaded)
    assert loaded.chat
    service.send(protocol.Generate(id=1, prompt="1 加 1？", max_tokens=5, seed=1))
    first, one = service.written(1)
    user = protocol.Turn(role="user", content="1 加 1？")
    service.send(protocol.Generate(id=2, turns=[user], max_tokens=5, seed=1))
    same, two = service.written(2)
    assert (same, two.prompt_tokens) == (first, one.prompt_tokens)
    turns = [user, protocol.Turn(role="assistant", content="2。"), protocol.Turn(role="user", content="和 3？")]
    service.send(protocol.Generate(id=3, turns=turns, max_tokens=5, seed=1))
    assert service.written(3)[1].prompt_tokens > one.prompt_tokens


def test_what_cannot_be_written_is_told_and_the_next_is_written(serve: Callable[..., Service]) -> None:
    service = serve("text")
    service.until(protocol.ModelLoaded)
    service.send(protocol.Generate(id=1, prompt="a", top_p=0.0))
    refused = service.until(protocol.Ack, id=1)[-1]
    assert isinstance(refused, protocol.Ack)
    assert (refused.accepted, refused.reason) == (False, "top_p must be > 0, <= 1")
    service.send(b'{"command":"generate","id":2,"prompt":3}\n')
    service.until(protocol.Warn, code="command.unknown")
    service.send(protocol.Generate(id=3, turns=[protocol.Turn(role="user", content="a")]))
    service.until(protocol.Warn, code="data.chat_refused")
    assert service.written(3)[1].reason == "failed"
    service.send(protocol.Generate(id=4, prompt="a", max_tokens=2, temperature=0))
    assert service.written(4)[1].tokens <= 2


@pytest.mark.parametrize("how", ["stop", "end of input"])
def test_a_stop_and_the_end_of_input_end_it_in_the_middle_of_a_text(serve: Callable[..., Service], how: str) -> None:
    service = serve("text")
    service.send(protocol.Generate(id=1, prompt="a", max_tokens=FOREVER))
    service.until(protocol.GeneratedPiece)
    if how == "stop":
        service.send(protocol.Stop())
    assert finish(service.process).code == 0  # closes the input, too


def test_a_checkpoint_that_goes_while_it_is_in_use_goes_on_writing(home: Path, serve: Callable[..., Service]) -> None:
    older = checkpoint_dir.list_checkpoints(RunDir(home / "runs" / "text").checkpoints)[0]
    service = serve(str(older))
    service.until(protocol.ModelLoaded, step=1)
    away = older.with_name("away")
    older.rename(away)
    try:
        service.send(protocol.Generate(id=1, prompt="a", max_tokens=4))
        assert service.written(1)[1].tokens <= 4
    finally:
        away.rename(older)


def test_a_model_that_cannot_be_loaded_is_told_by_code(home: Path, serve: Callable[..., Service]) -> None:
    serve("nobody").until(protocol.Error, code="run.not_found", exit_code=2)
    damaged = checkpoint_dir.list_checkpoints(RunDir(home / "runs" / "chat").checkpoints)[0]
    weights = damaged / "model.safetensors"
    *content, last = weights.read_bytes()
    weights.write_bytes(bytes((*content, last ^ 1)))
    serve(str(damaged)).until(protocol.Error, code="checkpoint.damaged", exit_code=1)


def test_json_without_commands_is_one_text(home: Path) -> None:
    ended = run(
        home, "generate", "text", "--prompt", "Line", "--max-tokens", "6", "--device", "cpu", "--output", "json"
    )
    assert ended.code == 0
    assert [type(event) for event in ended.events if not isinstance(event, protocol.GeneratedPiece)] == [
        protocol.ModelLoaded,
        protocol.GenerationDone,
    ]
    text = "".join(event.piece for event in ended.of(protocol.GeneratedPiece))
    assert f"Line{text}" == in_terminal(home, "text", "Line", "--max-tokens", "6", "--device", "cpu")
