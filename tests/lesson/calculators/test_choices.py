"""Every calculator of training offers each checkpointing policy that the closed form answers."""

from __future__ import annotations

import pytest

from helpers.catalog.policies import COUNTED, POLICIES
from helpers.lesson.calculators import checkpointing, fine_tuning, offload, training_memory, zero

TRAINING = {
    "checkpointing": (checkpointing, "checkpointing", {}),
    "offload": (offload, "checkpointing", {"question": "train"}),
    "training_memory": (training_memory, "checkpointing", {}),
    "zero": (zero, "checkpointing", {"zero": 3}),
}
NO_CLOSED_FORM = "offload"  # of every activation: what its peak is depends on the copies' timing
WHOLE_LAYERS = {"none", "full", "sqrt-n", "recursive", *(f"{word}:K" for word in COUNTED)}  # what adapters' layers have


def offered(calculator, control: str) -> set[str]:
    """The names of the control's choices, with K for the number of a counted policy."""
    words = (name.partition(":") for name in calculator.options[control][1])
    return {f"{word}:K" if word in COUNTED else f"{word}{colon}{rest}" for word, colon, rest in words}


@pytest.mark.parametrize("name", TRAINING)
def test_each_policy_of_the_closed_form_is_offered(name):
    make, control, _ = TRAINING[name]
    assert offered(make(), control) == set(POLICIES) - {NO_CLOSED_FORM}


@pytest.mark.parametrize("name", TRAINING)
def test_each_policy_that_is_offered_is_answered(name):
    make, control, given = TRAINING[name]
    calculator = make()
    for policy in calculator.options[control][1]:
        answer = calculator.answer(**given, **{control: policy})
        assert f"--checkpointing {policy}" in answer.command or policy == "none"


def test_adapters_are_offered_the_policies_of_whole_layers_and_answer_each():
    calculator = fine_tuning()
    assert offered(calculator, "checkpointing") == WHOLE_LAYERS
    for policy in calculator.options["checkpointing"][1]:
        command = calculator.answer(checkpointing=policy).command
        assert f"--checkpointing {policy}" in command or policy == "none"
