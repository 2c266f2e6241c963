"""A training step in closed form on one stage of a pipeline, GPipe or 1F1B, as torch.distributed.pipelining runs it.

A rank's stage has some of the layers; the embedding is with the first, norm and head with the last. What a micro-batch
has saved waits until its backward, so as many sets of activations are alive as micro-batches are in flight. Beside them
lie buffers for what is received, made once for every micro-batch, and each stage's output until its backward. Ranks
with two stages are in `interleaved`. No torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ...catalog.errors import WorkbookError, require_name, require_whole
from ...catalog.layers import Layer
from ...catalog.optimizers import EMBEDDING, HEAD
from ...catalog.setup import TrainSetup
from . import activations
from .activations import Owner, total_bytes
from .breakdown import Moment, Point, rounded
from .moments import StepMoments, tensors_bytes
from .sharded import more

SCHEDULES, INTERLEAVED = ("GPipe", "1F1B"), "Interleaved1F1B"
PRECISIONS = ("fp32", "bf16", "autocast-bf16")


class StageMoments(StepMoments):
    """The moments of rank `stage`, counted from 0, of `stages`."""

    counted_elsewhere = (Owner.WEIGHTS,)  # autocast's cache has one copy for all micro-batches, to the end of the step

    def __init__(
        self, setup: TrainSetup, stages: int, stage: int, schedule: str, cublas_bytes: int, on_cuda: bool = False
    ) -> None:
        _require_known(setup, stages, stage)
        if schedule != INTERLEAVED:  # whose micro-batches are counted by ranks, not by stages
            require_schedule(setup, stages, schedule)
        self.first, self.last = stage == 0, stage == stages - 1
        self.whole = setup.model
        layers = len(setup.model.layers)
        mine = setup.model.layers[stage * layers // stages : (stage + 1) * layers // stages]
        super().__init__(replace(setup, model=replace(setup.model, tied=False, layers=mine)), cublas_bytes, on_cuda)
        mine_outside = (Owner.ROTARY, Owner.FINAL_NORM) if self.last else (Owner.ROTARY,)
        self.outside = tuple(saved for saved in self.outside if saved.owner in mine_outside)
        self.outside_bytes = total_bytes(self.outside)
        flying = setup.micro_batches if schedule == "GPipe" else stages - stage
        self.in_flight = min(setup.micro_batches, flying)
        self.buffers = self._buffers()
        # The works of 1F1B's last send before its first backward hold the output to the last forward, if one comes
        # after that output's own backward
        outlives = 1 < flying <= (setup.micro_batches + 1) // 2
        self.lingering = self.residual if schedule == "1F1B" and outlives else 0

    def _trained(self) -> Iterator[tuple[tuple[int, ...], str]]:
        table = self.model.vocab, self.model.hidden
        if self.first:
            yield table, EMBEDDING
        for layer in self.model.layers:
            yield from ((shape, "") for shape in layer.tensors(self.model.hidden))
        if self.last:
            yield (self.model.hidden,), ""
            yield table, HEAD

    def micro_batch(self) -> int:
        """What one micro-batch keeps from its forward to its backward, but for the buffer that it came in."""
        kept = self.stored_bytes + self.outside_bytes - self._received()
        if self.last:
            return kept + self.logits + self.logits_fp32 + self.targets
        return kept + self.residual

    def _received(self) -> int:
        """A stage's input that its first layer keeps lies in the buffer in which it was received."""
        keeps = self.setup.checkpointing != "none" or activations.shares_boundary(self.setup)
        return 0 if self.first or not keeps else self.residual

    def _buffers(self) -> int:
        """For the inputs and the gradients of all micro-batches; the batch's ids; what the one at work sends on."""
        ends = (not self.first) + (not self.last)
        ids = rounded(8 * self.setup.tokens * self.setup.micro_batches)
        return ends * self.setup.micro_batches * self.residual + ids

    def _copies_of_weights(self, start: int = 0) -> int:
        """Autocast's cache from layer `start` on: it lives as long as the step's context, for all micro-batches."""
        if not self.width.autocast:
            return 0
        linears = (one for layer in self.model.layers[start:] for one in layer.attention.linears + layer.mlp.linears)
        return sum(rounded(2 * linear.weights) for linear in linears) + self.last * tensors_bytes(self.head, 2)

    def _waiting_gradients(self, moment: Moment) -> int:
        """BF16 gradients of the cached copies. The casts were made in the first micro-batch's forward, so in a later
        one's backward autograd, which goes by age, comes to them when everything else is done."""
        if not (self.width.autocast and self.accumulates):
            return 0
        if moment.at is Point.EMBEDDING:
            return self._copies_of_weights()
        if moment.layer is None:
            return tensors_bytes(self.head, 2) if moment.at is Point.FINAL_NORM else 0
        last = self.model.layers[moment.layer].mlp.linears[-1]
        return self._copies_of_weights(moment.layer + 1) + rounded(2 * last.weights)

    def _in_mlp(self, layer: Layer) -> tuple[int, int]:
        """The copy of the last weight is not freed."""
        freed, temporaries = super()._in_mlp(layer)
        return freed - self.width.autocast * rounded(2 * layer.mlp.linears[-1].weights), temporaries

    def moments(self) -> tuple[Moment, ...]:
        """In order, each as the first backward meets it, before there are gradients, or any later one, beside them."""
        first = self.backward(self.in_flight, accumulates=False)
        later = self.backward(min(self.in_flight, self.setup.micro_batches - 1), accumulates=True)
        held = [max(two, key=lambda moment: moment.total) for two in zip(first, later, strict=True)]
        return (*held, more(self.optimizer_step(), activations=self.buffers))

    def backward(self, in_flight: int, accumulates: bool) -> list[Moment]:
        """Of one micro-batch while `in_flight` live; only the last stage has a loss, only the first an embedding."""
        self.accumulates = accumulates
        waiting = (in_flight - 1) * self.micro_batch()
        found = list(self._at_the_end()) if self.last else [self._forwarded()]
        found += [self.backward_of_layer(at) for at in self.candidate_peak_layers()]
        if self.first:
            found.append(self.backward_of_embedding())
        return [*(self._beside(moment, waiting) for moment in found), self._last_casts(waiting)]

    def _last_casts(self, waiting: int) -> Moment:
        """Behind all else in a later backward under autocast: gradients of the copies, and the first that is cast."""
        made = self._copies_of_weights()
        kept = waiting + self.buffers + made + self.accumulates * self.lingering
        largest = max(rounded(4 * shape[0] * shape[1]) for shape in self._cast()) if self.accumulates and made else 0
        return self._moment(Point.LAYER, self.tensors, kept, 0, largest + self.accumulates * made, 0)

    def _cast(self) -> list[tuple[int, ...]]:
        """Weights of which autocast makes copies."""
        matrices = [shape for shapes in self.layer_tensors for shape in shapes if len(shape) > 1]
        return matrices + self.last * self.head

    def _made_above(self, at: int) -> list[tuple[int, ...]]:
        """Of the head and the norm only with the last stage."""
        made = super()._made_above(at)
        return made if self.last else made[2:]

    def _at_the_end(self) -> Iterable[Moment]:
        forward = self.end_of_forward()
        yield more(forward, activations=-self.kept.unsaved_copies() if self.width.autocast else 0)
        for moment in (self.backward_of_loss(), self.backward_of_lm_head(), self.backward_of_final_norm()):
            yield more(moment, logits=self.logits)  # the stage's output, which the schedule holds

    def _forwarded(self) -> Moment:
        saved = self.stored_bytes + self.outside_bytes + self.residual
        return self._moment(Point.END_OF_FORWARD, (), saved, 0)

    def _beside(self, moment: Moment, waiting: int) -> Moment:
        """With what waits for other micro-batches, and what this one has in buffers and as its output.

        The gradient that a backward begins with lies in a buffer; the last one sent to the stage before is still held.
        """
        forward = moment.at is Point.END_OF_FORWARD
        output = 0 if self.last or forward else self.residual
        sent = (self.residual if not self.first else 0) + self.lingering if self.accumulates else 0
        came = self.residual if moment.at is Point.LAYER and not self.last else 0
        beside = waiting + self.buffers + self._copies_of_weights() + output - self._received()
        return more(moment, activations=beside, workspace=sent - came + self._waiting_gradients(moment))


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
    if setup.precision == "autocast-bf16" and setup.attention == "eager":
        raise WorkbookError("eager attention under autocast in stages", "sdpa, or another precision", "trace it")
    do = "trace it: trace.train(setup, split=Split(pipeline=...))"
    if setup.precision not in PRECISIONS:
        raise WorkbookError(f"{setup.precision} in a pipeline has no closed form here", ", ".join(PRECISIONS), do)
    if setup.checkpoint_every is None or setup.model.learned_positions or setup.model.norm != "rmsnorm":
        what = f"{setup.model.name} with checkpointing {setup.checkpointing!r} in stages"
        raise WorkbookError(f"{what} has no closed form here", "a Llama or Qwen; none, full or every:K", do)
