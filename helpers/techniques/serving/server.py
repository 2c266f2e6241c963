"""HTTP around the engine, as OpenAI's completions: what a request may ask, and what happens when something goes wrong.

    POST /v1/completions   GET /v1/models   GET /health   GET /metrics

More requests than may wait get 429, one that no pool could hold 400, a step that failed 500, a server that shuts down
503: always with a reason. Who hangs up gives his blocks back. The status of an answer is sent with its first token.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import StreamClosedError
from tornado.web import Application, RequestHandler
from transformers import PreTrainedTokenizerBase

from ...catalog.errors import WorkbookError, require_whole
from ..scheduling import ScheduledEngine
from .protocol import CompletionRequest, RequestError, Text, choice, event, read, usage
from .worker import EngineWorker, Ticket, Update

HOST = "127.0.0.1"
MOST_BODY_BYTES = 2**20
CLIENT_GONE = 499  # nginx's number; nobody is left to read it


class CompletionServer:
    """Serves `engine`, which nobody else may use meanwhile, as the model `name`. Make it inside the running loop.

    `grace_s`: how long `stop` lets answers go on before it ends them.
    """

    def __init__(
        self,
        engine: ScheduledEngine,
        tokenizer: PreTrainedTokenizerBase,
        name: str,
        max_waiting: int = 64,
        grace_s: float = 5.0,
    ) -> None:
        self.tokenizer, self.name, self.grace_s = tokenizer, name, grace_s
        self.worker = EngineWorker(engine, max_waiting, asyncio.get_running_loop())
        self.created, self.numbered = int(time.time()), 0
        self.draining, self.hurry = False, asyncio.Event()
        self.open: set[Ticket] = set()
        routes = (
            ("/v1/completions", _Completions),
            ("/v1/models", _Models),
            ("/health", _Health),
            ("/metrics", _Metrics),
        )
        rules = [(path, handler, {"server": self}) for path, handler in routes]
        unknown: dict[str, Any] = {"default_handler_class": _Unknown, "default_handler_args": {"server": self}}
        application = Application(rules, log_function=lambda handler: None, **unknown)
        self.http = HTTPServer(application, max_body_size=MOST_BODY_BYTES, max_buffer_size=2 * MOST_BODY_BYTES)

    def start(self, opened: socket.socket) -> None:
        self.worker.start()
        self.http.add_sockets([opened])

    async def stop(self) -> None:
        """Refuse who comes, let answers go on for `grace_s` (or until `hurry`), end the rest, close everything."""
        self.draining = True
        ends = time.monotonic() + self.grace_s
        while self.open and time.monotonic() < ends and not self.hurry.is_set():
            await asyncio.sleep(0.02)
        await asyncio.get_running_loop().run_in_executor(None, self.worker.stop, 10.0)
        for _ in range(25):  # what was ended is told so; who does not read is not waited for
            if not self.open:
                break
            await asyncio.sleep(0.02)
        self.http.stop()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.http.close_all_connections(), 1.0)


def listen(port: int) -> socket.socket:
    """A socket of this machine alone, on `port` or, for 0, on any that is free. WorkbookError if it is taken."""
    require_whole("port", port, 0, 65535)
    try:
        opened = socket.create_server((HOST, port))
    except OSError as error:
        what = f"port {port} cannot be opened: {error.strerror}"
        raise WorkbookError(what, "a port that nobody listens on", "pass --port 0 for any that is free") from None
    opened.setblocking(False)
    return opened


def serve(
    engine: ScheduledEngine,
    tokenizer: PreTrainedTokenizerBase,
    name: str,
    opened: socket.socket,
    max_waiting: int = 64,
    grace_s: float = 5.0,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Serve until SIGINT or SIGTERM, in the main thread; a second signal ends the time of grace. Calls `ready` once.

    Returns the number of the signal that ended it.
    """

    async def run() -> int:
        server = CompletionServer(engine, tokenizer, name, max_waiting, grace_s)
        asked_to_stop: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_signal(number: int) -> None:
            server.hurry.set() if asked_to_stop.done() else asked_to_stop.set_result(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
        server.start(opened)
        ready()
        ended_by = await asked_to_stop
        await server.stop()
        return ended_by

    return asyncio.run(run())


class _Handler(RequestHandler):
    """Answers in JSON, errors included."""

    def initialize(self, server: CompletionServer) -> None:
        self.server = server

    def refuse(self, problem: RequestError) -> None:
        self.set_status(problem.status)
        if problem.retry_after_s is not None:
            self.set_header("Retry-After", str(problem.retry_after_s))
        self.finish(problem.body)

    def write_error(self, status_code: int, **_: Any) -> None:
        """What Tornado itself refuses, a method that a path does not have among it."""
        path = self.request.path[:80]
        told = {404: f"no path {path}", 405: f"{path} does not take {self.request.method}"}
        self.finish(RequestError(status_code, told.get(status_code, self._reason)).body)


class _Unknown(_Handler):
    def prepare(self) -> None:
        self.refuse(
            RequestError(404, f"no path {self.request.path[:80]}; this server has /v1/completions and /v1/models")
        )


class _Models(_Handler):
    def get(self) -> None:
        model = {"id": self.server.name, "object": "model", "created": self.server.created, "owned_by": "workbook"}
        self.finish({"object": "list", "data": [model]})


class _Health(_Handler):
    def get(self) -> None:
        if self.server.draining or not self.server.worker.alive:
            self.refuse(_stopping())
        else:
            self.finish({"status": "ok"})


class _Metrics(_Handler):
    def get(self) -> None:
        counts = self.server.worker.counts
        gauges = {
            "requests_running": counts.running,
            "requests_waiting": counts.waiting,
            "free_blocks": counts.free_blocks,
            "blocks": counts.blocks,
        }
        lines = [f"# TYPE workbook_{name} gauge\nworkbook_{name} {value}" for name, value in gauges.items()]
        lines.append(f"# TYPE workbook_generated_tokens_total counter\nworkbook_generated_tokens_total {counts.tokens}")
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish("\n".join(lines) + "\n")


class _Completions(_Handler):
    ticket: Ticket | None = None

    async def post(self) -> None:
        try:
            asked = self._asked()
        except RequestError as problem:
            return self.refuse(problem)
        ticket = self.ticket = self.server.worker.submit(asked)
        self.server.open.add(ticket)
        try:
            await self._answer(asked, ticket)
        except RequestError as problem:
            await self._broken(problem)
        except StreamClosedError:
            pass
        finally:
            self.server.worker.cancel(ticket)
            self.server.open.discard(ticket)

    def on_connection_close(self) -> None:
        if self.ticket:
            self.ticket.updates.put_nowait(Update(problem=RequestError(CLIENT_GONE, "the client hung up")))

    def _asked(self) -> CompletionRequest:
        if self.server.draining or not self.server.worker.alive:
            raise _stopping()
        return read(self.request.body, self.server.name, self.server.tokenizer)

    async def _answer(self, asked: CompletionRequest, ticket: Ticket) -> None:
        self.server.numbered += 1
        head = {
            "id": f"cmpl-{self.server.numbered}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self.server.name,
        }
        text, told, finish = Text(self.server.tokenizer), "", None
        tokens: tuple[int, ...] = ()
        while finish is None:
            new, finish = await _next(ticket)
            piece = text.add(new, last=finish is not None)
            if asked.stream:
                await self._send({**head, "choices": [choice(asked, piece, new, finish)]})
            tokens, told = tokens + new, told + piece
        counted = usage(asked, len(tokens))
        if not asked.stream:
            await self.finish({**head, "choices": [choice(asked, told, tokens, finish)], "usage": counted})
            return
        if asked.usage:
            await self._send({**head, "choices": [], "usage": counted})
        await self._send("[DONE]")
        await self.finish()

    async def _send(self, data: object) -> None:
        """One event. Waits while the client reads more slowly than the engine writes."""
        if not self._headers_written:
            self.set_header("Content-Type", "text/event-stream; charset=utf-8")
            self.set_header("Cache-Control", "no-cache")
        self.write(event(data))
        await self.flush()

    async def _broken(self, problem: RequestError) -> None:
        """With tokens sent, the status is too: then the error is the stream's last event, and no [DONE] follows."""
        if problem.status == CLIENT_GONE:
            return
        if not self._headers_written:
            self.refuse(problem)
            return
        with contextlib.suppress(StreamClosedError):
            await self._send(problem.body)
            await self.finish()


async def _next(ticket: Ticket) -> tuple[tuple[int, ...], str | None]:
    """Tokens that are there, at least one, and why they are the last; raises the request's RequestError."""
    update = await ticket.updates.get()
    tokens: tuple[int, ...] = ()
    while True:
        if update.problem:
            raise update.problem
        tokens += update.tokens
        if update.finish or ticket.updates.empty():
            return tokens, update.finish
        update = ticket.updates.get_nowait()


def _stopping() -> RequestError:
    return RequestError(503, "the server is shutting down", retry_after_s=5)
