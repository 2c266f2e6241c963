"""Checkpoints on the tape: a function of which nothing is kept, run again when the backward asks. No torch.

As `torch.utils.checkpoint` does without reentrance, and its selective policies with it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence

from .tape import Block, Form, Live, Node, Rule, Tape, Tensor

Run = Callable[..., Tensor]
Stores = Callable[[str, int], bool]  # whether a kind's result of a number is stored: "product", "scores", "attention"


class Again:
    """One checkpoint: a function that is run again for what its nodes keep, when the backward first asks one of them.

    It holds what the function was given, and what `stores` names of its results.
    """

    __slots__ = ("filled", "held", "inputs", "nodes", "numbers", "run", "storage", "stores", "tape")

    def __init__(self, tape: Tape, run: Run, inputs: tuple[Tensor, ...], stores: Stores) -> None:
        self.tape, self.run, self.inputs, self.stores = tape, run, inputs, stores
        self.filled, self.numbers = False, Counter[str]()
        self.nodes: list[weakref.ref[Node]] = []
        self.storage: list[tuple[Block, ...]] = []
        self.held = [tensor.block for tensor in inputs if tensor.block]
        tape.keep(self.held)

    def __del__(self) -> None:
        for blocks in (self.held, *self.storage):
            self.tape.let_go(blocks)

    def stores_next(self, kind: str) -> bool:
        self.numbers[kind] += 1
        return self.stores(kind, self.numbers[kind] - 1)


class Checkpoints(Tape):
    """A tape with checkpoints."""

    unpacks_once = False  # for what is itself run inside of one, on a tape of its own
    _first: Again | None = None  # the checkpoint whose function runs for the first time
    _again: Again | None = None  # the one whose function runs again
    _kept: list[list[Block]]  # what its nodes keep, meanwhile

    def checkpointed(self, run: Run, *inputs: Tensor, stores: Stores = lambda kind, number: False) -> Tensor:
        """`run(*inputs)`, of which nothing is kept but the inputs and what `stores` says; the rest is made again."""
        if not self.recording:
            return run(*inputs)
        outer, self._first = self._first, Again(self, run, inputs, stores)
        out = run(*inputs)
        self._first = outer
        return out

    def result(self, kind: str, *forms: Form, is_logits: bool = False, flops: int = 0) -> tuple[Tensor, ...]:
        """What a kernel of a kind writes: made here, or found where a checkpoint has stored it."""
        again = self._first or self._again
        stores = again is not None and again.stores_next(kind)
        if again and stores and again is self._again:
            self._before_last = self.highest_now  # what this kernel reads is there, and nothing is made
            # What the last kernel that keeps something was given is kept before that would run
            stops = kind in ("product", "scores", "grouped") and len(self._kept) >= len(again.nodes) - 1
            found = again.storage[0] if stops else again.storage.pop(0)
            self.let_go(() if stops else found)
            return tuple(Tensor(*form, block) for form, block in zip(forms, found, strict=True))
        self.computes(flops)
        made = tuple(self.new(*form, is_logits=is_logits) for form in forms)
        if again and stores:
            again.storage.append(tuple(tensor.block for tensor in made if tensor.block))
            self.keep(again.storage[-1])
        return made

    def noded(self, inputs: Sequence[Tensor], kept: Sequence[Tensor], rule: Rule) -> Node:
        """In a first run a node that keeps nothing yet; in one more what its node of the first run will keep.

        A run has a graph of its own, which holds what it keeps as long as its variables live. What it hands on is only
        what a node asks for that is still there.
        """
        if self._again and kept:
            wanted = self._again.nodes[len(self._kept)]() is not None
            self._kept.append([tensor.block for tensor in kept if wanted and tensor.block])
        if self._again or not self._first:
            return super().noded(inputs, kept, rule)
        node = super().noded(inputs, (), rule)
        if kept:
            node.asks, node.checkpoint = True, self._first
            self._first.nodes.append(weakref.ref(node))
        return node

    def lets_go_early(self, node: Node) -> bool:
        """What was made again for a node is gone as soon as that has read it."""
        return self.unpacks_once or node.checkpoint is not None

    def comes_to(self, node: Node) -> None:
        """Fill the nodes of its checkpoint; what is made behind the last tensor that is kept was never made."""
        again = node.checkpoint
        if not isinstance(again, Again) or again.filled:
            return
        stages, self.stages, self.until_last_kept, since = self.stages, {}, Live(), self.since
        cached, self.cached = self.cached, []
        flops, self.flops, self.flops_until_last_kept = self.flops, 0, 0
        self._again, self._kept, again.filled = again, [], True
        again.numbers.clear()
        again.run(*again.inputs)
        self._again, self.cached = None, cached
        self.flops, self.flops_again = flops, self.flops_again + self.flops_until_last_kept
        for ref, blocks in zip(again.nodes, self._kept, strict=True):
            if filled := ref():
                filled.kept = blocks
                self.keep(blocks)
        del self._kept
        self.stages, self.since = stages, since
        self.raised(self.until_last_kept)
