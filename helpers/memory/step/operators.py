"""The kernels that a decoder is made of, each by what it makes, what it keeps for its backward, and what that makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .checkpoints import Checkpoints
from .tape import FROZEN, Rule, Tensor

CONVOLUTION = "convolution"  # a kind of product, of each channel by itself, that keeps both, whichever is trained
Sizes = Sequence[int]  # bytes of each of several tensors


class Operators(Checkpoints):
    """A tape, and what may run on it."""

    def elementwise(
        self, *inputs: Tensor, kept: Iterable[Tensor] = (), width: int = 0, scratch: int = 0, is_logits: bool = False
    ) -> Tensor:
        """One kernel over inputs that broadcast. Each gradient is made anew, of the result's shape at first.

        `width` is the result's where it is not that of the widest input; `scratch` counts tensors of that shape that
        the backward makes on its way.
        """
        out = self.new(max(x.values for x in inputs), width or max(x.width for x in inputs), is_logits)
        return self._elementwise(out, inputs, kept, scratch)

    def keeps_result(self, x: Tensor, is_logits: bool = False) -> Tensor:
        """One kernel whose backward reads what the forward wrote: tanh, rsqrt, log_softmax."""
        out = self.new(x.values, x.width, is_logits)
        return self._elementwise(out, (x,), (out,))

    def _elementwise(self, out: Tensor, inputs: Sequence[Tensor], kept: Iterable[Tensor], scratch: int = 0) -> Tensor:
        wanted = [x.node is not None for x in inputs]
        values, wide, is_logits = out.values, max((x.width for x in kept), default=0), out.is_logits

        def rule(gradient: Tensor) -> list[Tensor | None]:
            form = values, max(gradient.width, wide), is_logits
            held = [self.new(*form) for _ in range(scratch)]
            made = [self.new(*form) if want else None for want in wanted]
            del held
            return made

        return self.record(out, inputs, kept, rule)

    def mul(self, a: Tensor, b: Tensor, width: int = 0) -> Tensor:
        return self.elementwise(a, b, kept=_for_the_other(a, b), width=width)

    def add(self, *terms: Tensor) -> Tensor:
        """A sum: its gradient is that of each term, the same tensor where the type is the same."""
        out, count = self.new(max(x.values for x in terms), max(x.width for x in terms)), len(terms)
        return self.record(out, terms, (), lambda gradient: [gradient] * count)

    def dropout(self, x: Tensor, mask_width: int) -> Tensor:
        """Keeps which values stayed: on CUDA a byte for each (native_dropout), on a CPU a number of x's type."""
        out, mask = self.new(x.values, x.width), self.new(x.values, mask_width)
        return self._elementwise(out, (x,), (mask,)) if mask_width == x.width else self.shaped(out, x, kept=(mask,))

    def cast(self, x: Tensor, width: int) -> Tensor:
        """To another type; the same tensor where it has that already. The gradient is cast back."""
        return x if x.width == width else self.shaped(self.new(x.values, width, x.is_logits), x)

    def copy(self, x: Tensor) -> Tensor:
        """`clone` and `contiguous`: the gradient passes."""
        return self.record(self.new(x.values, x.width), (x,), (), lambda gradient: [gradient])

    def shaped(
        self, out: Tensor, x: Tensor, kept: Iterable[Tensor] = (), scratch_bytes: Sizes = (), flops: int = 0
    ) -> Tensor:
        """`out` of `x`, whose gradient is made anew in x's own shape and type: a slice, a mean, a frozen product.

        `scratch_bytes` are held in the backward until the gradient is there; it takes `flops`.
        """
        return self.record(out, (x,), kept, self.anew(x, scratch_bytes=scratch_bytes, flops=flops))

    def part(self, x: Tensor, values: int) -> Tensor:
        """A slice, in the same block; its gradient is one of all of x, with zeros elsewhere."""
        return self.shaped(Tensor(values, x.width, x.block), x)

    def written_out(self, x: Tensor, values: int, width: int = 0, kept: Iterable[Tensor] = ()) -> Tensor:
        """A tensor of its own for what is looked up, repeated, padded or added up, whose gradient is made anew."""
        return self.shaped(self.new(values, width or x.width), x, kept)

    def chosen(self, x: Tensor, values: int) -> Tensor:
        """`topk` or `gather`, by indices that are kept."""
        indices = self.new(values, 8)
        return self.written_out(x, values, kept=(indices,))

    def negative(self, x: Tensor) -> Tensor:
        """What is subtracted: nothing is made before the backward."""
        out = Tensor(x.values, x.width, x.block)
        return self.record(out, (x,), (), lambda gradient: [self.new(gradient.values, gradient.width)])

    def view(self, x: Tensor, values: int) -> Tensor:
        """`expand`: the same block under more values; its gradient is summed."""
        return self.record(Tensor(values, x.width, x.block), (x,), (), lambda gradient: [gradient])

    def summed(self, x: Tensor, values: int) -> Tensor:
        """`sum` over some dimension; its gradient is a view."""
        form = x.values, x.width
        return self.record(self.new(values, x.width), (x,), (), lambda gradient: [Tensor(*form, gradient.block)])

    def softmax(self, x: Tensor, width: int, on_cuda: bool) -> Tensor:
        """Keeps its result; CUDA's backward holds gradient times output beside what it makes."""
        out = self.new(x.values, width)
        return self.shaped(out, x, kept=(out,), scratch_bytes=[x.values * width] if on_cuda else [])

    def added_in_place(self, x: Tensor, other: Tensor) -> Tensor:
        """`x.add_(other)`"""
        return self.record(Tensor(x.values, x.width, x.block), (x, other), (), lambda gradient: [gradient, gradient])

    def joined(self, *parts: Tensor, width: int = 0) -> Tensor:
        """`cat`: the gradients are views."""
        out = self.new(sum(x.values for x in parts), width or max(x.width for x in parts))
        forms = [(x.values, x.width) for x in parts]
        return self.record(out, parts, (), lambda gradient: [Tensor(*form, gradient.block) for form in forms])

    def shared(self, x: Tensor) -> Tensor:
        """What every rank has whole and reads a part with: its gradient is a sum over ranks, a tensor of its own.

        The rank's own gradient lives until the sum has been added to what came before.
        """
        out = self.part(x, x.values)
        if out.node and out.node is not x.node:
            out.node.lingers = True
        return out

    def gathered(self, x: Tensor, parts: int) -> Tensor:
        """All ranks' parts of the logits: by rank as they come, then word by word. Its gradient is a part again."""
        form, whole = (x.values, x.width), (parts * x.values, x.width)
        by_rank = self.new(*whole, is_logits=True)
        out = self.new(*whole, is_logits=True)
        del by_rank
        return self.record(out, (x,), (), lambda gradient: [self.new(*form, is_logits=True)])

    def product(
        self, x: Tensor, weight: Tensor, values: int, inner: int, *bias: Tensor, is_logits: bool = False, kind: str = ""
    ) -> Tensor:
        """A product with what is added to it. The gradients of all that are wanted stand beside each other.

        Each of the `values` is a sum of `inner` products: a multiply and an add each. So are both gradients. It is a
        linear layer's, if no other `kind` is told.
        """
        flops, wanted = 2 * values * inner, (x.node is not None) + (weight.node is not None)
        (out,) = self.result(kind or "product", (values, max(x.width, weight.width)), is_logits=is_logits, flops=flops)
        rule = self.anew(x, weight, *bias, flops=wanted * flops)
        kept = [x, weight] if kind == CONVOLUTION else _for_the_other(x, weight)
        return self.record(out, (x, weight, *bias), kept, rule)

    def anew(self, *inputs: Tensor, scratch_bytes: Sizes = (), beside_bytes: Sizes = (), flops: int = 0) -> Rule:
        """A gradient for each of `inputs` that wants one, of its form; held are scratch before it, and more behind."""
        forms = [(x.values, x.width, x.is_logits) if x.node else None for x in inputs]

        def rule(gradient: Tensor) -> list[Tensor | None]:
            self.computes(flops)
            held = [self.new(size, 1) for size in scratch_bytes] if scratch_bytes else []
            made: list[Tensor | None] = [self.new(*form) if form else None for form in forms]
            held += [self.new(size, 1) for size in beside_bytes] if beside_bytes else []
            return made

        return rule

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, rows: int, held: Sizes, values: int = 0, keys: int = 0, *mask: Tensor
    ) -> Tensor:
        """The fused kernel: keeps its operands, its result, and an FP32 for each of `rows`, heads times tokens.

        `values` are the result's where V is not as wide as Q; a `mask` of numbers is kept as well. Each row meets so
        many `keys`: a product with Q and one with V; in the backward, which makes the scores again, three and two.
        """
        values = values or q.values
        with_q, with_v = 2 * keys * q.values, 2 * keys * values
        out, log_sum_exp = self.result("attention", (values, q.width), (rows, 4), flops=with_q + with_v)
        kept = (q, k, v, *mask, out, log_sum_exp)
        rule = self.anew(q, k, v, beside_bytes=held, flops=3 * with_q + 2 * with_v)
        return self.record(out, (q, k, v), kept, rule)

    def layer_norm(self, x: Tensor, rows: int, *trained: Tensor) -> Tensor:
        """The fused kernel: keeps its input, and a mean and a deviation for each row, in FP32."""
        out, mean, deviation = self.new(x.values, x.width), self.new(rows, 4), self.new(rows, 4)
        return self.record(out, (x, *trained), (x, mean, deviation, *trained, FROZEN), self.anew(x, *trained))

    def split(self, x: Tensor, *values: int) -> list[Tensor]:
        """`chunk` and `split`: views, whose gradients are joined in a new tensor."""
        form = x.values, x.width
        hub = self.record(Tensor(*form, x.block), (x,), (), lambda gradient: [self.new(*form)])
        if hub.node and hub.node is not x.node:
            hub.node.joins = True
        views = (Tensor(size, x.width, x.block) for size in values)
        return [self.record(view, (hub,), (), lambda gradient: [gradient]) for view in views]

    def filled(self, *parts: Tensor) -> Tensor:
        """An empty tensor whose slices are written one after the other (CopySlices); a part may be broadcast.

        Behind each, its backward copies the whole gradient, and the slice of it; what was there before gets zeros, if
        it wants a gradient.
        """
        values, width = sum(part.values for part in parts), parts[0].width
        out = self.new(values, width)
        for part in parts:
            out = self.written(out, part)
        return out

    def written(self, out: Tensor, part: Tensor) -> Tensor:
        """`out[..., a:b].copy_(part)`, in place."""
        whole, size, again = (out.values, out.width), (part.values, part.width), out.node is not None

        def rule(gradient: Tensor) -> list[Tensor | None]:
            result, own = self.new(*whole), self.new(*size)
            if again:
                self.new(*size)
            return [result if again else None, own]

        return self.record(Tensor(*whole, out.block), (out, part), (), rule)


def _for_the_other(a: Tensor, b: Tensor) -> list[Tensor]:
    """What a product keeps: each factor where the other wants a gradient."""
    return [*([b] if a.node else []), *([a] if b.node else [])]
