"""How a linear layer runs on the tape: trained, or frozen, in 16 bits or in 4, with an adapter beside it. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from ....catalog.adapters import Adapter
from ....catalog.formats import number_format
from ....catalog.hardware import Cuda
from ....catalog.layers import Linear
from ....catalog.optimizers import HEAD
from ....catalog.train_setup import TrainSetup
from ..operators import Operators
from ..tape import FROZEN, Tensor

FP32, HALF = 4, 2
ROWS = ("o_proj", "down_proj")  # the linear layers whose inputs ranks divide; of the others they divide the outputs
COUNTED, EARLIER = "counted", "earlier"
FUSED_TOKENS = number_format("nf4").fused_tokens  # up to so many, bitsandbytes decodes a weight as it multiplies


@dataclass(frozen=True)
class StepWidths:
    """Bytes per value: of the hidden states, of the frozen weights that are not quantized; and whether autocast is on.

    `prepare_model_for_kbit_training` casts those weights to FP32, and the hidden states are of the embedding's type.
    """

    residual: int
    weights: int
    autocast: bool

    @property
    def casts_weights(self) -> bool:
        """Whether products read copies of trained weights, which autocast makes of FP32 ones."""
        return self.autocast and self.weights == FP32

    @classmethod
    def of(cls, setup: TrainSetup) -> StepWidths:
        adapter, weights = setup.adapter, setup.precision_recipe.weight_bytes
        if adapter and adapter.base:
            weights = FP32 if adapter.prepared else HALF
        return cls(weights, weights, setup.precision_recipe.autocast)


class Linears:
    """The linear layers of `setup`, on one tape, with the kernels of `cuda`, or a CPU's; `kernel` is attention's."""

    def __init__(self, setup: TrainSetup, tape: Operators, kernel: str = "fused", cuda: Cuda | None = None) -> None:
        self.setup, self.tape, self.kernel, self.cuda, self.adapter = setup, tape, kernel, cuda, setup.adapter
        self.adapted = cast(Adapter, setup.adapter)  # where it is known that there is one
        self.width, self.model, self.tokens = StepWidths.of(setup), setup.model, setup.tokens
        self.loose = setup.micro_batch > 1  # heads of several sequences are no one dimension: `matmul` copies them

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        """A trained layer; or a frozen one, and its adapter beside it.

        A module's arguments live as long as its call, so x stays.
        """
        if not self.adapter:
            if self.parts > 1:
                return self._divided(x, linear)
            in_float8 = self.setup.precision_recipe.linear_format
            return self._float8_layer(x, linear) if in_float8 else self._product(x, linear)
        if not (self.adapts and self.adapter.adapts(linear)):
            return self._four_bit(x, linear) if self.adapted.base else self._product(x, linear)
        return self._adapted(x, linear)

    adapts = True  # whether adapters are on: peft switches them off for the model that they began with
    parts = 1  # ranks that share each layer

    def _divided(self, x: Tensor, linear: Linear) -> Tensor:
        """What all ranks add up is a new tensor: the result of rows, and the gradient of what columns were given."""
        if linear.name in ROWS:
            return self.tape.copy(self._product(x, linear))
        return self._product(self.tape.shared(x), linear)

    def weight(self, *shape: int) -> Tensor:
        """A parameter that is no matrix of a linear layer: trained, or frozen with the base."""
        return FROZEN if self.adapter else self.tape.weight(shape, self.width.weights)

    def _product(self, x: Tensor, linear: Linear, is_logits: bool = False) -> Tensor:
        """Under autocast x and the weight are cast, and the copy of a trained weight is cached.

        Of a frozen one nothing is kept but its copy, which nobody caches.
        """
        tape, values, weights = self.tape, x.values // linear.inputs * linear.outputs, [FROZEN]
        if not self.adapter:
            of_head = (self.model.tied, HEAD) if is_logits else ()
            weights = [tape.weight((linear.outputs, linear.inputs), self.width.weights, *of_head)]
            weights += [self.weight(linear.outputs)] if linear.bias else []
        x, *weights = self.low(x, *weights)
        if self.adapter and self.width.casts_weights:
            weights = [tape.new(linear.weights, HALF)]
        return tape.product(x, weights[0], values, linear.inputs, *weights[1:], is_logits=is_logits)

    def _float8_layer(self, x: Tensor, linear: Linear) -> Tensor:
        """torchao's `Float8Linear`: x and the weight are kept as they are, and cast anew around each product.

        So FP8 here saves time and no activations. (Transformer Engine keeps the FP8 input, and FP8 weights.)
        """
        tape, values = self.tape, x.values // linear.inputs * linear.outputs
        weight = tape.weight((linear.outputs, linear.inputs), HALF)
        cast = self._cast_to_float8(x.values), self._cast_to_float8(linear.weights)
        flops = 2 * values * linear.inputs
        (out,) = tape.result("scaled product", (values, HALF), flops=flops)
        tape.has_computed()
        del cast
        form, read = (x.values, x.width), x.values

        def rule(gradient: Tensor) -> list[Tensor | None]:
            tape.computes(2 * flops)
            to_the_end = [self._cast_to_float8(values), self._cast_to_float8(linear.weights)]
            given = tape.new(*form)
            to_the_end += [self._cast_to_float8(values), self._cast_to_float8(read)]
            return [given, tape.new(linear.weights, HALF)]

        out = tape.record(out, (x, weight), (x, FROZEN), rule)
        if not linear.bias:
            return out
        return tape.add(out, tape.weight((linear.outputs,), HALF))

    def _cast_to_float8(self, values: int) -> Tensor:
        """Multiplied by the scale in FP32, clamped to FP8's range in FP32, and in FP8 at last."""
        scaled = self.tape.new(values, FP32)  # noqa: F841 - held until the last cast is done
        clamped = self.tape.new(values, FP32)  # noqa: F841
        return self.tape.new(values, 1)

    def low(self, x: Tensor, *weights: Tensor) -> list[Tensor]:
        """What a product reads: under autocast in 16 bits, the copies of trained weights from its cache."""
        tape = self.tape
        if not self.width.autocast:
            return [x, *weights]
        copies = [self._copy(weight) if weight.node else weight for weight in weights]
        return [tape.cast(x, HALF), *copies]

    copies = ""  # where autocast's copies of weights are: in this forward's cache, COUNTED elsewhere, or made EARLIER

    def _copy(self, weight: Tensor) -> Tensor:
        """Of one that was made EARLIER the gradient waits in 16 bits until all else is done: autograd goes by age."""
        if self.copies == EARLIER:
            return self.tape.earlier(weight.values, HALF)
        if self.copies == COUNTED:
            return self.tape.shaped(Tensor(weight.values, HALF, None), weight)
        return self.tape.cached_cast(self.tape.cast(weight, HALF))

    def _adapted(self, x: Tensor, linear: Linear) -> Tensor:
        """`lora.Linear.forward`: x in the adapter's type, the result back in the base's.

        `lora.Linear4bit.forward` clones the base's result, casts what is added to it, and nothing under autocast.
        """
        tape, four_bit = self.tape, bool(self.adapted.base)
        result = tape.copy(self._four_bit(x, linear)) if four_bit else self._product(x, linear)
        width, as_it_is, is_lora = result.width, four_bit and self.width.autocast, self.adapted.kind == "lora"
        low = x if as_it_is else tape.cast(x, self.adapted.width)
        more = self._low_rank(low, linear) if is_lora else self._with_magnitudes(low, linear, result)
        if is_lora and four_bit:
            more = more if as_it_is else tape.cast(more, width)
        result = tape.add(result, more)
        return result if as_it_is or (is_lora and four_bit) else tape.cast(result, width)

    def _four_bit(self, x: Tensor, linear: Linear) -> Tensor:
        """`Linear4bit`: the weight is decoded for the product, and once more in its backward."""
        tape, width = self.tape, x.width
        x = tape.cast(x, HALF)
        decoded = [HALF * linear.weights, *self._decoded_scales(linear)]
        tokens, block = x.values // linear.inputs, number_format(str(self.adapted.base)).block_values
        fused = tokens <= FUSED_TOKENS and block and linear.inputs % block == 0  # LLM.int8() has no blocks
        held = [] if fused else [tape.new(size, 1) for size in (*decoded, *decoded[1:])]
        out, flops = tape.new(tokens * linear.outputs, HALF), 2 * tokens * linear.weights
        del held
        tape.computes(flops)
        return tape.cast(tape.shaped(out, x, kept=(FROZEN,), scratch_bytes=decoded, flops=flops), width)

    def _decoded_scales(self, linear: Linear) -> list[int]:
        """The FP32 scales that double quantization holds in 8 bits."""
        rule = number_format(str(self.adapted.base))
        return [FP32 * -(-linear.weights // rule.block_values)] if rule.superblock_blocks else []

    def _low_rank(self, x: Tensor, linear: Linear) -> Tensor:
        """lora_B(lora_A(dropout(x))) * scaling"""
        if self.adapted.dropout:
            x = self.tape.dropout(x, 1 if self.cuda else x.width)
        low = self._trained(x, self.adapted.rank, linear.inputs)
        del x
        return self.tape.elementwise(self._trained(low, linear.outputs, self.adapted.rank))

    def _trained(self, x: Tensor, outputs: int, inputs: int) -> Tensor:
        x, weight = self.low(x, self.tape.weight((outputs, inputs), self.adapted.width))
        return self.tape.product(x, weight, x.values // inputs * outputs, inputs)

    def _with_magnitudes(self, x: Tensor, linear: Linear, base_result: Tensor) -> Tensor:
        """`DoraLinearLayer.forward`: B·A written out by way of an identity matrix, and the norm of the sum with W.

        Both products of the forward are kept, since the magnitudes are trained; W and B·A are not.
        """
        tape = self.tape
        both = self._product_of_both(tape.new(linear.inputs**2, self.adapted.width), linear)
        both = tape.cast(both, x.width)  # held to the end, as in peft
        weight = self._decoded(linear, x.width)  # noqa: F841
        norm = self._norm_of_sum(linear, x.width)
        magnitude = tape.weight((linear.outputs,), self.adapted.width)
        scale = tape.mul(magnitude, norm)
        low_rank = self._product_of_both(x, linear)
        if linear.bias:
            base_result = tape.elementwise(base_result, width=max(base_result.width, self.width.weights))
        return tape.add(tape.mul(tape.elementwise(scale), base_result), tape.elementwise(tape.mul(scale, low_rank)))

    def _product_of_both(self, x: Tensor, linear: Linear) -> Tensor:
        """B·A·x"""
        return self._trained(self._trained(x, self.adapted.rank, linear.inputs), linear.outputs, self.adapted.rank)

    def _norm_of_sum(self, linear: Linear, width: int) -> Tensor:
        """Of W + scaling * B·A, row by row; no gradient goes through it."""
        scaled = self.tape.new(linear.weights, width)
        total = self.tape.new(linear.weights, width)  # noqa: F841
        del scaled
        return self.tape.new(linear.outputs, width)

    def _decoded(self, linear: Linear, width: int) -> Tensor | None:
        """The base's weight in the type of the adapters; None where it is that already."""
        tape = self.tape
        if self.adapted.base:
            scales = [tape.new(size, 1) for size in self._decoded_scales(linear)]
            weight = tape.new(linear.weights, HALF)
            del scales
            return tape.cast(weight, width)
        return tape.new(linear.weights, width) if width != self.width.weights else None
