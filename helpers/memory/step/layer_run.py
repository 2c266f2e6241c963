"""One decoder layer on a tape of its own, forward and backward: what it adds at most, and what it leaves. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ...catalog.layers import Layer
from ...catalog.optimizers import Optimizer
from ...catalog.train_setup import TrainSetup
from ..breakdown import Point, rounded
from .decoders.families import PAGES, decoder
from .decoders.linears import StepWidths
from .operators import Operators
from .tape import NOTHING, Arrival, Live, Update

SILENT = "silent"  # how a layer runs for the first time inside a checkpoint: nothing is kept
AGAIN = "again"  # and how it runs inside the backward


@dataclass(frozen=True)
class LayerRun:
    """What a layer adds to what is alive before it; its input and the gradient of its output are alive before it.

    `saved` is kept from the forward to the backward, the input not among it: `keeps_input` says whether the layer keeps
    that very tensor. `cached` are autocast's copies that nothing else holds. `again` is the forward inside a backward,
    up to the last tensor that is asked for, beside the gradients that are there when it is asked: `asking`. `arrivals`
    are the gradients of the backward, in order; `last` is the highest moment behind them. FLOPs are those of products:
    the forward's, and of it up to the last tensor that is kept; the backward's own; and what ran again inside of it.
    """

    input: Live
    saved: Live
    cached: Live
    keeps_input: bool
    forward: Live
    again: Live
    asking: Live = NOTHING
    backward: Live = NOTHING
    gradients: Live = NOTHING
    arrivals: tuple[Arrival, ...] = ()
    last: Live = NOTHING
    flops: int = 0
    flops_until_last_kept: int = 0
    backward_flops: int = 0
    flops_again: int = 0

    def left(self, held: bool) -> Live:
        """What the forward leaves beside its output; where nobody else has `held` the input, less that or with it."""
        if held:
            return self.saved
        return self.saved + (Live(0, self.input.total) if self.keeps_input else Live() - self.input)


@dataclass(frozen=True)
class _SameLayers:
    """A setup as far as a layer's run depends on it: not on its policy, which calculators go through."""

    setup: TrainSetup = field(compare=False)
    key: tuple[object, ...]


def adds_up(setup: TrainSetup) -> bool:
    """Whether a new gradient is added to a sum that is there, as whole as it is, through the whole step."""
    if setup.zero > 1:  # whose sums are shards
        return False
    return setup.micro_batches > 1 or setup.precision == "megatron-bf16"  # whose main gradients are FP32, and stay


def update_of(setup: TrainSetup) -> Update | None:
    """What the optimizer makes that updates one weight in the backward."""
    if not setup.in_backward:
        return None
    rule, width = setup.optimizer_rule, setup.precision_recipe.optimized_bytes
    return lambda shape, role: update_bytes(rule, [(tuple(shape), role)], width)


def update_bytes(rule: Optimizer, trained: Iterable[tuple[tuple[int, ...], str]], width: int) -> int:
    """The most that `step()` makes while it updates these tensors (shape and role), one optimizer after another.

    Either all temporaries exist together, or a tensor's with what the loop still holds of the one before it.
    """
    trained, sizes = list(trained), {}
    for shape, role in set(trained):  # layers repeat: each kind of tensor is asked for once
        own = rule.rule_of(shape, role)
        made = sum(map(rounded, own.temporaries(shape, width)))
        sizes[shape, role] = own.name, own.foreach, made, rounded(own.carried_bytes(shape, width))
    highest: Counter[str] = Counter()
    carried: Counter[str] = Counter()
    for tensor in trained:
        name, together, made, left = sizes[tensor]
        highest[name] = highest[name] + made if together else max(highest[name], carried[name] + made)
        carried[name] = left
    return max(highest.values(), default=0)


def run_layer(setup: TrainSetup, layer: Layer, *how: Any, **on: Any) -> LayerRun:
    """`layer_run`, remembered."""
    shape = setup.micro_batch, setup.sequence, adds_up(setup), setup.in_backward and setup.optimizer
    page = PAGES.get(setup.model.family)
    key = id(setup.model), page, setup.precision, setup.attention, setup.masked, setup.adapter, *shape
    return _remembered(_SameLayers(setup, key), layer, *how, **on)


@lru_cache(maxsize=512)
def _remembered(same: _SameLayers, layer: Layer, *how: Any, **on: Any) -> LayerRun:
    return layer_run(same.setup, layer, *how, **on)


def layer_run(
    setup: TrainSetup, layer: Layer, how: str = "none", wants: bool = True, given: bool = False, **on: Any
) -> LayerRun:
    """Run `layer` as `how` says: "none", a policy of a part of it, SILENT or AGAIN; `on` what is told to `decoder`.

    Its input `wants` a gradient, but where that is a frozen embedding's output. The gradient of what it returns is
    alive before it, and in its first node's hands, unless it is `given`: somebody else holds it to the end then, and
    counts it.
    """
    tape = Operators(how != SILENT, adds_up(setup), update_of(setup))
    tape.unpacks_once, tape.stage = how == AGAIN, Point.LAYER
    values, width = setup.tokens * setup.model.hidden, StepWidths.of(setup).residual
    hidden = tape.leaf(values, width) if wants else tape.new(values, width)
    begun, size = tape.now, tape.live
    out = decoder(setup, tape, **on).layer(hidden, layer, how)
    keeps_input = bool(hidden.block and hidden.block.keepers)
    forward, again, node = tape.highest - begun, tape.until_last_kept - begun, out.node
    del hidden, out
    with_copies = tape.live
    tape.cached.clear()
    cached = Live(*[with_copies - tape.live] * 2)
    saved = tape.now - (Live(size, size) if keeps_input else Live())
    counted, kept = tape.flops, tape.flops_until_last_kept
    ran = LayerRun(begun, saved, cached, keeps_input, forward, again, flops=counted, flops_until_last_kept=kept)
    if node is None or how == SILENT:
        return ran
    before = tape.now + Live(size)  # the gradient of what it returned
    elsewhere = tape.new(values, width) if given else None
    tape.backward(node, values, width, elsewhere)
    spots: dict[str, Any] = {"asking": Live(tape.when_asked.total - before.total), "backward": tape.highest - before}
    gradients = Live(tape.gradient_bytes + tape.waiting_bytes, 0, tape.gradient_bytes)
    arrivals = tuple(one._replace(live=one.live - before, highest=one.highest - before) for one in tape.arrivals)
    flops: dict[str, Any] = {"backward_flops": tape.flops - counted, "flops_again": tape.flops_again}
    return replace(ran, **spots, gradients=gradients, arrivals=arrivals, last=tape.since - before, **flops)
