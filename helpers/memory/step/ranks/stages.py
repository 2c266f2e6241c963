"""A stage of a pipeline in closed form, as torch.distributed.pipelining runs it: one micro-batch, and what waits.

A stage has some of the layers; the embedding is with the first, norm and head with the last. What a micro-batch has
saved waits until its backward, so as many sets of activations are alive as micro-batches are in flight. Beside them lie
buffers for what is received, made once for every micro-batch, and each stage's output until its backward. What a rank
does with its stages, one or two, is in `pipelines`. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ....catalog.devices import Device
from ....catalog.errors import require_whole
from ....catalog.layers import TensorShape
from ....catalog.train_setup import TrainSetup
from ...breakdown import Moment, Point, rounded
from ..decoders.linears import COUNTED, EARLIER
from ..refusals import refuse
from ..step import TapedStep
from ..tape import Live

PRECISIONS = ("fp32", "bf16", "autocast-bf16")


class Stage(TapedStep):
    """One micro-batch through a stage of `stages`, counted from 0, and what that always has beside it.

    `begun`: gradients are there already, and autocast's copies were made in another micro-batch's forward. Its cache
    lives as long as the step: they are counted elsewhere.
    """

    def __init__(self, setup: TrainSetup, stages: int, stage: int, card: Device | None, begun: bool = True) -> None:
        _require_known(setup, stages)
        self.received, self.last, layers = stage > 0, stage == stages - 1, len(setup.model.layers)
        self.given, self.names_logits = not self.last, self.last
        self.copies = EARLIER if begun else COUNTED
        mine = setup.model.layers[stage * layers // stages : (stage + 1) * layers // stages]
        model = replace(setup.model, tied=False, layers=mine)
        super().__init__(replace(setup, model=model, micro_batches=2 if begun else 1), card)
        self.ids = rounded(8 * setup.tokens * setup.micro_batches)
        self.neighbours = self.received + self.given  # that send and receive a micro-batch, and what comes back
        # For the inputs and the gradients of all micro-batches; the batch's ids; what the one at work sends on
        self.buffers = self.neighbours * setup.micro_batches * self.residual + self.ids
        self.copied_bytes = sum(rounded(2 * values) for values in self.cast()) if self.width.autocast else 0

    def _trained(self) -> list[tuple[TensorShape, str]]:
        """Without an embedding, or without the last norm and the head."""
        return list(self.model.trained())[self.received : None if self.last else -2]

    def _tail(self) -> None:
        self.kept_bytes = self.now.total
        if self.last:
            super()._tail()
            self.kept_bytes += self.tail_bytes - self.residual
        else:
            self.tail, named = {}, self._named()
            self._forward_spots = [spot + named for spot in self._forward_spots]

    def _behind_layers(self) -> Iterator[Moment]:
        """Only the first stage has an embedding. Behind all else under autocast, once gradients are there, what waits
        in 16 bits is cast, the last first."""
        if not self.received:
            new = 0 if self.accumulates else self.table
            yield self._moment(Point.EMBEDDING, self.now + Live(self.table, 0, new))
        if not (self.width.autocast and self.accumulates):
            return
        live = self.now - (Live() if self.received else Live(self.residual))
        highest = max(rounded(4 * values) for values in self.cast())
        yield self._moment(Point.LAYER, live + Live(highest), layer=0)

    def cast(self) -> list[int]:
        """Values of the weights of which autocast makes copies."""
        linears = (one for layer in self.model.layers for one in layer.attention.linears + layer.mlp.linears)
        return [linear.weights for linear in linears] + self.last * [self.model.vocab * self.model.hidden]

    def waiting(self, micro_batches: int) -> int:
        """What micro-batches keep from their forward to their backward, with the buffers that they came in."""
        return micro_batches * self.kept_bytes + self.buffers

    def resident(self, in_flight: int, with_gradients: bool, copies: int = 0) -> dict[str, int]:
        """What it has while the rank's other stage works, but for the batch's ids, which that counts."""
        return {
            "parameters": self.parameter_bytes,
            "optimizer": self.optimizer_bytes,
            "gradients": self.all_gradients if with_gradients else 0,
            "activations": self.waiting(in_flight) - self.ids + copies,
        }


def _require_known(setup: TrainSetup, stages: int) -> None:
    require_whole("stages", stages, 2, len(setup.model.layers), do="predict one rank by budget.train(setup)")
    none, do = "has no closed form here", "choose FSDP2: Split(fsdp=8), --fsdp 8"
    other = "choose one of them, or predict FSDP2: Split(fsdp=8), --fsdp 8"
    refuse(setup.precision not in PRECISIONS, f"{setup.precision} in a pipeline {none}", ", ".join(PRECISIONS), other)
    policy, shard = f"checkpointing {setup.checkpointing!r} in stages {none}", "choose full, or shard the run by FSDP2"
    refuse(setup.checkpoint_every is None, policy, "none, full or every:K", shard)
    model, expected = setup.model, "a decoder with rotary positions, and no cap on its logits"
    what = f"{model.name} (family {model.family!r}) in stages {none}"
    refuse(model.learned_positions or model.family == "gemma2", what, expected, do)
