"""Disaggregated prefill: one instance computes the prompts, another the tokens after them. The cache travels. No torch.

So no prompt delays anybody's next token, and the seconds of the transfer come on top of some request's second token.
The instances have a scheduler and a pool each. On the first the blocks stay taken until they are sent; who has no
blocks on the second yet waits in its host memory, of which there is enough here.

Zhong et al., "DistServe" (OSDI 2024), and Qin et al., "Mooncake" (FAST 2025), describe such services.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Row
from dataclasses import dataclass, replace

from ...catalog.errors import require_number, require_whole
from ..paging.traces import Request
from .arrivals import Arrival, require_in_order
from .plan import Plan, Sequence
from .policy import Policy
from .simulator import Outcome, Served, Server
from .step_time import StepTime


@dataclass(frozen=True)
class Instance:
    """One of the two: what it is told, how long its steps take, and the blocks of its pool."""

    policy: Policy
    step_time: StepTime
    blocks: int
    block_size: int = 16


@dataclass(frozen=True)
class KVLink:
    """Between the two: one transfer at a time, `bytes_per_token` of cache at `bytes_per_s`, and `start_s` for each.

    `pieces`: as many layers or groups of layers are sent as soon as they are computed, beside the rest of the step.
    One piece is sent when its step has ended.

    >>> KVLink(bytes_per_token=327_680, bytes_per_s=50e9).seconds(8192)  # Llama-3-70B in BF16 over 400 Gbit/s
    0.0536870912
    """

    bytes_per_token: int
    bytes_per_s: float
    start_s: float = 0.0
    pieces: int = 1

    def __post_init__(self) -> None:
        require_whole("bytes_per_token", self.bytes_per_token)
        require_whole("pieces", self.pieces)
        do = "pass bytes_per_s=50e9 for 400 Gbit/s"
        require_number("bytes_per_s", self.bytes_per_s, expected="bytes a second above zero", do=do)

    def seconds(self, tokens: int) -> float:
        """One transfer by itself."""
        return self.start_s + tokens * self.bytes_per_token / self.bytes_per_s


@dataclass(frozen=True)
class Transfer:
    """What was sent of one request: its prompt's `tokens`, from `start_s` to `end_s`, computed at `prefilled_s`."""

    tokens: int
    start_s: float
    end_s: float
    prefilled_s: float

    @property
    def exposed_s(self) -> float:
        """What the request waits for it: the rest ran beside its own prefill."""
        return self.end_s - self.prefilled_s


@dataclass(frozen=True)
class Disaggregated:
    """What became of a trace. `served` are in the order of their arrival; a `Served` begins at the first instance."""

    served: tuple[Served, ...]
    transfers: tuple[Transfer, ...]
    prefill: Outcome
    decode: Outcome

    @property
    def seconds(self) -> float:
        return max(self.prefill.seconds, self.decode.seconds)

    @property
    def tokens_per_s(self) -> float:
        return sum(one.new_tokens for one in self.served) / self.seconds if self.seconds else 0.0


def simulate_disaggregated(arrivals: Row[Arrival], prefill: Instance, decode: Instance, link: KVLink) -> Disaggregated:
    """Serve `arrivals`: prompts and first tokens on `prefill`, and after the transfer the rest on `decode`."""
    require_in_order(arrivals)
    first = _Prefilling(prefill, link)
    for arrival in arrivals:
        first.run(arrival.at_s)
        first.begin(arrival)
    first.scheduler.more_to_come = False
    first.run()
    room = sum(-(-len(sequence.prompt) // decode.block_size) for _, sequence in first.sent)
    second = Server(decode.policy, decode.step_time, decode.blocks, decode.block_size, host_blocks=room)
    last = {sequence: sequence for sequence in first.answers}  # who ends it, in order of arrival
    for ready, sequence in first.sent:  # in order, too: the link sends one at a time
        second.run(ready)
        last[sequence] = second.receive(sequence, first.answers[sequence], ready)
    second.scheduler.more_to_come = False
    second.run()
    served = tuple(Served.of(sequence) for sequence in last.values())
    return Disaggregated(served, tuple(first.transfers), first.outcome(), second.outcome())


class _Prefilling(Server):
    """Ends every request with its first token, and keeps its blocks until the link has sent them."""

    def __init__(self, instance: Instance, link: KVLink) -> None:
        super().__init__(instance.policy, instance.step_time, instance.blocks, instance.block_size)
        self.link, self.link_free = link, 0.0
        self.answers: dict[Sequence, int] = {}
        self.started: dict[Sequence, float] = {}  # when the first of its prompt began to be sent
        self.sent: list[tuple[float, Sequence]] = []  # with the end of its transfer, in the order of those
        self.released = 0  # of `sent`: how many of them have given their blocks back
        self.pieces: Counter[Sequence] = Counter()  # tokens that were sent
        self.transfers: list[Transfer] = []
        self.began = 0.0

    def begin(self, arrival: Arrival) -> None:
        first_token = replace(arrival, request=Request(arrival.request.prompt, (0,)), max_tokens=None)
        sequence = self.submit(first_token, arrival.at_s)
        self.answers[sequence] = arrival.request.new_tokens

    def wakes_at(self) -> float | None:
        wakes = [super().wakes_at(), *(end for end, _ in self.sent[self.released :][:1])]
        return min((at for at in wakes if at is not None and at > self.now), default=None)  # patience ends once

    def step(self) -> bool:
        while self.released < len(self.sent) and self.sent[self.released][0] <= self.now:
            self.scheduler.manager.release(("sent", self.sent[self.released][1]))
            self.released += 1
        self.began = self.now
        return super().step()

    def computed(self, plan: Plan) -> None:
        """Every chunk is sent; with the last one of a prompt its blocks are held until the end of that."""
        ended = set(self.scheduler.generates(plan))
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if self.answers[sequence] > 1:  # else its only token is here already
                end = self._send(sequence, chunk.context - self.pieces[sequence])
                if sequence in ended:
                    self._hold(sequence, end)

    def _send(self, sequence: Sequence, tokens: int) -> float:
        """The end of it: not before its last piece is computed and sent, nor before the link is free.

        Nothing is sent again of a prompt that was preempted and computed twice.
        """
        if tokens <= 0:
            return self.link_free
        step, alone = self.now - self.began, self.link.seconds(tokens)
        start = max(self.link_free, self.began + step / self.link.pieces)
        last_piece = (alone - self.link.start_s) / self.link.pieces
        self.link_free = max(start + alone, self.now + last_piece)
        self.started.setdefault(sequence, start)
        self.pieces[sequence] += tokens
        return self.link_free

    def _hold(self, sequence: Sequence, end: float) -> None:
        self.scheduler.manager.fork(sequence, ("sent", sequence))
        self.sent.append((end, sequence))
        self.transfers.append(Transfer(len(sequence.prompt), self.started[sequence], end, self.now))
