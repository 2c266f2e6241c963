"""A choice: by word or number, and anything else is no guess; the answer says a sentence for what was picked."""

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.lesson import choose, settle

BECAUSE = {"up": "It rises.", "down": "It falls."}


@pytest.mark.parametrize("guess", ["down", " Down ", 2, 2.0, "2"])
def test_an_option_by_its_word_or_its_number(guess, capsys):
    settle("up", choose("Which way?", "up", "down", guess=guess), BECAUSE)
    assert capsys.readouterr().out.splitlines() == [
        "Your guess. Which way? down",
        "It is up. You said down.",
        "  up    It rises.",
        "  down  It falls.",
    ]


@pytest.mark.parametrize("guess", [None, 0, 3, 1.5, "sideways", "3", float("nan"), 10**400, [1, 2]])
def test_anything_else_is_no_guess_and_the_chapter_goes_on(guess, capsys):
    choice = choose("Which way?", "up", "down", guess=guess)
    settle("up", choice, BECAUSE)
    said = capsys.readouterr().out
    assert choice.picked is None
    assert ("is none of these" in said) == (guess is not None)
    assert said.endswith("It is up.\n  up    It rises.\n  down  It falls.\n")


def test_who_was_right_is_told_so(capsys):
    settle("up", choose("Which way?", "up", "down", guess="up"), BECAUSE)
    assert "It is up. You said so.\n  up    It rises.\n" in capsys.readouterr().out


def test_what_is_no_choice_is_told(capsys):
    settle("up", 7, BECAUSE)
    assert "7 is no guess" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: choose("Which?", "up"), "two or more"),
        (lambda: choose("Which?", "up", "up"), "that differ"),
        (lambda: settle("left", choose("Which?", "up", "down"), BECAUSE), "one of up, down"),
        (lambda: settle("up", choose("Which?", "up", "down", "left"), BECAUSE), "each option its sentence"),
    ],
)
def test_an_authors_error_is_one(wrong, words):
    with pytest.raises(WorkbookError, match=words):
        wrong()
