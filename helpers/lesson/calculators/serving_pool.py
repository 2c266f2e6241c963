"""The KV pool of a service: what weights leave for it, what a request takes of it, how many requests fit."""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.devices import Device
from ...catalog.errors import WorkbookError, require_number, require_whole
from ...catalog.serve_setup import ServeSetup
from ...catalog.shape import ModelShape
from ...memory.breakdown import format_bytes
from ...memory.serve.rank_weights import rank_weight_bytes
from ...techniques.scheduling import nim
from ...techniques.scheduling.policy import Policy
from .kv_layers import RankCache
from .workloads import Workload

BLOCK = 16  # tokens
FREE_SHARE, NOT_FREE_BYTES = nim.FREE_SHARE, nim.NOT_FREE_BYTES


@dataclass(frozen=True)
class ServingPool:
    """Bytes on one rank. `request_tokens` are those that a request is reserved, or holds on average, in whole blocks.

    Of them `shared_tokens` are held once, for all requests.
    """

    weight_bytes: int
    pool_bytes: int
    request_tokens: int
    shared_tokens: int
    shared_bytes: int
    request_bytes: int

    @property
    def users(self) -> int:
        return max(0, self.pool_bytes - self.shared_bytes) // self.request_bytes


def pool_of(
    setup: ServeSetup,
    gpu: Device,
    workload: Workload,
    policy: Policy,
    ranks: int = 1,
    reserve_bytes: int = NOT_FREE_BYTES,
    free_share: float = FREE_SHARE,
) -> ServingPool:
    """`free_share` of what weights and reserve leave. WorkbookError if the weights do not fit, or not one request.

    Admission "to-the-end" takes blocks for the longest answer. "now" takes them as the answer grows: at any time the
    answers that run are half done on average.

    >>> from helpers.catalog import device
    >>> pool = pool_of(nim.setup(), device("h100"), Workload(5000, 500, 1), Policy(admission="to-the-end"), ranks=2)
    >>> pool.users == nim.users_that_fit(), pool.request_tokens
    (True, 5504)
    """
    require_whole("reserve_bytes", reserve_bytes, 0, unit="bytes", do="pass 0 to keep nothing")
    require_number("free_share", free_share, below=1 + 1e-9, expected="a share above 0, at most 1", do="pass 0.9")
    free = gpu.capacity_bytes - reserve_bytes - _weights_that_fit(setup, gpu, ranks, reserve_bytes)
    cache = RankCache.of(setup, None, ranks)
    tokens, shared = BLOCK * -(-_held(workload, policy) // BLOCK), workload.shared // BLOCK * BLOCK
    shared_bytes = _growing_bytes(cache, shared)
    request_bytes = cache.total(tokens) - shared_bytes
    weights = gpu.capacity_bytes - reserve_bytes - free
    pool = ServingPool(weights, int(free * free_share), tokens, shared, shared_bytes, request_bytes)
    if not pool.users:
        what = f"one request of {tokens:,} tokens takes {format_bytes(request_bytes + shared_bytes)} of KV cache"
        expected = f"at most {format_bytes(pool.pool_bytes)}, the pool beside the weights on the {gpu.title}"
        raise WorkbookError(what, expected, "shorten prompt or answer, or take more ranks or fewer bits")
    return pool


def _held(workload: Workload, policy: Policy) -> int:
    to_the_end = policy.admission == "to-the-end"
    return workload.prompt + (workload.limit if to_the_end else -(-workload.answer // 2))


def _growing_bytes(cache: RankCache, tokens: int) -> int:
    """Of layers that hold every token: what a window forgets, or a state sums up, nobody can share."""
    return sum(cache.of_kind(kind, tokens) for kind in cache.kinds if kind.window(cache.plan) is None) if tokens else 0


def _weights_that_fit(setup: ServeSetup, gpu: Device, ranks: int, reserve_bytes: int) -> int:
    weights, room = rank_weight_bytes(setup, ranks), gpu.capacity_bytes - reserve_bytes
    if weights < room:
        return weights
    more = next((count for count in (2, 4, 8, 16, 32, 64) if count > ranks and _fits(setup, room, count)), None)
    each = f" on each of {ranks} ranks" if ranks > 1 else ""
    what = f"the weights of {setup.model.name} in {setup.weights} are {format_bytes(weights)}{each}"
    do = f"pass tensor_parallel={more}, or weights in fewer bits" if more else "take weights in fewer bits"
    raise WorkbookError(what, f"less than {format_bytes(max(0, room))}, the {gpu.title} without its reserve", do)


def _fits(setup: ServeSetup, room_bytes: int, ranks: int) -> bool:
    try:
        return rank_weight_bytes(setup, ranks) < room_bytes
    except WorkbookError:  # heads that so many cannot share
        return False


def attended(model: ModelShape, tokens: int) -> float:
    """The share of a prompt's query-key pairs that lie within the layers' windows; 1 without windows.

    >>> from helpers.catalog import model
    >>> attended(model("llama-3-8b"), 8192), attended(model("mistral-7b"), 8192)
    (1.0, 0.75)
    """
    windows = [min(layer.attention.window or tokens, tokens) for layer in model.layers]
    return sum(window * (2 * tokens - window) for window in windows) / (tokens * tokens * len(windows))
