"""A published table that the simulator is held against: NVIDIA NIM, Llama-3.3-70B in FP8 on two H100. No torch.

The table is NVIDIA's: NIM for LLMs, benchmarking guide 1.0.0, page "Performance", container 1.8.0, 2 x H100 80G,
fp8 TP2, 5,000 tokens in and 500 out; so many clients each wait for their last answer before they ask again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog import ServeSetup, device
from ...memory.serve.rank_weights import rank_weight_bytes
from ..paging.traces import Request
from .arrivals import at_once
from .policy import Policy
from .simulator import Outcome, simulate
from .step_time import Roofline

PROMPT, ANSWER, RANKS, BLOCK = 5000, 500, 2, 32
# Fitted on the rows of 1 and 25 clients: compute on the first row's TTFT, overhead on its ITL, and memory so that 25
# clients come out best. What the catalogue calls Llama-3-70B has the shape of 3.3.
MEMORY_EFFICIENCY, COMPUTE_EFFICIENCY, OVERHEAD_S = 0.9, 0.468, 0.00674
TOKEN_BUDGET = 2048  # chunks of a prompt; NVIDIA does not say which it used
FREE_SHARE = 0.9  # TensorRT-LLM's kv_cache_free_gpu_memory_fraction
NOT_FREE_BYTES = 2 * 2**30  # context, NCCL and activations of a rank: a round number, not a measurement


@dataclass(frozen=True)
class Row:
    """One line of such a table; times in seconds."""

    concurrency: int
    ttft_s: float
    itl_s: float
    tokens_per_s: float

    @property
    def running(self) -> float:
        """Sequences that decode at a time: throughput x inter-token latency (Little's law)."""
        return self.tokens_per_s * self.itl_s


TABLE = tuple(
    Row(concurrency, ttft / 1000, itl / 1000, tokens)
    for concurrency, ttft, itl, tokens in (
        (1, 406.77, 18.58, 51.67),
        (5, 546.7, 21.83, 218.48),
        (25, 688.69, 38.75, 623.4),
        (50, 834.51, 59.73, 814.37),
        (100, 7996.25, 92.91, 917.26),
        (150, 34794.22, 92.86, 920.9),
        (200, 61680.22, 93.06, 920.54),
        (250, 88605.32, 93.2, 920.12),
    )
)


def setup() -> ServeSetup:
    """Weights and cache in FP8: with a BF16 cache half as many users would fit as the table has running."""
    return ServeSetup("llama-3-70b", weights="fp8-e4m3", kv="fp8-e4m3")


def roofline(
    memory_efficiency: float = MEMORY_EFFICIENCY,
    compute_efficiency: float = COMPUTE_EFFICIENCY,
    overhead_s: float = OVERHEAD_S,
) -> Roofline:
    return Roofline.of(setup(), "h100", RANKS, memory_efficiency, compute_efficiency, overhead_s)


def blocks() -> int:
    """Blocks of the pool: 0.9 of what the weights and two GiB leave of each card."""
    free = device("h100").capacity_bytes - rank_weight_bytes(setup(), RANKS) - NOT_FREE_BYTES
    return int(free * FREE_SHARE) // (roofline().kv_bytes_per_token * BLOCK)


def users_that_fit() -> int:
    """Requests whose 5,500 tokens fit at once: TensorRT-LLM admits to the end, so that nobody is preempted."""
    return blocks() // -(-(PROMPT + ANSWER) // BLOCK)


def predicted(concurrency: int, roof: Roofline | None = None) -> Row:
    """The row that the simulator gives: requests of the middle, after everybody's first and before the last.

    Throughput is concurrency x answer / mean time of a request: Little's law again.
    """
    requests = [Request((1,) * PROMPT, (0,) * ANSWER)] * (6 * concurrency + 6)
    policy = Policy(token_budget=TOKEN_BUDGET, admission="to-the-end")
    outcome = simulate(at_once(requests), policy, roof or roofline(), blocks(), BLOCK, concurrency=concurrency)
    return _steady(outcome, concurrency)


def _steady(outcome: Outcome, concurrency: int) -> Row:
    middle = [
        one for one in outcome.served if one.at_s > outcome.seconds * 0.25 and one.last_token_s < outcome.seconds * 0.9
    ]
    ttft = sum(one.ttft_s for one in middle) / len(middle)
    itl = sum(one.itl_s for one in middle) / len(middle)
    return Row(concurrency, ttft, itl, concurrency * ANSWER / (ttft + itl * (ANSWER - 1)))
