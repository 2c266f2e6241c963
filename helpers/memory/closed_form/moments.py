"""The moments of a training step in closed form: what is live at each turning point, part by part. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import prod

from ...catalog.layers import Layer
from ...catalog.setup import TrainSetup
from . import activations
from .breakdown import BLOCK_BYTES, PARTS, Breakdown, Moment, rounded
from .recompute import SavedActivations

SCALARS = 3  # the loss, the number of targets it is a mean of, and the gradient that backward() begins with


def tensors_bytes(shapes: Iterable[tuple[int, ...]], bytes_per_value: int) -> int:
    return sum(count * rounded(prod(shape) * bytes_per_value) for shape, count in Counter(shapes).items())


class Step:
    """One step's quantities, computed once; each method is one moment. Nothing is sharded: `sharded` adds that."""

    def __init__(self, setup: TrainSetup, cublas_bytes: int) -> None:
        self.setup, self.model, self.cublas = setup, setup.model, cublas_bytes
        self.width = activations.Widths.of(setup)
        self.recipe, self.rule = setup.precision_recipe, setup.optimizer_rule
        self.tokens = setup.micro_batch * setup.sequence
        self.hidden_values = self.tokens * self.model.hidden
        self.logit_values = self.tokens * self.model.vocab
        self.kept = SavedActivations(setup)
        self.saved, self.stored_bytes = self.kept.saved, self.kept.stored_bytes()
        self.outside = activations.saved_outside_layers(setup)
        self.tensors = Counter(self.model.tensors())
        shapes = {layer: list(layer.tensors(self.model.hidden)) for layer in set(self.model.layers)}
        self.layer_tensors = [shapes[layer] for layer in self.model.layers]
        self.parameter_bytes, self.optimizer_bytes = self._parameters(), self._optimizer_bytes()

    # --- constants of the step -------------------------------------------------------------------------------------

    def _parameters(self) -> int:
        return tensors_bytes(self.tensors, self.recipe.weight_bytes)

    def _optimizer_bytes(self) -> int:
        """States and master copy."""
        optimized = self.recipe.optimized_bytes
        return sum(
            count * (self._state_bytes(shape, optimized) + rounded(prod(shape) * self.recipe.master_bytes))
            for shape, count in self.tensors.items()
        )

    def _state_bytes(self, shape: tuple[int, ...], optimized_bytes: int) -> int:
        return rounded(self.rule.state_bytes(shape, optimized_bytes))

    def _gradients(self, shapes: Iterable[tuple[int, ...]]) -> int:
        if self.setup.precision == "megatron-bf16":  # the FP32 main gradients are one buffer that is never freed
            shapes = self.tensors
        return tensors_bytes(shapes, self.recipe.grad_bytes)

    def _outside(self, *without: str) -> int:
        return sum(size for name, size in self.outside.items() if not name.startswith(without))

    # --- the moments -----------------------------------------------------------------------------------------------

    def _moment(self, name: str, gradients: Iterable = (), activations: int = 0, logits: int = 0, workspace: int = 0):
        sizes = (
            self.parameter_bytes,
            self._gradients(gradients),
            self.optimizer_bytes,
            activations,
            logits,
            workspace + self.cublas,
            0,
        )
        return Moment(name, Breakdown({part: size for part, size in zip(PARTS, sizes, strict=True) if size}))

    def _targets(self) -> int:
        return rounded(8 * self.tokens)  # the shifted labels, int64, kept by the loss

    def saved_bytes(self) -> int:
        """Alive when the forward has returned: what layers and loss keep, the ids that they hold, three scalars.

        A checkpoint around attention holds the position ids; learned positions are looked up, and keep both ids.
        """
        ids = rounded(8 * self.tokens) if self.model.learned_positions else 0
        positions = rounded(8 * self.setup.sequence) if ids or self.kept.holds_arguments else 0
        loss = rounded(4 * self.logit_values) + activations.capped_logits_bytes(self.setup) + self._targets()
        return self.stored_bytes + self.outside.total + loss + ids + positions + SCALARS * BLOCK_BYTES

    def end_of_forward(self) -> Moment:
        """The loss is being computed: logits, their FP32 copy, and the log-softmax that the backward needs."""
        upcast = 0 if self.width.compute == 4 else rounded(4 * self.logit_values)
        logits = rounded(self.width.compute * self.logit_values) + upcast + rounded(4 * self.logit_values)
        logits += activations.capped_logits_bytes(self.setup)
        saved = self.stored_bytes + self.outside.total
        copies = 0
        if self.width.autocast:  # its cache lives until its block is left; the last hidden state is the caller's
            copies = self.kept.unsaved_copies() + rounded(4 * self.hidden_values)
        return self._moment("end of forward, in the loss", (), saved + copies, logits + self._targets())

    def backward_of_loss(self) -> Moment:
        """Three FP32 tensors of N x vocab: the saved log-softmax, its gradient, and the gradient of the logits."""
        saved = self.stored_bytes + self.outside.total
        logits = 3 * rounded(4 * self.logit_values) + activations.capped_logits_bytes(self.setup)
        return self._moment("backward of the loss", (), saved, logits + self._targets())

    def backward_of_lm_head(self) -> Moment:
        """The gradients of the logits, of the head's weight and of the hidden states.

        Under autocast the weight's gradient is BF16 first; its FP32 twin is made when the logits are gone.
        """
        saved = self.stored_bytes
        logits = rounded(self.width.compute * self.logit_values)
        hidden = rounded(self.width.compute * self.hidden_values)
        name, product = "backward of lm_head", saved + self.outside.total
        if not self.width.autocast:
            return self._moment(name, self._head_tensors(), product, logits, hidden)
        copy = tensors_bytes(self._head_tensors(), 2)
        during = self._moment(name, (), product, logits, copy + hidden)
        after = self._moment(
            name, self._head_tensors(), saved + self._outside("bf16 copy", "final norm output"), 0, copy + hidden
        )
        return max(during, after, key=lambda moment: moment.total)

    def backward_of_final_norm(self) -> Moment:
        """RMSNorm written out in Python makes five FP32 tensors of N x h; the fused LayerNorm two gradients."""
        saved = self.stored_bytes + self._outside("bf16 copy", "final norm output", "final norm normalised")
        if self.model.norm == "layernorm":
            temporaries = 2 * rounded(self.hidden_values * self.width.residual)
        else:
            temporaries = 5 * rounded(4 * self.hidden_values)
        return self._moment("backward of the final norm", self._head_tensors(), saved, 0, temporaries)

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
        for at in reversed(range(len(self.saved))):
            highest = max(highest, (self.kept.live_bytes(at) + gradients, at))
            gradients += self._gradients(self.layer_tensors[at])
        return highest[1]

    def backward_of_layer(self, at: int) -> Moment:
        """The widest point of one layer's backward: in its MLP, or in eager attention between two score matrices."""
        layer, saved = self.model.layers[at], self.saved[at]
        later = [shape for shapes in self.layer_tensors[at + 1 :] for shape in shapes]
        gradients = [*self._head_tensors(), (self.model.hidden,), *later]
        live = self.kept.live_bytes(at) + self._outside("bf16 copy", "final norm")
        in_mlp = self._in_mlp(layer)
        live_in_mlp = live - in_mlp[0] - sum(size for name, size in saved.items() if name.startswith("mlp output norm"))
        spots = [(live_in_mlp, in_mlp[1], [*gradients, *self._down(layer)])]
        if layer.norms == 4:
            spots.append((live - saved["mlp output norm normalised"], self._in_output_norm(), gradients))
        if self.setup.attention == "eager":
            freed, temporaries = self._in_eager_attention(layer, saved)
            done = (*layer.mlp.linears, layer.attention.linears[-1])
            again = self.kept.live_bytes(at, attention=True) - self.kept.live_bytes(at)
            products = [shape for linear in done for shape in linear.tensors()]
            spots.append((live + again - freed, temporaries, [*gradients, *products]))
        kept, temporaries, shapes = max(spots, key=lambda spot: spot[0] + spot[1])
        return self._moment(f"backward of layer {at + 1}", shapes, kept, 0, temporaries)

    def _down(self, layer: Layer) -> list[tuple[int, ...]]:
        return list(layer.mlp.linears[-1].tensors())

    def _in_mlp(self, layer: Layer) -> tuple[int, int]:
        """(freed, temporary) bytes after the down projection's backward, in tensors of N x f.

        SwiGLU: the product is gone, its gradient and those of its two factors are new. ReLU still holds its output,
        which its own backward reads, and has two gradients. Beside them lives the gradient of the residual stream.
        """
        wide = rounded(self.tokens * layer.mlp.ffn * self.width.compute)
        relu = layer.mlp.activation == "relu"
        copy = rounded(2 * layer.mlp.linears[-1].weights) if self.width.autocast else 0
        freed, gradients = copy + (0 if relu else wide), 2 if relu else 3
        if layer.mlp.activation == "gelu_new" and self.width.autocast:  # pow and what follows it are FP32 on CUDA
            gradients *= 2
        return freed, gradients * wide + rounded(self.hidden_values * self.width.residual)

    def _in_output_norm(self) -> int:
        """Five FP32 tensors of N x h, as in the final norm, with all of the layer's saved tensors still there."""
        return 5 * rounded(4 * self.hidden_values) + rounded(self.hidden_values * self.width.residual)

    def _in_eager_attention(self, layer: Layer, saved: Breakdown) -> tuple[int, int]:
        """(freed, temporary) bytes inside the softmax's backward: its gradient and its result, B x heads x T x T."""
        one = rounded(self.width.compute * self.tokens * layer.attention.heads * layer.attention.head_dim)
        scores = self.setup.micro_batch * layer.attention.heads * self.setup.sequence**2
        behind = (
            "mlp norm",
            "mlp output norm",
            "gate",
            "relu",
            "gelu",
            "attention output",
            "attention probabilities, cast",
        )
        freed = one + sum(size for name, size in saved.items() if name.startswith(behind))
        if self.width.autocast:
            done = (*layer.mlp.linears, layer.attention.linears[-1])
            freed += sum(rounded(2 * linear.weights) for linear in done)
        matrices = 2 * rounded(scores * activations.softmax_bytes(self.setup))
        return freed, matrices + one + rounded(self.hidden_values * self.width.residual)

    def backward_of_embedding(self) -> Moment:
        """Every gradient exists. Tied weights hold three of vocab x hidden: the head's, the embedding's, their sum.

        Under autocast two: the head's is a cast, no view, and autograd adds the embedding's to it in place.
        """
        beside = (1 if self.width.autocast else 2) if self.model.tied else 0
        tied = beside * tensors_bytes(self._head_tensors(), self.recipe.grad_bytes)
        workspace = rounded(self.hidden_values * self.width.residual) + tied
        return self._moment("backward of the embedding", self.tensors, 0, 0, workspace)

    def optimizer_step(self) -> Moment:
        """Weights, gradients, states, and the copies that the optimizer makes while it steps."""
        return self._moment("optimizer step", self.tensors, 0, 0, self._copies())

    def _copies(self) -> int:
        """What the optimizer makes while it steps: copies of all that it updates, or of the largest tensor."""
        width = self.recipe.optimized_bytes
        largest = self.rule.peak_tensor_copies * max(prod(shape) for shape in self.tensors) * width
        return self.rule.peak_copies * tensors_bytes(self.tensors, width) + largest

    def _head_tensors(self) -> list[tuple[int, ...]]:
        return [(self.model.vocab, self.model.hidden)]
