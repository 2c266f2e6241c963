"""The moments of a training step in closed form: what is live at each turning point, part by part. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod
from typing import Any

from ...catalog.layers import Layer
from ...catalog.optimizers import Optimizer
from ...catalog.setup import TrainSetup
from . import activations
from .activations import Owner, Role, Saved, total_bytes
from .breakdown import BLOCK_BYTES, Breakdown, Moment, Part, Point, rounded
from .recompute import SavedActivations

Shapes = Iterable[tuple[int, ...]]
SCALARS = 3  # the loss, the number of targets it is a mean of, and the gradient that backward() begins with


def tensors_bytes(shapes: Shapes, bytes_per_value: int) -> int:
    return sum(count * rounded(prod(shape) * bytes_per_value) for shape, count in Counter(shapes).items())


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


SHARDED_FROM = {Part.PARAMETERS: 3, Part.GRADIENTS: 2, Part.OPTIMIZER: 1}  # by ZeRO's stages


def rank_share(setup: TrainSetup, part: Part, size_bytes: int) -> int:
    """What one rank holds on its GPU of so many bytes of `part`: all in DDP, a shard, rounded up, where it is sharded.

    What is offloaded is not there: 0. (`TrainSetup` admits an offload only where the stage shards that part.)
    """
    if setup.zero < SHARDED_FROM[part]:
        return size_bytes
    tier = setup.offload_parameters if part is Part.PARAMETERS else setup.offload_optimizer
    return -(-size_bytes // setup.ranks) if tier == "none" else 0


class InOrder:
    """A step whose moments are methods."""

    def moments(self) -> tuple[Moment, ...]:
        """All of them, in the order of the step."""
        step: Any = self
        return (
            step.end_of_forward(),
            step.backward_of_loss(),
            step.backward_of_lm_head(),
            step.backward_of_final_norm(),
            *(step.backward_of_layer(at) for at in step.candidate_peak_layers()),
            step.backward_of_embedding(),
            step.optimizer_step(),
        )


class StepMoments(InOrder):
    """One step's quantities, computed once; each method is one moment: what FSDP2, tensor parallelism and pipelines add
    to, in fp32, bf16 and autocast. All else runs on the tape (`step`)."""

    counted_elsewhere: tuple[Owner, ...] = ()  # whose saved tensors are not those of one micro-batch

    def __init__(self, setup: TrainSetup, cublas_bytes: int, on_cuda: bool = False) -> None:
        self.setup, self.model, self.cublas = setup, setup.model, cublas_bytes
        self.width = activations.Widths.of(setup)
        self.recipe, self.rule = setup.precision_recipe, setup.optimizer_rule
        hidden_values, logit_values = setup.tokens * self.model.hidden, setup.tokens * self.model.vocab
        self.hidden, self.hidden_fp32 = rounded(hidden_values * self.width.compute), rounded(4 * hidden_values)
        self.residual = rounded(hidden_values * self.width.residual)
        self.logits, self.logits_fp32 = rounded(logit_values * self.width.compute), rounded(4 * logit_values)
        self.capped_logits = activations.capped_logits_bytes(setup)
        self.targets = rounded(8 * setup.tokens)  # the shifted labels, int64, kept by the loss
        self.head = [(self.model.vocab, self.model.hidden)]
        self.kept = SavedActivations(setup, self.counted_elsewhere)
        self.stored_bytes = self.kept.stored_bytes()
        self.outside = activations.outside_tensors(setup)
        self.outside_bytes = total_bytes(self.outside)
        self.trained = list(self._trained())
        self.tensors = Counter(shape for shape, _ in self.trained)
        shapes = {layer: list(layer.tensors(self.model.hidden)) for layer in set(self.model.layers)}
        self.layer_tensors = [shapes[layer] for layer in self.model.layers]
        weight_bytes = tensors_bytes(self.tensors, self.recipe.weight_bytes)
        self.accumulates = setup.micro_batches > 1
        self.parameter_bytes = weight_bytes
        # Unified memory comes from no allocator of PyTorch's; a CPU has none of it, and keeps such states as any other
        self.paged_bytes = self._paged() if on_cuda else 0
        self.optimizer_bytes = self._states() - self.paged_bytes

    # --- constants of the step -------------------------------------------------------------------------------------

    def _trained(self) -> Iterable[tuple[tuple[int, ...], str]]:
        """Every tensor that this rank trains, with its role."""
        return self.model.trained()

    def _states(self) -> int:
        width, trained = self.recipe.optimized_bytes, Counter(self.trained).items()
        return sum(count * rounded(self.rule.state_bytes(shape, width, role)) for (shape, role), count in trained)

    def _paged(self) -> int:
        return sum(count * self.rule.paged_bytes(*tensor) for tensor, count in Counter(self.trained).items())

    def _gradients(self, shapes: Shapes) -> int:
        """Of the parameters whose gradients exist: of `shapes`, or of all where there is a sum of them already."""
        return tensors_bytes(self.tensors if self.accumulates else shapes, self.recipe.grad_bytes)

    def _to_be_added(self, shapes: Shapes) -> int:
        """New gradients beside the sums that they are about to be added to; 0 in a step of one micro-batch."""
        return tensors_bytes(shapes, self.recipe.grad_bytes) if self.accumulates else 0

    def _tied_head_waits(self) -> int:
        """A tied head's new gradient, which autograd keeps until the embedding's is there, and adds both at once."""
        return self._to_be_added(self.head) if self.model.tied else 0

    def _made_above(self, at: int) -> list[tuple[int, ...]]:
        """Tensors whose gradients exist before the backward of layer `at`: the head, the norm, the later layers."""
        later = [shape for shapes in self.layer_tensors[at + 1 :] for shape in shapes]
        return [*self.head, (self.model.hidden,), *later]

    def _rotary_tables(self) -> int:
        """What is kept outside the layers until the backward of the first of them."""
        return total_bytes(saved for saved in self.outside if saved.owner is Owner.ROTARY)

    def _before_final_norm(self, *gone: Role) -> int:
        """Kept outside the layers when the head's backward is over, less these tensors of the final norm."""
        return total_bytes(
            saved for saved in self.outside if saved.owner is not Owner.LM_HEAD and saved.role not in gone
        )

    # --- the moments -----------------------------------------------------------------------------------------------

    def _moment(
        self, at: Point, gradients: Shapes, saved: int, logits: int, workspace: int = 0, layer: int | None = None
    ) -> Moment:
        sizes = {
            Part.PARAMETERS: self.parameter_bytes,
            Part.GRADIENTS: self._gradients(gradients),
            Part.OPTIMIZER: self.optimizer_bytes,
            Part.ACTIVATIONS: saved,
            Part.LOGITS: logits,
            Part.WORKSPACE: workspace + self.cublas,
        }
        return Moment(at, Breakdown({part: size for part, size in sizes.items() if size}), layer)

    def saved_bytes(self) -> int:
        """Alive when the forward has returned: what layers and loss keep, the ids that they hold, three scalars.

        A checkpoint around attention holds the position ids; learned positions are looked up, and keep both ids.
        """
        ids = rounded(8 * self.setup.tokens) if self.model.learned_positions else 0
        positions = rounded(8 * self.setup.sequence) if ids or self.kept.holds_arguments else 0
        loss = self.logits_fp32 + self.capped_logits + self.targets
        return self.stored_bytes + self.outside_bytes + loss + ids + positions + SCALARS * BLOCK_BYTES

    def end_of_forward(self) -> Moment:
        """The loss is being computed: logits, their FP32 copy, and the log-softmax that the backward needs."""
        upcast = 0 if self.width.compute == 4 else self.logits_fp32
        logits = self.logits + upcast + self.logits_fp32 + self.capped_logits
        saved = self.stored_bytes + self.outside_bytes
        if self.width.autocast:  # its cache lives until its block is left; the last hidden state is the caller's
            saved += self.kept.unsaved_copies() + self.hidden_fp32
        return self._moment(Point.END_OF_FORWARD, (), saved, logits + self.targets)

    def backward_of_loss(self) -> Moment:
        """Three FP32 tensors of N x vocab: the saved log-softmax, its gradient, and the gradient of the logits."""
        logits = 3 * self.logits_fp32 + self.capped_logits + self.targets
        return self._moment(Point.LOSS, (), self.stored_bytes + self.outside_bytes, logits)

    def backward_of_lm_head(self) -> Moment:
        """The gradients of the logits, of the head's weight and of the hidden states.

        Under autocast the weight's gradient is BF16 first; its FP32 twin is made when the logits are gone.
        """
        saved = self.stored_bytes + self.outside_bytes
        if not self.width.autocast:
            return self._moment(
                Point.LM_HEAD, self.head, saved, self.logits, self.hidden + self._to_be_added(self.head)
            )
        made = tensors_bytes(self.head, 2) + self.hidden
        during = self._moment(Point.LM_HEAD, (), saved, self.logits, made)
        left = self.stored_bytes + self._before_final_norm(Role.OUTPUT)
        after = self._moment(Point.LM_HEAD, self.head, left, 0, made + self._to_be_added(self.head))
        return max(during, after, key=lambda moment: moment.total)

    def backward_of_final_norm(self) -> Moment:
        """RMSNorm written out in Python makes five FP32 tensors of N x h; the fused LayerNorm two gradients."""
        saved = self.stored_bytes + self._before_final_norm(Role.OUTPUT, Role.NORMALISED)
        temporaries = 2 * self.residual if self.model.norm == "layernorm" else 5 * self.hidden_fp32
        return self._moment(Point.FINAL_NORM, self.head, saved, 0, temporaries + self._tied_head_waits())

    def candidate_peak_layers(self) -> list[int]:
        """Layers at which the backward can be highest, in its order.

        From layer to layer activations shrink and gradients grow, both evenly, so the highest is at one of the ends:
        the last layer and the first, or, with checkpointing, the end of the last whole segment and of the first. Under
        a policy that is not so even it is the layer where activations and gradients together are most.
        """
        layers, every = len(self.model.layers), self.setup.checkpoint_every
        if every:
            return sorted({layers - 1, layers // every * every - 1, every - 1}, reverse=True)
        return sorted({layers - 1, 0} if every == 0 else {layers - 1, self._highest_layer(), 0}, reverse=True)

    def _highest_layer(self) -> int:
        gradients, highest = 0, (0, 0)
        for at in reversed(range(len(self.model.layers))):
            highest = max(highest, (self.kept.live_bytes(at) + gradients, at))
            gradients += 0 if self.accumulates else self._gradients(self.layer_tensors[at])
        return highest[1]

    def backward_of_layer(self, at: int) -> Moment:
        """The widest point of one layer's backward: in its MLP, or in eager attention between two score matrices."""
        layer, saved = self.model.layers[at], self.kept.tensors[at]
        gradients = self._made_above(at)
        live = self.kept.live_bytes(at) + self._rotary_tables()
        freed, temporaries = self._in_mlp(layer)
        output_norm = [one for one in saved if one.owner is Owner.MLP_OUTPUT_NORM]
        left = live - freed - total_bytes(output_norm)
        spots = [(left, temporaries, [*gradients, *layer.mlp.linears[-1].tensors()])]
        if output_norm:  # five FP32 tensors of N x h, as in the final norm, with all that the layer saved still there
            normalised = total_bytes(one for one in output_norm if one.role is Role.NORMALISED)
            spots.append((live - normalised, 5 * self.hidden_fp32 + self.residual, gradients))
        if self.setup.attention == "eager":
            freed, temporaries = self._in_eager_attention(layer, saved)
            done = (*layer.mlp.linears, layer.attention.linears[-1])
            again = self.kept.live_bytes(at, attention=True) - self.kept.live_bytes(at)
            products = [shape for linear in done for shape in linear.tensors()]
            spots.append((live + again - freed, temporaries, [*gradients, *products]))
        kept, temporaries, shapes = max(spots, key=lambda spot: spot[0] + spot[1])
        return self._moment(Point.LAYER, shapes, kept, 0, temporaries + self._tied_head_waits(), at)

    def _in_mlp(self, layer: Layer) -> tuple[int, int]:
        """(freed, temporary) bytes after the down projection's backward, in tensors of N x f.

        SwiGLU: the product is gone, its gradient and those of its two factors are new. ReLU still holds its output,
        which its own backward reads, and has two gradients. Beside them lives the gradient of the residual stream.
        """
        wide = rounded(self.setup.tokens * layer.mlp.ffn * self.width.compute)
        relu = layer.mlp.activation == "relu"
        copy = rounded(2 * layer.mlp.linears[-1].weights) if self.width.autocast else 0
        freed, gradients = copy + (0 if relu else wide), 2 if relu else 3
        if layer.mlp.activation == "gelu_new" and self.width.autocast:  # pow and what follows it are FP32 on CUDA
            gradients *= 2
        return freed, gradients * wide + self.residual

    def _in_eager_attention(self, layer: Layer, saved: Iterable[Saved]) -> tuple[int, int]:
        """(freed, temporary) bytes inside the softmax's backward: its gradient and its result, B x heads x T x T."""
        one = rounded(self.width.compute * self.setup.tokens * layer.attention.heads * layer.attention.head_dim)
        scores = self.setup.micro_batch * layer.attention.heads * self.setup.sequence**2
        freed = one + total_bytes(tensor for tensor in saved if _precedes_softmax(tensor))
        if self.width.autocast:
            done = (*layer.mlp.linears, layer.attention.linears[-1])
            freed += sum(rounded(2 * linear.weights) for linear in done)
        matrices = 2 * rounded(scores * activations.softmax_bytes(self.setup))
        return freed, matrices + one + self.residual

    def backward_of_embedding(self) -> Moment:
        """Every gradient exists, and that of the hidden states, until the embedding's own is made.

        Tied weights then hold three of vocab x hidden: the head's, the embedding's, their sum. Under autocast two: the
        head's is a cast, no view, and autograd adds the embedding's to it in place.
        """
        table = tensors_bytes(self.head, self.recipe.grad_bytes) if self.model.tied else 0
        workspace = table + self.residual
        if not self.width.autocast:
            workspace = max(workspace, 2 * table)
        return self._moment(Point.EMBEDDING, self.tensors, 0, 0, workspace + self._to_be_added(self.head))

    def optimizer_step(self) -> Moment:
        """Weights, gradients, states, and the copies that the optimizer makes while it steps."""
        return self._moment(Point.OPTIMIZER, self.tensors, 0, 0, self._copies())

    def _copies(self) -> int:
        """What the optimizer makes while it steps."""
        return update_bytes(self.rule, self.trained, self.recipe.optimized_bytes)


def _precedes_softmax(saved: Saved) -> bool:
    """Whether the backward has used up this tensor of its layer when it comes to eager attention's softmax."""
    if saved.owner is Owner.ATTENTION:
        return saved.role in (Role.OUTPUT, Role.PROBABILITIES_CAST)
    return saved.owner in (Owner.MLP_NORM, Owner.MLP, Owner.MLP_OUTPUT_NORM, Owner.ATTENTION_OUTPUT_NORM)
