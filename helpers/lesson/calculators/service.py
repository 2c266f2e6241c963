"""A service in its steady state, in numbers: who runs, who waits, what a step takes, where it saturates."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from ...catalog.devices import OFFERED, Device
from ...catalog.errors import WorkbookError
from ...catalog.serve_setup import ServeSetup
from ...techniques.scheduling.policy import Policy
from ...techniques.scheduling.saturation import Steady, saturation_point, steady
from ...techniques.scheduling.step_time import Roofline
from ..drawing.loads import LoadPoint
from ..units import three_digits
from .kv_layers import RankCache
from .serving_pool import ServingPool, attended, pool_of
from .workloads import Efficiencies, Workload

READS, FLOPS, OVERHEAD = "memory reads", "FLOPs", "overhead"
KV_ROOM, MAX_RUNNING, TOKEN_BUDGET = "KV room", "max_running", "token budget"
POINTS = 24  # of a curve, beside the saturation point and the chosen number


@dataclass(frozen=True)
class Service:
    """`workload` under `policy` on `tensor_parallel` ranks. `roof` is a rank's, `pool` its room for keys and values."""

    setup: ServeSetup
    gpu: Device
    workload: Workload
    policy: Policy
    efficiencies: Efficiencies
    tensor_parallel: int
    reserve_bytes: int
    free_share: float
    pool: ServingPool
    roof: Roofline

    @property
    def users_that_fit(self) -> int:
        """Requests that are admitted at once: as many as the pool holds, and the policy runs."""
        return min(self.pool.users, self.policy.max_running)

    def as_admitted(self, admission: str) -> ServingPool:
        """The pool under the other admission."""
        policy, kept = replace(self.policy, admission=admission), (self.reserve_bytes, self.free_share)
        return pool_of(self.setup, self.gpu, self.workload, policy, self.tensor_parallel, *kept)

    @cached_property
    def saturation(self) -> int:
        """The most clients of whom none waits: from one more on throughput stands still."""
        return saturation_point(self.roof, self.users_that_fit, *self._lengths)

    @property
    def saturated_by(self) -> str:
        """What is full first."""
        if self.saturation < self.users_that_fit:
            return TOKEN_BUDGET
        return KV_ROOM if self.pool.users <= self.policy.max_running else MAX_RUNNING

    @cached_property
    def clients(self) -> int:
        """Those asked for; of an open loop the fewest that ask as often as its requests come."""
        if self.workload.requests_per_s is None:
            return self.workload.clients or 1
        asked, most = self.workload.requests_per_s, self._requests_per_s(self.saturation)
        if asked > most:
            what = f"{asked:g} requests a second are more than this service answers: its queue would grow without end"
            raise WorkbookError(what, f"at most {three_digits(most)}", "divide them among more replicas")
        return 1 + bisect_left(range(1, self.saturation), asked, key=self._requests_per_s)

    @cached_property
    def steady(self) -> Steady:
        return self._of(self.clients)

    @property
    def requests_per_s(self) -> float:
        """Of an open loop those that come."""
        return self.workload.requests_per_s or self._requests_per_s(self.clients)

    @property
    def request_s(self) -> float:
        """From the question to the last token."""
        return self.steady.ttft_s + self.steady.itl_s * (self.workload.answer - 1)

    @cached_property
    def step_seconds(self) -> dict[str, float]:
        """A mean step by what sets its time."""
        steps, parts = self.steady.steps, {READS: 0.0, FLOPS: 0.0, OVERHEAD: self.roof.overhead_s}
        for step, share in ((steps.alone, 1 - steps.share), (steps.with_chunk, steps.share)):
            read, computed = self.roof.read_seconds(step), self.roof.compute_seconds(step)
            parts[READS if read >= computed else FLOPS] += share * max(read, computed)
        return parts

    @property
    def step_bound(self) -> str:
        return max(self.step_seconds, key=lambda part: self.step_seconds[part])

    @property
    def points(self) -> tuple[LoadPoint, ...]:
        """Over numbers of clients to twice the saturation point, or the chosen one, equally far apart as ratios."""
        most = max(2 * self.saturation, self.clients * 5 // 4, 4)
        spread = {round(most ** (step / POINTS)) for step in range(POINTS + 1)}
        return tuple(self.point(clients) for clients in sorted(spread | {self.saturation, self.clients}))

    def point(self, clients: int) -> LoadPoint:
        found = self._of(clients)
        return LoadPoint(clients, found.tokens_per_s, found.ttft_s, found.itl_s)

    def _of(self, clients: int) -> Steady:
        return steady(self.roof, clients, self.users_that_fit, *self._lengths)

    def _requests_per_s(self, clients: int) -> float:
        return self._of(clients).tokens_per_s / self.workload.answer

    @property
    def _lengths(self) -> tuple[int, int, int, int]:
        budget = self.policy.token_budget or 0
        return self.workload.prompt, self.workload.answer, budget, self.pool.shared_tokens


def roofline_of(setup: ServeSetup, gpu: Device, ranks: int, shares: Efficiencies, workload: Workload) -> Roofline:
    """A rank's, with the keys and values that a mean context holds, and the pairs that a prompt has within windows."""
    _require_rate(setup, gpu)
    cache, mean = RankCache.of(setup, None, ranks), workload.prompt + workload.answer // 2
    roof = Roofline.of(setup, gpu, ranks, shares.memory, shares.compute, shares.overhead_s)
    a_pair = round(roof.flops_per_pair * attended(setup.model, workload.prompt))
    return replace(roof, kv_bytes_per_token=ceil(cache.total(mean) / mean), flops_per_pair=a_pair)


def _require_rate(setup: ServeSetup, gpu: Device) -> None:
    """FP8 weights are multiplied in FP8; all others are decoded to BF16 first."""
    wanted = setup.weights if setup.weights.startswith("fp8") else "bf16"
    if wanted not in gpu.peak_flops:
        able = [entry.name for entry in OFFERED if wanted in entry.peak_flops]
        what = f"the {gpu.title} has no rate for {wanted}, in which weights in {setup.weights} are multiplied"
        others = ", or weights='int8'" if wanted != "bf16" and "bf16" in gpu.peak_flops else ""
        raise WorkbookError(what, f"one of {', '.join(able)}", f"pass gpu={able[0]!r}{others}")


def within_reach(setup: ServeSetup, workload: Workload) -> ServeSetup:
    """`setup` for one request of the longest answer; WorkbookError where the model has no position for it."""
    model, longest = setup.model, workload.prompt + workload.limit
    if model.learned_positions and longest > model.max_positions:
        what = (
            f"prompt and longest answer are {longest:,} tokens, and {model.name} has {model.max_positions:,} positions"
        )
        do = "shorten the prompt, or take a model with rotary positions such as llama-3-8b"
        raise WorkbookError(what, f"at most {model.max_positions:,} tokens together", do)
    return replace(setup, users=1, context=longest)


def require_closed_form(policy: Policy) -> None:
    """Continuous batching with a budget; the order among those who wait changes no mean that is counted here."""
    if policy.batching != "continuous" or policy.token_budget is None:
        what = f"{policy.batching} batching, token_budget={policy.token_budget}: no closed form here"
        do = "pass Policy(token_budget=2048), or run helpers.techniques.scheduling.simulate"
        raise WorkbookError(what, "continuous batching with a token budget", do)


def require_budget(policy: Policy, running: int) -> None:
    budget = policy.token_budget or 0
    if budget <= running:
        what = f"token_budget is {budget:,}, and {running:,} requests may run at once"
        expected = f"more than {running:,}: a token for each that decodes, and one for a prompt"
        raise WorkbookError(what, expected, f"pass token_budget={max(512, 2 * running)}, or max_running={budget // 2}")
