"""The parts from which a peak is composed by hand are those of its two moments."""

import pytest

from helpers.catalog import TrainSetup
from helpers.lesson.parts import peak_parts
from helpers.memory import budget

MIB = 2**20


@pytest.mark.parametrize("optimizer", ["adamw-fused", "adamw-foreach", "sgd"])
@pytest.mark.parametrize("tokens", [32, 512])
def test_the_larger_of_two_sums_is_the_peak(optimizer, tokens):
    answer = budget.train(TrainSetup("tiny-llama", "fp32", optimizer, micro_batch=1, sequence=tokens))
    parameters, gradients, states, saved, logits, copies = peak_parts(answer)
    composed = max(parameters + states + saved + logits, parameters + gradients + states + copies)
    assert composed == pytest.approx(answer.peak_bytes / MIB, rel=0.02)
    assert bool(copies) == (optimizer == "adamw-foreach")
