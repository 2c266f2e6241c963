"""A forward without gradients: log-probabilities of a reference or an older policy, and the forwards of generation.

Nothing is kept for a backward, so of the layers one is alive at a time; beside it the first input, which the model's
own forward names, the tables, the mask, and autocast's copies of all trained weights that products have read by then:
its cache lives as long as the forward. The layers are those of the training step, run on a tape that does not record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from ...catalog.hardware import Cuda
from ...catalog.layers import Attention, Layer
from ...catalog.train_setup import TrainSetup
from ..breakdown import Point, rounded
from ..step.decoders.families import decoder
from ..step.operators import Operators
from ..step.tape import Live, Tensor

KernelOf = Callable[[Attention], str]  # which kernel "sdpa" is, as in `Attending`


class LayerPass(NamedTuple):
    """One layer's forward: what it adds at most; bytes of autocast's copies, and of keys and values that stay."""

    highest: Live
    copies: int
    cache: int


class QuietForward:
    """One forward of `setup` over its micro-batch, without gradients.

    With `adapts` off adapters are switched off. With `caches` keys and values stay, as while tokens are generated.
    """

    def __init__(
        self,
        setup: TrainSetup,
        kernel_of: KernelOf,
        cuda: Cuda | None = None,
        adapts: bool = True,
        caches: bool = False,
    ) -> None:
        self.setup, self.kernel_of, self.cuda, self.adapts, self.caches = setup, kernel_of, cuda, adapts, caches
        self.page = decoder(setup, Operators(recording=False), cuda=cuda)

    def peak(self) -> Live:
        """Of the layers, or of the loss of those tokens that have one."""
        tape = Operators(recording=False)
        page = decoder(self.setup, tape, cuda=self.cuda)
        page.loss(tape.new(self.setup.tokens * self.setup.model.hidden, page.width.residual))
        *spots, (end, copies) = self.layers()
        in_model = end + tape.stages[Point.FINAL_NORM]
        in_loss = Live(copies) + tape.stages[Point.LOSS]
        return max([*(spot for spot, _ in spots), in_model, in_loss], key=lambda live: live.total)

    def layers(self) -> Iterator[tuple[Live, int]]:
        """The highest moment of each layer, and at last what is alive behind them, without their output.

        Beside each the bytes of autocast's copies by then.
        """
        residual = rounded(self.setup.tokens * self.setup.model.hidden * self.page.width.residual)
        now, copies = residual + self._for_all_layers(), 0
        for at, layer in enumerate(self.setup.model.layers):
            ran = self._ran(layer)
            yield ran.highest + Live(now + (residual if at else 0)), copies
            now, copies = now + ran.copies + ran.cache, copies + ran.copies
        yield Live(now), copies

    def _for_all_layers(self) -> int:
        """Masks; and rotary tables, in generation for the positions of each sequence, elsewhere the same for all."""
        layers, page, setup = self.setup.model.layers, self.page, self.setup
        masks = {layer.attention.window: page.mask_bytes(layer.attention) for layer in layers}
        kinds, positions = len(masks) if page.tables_by_kind else 1, setup.tokens if self.caches else setup.sequence
        return sum(masks.values()) + kinds * sum(rounded(positions * one) for one in page.table_bytes)

    def _ran(self, layer: Layer) -> LayerPass:
        return _layer_pass(self.setup, layer, self.kernel_of(layer.attention), self.cuda, self.adapts, self.caches)

    @property
    def cache_width(self) -> int:
        """Bytes of each value in a cache: under autocast a rotated key is FP32, and so is what stands beside it."""
        layer = self.setup.model.layers[0]
        return round(self._ran(layer).cache / (self.setup.tokens * layer.attention.kv_values(1)))


QuietForwards = Callable[[TrainSetup], QuietForward]  # on one card, of other batches


@lru_cache(maxsize=256)
def _layer_pass(
    setup: TrainSetup, layer: Layer, kernel: str, cuda: Cuda | None, adapts: bool, caches: bool
) -> LayerPass:
    tape = Operators(recording=False)
    page = decoder(setup, tape, kernel, cuda)
    page.adapts = adapts
    hidden = tape.new(setup.tokens * setup.model.hidden, page.width.residual)
    begun, attended, kept = tape.now, page.attended, list[Tensor]()

    def remembered(query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        """DynamicLayer begins both in the type of the keys, and `cat` promotes."""
        value = tape.cast(value, max(key.width, value.width))
        kept.extend((key, value))
        return attended(query, key, value, attention)

    if caches:
        page.attended = remembered  # type: ignore[method-assign]
    out = page.layer(hidden, layer)
    highest = tape.highest - begun
    del hidden, out
    with_copies = tape.live
    tape.cached.clear()
    return LayerPass(highest, with_copies - tape.live, tape.live)
