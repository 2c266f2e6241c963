"""The kernels that a decoder is made of, each by what it makes, what it keeps for its backward, and what that makes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .tape import Tape, Tensor


class Operators(Tape):
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

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        return self.elementwise(a, b, kept=_for_the_other(a, b))

    def add(self, *terms: Tensor) -> Tensor:
        """A sum: its gradient is that of each term, the same tensor where the type is the same."""
        out, count = self.new(max(x.values for x in terms), max(x.width for x in terms)), len(terms)
        return self.record(out, terms, (), lambda gradient: [gradient] * count)

    def cast(self, x: Tensor, width: int) -> Tensor:
        """To another type; the same tensor where it has that already. The gradient is cast back."""
        return x if x.width == width else self.shaped(self.new(x.values, width, x.is_logits), x)

    def copy(self, x: Tensor) -> Tensor:
        """`clone` and `contiguous`: the gradient passes."""
        return self.record(self.new(x.values, x.width), (x,), (), lambda gradient: [gradient])

    def shaped(self, out: Tensor, x: Tensor, kept: Iterable[Tensor] = (), scratch_bytes: Sequence[int] = ()) -> Tensor:
        """`out` of `x`, whose gradient is made anew in x's own shape and type: a slice, a mean, a frozen product.

        `scratch_bytes` are held in the backward until the gradient is there.
        """
        form = x.values, x.width, x.is_logits

        def rule(gradient: Tensor) -> list[Tensor | None]:
            held = [self.new(size, 1) for size in scratch_bytes]
            made: list[Tensor | None] = [self.new(*form)]
            del held
            return made

        return self.record(out, (x,), kept, rule)

    def part(self, x: Tensor, values: int) -> Tensor:
        """A slice, in the same block; its gradient is one of all of x, with zeros elsewhere."""
        return self.shaped(Tensor(values, x.width, x.block), x)

    def joined(self, *parts: Tensor) -> Tensor:
        """`cat`: the gradients are views."""
        out = self.new(sum(x.values for x in parts), parts[0].width)
        forms = [(x.values, x.width) for x in parts]
        return self.record(out, parts, (), lambda gradient: [Tensor(*form, gradient.block) for form in forms])

    def matmul(self, a: Tensor, b: Tensor, values: int) -> Tensor:
        """A product of two that may both be trained; each is kept for the other's gradient."""
        forms = [(x.values, x.width) if x.node else None for x in (a, b)]

        def rule(gradient: Tensor) -> list[Tensor | None]:
            return [self.new(*form) if form else None for form in forms]

        return self.record(self.new(values, max(a.width, b.width)), (a, b), _for_the_other(a, b), rule)

    def attention(self, q: Tensor, k: Tensor, v: Tensor, rows: int, scratch_bytes: Sequence[int]) -> Tensor:
        """The fused kernel: keeps its operands, its result, and an FP32 for each of `rows`, heads times tokens."""
        forms = [(x.values, x.width) if x.node else None for x in (q, k, v)]
        out, log_sum_exp = self.new(q.values, q.width), self.new(rows, 4)

        def rule(gradient: Tensor) -> list[Tensor | None]:
            made = [self.new(*form) if form else None for form in forms]
            for size in scratch_bytes:
                made.append(self.new(size, 1))
            return made[: len(forms)]

        return self.record(out, (q, k, v), (q, k, v, out, log_sum_exp), rule)


def _for_the_other(a: Tensor, b: Tensor) -> list[Tensor]:
    """What a product keeps: each factor where the other wants a gradient."""
    return [*([b] if a.node else []), *([a] if b.node else [])]
