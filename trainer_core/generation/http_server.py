"""HTTP server of `serve`: OpenAI's API for one model.

    GET /v1/models, GET /v1/models/NAME, POST /v1/chat/completions, POST /v1/completions

Each connection has a thread, which waits for the `GenerationEngine`. There are no CORS headers: web pages cannot read
answers.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import os
import select
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from queue import Empty, SimpleQueue
from typing import Final
from urllib.parse import unquote, urlsplit

from trainer_core.generation import openai_api
from trainer_core.generation.engine import GenerationEngine, Job, Piece
from trainer_core.generation.generate import LoadedModel
from trainer_core.generation.openai_api import ApiError, ChatRequest, CompletionRequest, Document, Request, Response
from trainer_core.messages import TraindeckError, format_message
from trainer_core.progress import StopRequested
from trainer_core.run_context import RunContext

_MAX_BODY_BYTES: Final = 4 * 1024 * 1024
_MAX_LENGTH_DIGITS: Final = 20  # `int` raises from 4300 digits on
_MAX_WAITING: Final = 64  # jobs
_IDLE_TIMEOUT_S: Final = 60.0  # of a connection without a request
_CHECK_INTERVAL_S: Final = 0.25  # for a client that has disconnected
_STOP_TIMEOUT_S: Final = 2.0  # for requests to report a stop
_STOP_POLL_S: Final = 0.02
_FAILURES: Final[dict[str | None, tuple[HTTPStatus, str]]] = {  # of a job
    "out_of_memory": (HTTPStatus.SERVICE_UNAVAILABLE, "Not enough memory for this request."),
    "internal_error": (HTTPStatus.INTERNAL_SERVER_ERROR, "The model failed. The server has printed the error."),
}


@dataclass(frozen=True, slots=True)
class Service:
    """What all connections share."""

    engine: GenerationEngine
    model: str  # name
    api_key: str
    created: int = field(default_factory=lambda: int(time.time()))
    stopping: threading.Event = field(default_factory=threading.Event)
    answering: set[_Handler] = field(default_factory=set)  # those of POST requests


def serve(
    loaded: LoadedModel,
    name: str,
    address: tuple[str, int],
    api_key: str,
    context: RunContext,
    ready: Callable[[str], None],
) -> None:
    """Serve a model as `name` until a stop. `ready` receives the URL. Warns if other computers can connect.

    Raises `serve.address`.
    """
    service = Service(GenerationEngine(loaded), name, api_key)
    try:
        server = ApiServer(address, service)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraindeckError("serve.address", host=address[0], port=str(address[1]), reason=reason) from error
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        host, port = str(server.server_address[0]), server.server_address[1]
        if not ipaddress.ip_address(host).is_loopback:
            context.warn("serve.exposed", host=host)
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}/v1")
        try:
            with contextlib.suppress(StopRequested):
                service.engine.run(context.poll)
        finally:
            service.stopping.set()
            server.shutdown()
            until = time.monotonic() + _STOP_TIMEOUT_S
            while service.answering and time.monotonic() < until:  # the process would end their threads
                time.sleep(_STOP_POLL_S)


class ApiServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Listens on `address`. Raises `OSError`."""

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # on Windows another program could then take the same port
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], service: Service) -> None:
        self.service = service
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A failed connection does not affect others. Errors other than a lost client are printed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "Traindeck", ""
    timeout = _IDLE_TIMEOUT_S
    server: ApiServer

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: they hold what people write."""

    def do_GET(self) -> None:
        self._answer_errors(self._get)

    def do_POST(self) -> None:
        answering = self.server.service.answering
        answering.add(self)
        try:
            self._answer_errors(self._post)
        finally:
            answering.discard(self)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Report what the base class refuses, such as an unknown method, in OpenAI's shape."""
        self.close_connection = True
        status = HTTPStatus(code)
        self._send(ApiError(status, message or status.phrase).document(), status)

    def _answer_errors(self, handle: Callable[[], None]) -> None:
        try:
            self._authorize()
            handle()
        except ApiError as error:
            self.close_connection = True  # the body may not have been read
            self._send(error.document(), error.status)
        except TraindeckError as error:
            message = format_message(error.code, error.params, "en")
            self._send(openai_api.bad_request(message, code=error.code).document(), HTTPStatus.BAD_REQUEST)

    def _authorize(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode("latin-1"), self.server.service.api_key.encode()):
            raise ApiError(HTTPStatus.UNAUTHORIZED, "Incorrect API key provided.", code="invalid_api_key")

    def _get(self) -> None:
        service, path = self.server.service, unquote(urlsplit(self.path).path)
        document = openai_api.model_document(service.model, service.created)
        if path == "/v1/models":
            self._send({"object": "list", "data": [document]})
        elif path == f"/v1/models/{service.model}":
            self._send(document)
        else:
            raise ApiError(HTTPStatus.NOT_FOUND, f"There is nothing at {path[:200]}.", code="not_found")

    def _post(self) -> None:
        path = urlsplit(self.path).path
        if path not in ("/v1/chat/completions", "/v1/completions"):
            raise ApiError(HTTPStatus.NOT_FOUND, f"There is nothing at {path[:200]}.", code="not_found")
        is_chat, body = path == "/v1/chat/completions", self._read_body()
        request = openai_api.parse(body, ChatRequest if is_chat else CompletionRequest)
        jobs = self._jobs(request)
        prompt_tokens = sum(len(job.prompt) for job in jobs[:: request.n or 1])
        answer = Response(self.server.service.model, is_chat, prompt_tokens)
        for job in jobs:
            self.server.service.engine.submit(job)
        try:
            if request.stream:
                self._stream(answer, jobs, request.includes_usage)
            else:
                self._complete(answer, jobs)
        finally:
            for job in jobs:
                job.cancelled = True  # no effect on those that have finished

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            raise ApiError(HTTPStatus.LENGTH_REQUIRED, "Content-Length is required.")
        if len(length) > _MAX_LENGTH_DIGITS or int(length) > _MAX_BODY_BYTES:
            message = f"A request may have {_MAX_BODY_BYTES} bytes at most."
            raise ApiError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        return self.rfile.read(int(length))

    def _jobs(self, request: Request) -> list[Job]:
        engine, is_chat = self.server.service.engine, isinstance(request, ChatRequest)
        if is_chat and not engine.loaded.chat:
            raise openai_api.bad_request("This model continues texts: use /v1/completions.", code="no_chat_template")
        if engine.pending >= _MAX_WAITING:
            raise ApiError(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests are waiting.", code="overloaded")
        output, window = SimpleQueue[Piece](), engine.loaded.model.config.max_seq_len
        jobs: list[Job] = []
        for prompt in request.prompts:
            ids = engine.encode(prompt, is_chat)
            if len(ids) >= window:
                message = f"The prompt has {len(ids)} tokens; the context of this model has {window}."
                raise openai_api.bad_request(message, code="context_length_exceeded")
            for _ in range(request.n or 1):
                index, limit = len(jobs), request.limit or window
                jobs.append(Job(ids, limit, request.sampling(index), output, request.stop_strings, index))
        return jobs

    def _pieces(self, jobs: list[Job]) -> Iterator[Piece]:
        """Pieces until all jobs have finished. Raises `ApiError`, and `ConnectionError` if the client is gone."""
        running = len(jobs)
        while running:
            self._require_client()
            try:
                piece = jobs[0].output.get(timeout=_CHECK_INTERVAL_S)
            except Empty:
                if self.server.service.stopping.is_set():
                    raise ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "The server is stopping.") from None
                continue
            if piece.finish_reason in _FAILURES:
                raise ApiError(*_FAILURES[piece.finish_reason], piece.finish_reason)
            running -= piece.finish_reason is not None
            yield piece

    def _require_client(self) -> None:
        """Raises `ConnectionError` if the client has disconnected."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        if readable and not self.connection.recv(1, socket.MSG_PEEK):
            raise ConnectionAbortedError

    def _complete(self, answer: Response, jobs: list[Job]) -> None:
        texts, reasons, tokens = [""] * len(jobs), [""] * len(jobs), [0] * len(jobs)
        for piece in self._pieces(jobs):
            texts[piece.index] += piece.text
            tokens[piece.index], reasons[piece.index] = piece.tokens, piece.finish_reason or ""
        self._send(answer.whole(texts, reasons, sum(tokens)))

    def _stream(self, answer: Response, jobs: list[Job], includes_usage: bool) -> None:
        """Server-sent events, until the end of the connection."""
        self.close_connection = True
        self._send_head(HTTPStatus.OK, {"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        begun, tokens = set[int](), [0] * len(jobs)
        try:
            for piece in self._pieces(jobs):
                tokens[piece.index] = piece.tokens
                self._send_event(answer.piece(piece.index, piece.text, piece.finish_reason, piece.index not in begun))
                begun.add(piece.index)
            if includes_usage:
                self._send_event(answer.final_usage(sum(tokens)))
            self.wfile.write(b"data: [DONE]\n\n")
        except ApiError as error:  # the status has been sent
            self._send_event(error.document())

    def _send_event(self, document: Document) -> None:
        self.wfile.write(b"data: " + openai_api.encode(document) + b"\n\n")

    def _send(self, document: Document, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = openai_api.encode(document)
        self._send_head(status, {"Content-Type": "application/json", "Content-Length": str(len(body))})
        self.wfile.write(body)

    def _send_head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
