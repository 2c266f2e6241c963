"""Autograd that counts bytes and computes nothing: forward makes tensors and nodes, backward runs the nodes. No torch.

    tape = Operators()                              # of `operators`, on which the common kernels are written down
    x = tape.leaf(4096, 2)                          # 4096 values of 2 bytes, whose gradient is wanted
    y = tape.elementwise(tape.cast(x, 4))           # what torch would run, in the order in which torch runs it
    tape.backward(y.node, y.values, y.width)
    tape.highest.total                              # the most that was alive at once, what it was for beside it

It follows PyTorch's engine: the node that was made last runs first; what a node kept is freed when it is done; a second
gradient for the same tensor is added to the first. A tensor is freed as Python frees it, with the last name that holds
it, so code on a tape has the variables of the code that it stands for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import NamedTuple

from ..breakdown import rounded


class Live(NamedTuple):
    """Bytes at one moment: all of them; what nodes keep for backward; gradients of weights; logits, kept or not."""

    total: int = 0
    kept: int = 0
    gradients: int = 0
    logits: int = 0

    def __add__(self, other: Live) -> Live:  # type: ignore[override]
        (a, b, c, d), (e, f, g, h) = self, other
        return Live(a + e, b + f, c + g, d + h)

    def __sub__(self, other: Live) -> Live:
        (a, b, c, d), (e, f, g, h) = self, other
        return Live(a - e, b - f, c - g, d - h)


class Arrival(NamedTuple):
    """A weight's gradient: its shape and bytes, what is alive with it, and the highest since the one before."""

    shape: tuple[int, ...]
    size_bytes: int
    live: Live
    highest: Live


class Block:
    """One storage: counted from when it is made until nobody holds it."""

    __slots__ = ("is_logits", "keepers", "size_bytes", "tape")

    def __init__(self, tape: Tape, size_bytes: int, is_logits: bool) -> None:
        self.tape, self.size_bytes, self.is_logits, self.keepers = tape, rounded(size_bytes), is_logits, 0
        tape.made(self)

    def __del__(self) -> None:
        self.tape.freed(self)


class Tensor:
    """Some values in a block. `node` made them, and is None where no gradient is wanted. It may hold `others`."""

    __slots__ = ("block", "node", "others", "values", "width")

    def __init__(
        self, values: int, width: int, block: Block | None, node: Node | None = None, others: Sequence[Tensor] = ()
    ) -> None:
        self.values, self.width, self.block, self.node, self.others = values, width, block, node, others

    @property
    def is_logits(self) -> bool:
        return bool(self.block and self.block.is_logits)


Form = tuple[int, int]  # values, bytes of each
Rule = Callable[[Tensor], list[Tensor | None]]  # from the gradient of what a node made to those of what it was given
Update = Callable[[Sequence[int], str], int]  # of a weight's shape and role


class Node:
    """One operator in the graph. A leaf has no rule: it holds the gradient that comes to it."""

    is_weight = waits = joins = False
    lingers = False  # the gradient that came to it lives until what it made has been added up
    shape: Sequence[int] = ()
    role = ""  # of a weight, to its optimizer
    checkpoint: object = None  # which it is part of

    def __init__(self, tape: Tape, edges: Sequence[Tensor], kept: Sequence[Tensor], rule: Rule | None) -> None:
        self.tape, self.stage, self.flat, self.rule = tape, tape.stage, tape.flat, rule
        tape.nodes += 1
        self.number = tape.nodes
        self.edges = tuple(tensor.node for tensor in edges)
        self.forms: tuple[Form, ...] = tuple((tensor.values, tensor.width) for tensor in edges)
        self.asks, self.kept = bool(kept), [tensor.block for tensor in kept if tensor.block]
        tape.keep(self.kept)

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Let go of what was kept: the backward has been here, or nothing leads here any more."""
        self.tape.let_go(self.kept)
        self.kept, self.rule, self.checkpoint = [], None, None

    def __lt__(self, other: Node) -> bool:
        return self.number > other.number


class Tape:
    """What is alive now, and the highest moment in all and of each stage.

    `recording=False` is the forward inside a checkpoint: nothing is kept, and no node is made. In a step that
    `accumulates` gradients are added to sums that are counted elsewhere, and gone. `updates` says what the optimizer
    makes that updates a weight as soon as its gradient is there, which is gone then.
    """

    def __init__(self, recording: bool = True, accumulates: bool = False, updates: Update | None = None) -> None:
        self.recording, self.accumulates, self.stage, self.nodes = recording, accumulates, "", 0
        self.updates = updates
        self.cached: list[Tensor] = []  # autocast's copies of weights, alive until its block is left
        self.live = self.kept = self.gradient_bytes = self.logits = 0
        self.arrived: list[Block] = []  # at leaves, where it stays
        self.flat = False  # whether tensors have two dimensions, and a product no view before it and behind it
        self.arrivals: list[Arrival] = []
        self.waiting_bytes = 0  # of gradients, at the end, for what was made earlier
        self.stages: dict[str, Live] = {}
        self.since = Live()  # the highest moment since the last arrival
        self.when_asked = Live()  # when the backward first asks for what was kept
        self._before_last = Live()
        self.until_last_kept = Live()  # the highest moment before the last tensor was kept: a recomputation stops there
        self.flops = self.flops_again = 0  # of products: here, and in checkpoints that ran again
        self.flops_until_last_kept = self._flops_before_last = 0

    @property
    def highest(self) -> Live:
        return max(self.stages.values(), key=lambda live: live.total, default=Live())

    @property
    def highest_now(self) -> Live:
        """Of this stage."""
        return self.stages.get(self.stage, NOTHING)

    # --- blocks ------------------------------------------------------------------------------------------------------

    def made(self, block: Block) -> None:
        self._before_last = self.highest_now
        self.live += block.size_bytes
        if block.is_logits:
            self.logits += block.size_bytes
        if self.live > self._before_last.total or self.live > self.since.total:
            self.raised(self.now)

    def raised(self, live: Live) -> None:
        """So much was alive in this stage."""
        if live.total > self.highest_now.total:
            self.stages[self.stage] = live
        if live.total > self.since.total:
            self.since = live

    def freed(self, block: Block) -> None:
        self.live -= block.size_bytes
        if block.is_logits:
            self.logits -= block.size_bytes

    @property
    def now(self) -> Live:
        return Live(self.live, self.kept, self.gradient_bytes, self.logits)

    def keep(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.keepers += 1
            if block.keepers == 1 and not block.is_logits:
                self.kept += block.size_bytes

    def let_go(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            block.keepers -= 1
            if block.keepers == 0 and not block.is_logits:
                self.kept -= block.size_bytes

    # --- tensors -----------------------------------------------------------------------------------------------------

    def new(self, values: int, width: int, is_logits: bool = False) -> Tensor:
        return Tensor(values, width, Block(self, values * width, is_logits))

    def leaf(self, values: int, width: int) -> Tensor:
        """A tensor from elsewhere whose gradient is wanted."""
        tensor = self.new(values, width)
        tensor.node = Node(self, (), (), None)
        return tensor

    def weight(self, shape: Sequence[int], width: int, waits: bool = False, role: str = "") -> Tensor:
        """A trained parameter, whose own bytes are counted elsewhere; its gradient comes to stay on the tape.

        One that `waits` has another use, whose gradient is added before it counts.
        """
        node = Node(self, (), (), None)
        node.is_weight, node.waits, node.shape, node.role = True, waits, shape, role
        return Tensor(prod(shape), width, None, node)

    def earlier(self, values: int, width: int) -> Tensor:
        """What was made before all else here and is counted elsewhere: its gradient waits on the tape."""
        self.waiting_bytes += rounded(values * width)
        return Tensor(values, width, None, Node(self, (), (), None))

    def record(self, out: Tensor, inputs: Sequence[Tensor], kept: Iterable[Tensor], rule: Rule) -> Tensor:
        """Make `out` the result of a node that keeps `kept`, unless no input wants a gradient.

        FROZEN among them stands for a weight, whose own bytes are counted elsewhere.
        """
        if any(tensor.node for tensor in inputs):
            kept = tuple(kept)
            if kept:  # what an operator was given is kept before it runs, its result when it is there
                self.until_last_kept = self.highest if out in kept else self._before_last
                self.flops_until_last_kept = self.flops if out in kept else self._flops_before_last
            out.node = self.noded(inputs, kept, rule)
        self._flops_before_last = self.flops
        return out

    def computes(self, flops: int) -> None:
        """The kernel whose result is recorded next takes so many FLOPs."""
        self.flops += flops

    def has_computed(self) -> None:
        """What is recorded next keeps its inputs when it is done, as a Function written in Python does."""
        self._flops_before_last = self.flops

    def noded(self, inputs: Sequence[Tensor], kept: Sequence[Tensor], rule: Rule) -> Node:
        """What leads back to `inputs`: a node; or, where nothing is recorded, one that stands for it."""
        if self.recording:
            return Node(self, inputs, kept, rule)
        return next(tensor.node for tensor in inputs if tensor.node)

    def cached_cast(self, copy: Tensor) -> Tensor:
        """Autocast's copy of a weight, which its cache holds too."""
        self.cached.append(copy)
        return copy

    # --- the engine --------------------------------------------------------------------------------------------------

    def backward(self, first: Node, values: int, width: int, given: Tensor | None = None) -> None:
        """Run all nodes behind `first`, which a gradient of so many values has come to. Forgets earlier highests.

        The gradient is made here, and freed when it has been used, unless it is `given` and its owner holds it.
        """
        self.stages.clear()
        self.since = Live()
        asked = False
        pending, ready = _dependencies(first), [first]
        waiting: dict[Node, Tensor] = {first: given or self.new(values, width)}
        while ready:
            node = heapq.heappop(ready)
            self.stage = node.stage or self.stage
            if node.asks and not asked:
                asked, self.when_asked = True, self.now
            self.comes_to(node)
            lingering = waiting[node] if node.lingers else None
            made = self._run(node, waiting.pop(node))
            for edge in node.edges:
                got = made.pop(0) if made else None
                if edge is None:
                    continue
                if got is not None:
                    waiting[edge] = self._added(waiting.pop(edge), got, edge) if edge in waiting else got
                got = None
                pending[edge] -= 1
                if not pending[edge]:
                    if edge.rule is None:
                        self._arrived(edge, waiting.pop(edge, None))
                    else:
                        heapq.heappush(ready, edge)
            del lingering

    def comes_to(self, node: Node) -> None:
        """The backward is about to run `node`."""

    def lets_go_early(self, node: Node) -> bool:
        """Whether what a node kept is gone before its gradients are brought to type; usually it is there until then."""
        return False

    def _run(self, node: Node, gradient: Tensor) -> list[Tensor | None]:
        """The gradients of one node, each brought to the shape and type of what it belongs to (validate_outputs)."""
        rule, own = node.rule, 0
        assert rule is not None
        if not self.accumulates:
            straight = zip(node.forms, node.edges, strict=True)
            own = sum(rounded(form[0] * form[1]) for form, edge in straight if edge and edge.is_weight)
        self.gradient_bytes += own
        made = rule(gradient)
        if self.lets_go_early(node):
            node.release()
        for at, (got, form) in enumerate(zip(made, node.forms, strict=True)):
            if got is not None and (got.values, got.width) != form and node.edges[at]:
                made[at] = self.new(*form, is_logits=got.is_logits)
            elif node.edges[at] is None:
                made[at] = None
        self.gradient_bytes -= own  # until they arrive
        del rule, got
        node.release()
        return made

    def _added(self, old: Tensor, new: Tensor, to: Node) -> Tensor:
        """A sum beside both; InputBuffer adds in place to a gradient that nobody else holds, and that is no view.

        Gradients of parts wait for each other, until the node joins them.
        """
        if to.joins:
            return Tensor(0, 0, None, None, (old, new))
        return old if to.flat else self.new(old.values, old.width)

    def _arrived(self, leaf: Node, gradient: Tensor | None) -> None:
        if gradient is None or not gradient.block or (leaf.is_weight and self.accumulates and not leaf.waits):
            return
        own = gradient.block.size_bytes if leaf.is_weight and not self.accumulates else 0
        self.gradient_bytes += own
        if leaf.is_weight and not leaf.waits:
            self.arrivals.append(Arrival(tuple(leaf.shape), own, self.now, self.since))
            self.since = self.now
        if leaf.is_weight and self.updates and not leaf.waits:
            self.new(self.updates(leaf.shape, leaf.role), 1)
            self.gradient_bytes -= own
        else:
            self.arrived.append(gradient.block)


FROZEN = Tensor(0, 0, None)
NOTHING = Live()


def _dependencies(first: Node) -> dict[Node, int]:
    """How many gradients each node behind `first` waits for."""
    pending, todo, seen = {first: 0}, [first], {first}
    while todo:
        for edge in todo.pop().edges:
            if edge is not None:
                pending[edge] = pending.get(edge, 0) + 1
                if edge not in seen:
                    seen.add(edge)
                    todo.append(edge)
    return pending
