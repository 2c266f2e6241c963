"""A training step as a chain: the run of each kind of layer, in its order, under any policy. No torch.

What is alive is one sum that goes through the step: a layer's forward adds what it saves, a checkpoint only its input;
on the way back each layer is freed, and its gradients stay. So a step of eighty layers is a run of one, and additions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import prod
from typing import Any

from ...catalog.devices import Device
from ...catalog.hardware import cuda_of
from ...catalog.layers import Attention, Layer, TensorShape
from ...catalog.policies import PolicySegment
from ...catalog.train_setup import TrainSetup
from ..breakdown import Point, rounded
from .decoders.families import decoder
from .decoders.linears import FP32, StepWidths
from .frozen import base_bytes
from .kernels import kernel_of, workspace_bytes
from .layer_run import AGAIN, SILENT, LayerRun, adds_up, run_layer, update_of
from .operators import Operators
from .tape import Live

RERUN = ("full", "offload:inputs")  # segments whose layers are run once more, as a whole


class Chain:
    """The step of `setup` on `card`, run; None is a CPU.

    Others say what lies beside it, and what becomes of gradients, by these:
    """

    parts = 1  # ranks that share each layer
    copies = ""  # as in `Linears`
    names_logits = False  # as in `Decoder`
    tail_bytes = 0  # that the loss keeps
    received = False  # whether what the first layer is given lies elsewhere
    given = False  # whether the gradient of what the last layer returns lies elsewhere
    beside = 0  # alive from before the forward
    gathered = Live()  # beside a layer in its forward

    def __init__(self, setup: TrainSetup, card: Device | None = None) -> None:
        self.setup, self.model, self.card = setup, setup.model, card
        self.cuda, self.cublas = cuda_of(card) if card else None, workspace_bytes(setup, card)
        self.adapter, self.width = setup.adapter, StepWidths.of(setup)
        self.accumulates = adds_up(setup)
        self.residual = rounded(setup.tokens * self.model.hidden * self.width.residual)
        self._recomputes = setup.checkpointing != "none"
        self.segments = setup.segments
        self._holds_arguments = any(segment.how not in ("none", "module:mlp") for segment in self.segments)
        # The embedding's output and its gradient, which a checkpoint needs: a leaf, alive as long as the loss is
        self.held_by_the_loss = 2 * self.residual if self.adapter and self._recomputes else 0
        self.page = decoder(setup, Operators())  # on which nothing runs
        self._runs: dict[tuple[Layer, str, bool, bool], LayerRun] = {}
        self._weights()
        self._spots: defaultdict[int, list[Live]] = defaultdict(list)
        self._forward_spots: list[Live] = []
        self.flops = self.backward_flops = self.flops_again = 0  # of a micro-batch; what checkpoints run again is apart
        self._step()

    # --- what is trained ---------------------------------------------------------------------------------------------

    def _weights(self) -> None:
        recipe, rule = self.setup.precision_recipe, self.setup.optimizer_rule
        weights, master, self.trained = recipe.weight_bytes, recipe.master_bytes, list(self._trained())
        self.optimized_bytes, self.grad_bytes = recipe.optimized_bytes, recipe.grad_bytes
        if self.adapter:
            weights = self.optimized_bytes = self.grad_bytes = self.adapter.width
            master = 0
        self.new_bytes = min(weights, self.grad_bytes)
        self.parameter_bytes = base_bytes(self.setup) if self.adapter else 0
        self.all_gradients = self.paged_bytes = self.optimizer_bytes = 0
        for (shape, role), count in Counter(self.trained).items():
            values = prod(shape)
            self.parameter_bytes += count * rounded(values * weights)
            self.all_gradients += count * rounded(values * self.grad_bytes)
            self.paged_bytes += count * rule.paged_bytes(shape, role) if self.cuda else 0
            self.optimizer_bytes += count * (self._states(shape, role) + rounded(values * master))
        self.optimizer_bytes -= self.paged_bytes
        if self.setup.micro_batches > 1:
            self.beside = self.held_by_the_loss  # of the micro-batch before

    def _trained(self) -> Iterable[tuple[TensorShape, str]]:
        """Every tensor that this rank trains, with its role."""
        if not self.adapter:
            return self.model.trained()
        of = {layer: self.adapter.tensors_in(layer) for layer in set(self.model.layers)}
        return ((shape, "") for layer in self.model.layers for shape in of[layer])

    def _states(self, shape: TensorShape, role: str) -> int:
        """Each state is a tensor of its own: where they are small, rounding shows."""
        rule = self.setup.optimizer_rule
        count = max(1, rule.states)
        return count * rounded(rule.state_bytes(shape, self.optimized_bytes, role) // count)

    # --- the chain ---------------------------------------------------------------------------------------------------

    def _run(self, at: int, how: str) -> LayerRun:
        layer, wants = self.model.layers[at], not self.adapter or at > 0 or self._recomputes
        given = self.given and at == len(self.model.layers) - 1
        key = layer, how, wants, given
        if key not in self._runs:
            kernel = self.kernel_of(layer.attention)
            self._runs[key] = run_layer(self.setup, layer, how, wants, given, kernel=kernel, **self._told())
        return self._runs[key]

    def _told(self) -> dict[str, Any]:
        return {"cuda": self.cuda, "parts": self.parts, "copies": self.copies}

    def kernel_of(self, attention: Attention) -> str:
        return kernel_of(self.setup, self.card, attention)

    def _step(self) -> None:
        """Forward, loss, backward: `now` is what is alive beside weights, states and sums of gradients."""
        self.now = Live(self.beside + (0 if self.received else self.residual)) + self._before_layers()
        begun = self.tables + self.beside
        summed = self.model.learned_positions  # with positions, before the first layer
        if self.adapter and self._recomputes and (summed or not self._holds_first_input()):
            self.now += Live(self.residual)  # the embedding's output is a leaf now, which its gradient's node holds
        for segment in self.segments:
            self._forward(segment, held=self.received and not segment.start)
        self.stored_bytes = self.now.total - begun - self.residual - self._cached.total
        self._tail()
        for segment in reversed(self.segments):
            self._comes_to(segment)
            self._backward(segment, held=self.received and not segment.start)
            gone = sum(size for at, size in self._until.items() if segment.start <= at < segment.stop)
            self.now -= Live(gone, gone)

    def _before_layers(self) -> Live:
        """Rotary tables, and masks where eager attention adds them: made once, for all layers."""
        self._cached, page, setup = Live(), self.page, self.setup
        windows = [layer.attention.window for layer in self.model.layers]
        masks = {layer.attention.window: page.mask_bytes(layer.attention) for layer in self.model.layers}
        tables = sum(rounded(setup.sequence * one) for one in page.table_bytes)
        self.masks = sum(masks.values())
        self.tables = (len(set(windows)) if page.tables_by_kind else 1) * tables
        held = self.masks if self._holds_arguments else 0
        self._until: Counter[int] = Counter()  # bytes that go with the backward of the first layer of a kind
        self._until[0] += 0 if page.tables_by_kind else tables
        for window in dict.fromkeys(windows):
            of_kind = tables if page.tables_by_kind else 0
            self._until[windows.index(window)] += of_kind + (masks[window] if held else 0)
        return Live(self.tables + held, self.tables + held)

    def _holds_first_input(self) -> bool:
        first = self.segments[0]
        return first.how in RERUN or self._run(0, first.how).keeps_input

    def _forward(self, segment: PolicySegment, held: bool = False) -> None:
        """`held`: somebody else holds the segment's input."""
        runs_again = segment.how in RERUN
        for at in range(segment.start, segment.stop):
            run = self._run(at, SILENT if runs_again else segment.how)
            self._forward_spots.append(self.now + run.forward + self.gathered)
            self.flops += run.flops
            self.now += run.left(held=at == segment.start if runs_again else held) + Live(self.residual) + run.cached
            self._cached += run.cached
        if segment.how == "offload:inputs":
            self.now -= Live(self.residual)
        elif runs_again and not held:
            self.now += Live(0, self.residual)

    def _backward(self, segment: PolicySegment, held: bool = False, inner: bool = False) -> None:
        """From the gradient of the segment's output to that of its input, which is as large.

        A checkpoint inside of another gives its input up once it has run again: that was saved by the one around it.
        """
        if segment.how not in RERUN:
            run, at = self._run(segment.start, segment.how), segment.start
            freed = run.saved + (Live(self.residual, self.residual) if run.keeps_input and not held else Live())
            spots, made = self._gradients_of(at, run, freed)
            self._spots[at] += [self.now + spot for spot in spots]
            self.now += made - freed
            self.backward_flops += run.backward_flops
            self.flops_again += run.flops_again
            if self.given and at == len(self.model.layers) - 1:
                self.now += Live(self.residual)
            return
        last, at, comes_back = self._run(segment.stop - 1, AGAIN), segment.stop - 1, segment.how == "offload:inputs"
        given_up = comes_back or (inner and not held)
        if given_up:
            self.now += Live(self.residual) if comes_back else Live(0, -self.residual)
        self.now += last.asking
        layers = range(segment.start, segment.stop)
        *before, end = segment.parts or [PolicySegment(one, one + 1, AGAIN) for one in layers]
        begun, flops, self._cached = len(self._forward_spots), self.flops, Live()
        for part in before:
            self._forward(part, held=part.start == segment.start and not given_up)
        if segment.parts:
            self.now += Live(0, self.residual if before else 0)
        else:
            self._forward_spots.append(self.now + last.again)
            self.flops += last.flops_until_last_kept
            self.now += last.left(held=not (before or given_up))
        self.now -= self._cached + last.asking
        self._spots[at] += self._forward_spots[begun:]
        del self._forward_spots[begun:]
        self.flops, self.flops_again = flops, self.flops_again + self.flops - flops
        for part in (end, *reversed(before)):
            self._backward(part, part.start == segment.start and not given_up, inner=bool(segment.parts))
        if not held and not given_up:
            self.now -= Live(self.residual, self.residual)

    def _comes_to(self, segment: PolicySegment) -> None:
        """The backward comes to a segment that is in no other."""

    def _gradients_of(self, at: int, run: LayerRun, freed: Live) -> tuple[list[Live], Live]:
        """The high spots of a layer's backward, and what has become of its gradients at the end, beside what is now.

        `freed` is gone by then.
        """
        return [run.backward], run.gradients

    def _tail(self) -> None:
        """From the last layer's output on: the end of the forward, and the beginning of the backward."""
        tape = Operators(accumulates=self.accumulates, updates=update_of(self.setup))
        page = decoder(self.setup, tape, names_logits=self.names_logits, **self._told())
        loss = page.loss(tape.leaf(self.setup.tokens * self.model.hidden, self.width.residual))
        before, end, node = self.now - Live(self.residual), tape.highest, loss.node
        in_model, named = [*self._forward_spots, before + tape.stages[Point.FINAL_NORM]], self._named()
        self._forward_spots = [*(spot + named for spot in in_model), before + end]
        tape.cached.clear()
        self.tail_bytes = tape.live
        self.flops += (of_tail := tape.flops)
        del loss
        assert node
        before -= self._cached
        tape.backward(node, 1, FP32)
        self.backward_flops += tape.flops - of_tail
        self.tail = {Point(point): [before + live] for point, live in tape.stages.items()}
        self.tail_arrivals = [one._replace(live=before + one.live) for one in tape.arrivals]
        del node
        self.now = before + tape.now

    def _named(self) -> Live:
        """What the model's own forward names while its layers run: masks, and the first of them's input."""
        masks = 0 if self._holds_arguments else self.masks
        if self.received:
            return Live(masks)
        is_leaf = self.adapter is not None and self._recomputes
        return Live(masks + self.page.named_embeddings(self._holds_first_input(), is_leaf))
