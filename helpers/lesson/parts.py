"""The parts of a predicted step from which its peak is composed by hand."""

from __future__ import annotations

from ..memory.closed_form.breakdown import Part
from ..memory.closed_form.budget import TrainBudget

MIB = 2**20


def peak_parts(predicted: TrainBudget) -> tuple[float, ...]:
    """MiB, to a tenth: parameters, gradients, states, saved activations, logits, the optimizer's copies.

    Activations and logits are those of the loss's backward pass, the others those of the optimizer's step, so that the
    peak is nearly always that of one of the two moments.

    >>> from ..catalog.setup import TrainSetup
    >>> from ..memory.closed_form import budget
    >>> peak_parts(budget.train(TrainSetup("tiny-llama", "fp32", "adamw-fused", micro_batch=2, sequence=256)))
    (20.1, 20.1, 40.1, 43.1, 24.0, 0.0)
    """
    loss, end = predicted.at("loss").parts, predicted.at("optimizer step").parts
    lasting = [end.get(part, 0) for part in (Part.PARAMETERS, Part.GRADIENTS, Part.OPTIMIZER)]
    sizes = [*lasting, loss[Part.ACTIVATIONS], loss[Part.LOGITS], end.get(Part.WORKSPACE, 0)]
    return tuple(round(size / MIB, 1) for size in sizes)
