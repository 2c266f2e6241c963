"""The cited figures: each has a source, a device that the catalogue knows, and a name of its own."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from helpers.catalog.devices import DEVICES
from helpers.catalog.errors import WorkbookError
from helpers.memory.accuracy import answers, cases


def test_there_are_as_many_as_published() -> None:
    assert [
        len(cases(kind)) for kind in ("op", "lora", "serving", "engine", "generation", "megatron", "torchtitan")
    ] == [74, 20, 13, 40, 16, 36, 18]
    assert sum(len(case.figures) for case in cases("lora")) == 120


def test_names_are_unique_and_devices_known() -> None:
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)
    assert {case.device for case in cases()} <= {*DEVICES, "any"}


@pytest.mark.parametrize(
    "broken", [{"source": ""}, {"kind": "guess"}, {"unit": "MB"}, {"figures": {}}, {"figures": {"peak": 0.0}}], ids=str
)
def test_a_figure_without_provenance_cannot_be_built(broken: dict) -> None:
    with pytest.raises(WorkbookError, match="write down where"):
        replace(cases()[0], **broken)


def test_an_unknown_kind_gets_the_nearest() -> None:
    with pytest.raises(WorkbookError) as told:
        cases("lroa")
    assert told.value.do == "did you mean 'lora'?"


def test_answers_of_others_are_about_a_case_and_say_how_they_were_made() -> None:
    assert {answer.estimator for answer in answers()} == {
        "accelerate",
        "DeepSpeed",
        "EleutherAI cookbook",
        "Megatron-LM",
    }
    assert all(answer.version and answer.command and answer.answered_bytes > 0 for answer in answers())
    with pytest.raises(WorkbookError, match="a quantity that measured"):
        replace(answers()[0], case="no such case")


def test_all_of_it_is_plain_data() -> None:
    assert json.loads(json.dumps([answer.as_json() for answer in answers()]))[0]["measured_bytes"] > 0
