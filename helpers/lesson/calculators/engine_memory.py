"""What an engine takes of a card before a request comes, and how many users its pool then holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...catalog.engines import engine
from ...memory.breakdown import Breakdown, format_bytes
from ...memory.serve.engines.vllm import Launch
from ...questions.question import Question
from .answers import MemoryAnswer, plural, row
from .serving_memory import SERVE

FITTED = "mean of 40 launches of vLLM 0.19 on H100"


@dataclass(frozen=True)
class EngineAnswer(MemoryAnswer):
    """A rank's share of the card by part, and the pool that is left in it."""

    launch: Launch

    @property
    def title(self) -> str:
        made = self.launch
        held = f"{made.users:,} users of {made.setup.context:,} tokens" if made.pool_bytes > 0 else "no room for KV"
        return f"Serving {made.setup.model.name} with {made.engine.name}: {held}"

    @property
    def question(self) -> Question:
        return SERVE

    @property
    def asked(self) -> dict[str, Any]:
        made = self.launch
        known = made.engine == engine(made.engine.name)
        return {
            "setup": made.setup,
            "engine": made.engine.name,
            "engine_version": None if known else made.engine.version,
            "tensor": made.tensor if made.tensor > 1 else None,
            "pipeline": made.pipeline if made.pipeline > 1 else None,
            "share": made.share,
            "max_seqs": made.max_seqs,
            **self.on_card,
        }

    @property
    def figures(self) -> dict[str, Any]:
        made, pages = self.launch, self.launch.pages
        return {
            "engine": made.engine.name,
            "version": made.engine.version,
            "share": made.chosen_share,
            "share_bytes": made.share_bytes,
            "free_bytes": made.free_bytes,
            "weight_bytes": made.weight_bytes,
            "profile_bytes": made.profile_bytes,
            "outside_torch_bytes": made.outside_bytes,
            "cuda_graph_bytes": made.graph_bytes,
            "cuda_graphs_in_share": made.engine.graphs_in_share,
            "pool_bytes": made.pool_bytes,
            "block_bytes": pages.block_bytes,
            "blocks": made.blocks,
            "tokens": made.tokens,
            "users": made.users,
            "max_num_batched_tokens": made.batch_tokens,
            "max_num_seqs": made.sequences,
            "tensor": made.tensor,
            "pipeline": made.pipeline,
        }

    def lines(self) -> Iterator[str]:
        made, ranks = self.launch, self.launch.tensor * self.launch.pipeline
        whole = format_bytes(made.card.capacity_bytes)
        yield row("share", format_bytes(made.share_bytes), f"{made.chosen_share:g} of the whole card's {whole}")
        each = f" on each of {ranks} ranks" if ranks > 1 else ""
        yield row("- weights", format_bytes(made.weight_bytes), f"{made.setup.weights_told}, rotary tables too{each}")
        batch, rows, vocab = f"{made.batch_tokens:,} tokens", f"{made.sequences:,}", f"{made.setup.model.vocab:,}"
        text = f"one forward over {batch}, then logits of {rows} sequences × {vocab} vocabulary"
        yield row("- profile run", format_bytes(made.profile_bytes), text)
        yield row("- outside", format_bytes(made.outside_bytes), f"torch, without CUDA's context: {FITTED}")
        if made.engine.graphs_in_share:
            yield row("- graphs", format_bytes(made.graph_bytes), FITTED)
        yield row(
            "= KV pool", format_bytes(made.pool_bytes), f"{made.blocks:,} blocks of {made.pages.block_tokens} tokens"
        )
        groups = plural(len(made.pages.groups), "group")
        yield row("a block", format_bytes(made.pages.block_bytes), f"K and V in {made.setup.kv}, layers in {groups}")
        length = f", at --max-model-len {made.setup.context:,}" if made.engine.logs_users else ""
        text = f"what {made.engine.title} logs as the size of its KV cache{length}"
        yield row("tokens", f"{made.tokens:,}", text)
        yield row("users", f"{made.users:,}", f"of {made.setup.context:,} tokens each, nothing shared")
        if not made.engine.graphs_in_share:
            text = f"{FITTED}: taken after the pool, of what the share leaves"
            yield row("CUDA graphs", format_bytes(made.graph_bytes), text)

    def sentences(self) -> Iterator[str]:
        made = self.launch
        if made.pool_bytes <= 0:
            yield (
                f"{made.engine.name} does not start: its share is {format_bytes(-made.pool_bytes)} too small "
                "before any key or value."
            )
        elif made.users < 1:
            yield (
                f"{made.engine.name} does not start: its pool holds {made.tokens:,} tokens, and one sequence of "
                f"{made.setup.context:,} needs {format_bytes(made.user_bytes)} of it."
            )
        elif made.users < made.setup.users:
            waiting = made.setup.users - made.users
            yield f"Of {made.setup.users:,} users {waiting:,} wait, or are preempted as their contexts grow."
        else:
            yield f"{made.engine.name} holds {plural(made.users, 'such user')} at once."
        if made.users > made.sequences:
            yield f"It runs {made.sequences:,} of them in a step at most (--max-seqs)."
        yield from made.setup.shipped_told
        if made.left_bytes < 0:
            yield (
                f"Beside the share CUDA graphs need {format_bytes(-made.left_bytes)} more than the card has: "
                "lower --share."
            )
        yield from self._not_counted()
        logs = f"held against the logs of {made.engine.logs}" if made.engine.logs else "held against no log of it"
        yield f"The profile run is read off {made.engine.title}'s source, and {logs}."

    def _not_counted(self) -> Iterator[str]:
        """What the profile run takes besides, of which nothing is known here."""
        model = self.launch.setup.model
        if model.counted:
            yield "Its layers are known to Transformers alone: in the profile run they are counted as one dense MLP."
        if model.beside:
            yield "What the profile run takes to encode images or sound is not counted."


def engine_answer(launch: Launch, reserve_bytes: int = 0) -> EngineAnswer:
    """The share of one rank by part: weights, profile run, what is outside, and the pool."""
    return EngineAnswer(Breakdown(launch.parts), launch.card, reserve_bytes=reserve_bytes, launch=launch)
