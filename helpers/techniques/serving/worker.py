"""The one thread that owns the engine: submissions and cancellations go in by a queue, tokens come out on the loop.

Nobody else touches the engine. What the loop wants of it is a call in `_inbox`, made between two steps; what a step
gave goes back with one `loop.call_soon_threadsafe` for all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ...catalog.errors import WorkbookError, require_whole
from ..scheduling import ScheduledEngine, Sequence
from .protocol import CompletionRequest, RequestError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Update:
    """What became of a request: new tokens, the last of them if `finish` says why, or the problem that ended it."""

    tokens: tuple[int, ...] = ()
    finish: str | None = None
    problem: RequestError | None = None


@dataclass(frozen=True)
class Counts:
    """The engine between two steps."""

    running: int
    waiting: int
    free_blocks: int
    blocks: int
    tokens: int  # generated since the start


class Ticket:
    """A request on the loop's side. `updates` never holds more than the answer has tokens."""

    def __init__(self, asked: CompletionRequest) -> None:
        self.asked = asked
        self.updates: asyncio.Queue[Update] = asyncio.Queue()


class EngineWorker:
    """Runs `engine` in a thread from `start` to `stop`; `submit` and `cancel` belong to `loop`.

    `max_waiting` requests may wait beside those that the next step can begin: one more gets a RequestError 429.
    """

    def __init__(self, engine: ScheduledEngine, max_waiting: int, loop: asyncio.AbstractEventLoop) -> None:
        self.max_waiting = require_whole("max_waiting", max_waiting, least=0)
        self._engine, self._loop = engine, loop
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._tickets: dict[Sequence, Ticket] = {}
        self._sequences: dict[Ticket, Sequence] = {}
        self._news: list[tuple[Ticket, Update]] = []
        self._left_behind = False  # somebody waited still when the last step was over
        self._stopped = False
        self._generated = 0
        self.counts = self._counted()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def submit(self, asked: CompletionRequest) -> Ticket:
        """Queue a request. The ticket's updates say what becomes of it, a refusal too."""
        ticket = Ticket(asked)
        self._inbox.put(partial(self._submit, ticket))
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """Nobody waits for it any more: its blocks are free before the next step. One that is done stays so."""
        self._inbox.put(partial(self._cancel, ticket))

    def stop(self, timeout_s: float) -> None:
        """End the thread after its step; requests that are left get a RequestError 503."""
        self._inbox.put(self._stop)
        self._thread.join(timeout_s)

    # From here on everything runs in the thread.

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._take_in()
                if self._engine.busy and not self._stopped:
                    self._step()
                self.counts = self._counted()
                self._deliver()
        finally:
            self._fail_all(RequestError(503, "the server has stopped"))
            self.counts = self._counted()
            self._deliver()

    def _take_in(self) -> None:
        """All that came in; waits for something if there is nothing else to do."""
        with contextlib.suppress(queue.Empty):
            call = self._inbox.get(block=not self._engine.busy)
            while True:
                call()
                call = self._inbox.get(block=False)

    def _submit(self, ticket: Ticket) -> None:
        asked, full = ticket.asked, self._full()
        try:
            sequence = self._engine.submit(asked.prompt, asked.max_tokens, user=asked.user, priority=asked.priority)
        except WorkbookError as error:  # first, so that nobody is told to try again what can never be
            self._news.append((ticket, Update(problem=RequestError(400, str(error)))))
            return
        except Exception as error:
            log.exception("a submission failed")
            self._news.append((ticket, Update(problem=RequestError(500, f"the engine failed: {type(error).__name__}"))))
            return
        if full:
            self._engine.cancel(sequence)
            reason = f"{self.max_waiting} requests wait already, which is all that may; try again"
            self._news.append((ticket, Update(problem=RequestError(429, reason, retry_after_s=1))))
            return
        self._tickets[sequence], self._sequences[ticket] = ticket, sequence

    def _full(self) -> bool:
        """Rows that are free count as room only if the last step began everybody who waited."""
        scheduler = self._engine.scheduler
        free = 0 if self._left_behind else scheduler.policy.rows - len(scheduler.running)
        return len(scheduler.waiting) >= self.max_waiting + free

    def _cancel(self, ticket: Ticket) -> None:
        sequence = self._sequences.pop(ticket, None)
        if sequence is not None:
            del self._tickets[sequence]
            self._free(sequence)
        self._left_behind = bool(self._engine.scheduler.waiting) and self._left_behind

    def _stop(self) -> None:
        self._stopped = True

    def _step(self) -> None:
        try:
            for sequence in self._engine.step():
                self._tell(sequence)
            if not self._engine.scheduler.running:
                time.sleep(0.001)  # nobody could begin: do not spin
        except Exception as error:
            log.exception("a step failed; %d requests get 500", len(self._tickets))
            self._fail_all(
                RequestError(500, f"the engine failed in a step: {type(error).__name__}: {str(error)[:200]}")
            )
        self._left_behind = bool(self._engine.scheduler.waiting)

    def _tell(self, sequence: Sequence) -> None:
        ticket = self._tickets[sequence]
        token = sequence.tokens[-1]
        self._generated += 1
        finish = ("stop" if token in self._engine.ends else "length") if sequence.done else None
        self._news.append((ticket, Update((token,), finish)))
        if sequence.done:
            del self._tickets[sequence], self._sequences[ticket]

    def _fail_all(self, problem: RequestError) -> None:
        for sequence, ticket in self._tickets.items():
            self._news.append((ticket, Update(problem=problem)))
            self._free(sequence)
        self._tickets.clear()
        self._sequences.clear()

    def _free(self, sequence: Sequence) -> None:
        try:
            self._engine.cancel(sequence)
        except Exception:
            log.exception("a sequence kept its blocks")

    def _counted(self) -> Counts:
        scheduler = self._engine.scheduler
        manager = scheduler.manager
        return Counts(
            len(scheduler.running), len(scheduler.waiting), manager.available, manager.blocks, self._generated
        )

    def _deliver(self) -> None:
        if self._news:
            news, self._news = self._news, []
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
                self._loop.call_soon_threadsafe(_hand_out, news)


def _hand_out(news: list[tuple[Ticket, Update]]) -> None:
    for ticket, update in news:
        ticket.updates.put_nowait(update)
