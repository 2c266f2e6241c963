"""A step that trains adapters on a frozen base, as peft and bitsandbytes run it: LoRA, DoRA, QLoRA. No torch.

What is trained is small, so gradients and optimizer states nearly vanish; activations do not. A frozen linear layer
needs its input for no gradient, and keeps nothing; but every layer with an adapter casts its input to FP32 for it, and
keeps that. One layer is run on a tape (`decoder`), forward and backward; the others are like it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ...catalog.errors import WorkbookError
from ...catalog.formats import number_format
from ...catalog.layers import Layer, Linear, TensorShape
from ...catalog.policies import Segment
from ...catalog.setup import TrainSetup
from . import activations
from .breakdown import BLOCK_BYTES, Breakdown, Moment, Part, Point, rounded
from .decoder import ADAPTERS, FP32, FUSED, HALF, AdapterWidths, Decoder
from .moments import SCALARS, tensors_bytes, update_bytes
from .operators import Operators
from .recompute import SavedActivations
from .tape import Live

FAMILIES = ("gemma2", "llama", "mistral", "qwen2", "qwen3")  # those whose layers `decoder` writes down
WHOLE_LAYERS = ("none", "full")  # what may happen to a segment: the other policies keep parts
DYNAMIC_MAP_BYTES = 4 * 256  # bitsandbytes' levels of an 8-bit scale: one table for all layers
CODE_BYTES, LEVELS_BYTES, OFFSET_BYTES = 16 * 4, 256 * 4, 4  # beside each weight in 4 bits; the last two with "-dq"


@dataclass(frozen=True)
class LayerRun:
    """One decoder layer, forward and backward, above what was there before. Its input counts where it is kept.

    `recomputed` is the forward inside a backward, which stops at the last tensor that is asked for. `asking_bytes` are
    the gradients that are there when it begins.
    """

    saved_bytes: int
    forward: Live
    recomputed: Live
    backward: Live
    asking_bytes: int


def run_layer(
    setup: TrainSetup, layer: Layer, wants_gradient: bool, recording: bool = True, kernel: str = FUSED
) -> LayerRun:
    """Run `layer` on a tape of its own; with `recording=False` only its forward, as inside a checkpoint.

    `wants_gradient` is that of its input: a frozen embedding's output wants none. `kernel` is as in `Decoder`.
    """
    tape, values, width = Operators(recording), setup.tokens * setup.model.hidden, AdapterWidths.of(setup).residual
    tape.stage = Point.LAYER
    hidden = tape.leaf(values, width) if wants_gradient else tape.new(values, width)
    out = Decoder(setup, tape, kernel).layer(hidden, layer)
    del hidden
    forward, recomputed, node = tape.highest, tape.until_last_kept, out.node
    saved = tape.live - rounded(values * width)
    del out
    if node is None or not recording:
        return LayerRun(saved, forward, recomputed, Live(), 0)
    tape.backward(node, values, width)
    return LayerRun(saved, forward, recomputed, tape.highest, tape.when_asked.total - saved)


class AdapterMoments:
    """The moments of a step that trains `setup.adapter` alone, as `StepMoments` has them of one that trains all."""

    def __init__(self, setup: TrainSetup, cublas_bytes: int, kernel: str = FUSED, on_cuda: bool = False) -> None:
        require_closed_form(setup)
        assert setup.adapter
        self.kernel, self.on_cuda = kernel, on_cuda
        self.setup, self.model, self.cublas = setup, setup.model, cublas_bytes
        self.adapter, self.width = setup.adapter, AdapterWidths.of(setup)
        self.accumulates = setup.micro_batches > 1
        self.residual = rounded(setup.tokens * self.model.hidden * self.width.residual)
        self.tables = 2 * rounded(setup.sequence * self.model.head_dim * self.width.residual)
        runs = {key: run_layer(setup, *key, kernel=kernel) for key in dict.fromkeys(self._keys())}
        self.runs = [runs[key] for key in self._keys()]
        self.kept = AdaptedActivations(setup, self.width.residual, [run.saved_bytes for run in self.runs])
        self.stored_bytes = self.kept.stored_bytes()
        self._weights()
        self._tail()

    def _keys(self) -> list[tuple[Layer, bool]]:
        """Each layer, and whether its input wants a gradient: a checkpoint needs that it does."""
        recomputes = self.setup.checkpointing != "none"
        return [(layer, at > 0 or recomputes) for at, layer in enumerate(self.model.layers)]

    def _weights(self) -> None:
        self.trained = {layer: self.adapter.tensors_in(layer) for layer in set(self.model.layers)}
        sizes = {layer: tensors_bytes(shapes, ADAPTERS) for layer, shapes in self.trained.items()}
        self.trained_bytes = [sizes[layer] for layer in self.model.layers]
        self.tensors = self.adapter.tensors(self.model)
        self.parameter_bytes = base_bytes(self.setup) + sum(self.trained_bytes)
        rule, shapes = self.setup.optimizer_rule, self.tensors.items()
        self.paged_bytes = sum(n * rule.paged_bytes(shape) for shape, n in shapes) if self.on_cuda else 0
        self.optimizer_bytes = sum(n * self._states(shape) for shape, n in shapes) - self.paged_bytes

    def _states(self, shape: TensorShape) -> int:
        """Each state is a tensor of its own, and these are small: rounding shows."""
        rule = self.setup.optimizer_rule
        states = max(1, rule.states)
        return states * rounded(rule.state_bytes(shape, ADAPTERS) // states)

    def moments(self) -> tuple[Moment, ...]:
        """All of them, in the order of the step."""
        return (
            self.end_of_forward(),
            self.backward_of_loss(),
            self.backward_of_lm_head(),
            self.backward_of_final_norm(),
            *(self.backward_of_layer(at) for at in self.candidate_peak_layers()),
            self.backward_of_embedding(),
            self.optimizer_step(),
        )

    def _tail(self) -> None:
        """From the last layer's output on: the end of the forward, and the beginning of the backward."""
        tape = Operators()
        loss = Decoder(self.setup, tape).loss(tape.leaf(self.setup.tokens * self.model.hidden, self.width.residual))
        self.end, self.tail_bytes, node = tape.highest, tape.live, loss.node
        del loss
        assert node
        tape.backward(node, 1, FP32)
        self.tail = tape.stages

    # --- the moments -------------------------------------------------------------------------------------------------

    def _moment(self, at: Point, live: Live, below: int = 0, made_above: int = 0, layer: int | None = None) -> Moment:
        """`live` on a tape, above `below` saved bytes, beside the gradients that were made before."""
        own = 0 if self.accumulates else live.gradients
        gradients = sum(self.trained_bytes) if self.accumulates else made_above
        sizes = {
            Part.PARAMETERS: self.parameter_bytes,
            Part.GRADIENTS: gradients + own,
            Part.OPTIMIZER: self.optimizer_bytes,
            Part.ACTIVATIONS: below + live.kept,
            Part.LOGITS: live.logits,
            Part.WORKSPACE: live.total - live.kept - live.logits - own + self.cublas,
        }
        return Moment(at, Breakdown({part: size for part, size in sizes.items() if size}), layer)

    def saved_bytes(self) -> int:
        """Alive when the forward has returned: what layers and loss keep, the ids that they hold, three scalars."""
        positions = rounded(8 * self.setup.sequence) if self.kept.holds_arguments else 0
        return self.stored_bytes + self.tail_bytes + self.tables + positions + (SCALARS - 1) * BLOCK_BYTES

    def end_of_forward(self) -> Moment:
        """In the loss; or, with few logits, in the last layer, while the model's forward holds its arguments."""
        below, last = self.stored_bytes + self.tables + self._cached_by_autocast(), self.setup.segments[-1]
        if last.how == "none":
            forward = self.runs[-1].forward
            before = below - self.runs[-1].saved_bytes + self.kept.masks_made()
            before += self.residual if self.setup.checkpointing == "none" else 0  # the embedding's output
        else:
            forward = run_layer(self.setup, self.model.layers[-1], True, False, self.kernel).forward
            before = below - (self.residual if last.start == len(self.runs) - 1 else 0)
        spots = self._moment(Point.END_OF_FORWARD, self.end, below), self._moment(Point.END_OF_FORWARD, forward, before)
        return max(spots, key=lambda moment: moment.total)

    def _cached_by_autocast(self) -> int:
        """Its 16-bit copies of A and B live to the end of the forward; those that no node keeps are counted here."""
        if not self.width.autocast:
            return 0
        again = (one for one in self.setup.segments if one.how != "none")
        layers = Counter(layer for one in again for layer in self.model.layers[one.start : one.stop])
        matrices = {layer: [shape for shape in shapes if len(shape) == 2] for layer, shapes in self.trained.items()}
        return sum(count * tensors_bytes(matrices[layer], HALF) for layer, count in layers.items())

    def backward_of_loss(self) -> Moment:
        return self._of_tail(Point.LOSS)

    def backward_of_lm_head(self) -> Moment:
        return self._of_tail(Point.LM_HEAD)

    def backward_of_final_norm(self) -> Moment:
        return self._of_tail(Point.FINAL_NORM)

    def _of_tail(self, point: Point) -> Moment:
        return self._moment(point, self.tail[point], self.stored_bytes + self.tables)

    def candidate_peak_layers(self) -> list[int]:
        """Activations shrink and gradients grow from layer to layer, both evenly, but for the first and its segment."""
        layers, every = len(self.runs), self.setup.checkpoint_every
        if every is None:
            return list(reversed(range(layers)))
        ends = {layers - 1, min(1, layers - 1), 0}
        return sorted(ends | ({layers // every * every - 1, every - 1} if every else set()), reverse=True)

    def backward_of_layer(self, at: int) -> Moment:
        """The widest point of one layer's backward, or of its forward, where that is run again before."""
        run, made_above = self.runs[at], sum(self.trained_bytes[at + 1 :])
        below = self.kept.live_bytes(at) - run.saved_bytes + self.tables
        spots = [self._moment(Point.LAYER, run.backward, below, made_above, at)]
        segment = _innermost(self.setup.segments, at)
        if segment.how != "none":
            again = Live(run.recomputed.total + run.asking_bytes, run.recomputed.kept)
            own_input = self.kept.unshared if segment.start == at else 0  # which the segment holds already
            spots.append(self._moment(Point.LAYER, again, below - own_input, made_above, at))
        return max(spots, key=lambda moment: moment.total)

    def backward_of_embedding(self) -> Moment:
        """The embedding is frozen: all gradients are there, and that of its output."""
        held = self._held_by_the_loss() or self.residual
        return self._moment(Point.EMBEDDING, Live(held), 0, sum(self.trained_bytes))

    def _held_by_the_loss(self) -> int:
        """The embedding's output and its gradient, which a checkpoint needs: a leaf, alive as long as the loss is."""
        return 0 if self.setup.checkpointing == "none" else 2 * self.residual

    def optimizer_step(self) -> Moment:
        """The adapters, their gradients and states, and the copies that the optimizer makes while it steps."""
        live = Live(self._made_by_the_optimizer() + self._held_by_the_loss())
        return self._moment(Point.OPTIMIZER, live, 0, sum(self.trained_bytes))

    def _made_by_the_optimizer(self) -> int:
        """Of all tensors together, or of one after the other, where each layer is like the one before."""
        rule = self.setup.optimizer_rule
        twice = [(shape, "") for shapes in self.trained.values() for shape in (*shapes, *shapes)]
        together = sum(
            count * sum(map(rounded, rule.rule_of(shape).temporaries(shape, ADAPTERS)))
            for shape, count in self.tensors.items()
            if rule.rule_of(shape).foreach
        )
        return together if rule.foreach else max(together, update_bytes(rule, twice, ADAPTERS))


class AdaptedActivations(SavedActivations):
    """What the layers keep under the setup's policy, each of so many bytes, with hidden states of `width`."""

    def __init__(self, setup: TrainSetup, width: int, layer_bytes: Sequence[int]) -> None:
        self.setup, self.layers, self.layer_bytes = setup, setup.model.layers, list(layer_bytes)
        self._segments, self._width, self._fp32_input = setup.segments, width, 0
        self._sizes: dict[tuple[int, str], int] = {}
        self.boundary = rounded(setup.tokens * setup.model.hidden * width)
        self._shared = self.boundary if width == FP32 else 0

    @property
    def unshared(self) -> int:
        """A layer's input, where nothing in the layer keeps that very tensor."""
        return self.boundary - self._shared

    def _masks(self, layers: int) -> int:
        return self.masks_made(layers) if self.holds_arguments else 0

    def masks_made(self, layers: int | None = None) -> int:
        """Eager attention's, B x T x T, one for each window that the first `layers` layers have."""
        if self.setup.attention == "sdpa":
            return 0
        windows = {layer.attention.window for layer in self.layers[:layers]}
        return len(windows) * rounded(self.setup.tokens * self.setup.sequence * self._width)


def _innermost(segments: Sequence[Segment], at: int) -> Segment:
    """The segment that is run again just before the backward of layer `at`."""
    found = next(one for one in segments if one.start <= at < one.stop)
    return _innermost(found.parts, at) if found.parts else found


def _linears(layer: Layer) -> tuple[Linear, ...]:
    return (*layer.attention.linears, *layer.mlp.linears)


def base_bytes(setup: TrainSetup) -> int:
    """Bytes of the frozen base as it is loaded, every tensor rounded up to 512.

    Llama-2-7B: 12.55 GiB in BF16; in NF4 with double quantization, prepared by peft, 3.58 GiB.
    """
    adapter, width = setup.adapter, AdapterWidths.of(setup).weights
    assert adapter
    total = tensors_bytes(setup.model.tensors(), width)
    if not adapter.base:
        return total
    for layer, count in Counter(setup.model.layers).items():
        for linear in _linears(layer):
            total += count * (four_bit_bytes(linear, adapter.base) - rounded(width * linear.weights))
    return total + (rounded(DYNAMIC_MAP_BYTES) if number_format(adapter.base).superblock_blocks else 0)


def four_bit_bytes(linear: Linear, base: str) -> int:
    """What bitsandbytes keeps of one weight, tensor by tensor: values, scales, and the tables of both."""
    rule = number_format(base)
    blocks = -(-linear.weights // rule.block_values)
    packed = rounded(rule.packed_bytes(linear.weights)) + rounded(CODE_BYTES)
    if not rule.superblock_blocks:
        return packed + rounded(FP32 * blocks)
    superblocks = -(-blocks // rule.superblock_blocks)
    return packed + rounded(blocks) + rounded(FP32 * superblocks) + rounded(LEVELS_BYTES) + rounded(OFFSET_BYTES)


def require_closed_form(setup: TrainSetup) -> None:
    """Refuse what `decoder` does not write down; the trace knows it."""
    model, do = setup.model, "trace it: helpers.memory.trace.lora(setup), `workbook trace train`"
    if model.family not in FAMILIES or not model.is_dense_decoder:
        what = f"adapters on {model.name} (family {model.family!r}) have no closed form here"
        raise WorkbookError(what, f"a dense decoder of one of the families {', '.join(FAMILIES)}", do)
    if any(segment.how not in WHOLE_LAYERS for segment in setup.segments):
        what = f"adapters with checkpointing={setup.checkpointing!r} have no closed form"
        raise WorkbookError(what, "a policy that recomputes whole layers: none, full, every:K, sqrt-n, first:K", do)
    activations.require_closed_form(setup)
