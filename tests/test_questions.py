"""A question is declared once: what is added to it appears wherever it is asked."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from helpers.cli.flags import Parser, add_question
from helpers.course.commands_page import BEGINS, PAGE, flags_of, page
from helpers.course.site.calculators import controls
from helpers.lesson.calculators import Calculator
from helpers.lesson.calculators.attention import ATTENTION, AttentionAnswer, attention_answer
from helpers.lesson.calculators.from_address import OFFERED
from helpers.questions.parameter import CONFIG, Parameter, whole
from helpers.questions.question import Question
from tests.house.tree import ROOT
from tests.lesson.calculators.live import live, presets

MADE_UP = Parameter("sinks", "tokens that every query sees", 0, whole).with_control("sinks", (0, 4, 16))
MOST_IN_FRONT = 5


@dataclass(frozen=True)
class WithSinks(AttentionAnswer):
    sinks: int = 0

    @property
    def question(self) -> Question:
        return EXTENDED

    @property
    def asked(self) -> dict[str, Any]:
        return {**super().asked, "sinks": self.sinks}


def answer_with_sinks(sinks: int = 0, **said: Any) -> WithSinks:
    return WithSinks(**vars(attention_answer(**said)), sinks=sinks)


EXTENDED = replace(
    ATTENTION,
    answer=answer_with_sinks,
    parameters=(*ATTENTION.parameters, MADE_UP),
    controls=(*ATTENTION.controls, "sinks"),
)


@pytest.fixture
def command() -> argparse.ArgumentParser:
    return add_question(Parser(prog="workbook").add_subparsers(), EXTENDED)


def test_an_option_that_is_added_in_one_place_appears_in_all(command, capsys):
    calculator = Calculator(EXTENDED, {})
    widgets, *_ = live(calculator)
    assert widgets["sinks"].description == "sinks"
    assert [one.text for one in controls(calculator, ())][-1] == "sinks"
    assert "`--sinks` tokens that every query sees (default 0)" in flags_of(EXTENDED)
    assert re.search(r"--sinks SINKS\s+tokens that every query sees \(default 0\)", command.format_help())
    answer = calculator.answer(sinks=4)
    assert answer.command == "workbook estimate attention --gpu h100-80gb --sinks 4"
    asked = command.parse_args(["--gpu", "h100", "--sinks", "4"])
    assert asked.run(asked) == 0
    assert capsys.readouterr().out == f"{answer}\n"


def test_of_no_question_that_does_not_know_it_anything_is_said():
    assert "--sinks" not in flags_of(ATTENTION)
    assert calculator_command(ATTENTION) == "workbook estimate attention --gpu h100-80gb"


def test_the_page_of_commands_is_written_from_the_questions():
    written = (ROOT / PAGE).read_text(encoding="utf-8")
    assert BEGINS in written
    assert written == page(ROOT), "run `workbook topics`"


def calculator_command(question: Question) -> str | None:
    return Calculator(question, {}).answer().command


@pytest.mark.parametrize("name", OFFERED)
def test_few_controls_stand_in_front_and_each_control_is_declared(name):
    question = OFFERED[name]
    calculator = Calculator(question, {})
    assert set(question.front) <= set(question.controls)
    in_sight = set(calculator.front) & calculator.used(calculator.start) - {CONFIG}  # another way to say the model
    assert len(in_sight) <= MOST_IN_FRONT
    for control in question.controls:
        assert question.parameter(control).label


@pytest.mark.parametrize("name", [name for name, question in OFFERED.items() if question.presets])
def test_a_preset_moves_its_controls_and_answers(name):
    calculator = Calculator(OFFERED[name], {})
    buttons, widgets, output = presets(calculator)
    assert list(buttons) == list(calculator.question.presets)
    for words, values in calculator.question.presets.items():
        for control, value in values.items():
            assert value in calculator.options[control][1]
        buttons[words].click()
        assert {control: widgets[control].value for control in values} == values
        shown = {control: widget.value for control, widget in widgets.items()}
        assert output.value == calculator.render(shown)
        assert "<svg" in output.value


def test_what_is_moved_behind_more_is_seen():
    closed, opened = (Calculator(ATTENTION, start).widget().children for start in ({}, {"heads": 64}))
    assert [child.selected_index for child in closed if hasattr(child, "selected_index")] == [None]
    assert [child.selected_index for child in opened if hasattr(child, "selected_index")] == [0]


@pytest.mark.parametrize("name", OFFERED)
def test_a_stored_picture_carries_settings_and_what_they_mean(name):
    """On GitHub and in print there are no controls: the picture itself says what it is of, and what follows."""
    calculator = Calculator(OFFERED[name], {})
    answer = calculator.answer()
    told = " ".join(mark.text for mark in calculator._told(answer).body)
    assert told.startswith("Set: ")
    for control in calculator.used(calculator.start) & set(calculator.front) - {CONFIG}:
        assert calculator.options[control][0].partition(", ")[0] in told
    assert answer.sentence in told
