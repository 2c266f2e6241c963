"""Who has learned to ask one instrument can ask the others; and a setup is passed through few rooms."""

import inspect
import sys

import pytest

from helpers.catalog import ServeSetup, Split, TrainSetup
from helpers.memory import budget, measure, trace

PREDICTED = {"train": (budget.train, trace.train), "serve": (budget.serve, trace.serve)}
MOST_ROOMS = 6
SETUPS = (
    TrainSetup("llama-3-8b", checkpointing="full"),
    TrainSetup("llama-3-8b", precision="megatron-bf16", split=Split(data=8, zero=3)),
    TrainSetup("llama-3-8b", split=Split(fsdp=8, tensor=2)),
)


def parameters(function) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


@pytest.mark.parametrize("name", PREDICTED)
def test_both_predictions_are_asked_alike(name):
    closed, traced = map(parameters, PREDICTED[name])
    by_name = {one.name: one for one in traced}
    assert [one.name for one in closed[:2]] == [one.name for one in traced[:2]] == ["setup", "gpu"]
    for one in closed:
        assert (by_name[one.name].default, by_name[one.name].annotation) == (one.default, one.annotation)


def test_a_measurement_is_asked_of_the_same_setup():
    setup, device, *_ = parameters(measure.training_step)
    assert (setup.name, device.name, device.default) == ("setup", "device", None)  # where it runs: no card of a list
    assert setup.annotation == parameters(budget.train)[0].annotation


def test_nobody_passes_a_technique_along():
    for function in (budget.train, budget.serve, trace.train, trace.serve, measure.training_step):
        assert not {"apply", "make", "zero", "ranks", "split"} & {one.name for one in parameters(function)}


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_a_setup_goes_through_few_rooms(setup):
    """A room is a folder of `memory`, or a file that lies in it alone."""
    rooms = set()

    def enter(frame, event, _):
        module = frame.f_globals.get("__name__", "")
        if event == "call" and module.startswith("helpers.memory."):
            rooms.add(module.split(".")[2])

    sys.setprofile(enter)
    try:
        budget.train(setup, "h100")
    finally:
        sys.setprofile(None)
    assert "step" in rooms
    assert len(rooms) <= MOST_ROOMS, rooms


def test_a_served_setup_is_the_one_that_was_asked():
    setup = ServeSetup("llama-3-8b")
    assert budget.serve(setup, "h100").setup == setup
