"""What a scheduler is told: how it batches, in which order, how much a step computes, when it admits. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.errors import require_name, require_number, require_whole

BATCHING = ("continuous", "dynamic", "static")
ORDERS = ("fcfs", "priority", "shortest", "fair")
ADMISSION = ("now", "to-the-end")
PREEMPTION = ("recompute", "swap")


@dataclass(frozen=True)
class Policy:
    """One way to schedule. The defaults are vLLM's first design: continuous, first come first served, whole prompts.

    `batching`: "static" waits for `max_running` requests, and for the last of them to end; "dynamic" does not wait
    longer than `max_wait_s` to begin; "continuous" admits before every step.
    `token_budget`: the most tokens that one step computes, prefill and decode together; a prompt is cut into chunks
    that fit (vLLM V1: `max_num_batched_tokens`). None: a prompt is computed whole, and in a step without decodes.
    `drafts`: proposals of a smaller model that each sequence that decodes has checked in one step, on top of its own
    token. Fewer near the answer's end, where the budget ends, and none where no block is free for them.
    `max_prefill_tokens`: how many tokens of such whole prompts share a step. None: of all that fit into the pool.
    `order` among those who wait: "fcfs" by arrival, "priority" by the smaller number, "shortest" by prompt and answer
    (an oracle: no service knows the answer's length), "fair" by how many tokens the user has had.
    `aging_s`: seconds of waiting that count as one level of priority. None: the least urgent may wait forever.
    `admission`: "now" asks for the blocks of the prompt and preempts when they run out; "to-the-end" asks for those of
    the longest answer, too, and never preempts (TensorRT-LLM: GUARANTEED_NO_EVICT).
    """

    batching: str = "continuous"
    order: str = "fcfs"
    token_budget: int | None = None
    max_prefill_tokens: int | None = None
    max_running: int = 256
    admission: str = "now"
    preemption: str = "recompute"
    aging_s: float | None = None
    max_wait_s: float = 0.1
    drafts: int = 0

    def __post_init__(self) -> None:
        require_name("batching", self.batching, BATCHING)
        require_name("order", self.order, ORDERS)
        require_name("admission", self.admission, ADMISSION)
        require_name("preemption", self.preemption, PREEMPTION)
        require_whole("max_running", self.max_running)
        require_whole("drafts", self.drafts, 0, most=64, do="pass drafts=0 where nobody proposes")
        for name in ("max_wait_s", "aging_s"):
            if getattr(self, name) is not None:
                require_number(
                    name, getattr(self, name), below=1e9, expected="seconds above zero", do=f"pass {name}=5.0"
                )
        for name in ("token_budget", "max_prefill_tokens"):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name))

    @property
    def rows(self) -> int:
        """The most sequences that run: each needs a token of the budget."""
        return self.max_running if self.token_budget is None else min(self.max_running, self.token_budget)
