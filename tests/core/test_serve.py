"""`serve`: OpenAI's API, with the real client."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import openai
import psutil
import pytest
import torch

from tests.core.test_fine_tuning import base_folder
from tests.core.trainer_process import environment
from tests.recording_sink import RecordingSink
from trainer_core import protocol
from trainer_core.generation import generate, http_server
from trainer_core.generation.generate import SamplingParams
from trainer_core.run_context import RunContext
from trainer_core.wire import EventDispatcher

KEY = "secret"
CONTEXT = 8192  # the random model rarely ends a text, so it writes for long
MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好，why?"}]


class Server:
    """A `serve` process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainer_core", "serve", str(folder), "--device", "cpu", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment(folder), "OMP_NUM_THREADS": "1"},
            cwd=folder.parent,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout.readline().decode("utf-8")

    @property
    def url(self) -> str:
        return next(word for word in self.output.split() if word.startswith("http://")).rstrip(".")

    @property
    def port(self) -> int:
        return int(self.url.removesuffix("/v1").rpartition(":")[2])

    def client(self, key: str = KEY) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=60)

    def close(self) -> int:
        """Ends with the end of its input."""
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"max_position_embeddings": CONTEXT}
    return base_folder(tmp_path_factory.mktemp("家 home") / "模型 model", spare_rows=0, shape=shape)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    server = Server(folder, "--port", "0", "--api-key", KEY, "--control", "stdin")
    yield server
    assert server.close() == 0


def greedy_answer(folder: Path, tokens: int) -> tuple[str, int]:
    """Text and number of prompt tokens, as `generate` computes them."""
    model, codec, chat = generate.load_model(folder, torch.device("cpu"))
    turns = [(turn["role"], turn["content"]) for turn in MESSAGES]
    pieces = generate.generate_text(model, codec, turns, tokens, SamplingParams(temperature=0), chat)
    return "".join(pieces), len(generate.prompt_ids(codec, turns, chat))


def chat(server: Server, **options: Any) -> Any:
    return server.client().chat.completions.create(model="any", messages=MESSAGES, **options)


def test_a_chat_has_the_answer_of_generate_and_counts_its_tokens(server: Server, folder: Path) -> None:
    text, prompt_tokens = greedy_answer(folder, 24)
    answer = chat(server, temperature=0, max_tokens=24)
    assert answer.choices[0].message.role == "assistant"
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == (text, "length")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt_tokens, 24)
    assert answer.usage.total_tokens == prompt_tokens + 24
    assert [model.id for model in server.client().models.list()] == [folder.name] == [answer.model]


def test_a_stream_has_the_same_text_for_the_same_seed(server: Server) -> None:
    options = {"seed": 1, "top_p": 0.9, "max_completion_tokens": 30}
    whole = chat(server, **options)
    chunks = list(chat(server, stream=True, stream_options={"include_usage": True}, **options))
    *pieces, usage = chunks
    assert "".join(piece.choices[0].delta.content for piece in pieces) == whole.choices[0].message.content
    assert [piece.choices[0].finish_reason for piece in pieces][-2:] == [None, "length"]
    assert pieces[0].choices[0].delta.role == "assistant"
    assert (usage.choices, usage.usage) == ([], whole.usage)
    assert chat(server, **{**options, "seed": 2}).choices[0].message.content != whole.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_and_is_left_out(server: Server, folder: Path, stream: bool) -> None:
    text, _ = greedy_answer(folder, 40)
    stop = text[15:20]  # of several tokens
    answer = chat(server, temperature=0, max_tokens=40, stop=["never", stop], stream=stream)
    choices = [piece.choices[0] for piece in answer] if stream else [answer.choices[0]]
    found = "".join((choice.delta if stream else choice.message).content for choice in choices)
    assert found == text[: text.index(stop)]
    assert choices[-1].finish_reason == "stop"


def test_completions_continue_several_prompts_several_times(server: Server) -> None:
    options: Any = {"model": "any", "max_tokens": 8, "seed": 1}
    answer = server.client().completions.create(prompt=["The quick", "床前"], n=2, **options)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.text for choice in answer.choices}) == 4
    single = server.client().completions.create(prompt="The quick", **options)
    assert single.choices[0].text == answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 32


def test_requests_at_the_same_time_have_the_answers_that_they_have_alone(server: Server) -> None:
    limits = [60, 5, 33, 20, 41, 9, 27, 50, 13, 38, 3, 44]  # more than are decoded at once

    def ask(limit: int) -> str:
        return str(chat(server, temperature=0, max_tokens=limit).choices[0].message.content)

    alone = [ask(limit) for limit in limits]
    with ThreadPoolExecutor(len(limits)) as threads:
        assert list(threads.map(ask, limits)) == alone


def test_errors_have_the_shape_that_the_client_expects(server: Server) -> None:
    with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
        server.client("wrong").models.list()
    with pytest.raises(openai.NotFoundError):
        server.client().models.retrieve("other")
    with pytest.raises(openai.BadRequestError, match="logprobs is not supported") as caught:
        chat(server, logprobs=True)
    assert caught.value.param == "logprobs"
    with pytest.raises(openai.BadRequestError, match=r"temperature"):
        chat(server, temperature=-1)
    with pytest.raises(openai.BadRequestError, match="context") as caught:
        server.client().completions.create(model="any", prompt="word " * CONTEXT)
    assert caught.value.code == "context_length_exceeded"
    parts: Any = [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]
    with pytest.raises(openai.BadRequestError, match="image_url"):
        server.client().chat.completions.create(model="any", messages=[{"role": "user", "content": parts}])


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"Content-Length": str(10**9)}, 413),
        ("POST", {"Content-Length": "9" * 5000}, 413),
        ("POST", {"Content-Length": "1"}, 400),
        ("POST", {"Transfer-Encoding": "chunked"}, 411),
        ("OPTIONS", {"Origin": "https://example.com"}, 501),
    ],
)
def test_raw_requests_are_limited_and_no_other_origin_is_allowed(
    server: Server, method: str, headers: dict[str, str], status: int
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest(method, "/v1/chat/completions")
    for name, value in {"Authorization": f"Bearer {KEY}", **headers}.items():
        connection.putheader(name, value)
    connection.endheaders(b"[" if headers.get("Content-Length") == "1" else None)
    answer = connection.getresponse()
    assert answer.status == status
    assert json.loads(answer.read())["error"]["message"]
    assert not [name for name, _ in answer.getheaders() if name.lower().startswith("access-control")]
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_generation_ends_when_its_client_disconnects(server: Server, stream: bool) -> None:
    process = psutil.Process(server.process.pid)

    def busy() -> float:
        """Share of a core during half a second."""
        before = sum(process.cpu_times()[:2])
        time.sleep(0.5)
        return (sum(process.cpu_times()[:2]) - before) / 0.5

    body = json.dumps({"messages": MESSAGES, "temperature": 0, "stream": stream})
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
    response = connection.getresponse() if stream else None
    deadline = time.monotonic() + 30
    while busy() <= 0.1:
        assert time.monotonic() < deadline, "generation does not begin"
    if response is not None:
        response.close()
    connection.close()
    deadline = time.monotonic() + 30
    while busy() > 0.1:
        assert time.monotonic() < deadline, "generation continues"


def test_only_this_computer_can_connect(server: Server) -> None:
    addresses = {connection.laddr.ip for connection in psutil.Process(server.process.pid).net_connections("inet")}
    assert addresses == {"127.0.0.1"}


def test_another_address_is_warned_of_and_a_key_is_generated(folder: Path) -> None:
    server = Server(folder, "--port", "0", "--host", "0.0.0.0", "--control", "stdin")
    assert server.process.stdout is not None
    lines = [server.output, server.process.stdout.readline().decode(), server.process.stdout.readline().decode()]
    assert "other computers" in "".join(lines)
    assert server.close() == 0


@pytest.mark.parametrize("host", ["localhost", "127.0.0.2", "::1"])
def test_another_address_of_this_computer_is_not_warned_of(folder: Path, host: str) -> None:
    server = Server(folder, "--port", "0", "--host", host, "--api-key", KEY, "--control", "stdin")
    assert "http://" in server.output, "the first line is no warning"
    assert [model.id for model in server.client().models.list()] == [folder.name]
    assert server.close() == 0


def test_an_empty_address_is_refused(folder: Path) -> None:
    server = Server(folder, "--port", "0", "--host", "")
    _, errors = server.process.communicate(timeout=60)
    assert server.process.returncode == 2
    assert "--host" in errors.decode("utf-8")


def test_a_taken_port_is_reported(server: Server, folder: Path) -> None:
    other = Server(folder, "--port", str(server.port))
    _, errors = other.process.communicate(timeout=60)
    assert other.process.returncode == 2
    assert f"port {server.port}" in errors.decode("utf-8")


def test_an_error_in_the_model_fails_its_requests_and_the_server_continues(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded, context, urls = (
        generate.load_model(folder, torch.device("cpu")),
        RunContext(EventDispatcher(RecordingSink())),
        SimpleQueue[str](),
    )
    arguments = (loaded, "m", ("127.0.0.1", 0), KEY, context, urls.put)
    thread = threading.Thread(target=http_server.serve, args=arguments)
    thread.start()
    client = openai.OpenAI(base_url=urls.get(timeout=30), api_key=KEY, max_retries=0)

    def fail(*_: object, **__: object) -> None:
        raise IndexError("index out of range in self")

    def ask() -> Any:
        return client.completions.create(model="m", prompt="The", max_tokens=3)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(type(loaded.model), "forward_hidden", fail)
            with pytest.raises(openai.InternalServerError, match="The model failed") as caught:
                ask()
        assert caught.value.code == "internal_error"
        assert "index out of range in self" in capsys.readouterr().err
        assert ask().choices[0].finish_reason == "length"
    finally:
        context.request_stop()
        thread.join(timeout=30)
    assert not thread.is_alive()


@pytest.mark.parametrize("cause", ["stop", "ctrl+c"])
def test_a_stop_ends_the_server_during_a_request(folder: Path, cause: str) -> None:
    if cause == "ctrl+c" and sys.platform == "win32":
        pytest.skip("a console is needed")
    server = Server(folder, "--port", "0", "--api-key", KEY, "--control", "stdin")
    stream = chat(server, stream=True)
    pieces = iter(stream)
    next(pieces)
    if cause == "stop":
        assert server.process.stdin is not None
        server.process.stdin.write(protocol.encode(protocol.Stop()))
        server.process.stdin.flush()
    else:
        server.process.send_signal(signal.SIGINT)
    with pytest.raises(openai.APIError, match="The server is stopping"):
        list(pieces)
    assert server.process.wait(timeout=30) == 0
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=5)
