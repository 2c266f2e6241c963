"""Block formats for one number: the scale that a block's largest value sets, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from ...catalog.floats import FloatFormat, exponent_of, float_format
from ..units import plain


@dataclass(frozen=True)
class BlockFormat:
    """Values in `element`, each block of `values` under a scale in `scale`."""

    name: str
    element: FloatFormat
    scale: FloatFormat
    values: int

    def scale_of(self, largest: Fraction) -> tuple[str, Fraction]:
        """The scale's bits and what it multiplies codes by, in a block whose largest value is so large.

        MX: the power of two that brings `largest` into the highest one of the element (OCP MX 1.0, 6.3). NVFP4: what
        brings it to the element's largest, times the FP32 scale of the whole tensor, whose largest value this is here.
        """
        if self.scale.specials == "scale":
            power = exponent_of(largest) - exponent_of(Fraction(self.element.largest)) if largest else -self.scale.bias
            code = self.scale.encode(Fraction(2) ** power, "saturate")
            return "".join(self.scale.bits_of(code)), Fraction(self.scale.decode(code))
        fp32, most = float_format("fp32"), Fraction(self.scale.largest)
        whole = fp32.decode(fp32.encode(largest / (Fraction(self.element.largest) * most), "saturate"))
        return "".join(self.scale.bits_of(self.scale.largest_code)), Fraction(whole) * most

    def sentences(self, factor: Fraction) -> Iterator[str]:
        """How the scale comes about."""
        share = f"one scale in {self.scale.name} for {self.values} values"
        if self.scale.specials == "scale":
            yield f"{share.capitalize()}: the block's largest makes it 2**{exponent_of(factor)}."
        else:
            yield f"{share.capitalize()}, times an FP32 for the whole tensor: together {plain(float(factor))}."


_E4M3, _E2M1, _E8M0 = map(float_format, ("fp8-e4m3", "fp4-e2m1", "e8m0"))
BLOCKS = {
    block.name: block
    for block in (
        BlockFormat("mxfp8", _E4M3, _E8M0, 32),
        BlockFormat("mxfp4", _E2M1, _E8M0, 32),
        BlockFormat("nvfp4", _E2M1, _E4M3, 16),
    )
}
