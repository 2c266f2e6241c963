"""A service in its steady state, in closed form: clients who each ask again when they are answered. No torch.

Little's law twice: sequences that run = throughput x time that each runs, and clients = throughput x time of a request.
What the simulator finds in seconds, this finds in microseconds; what it leaves out is chance, which makes tails.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from ...catalog.errors import WorkbookError, require_whole
from .step_time import Roofline


@dataclass(frozen=True)
class MeanStep:
    """What a step computes on average, as `Roofline.seconds` reads it."""

    new_tokens: float
    context_tokens: float
    pairs: float
    moved_blocks: int = 0


@dataclass(frozen=True)
class MeanSteps:
    """`share` of the steps compute a chunk of a prompt beside the decodes, the others decode alone.

    `chunks` of them make a whole prompt.
    """

    alone: MeanStep
    with_chunk: MeanStep
    share: float
    chunks: float

    def seconds(self, roof: Roofline) -> float:
        """Mean seconds between two tokens of one sequence."""
        return (1 - self.share) * roof.seconds(self.alone) + self.share * roof.seconds(self.with_chunk)

    def prefill_seconds(self, roof: Roofline) -> float:
        return self.chunks * roof.seconds(self.with_chunk)


@dataclass(frozen=True)
class Steady:
    """`running` sequences decode, `waiting` have no room in the pool; the rest of the clients are being prefilled.

    `budget_full`: prompts fill every step, so that some of the admitted wait for their prefill.
    """

    running: float
    waiting: float
    itl_s: float
    ttft_s: float
    tokens_per_s: float
    users_that_fit: int
    steps: MeanSteps
    budget_full: bool

    @property
    def saturated(self) -> bool:
        """More clients than the pool holds: each one more waits, and adds no throughput."""
        return self.waiting > 0


def steady(
    roof: Roofline,
    clients: int,
    users_that_fit: int,
    prompt: int,
    answer: int,
    token_budget: int = 2048,
    cached: int = 0,
) -> Steady:
    """Inter-token latency, time to first token and throughput of `clients` in closed loop.

    `users_that_fit` sequences of `prompt` + `answer` tokens are admitted at a time. Prompts come in chunks of
    `token_budget` tokens less those that decode; a share of the steps computes such a chunk, the others decode only.
    Where prompts ask for more than every step has left, as many decode as leave the prompts their part of the budget.
    `cached` tokens of each prompt are found in the prefix cache, and are read but not computed.

    >>> from helpers.techniques.scheduling import nim
    >>> half = steady(nim.roofline(), 50, nim.users_that_fit(), nim.PROMPT, nim.ANSWER)
    >>> round(half.itl_s * 1000, 1), round(half.tokens_per_s)  # NVIDIA measured 59.7 and 814
    (59.3, 833)
    """
    _require_load(clients, users_that_fit, prompt, answer, cached)
    admitted = min(clients, users_that_fit)
    if require_whole("token_budget", token_budget) <= admitted:
        expected = f"more than {admitted}, a token for each sequence and one for a prompt"
        raise WorkbookError(f"token_budget is {token_budget}", expected, f"pass token_budget={admitted + prompt}")
    most = token_budget * answer / (answer + prompt - cached)  # who decode when prompts take the rest of every step
    running = min(float(admitted), most)
    for _ in range(60):  # who is being prefilled does not decode: a fixed point, a tenth off after one round
        steps = _steps(running, running * (1 - 1 / admitted), prompt, answer, token_budget, cached)
        decode_s = steps.seconds(roof) * (answer - 1)
        before, running = running, min(most, admitted * decode_s / (steps.prefill_seconds(roof) + decode_s))
        if abs(running - before) <= 1e-12 * running:
            break
    throughput, waiting = running * answer / decode_s, clients - admitted
    ttft = decode_s * (admitted / running - 1) + waiting * answer / throughput
    itl = decode_s / (answer - 1)
    return Steady(running, waiting, itl, ttft, throughput, users_that_fit, steps, running == most < admitted)


def saturation_point(
    roof: Roofline, users_that_fit: int, prompt: int, answer: int, token_budget: int = 2048, cached: int = 0
) -> int:
    """The most clients of whom none waits, neither for the pool nor for the budget: one more adds no throughput.

    >>> from helpers.techniques.scheduling import nim
    >>> saturation_point(nim.roofline(), 92, nim.PROMPT, nim.ANSWER), saturation_point(nim.roofline(), 92, 9000, 90)
    (92, 21)
    """

    def full(clients: int) -> bool:
        return steady(roof, clients, users_that_fit, prompt, answer, token_budget, cached).budget_full

    return max(1, bisect_left(range(1, users_that_fit + 1), True, key=full))


def _require_load(clients: int, users_that_fit: int, prompt: int, answer: int, cached: int) -> None:
    for name, value in (("clients", clients), ("prompt", prompt), ("users_that_fit", users_that_fit)):
        require_whole(name, value)
    require_whole("answer", answer, 2)
    do = "pass cached=0 for a prompt that nobody has sent before"
    require_whole("cached", cached, 0, prompt - 1, unit="the prompt's tokens", do=do)


def _steps(running: float, others: float, prompt: int, answer: int, token_budget: int, cached: int) -> MeanSteps:
    """The mean steps of `running` sequences, which the prompts of `others` delay: one for each answer that ends."""
    computed, left = prompt - cached, max(1.0, token_budget - running)
    a_chunk, asked = min(computed, left), others * computed / answer
    chunk = max(a_chunk, min(asked, left))  # where prompts are short or many, a step computes more than one
    context, seen = running * (prompt + answer / 2), cached + computed / 2
    alone = MeanStep(running, context, context)
    prompts = max(1.0, chunk / computed)
    with_chunk = MeanStep(running + chunk, context + prompts * seen, context + chunk * seen)
    return MeanSteps(alone, with_chunk, min(1.0, asked / chunk), computed / a_chunk)
