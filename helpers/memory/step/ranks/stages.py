"""A training step in closed form on one stage of a pipeline, GPipe or 1F1B, as torch.distributed.pipelining runs it.

A rank's stage has some of the layers; the embedding is with the first, norm and head with the last. What a micro-batch
has saved waits until its backward, so as many sets of activations are alive as micro-batches are in flight. Beside them
lie buffers for what is received, made once for every micro-batch, and each stage's output until its backward. Ranks
with two stages are in `interleaved`. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ....catalog.devices import Device
from ....catalog.errors import WorkbookError, require_name, require_whole
from ....catalog.layers import TensorShape
from ....catalog.optimizers import EMBEDDING, HEAD
from ....catalog.setup import TrainSetup
from ...breakdown import Moment, Point, rounded
from ..decoders.families import decoder
from ..decoders.linears import COUNTED, EARLIER
from ..operators import Operators
from ..step import TapedStep
from ..tape import Live
from .sharded import more

SCHEDULES, INTERLEAVED = ("GPipe", "1F1B"), "Interleaved1F1B"
PRECISIONS = ("fp32", "bf16", "autocast-bf16")


class StagePass(TapedStep):
    """One micro-batch through a stage. Autocast's cache lives as long as the step: its copies are counted elsewhere.

    `begun`: gradients are there already, and the copies were made in another micro-batch's forward.
    """

    def __init__(self, setup: TrainSetup, begun: bool, first: bool, last: bool, card: Device | None) -> None:
        self.received, self.given, self.last, self.names_logits = not first, not last, last, last
        self.copies = EARLIER if begun else COUNTED
        super().__init__(replace(setup, micro_batches=2 if begun else 1), card)

    def _trained(self) -> Iterator[tuple[TensorShape, str]]:
        table = self.model.vocab, self.model.hidden
        if not self.received:
            yield table, EMBEDDING
        for layer in self.model.layers:
            yield from ((shape, "") for shape in layer.tensors(self.model.hidden))
        if self.last:
            yield (self.model.hidden,), ""
            yield table, HEAD

    def _tail(self) -> None:
        self.kept_bytes = self.now.total
        if self.last:
            super()._tail()
            self.kept_bytes += self.tail_bytes - self.residual
        else:
            named = self._named(decoder(self.setup, Operators()))
            self._forward_spots = [spot + named for spot in self._forward_spots]

    def moments(self) -> tuple[Moment, ...]:
        """Of the pass alone: only the last stage has a loss, only the first an embedding."""
        found = [self.end_of_forward()]
        if self.last:
            found += [self.backward_of_loss(), self.backward_of_lm_head(), self.backward_of_final_norm()]
        found += [self.backward_of_layer(at) for at in self.candidate_peak_layers()]
        if not self.received:
            table = rounded(self.model.vocab * self.model.hidden * self.new_bytes)
            found.append(self._moment(Point.EMBEDDING, self.now + Live(table, 0, 0 if self.accumulates else table)))
        return (*found, *self._last_casts())

    def _last_casts(self) -> Iterator[Moment]:
        """Behind all else under autocast, once gradients are there: what waits in 16 bits is cast, the last first."""
        if not (self.width.autocast and self.accumulates):
            return
        live = self.now - (Live() if self.received else Live(self.residual))
        highest = max(rounded(4 * values) for values in self.cast())
        yield self._moment(Point.LAYER, live + Live(highest), 0)

    def cast(self) -> list[int]:
        """Values of the weights of which autocast makes copies."""
        linears = (one for layer in self.model.layers for one in layer.attention.linears + layer.mlp.linears)
        return [linear.weights for linear in linears] + self.last * [self.model.vocab * self.model.hidden]


def highest_of(moments: Iterable[Moment]) -> Iterable[Moment]:
    """Of those at the same point and layer the highest, in the order in which they come first."""
    highest: dict[tuple[object, int | None], Moment] = {}
    for moment in moments:
        key = moment.at, moment.layer
        highest[key] = max(highest.get(key, moment), moment, key=lambda one: one.total)
    return highest.values()


class Stage:
    """The moments of rank `stage`, counted from 0, of `stages`."""

    def __init__(self, setup: TrainSetup, stages: int, stage: int, schedule: str, card: Device | None) -> None:
        _require_known(setup, stages, stage)
        if schedule != INTERLEAVED:  # whose micro-batches are counted by ranks, not by stages
            require_schedule(setup, stages, schedule)
        self.setup = setup
        self.first, self.last = stage == 0, stage == stages - 1
        layers = len(setup.model.layers)
        mine = setup.model.layers[stage * layers // stages : (stage + 1) * layers // stages]
        alone = replace(setup, model=replace(setup.model, tied=False, layers=mine))
        self.passes = [StagePass(alone, begun, self.first, self.last, card) for begun in (False, True)]
        self.whole = self.passes[1]
        self.cublas = self.whole.cublas
        self.residual, self.stored_bytes = self.whole.residual, self.whole.stored_bytes
        self.parameter_bytes, self.optimizer_bytes = self.whole.parameter_bytes, self.whole.optimizer_bytes
        self.paged_bytes, self.gradient_bytes = self.whole.paged_bytes, self.whole.all_gradients
        flying = setup.micro_batches if schedule == "GPipe" else stages - stage
        self.in_flight = min(setup.micro_batches, flying)
        self.buffers = self._buffers()
        self.copies = sum(rounded(2 * values) for values in self.whole.cast()) if self.whole.width.autocast else 0
        # The works of GPipe's sends hold all outputs to the end of the step. Those of 1F1B's last send before its first
        # backward do so to the last forward, if one comes after that output's own backward.
        outlives = schedule == "GPipe" or (schedule == "1F1B" and 1 < flying <= (setup.micro_batches + 1) // 2)
        self.lingering = self.residual if outlives and not self.last else 0

    def micro_batch(self) -> int:
        """What one micro-batch keeps from its forward to its backward, but for the buffer that it came in."""
        return self.whole.kept_bytes

    def saved_bytes(self) -> int:
        return self.whole.saved_bytes()

    def _buffers(self) -> int:
        """For the inputs and the gradients of all micro-batches; the batch's ids; what the one at work sends on."""
        ends = (not self.first) + (not self.last)
        ids = rounded(8 * self.setup.tokens * self.setup.micro_batches)
        return ends * self.setup.micro_batches * self.residual + ids

    def moments(self) -> tuple[Moment, ...]:
        """In order, each as the first backward meets it, before there are gradients, or any later one, beside them."""
        first = self.backward(self.in_flight, accumulates=False)
        later = self.backward(min(self.in_flight, self.setup.micro_batches - 1), accumulates=True)
        return (*highest_of((*first, *later)), self.optimizer_step())

    def backward(self, in_flight: int, accumulates: bool) -> list[Moment]:
        """Of one micro-batch while `in_flight` live, in the forward and the backward of the one at work.

        Once there are gradients, the last one sent to the stage before is still held.
        """
        waiting = (in_flight - 1) * self.micro_batch() + self.buffers + self.copies
        sent = (self.residual if not self.first else 0) + self.lingering if accumulates else 0
        return [more(moment, activations=waiting, workspace=sent) for moment in self.passes[accumulates].moments()]

    def optimizer_step(self) -> Moment:
        return more(self.whole.optimizer_step(), activations=self.buffers)


def require_schedule(setup: TrainSetup, ranks: int, schedule: str) -> None:
    """WorkbookError for a schedule without a closed form, and for too few micro-batches for these ranks."""
    require_name("schedule with a closed form:", schedule, (*SCHEDULES, INTERLEAVED))
    if setup.micro_batches < ranks or (schedule == INTERLEAVED and setup.micro_batches % ranks):
        what = f"{setup.micro_batches} micro-batches in {ranks} {'ranks' if schedule == INTERLEAVED else 'stages'}"
        expected = f"a multiple of {ranks}" if schedule == INTERLEAVED else f"at least {ranks}"
        raise WorkbookError(what, expected, f"pass micro_batches={ranks * 2}")


def _require_known(setup: TrainSetup, stages: int, stage: int) -> None:
    require_whole("stages", stages, 2, len(setup.model.layers), do="predict one rank by budget.train(setup)")
    require_whole("stage", stage, 0, stages - 1, do="stages are counted from 0")
    if setup.precision not in PRECISIONS:
        do = "choose one of them, or predict FSDP2: budget.fsdp2, `workbook trace train --fsdp`"
        raise WorkbookError(f"{setup.precision} in a pipeline has no closed form here", ", ".join(PRECISIONS), do)
    if setup.checkpoint_every is None:
        what = f"checkpointing {setup.checkpointing!r} in stages has no closed form here"
        raise WorkbookError(what, "none, full or every:K", "choose full, or shard the run by FSDP2")
    if setup.model.learned_positions or setup.model.family == "gemma2":
        what = f"{setup.model.name} (family {setup.model.family!r}) in stages has no closed form here"
        do = "choose FSDP2: budget.fsdp2, `workbook trace train --fsdp`"
        raise WorkbookError(what, "a decoder with rotary positions, and no cap on its logits", do)
