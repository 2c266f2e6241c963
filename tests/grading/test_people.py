"""Who is who in two lists: number, e-mail, login, name; nobody twice, and nobody in another's place."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.grading import people
from helpers.grading.people import Person, called, matched, name_keys

ADA, ALAN = Person("Ada Lovelace", ("1",), "ada@x.org"), Person("Alan Turing", ("2",), "alan@x.org")


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (Person("somebody", ("1",)), {0: 0}),
        (Person("somebody", (), "ADA@x.org"), {0: 0}),
        (Person("Lovelace, Ada"), {0: 0}),
        (Person("lovelaceada"), {0: 0}),
        (Person("ADA LOVELACE", ("", "")), {0: 0}),
        (Person("Ada Lovelace", ("9",)), {}),  # a namesake
        (Person("Ada Lovelace", ("9",), "ada@x.org"), {0: 0}),  # a number of another kind, and the e-mail says who
        (Person("Ada Lovelace", (), "other@x.org"), {}),
        (Person("Ada"), {}),
        (Person(""), {}),
    ],
)
def test_one_row_finds_its_learner(row, found):
    assert matched([row], [ADA, ALAN]) == found


def test_a_number_means_nothing_between_two_assignments():
    later = Person("Ada Lovelace", ("77",))
    assert matched([later], [Person("Ada Lovelace", ("1",))], strict=False) == {0: 0}
    assert matched([later], [Person("Ada Lovelace", ("1",))]) == {}


def test_a_login_finds_a_file_that_is_called_after_it():
    assert matched([Person("Lovelace, Ada", ("4711", "", "alovelace"))], [Person("alovelace")]) == {0: 0}


def test_namesakes_are_told_apart_or_not_found():
    rows = [Person("Wei Li", ("5",)), Person("Wei Li", ("6",))]
    assert matched(rows, rows[::-1]) == {0: 1, 1: 0}
    assert matched(rows, [Person("Wei Li")]) == {}
    # Her row is missing: her namesake's must not get her points.
    assert matched([rows[1]], [rows[0]]) == {}


def test_accents_are_one_name_however_they_are_spelt():
    assert name_keys("José Ñandú") & name_keys("JOSE\u0301 N\u0303andu\u0301") & name_keys("Nandu, Jose")


def test_what_a_policy_calls_somebody():
    assert called("1", [ADA, ALAN]) == [0]
    assert called("ALAN@x.org", [ADA, ALAN]) == [1]
    assert called("turing, alan", [ADA, ALAN]) == [1]
    assert called("Grace", [ADA, ALAN]) == []
    assert called("", [ADA, Person("")]) == []


names = st.text(st.sampled_from("aáb ,1李"), max_size=5)
persons = st.builds(Person, names, st.tuples(st.sampled_from(["", "1", "2"])), st.sampled_from(["", "a@x", "b@x"]))


@given(st.lists(persons, max_size=6), st.lists(persons, max_size=6), st.booleans())
def test_nobody_is_found_twice(rows, those, strict):
    found = matched(rows, those, strict)
    assert len(set(found.values())) == len(found)


@given(st.lists(st.builds(Person, names.filter(str.strip), st.just(("",))), max_size=6))
def test_the_same_list_finds_only_itself(those):
    assert all(
        row == at or name_keys(those[row].name) == name_keys(those[at].name)
        for row, at in matched(those, those).items()
    )


def test_examples():
    failed, tried = doctest.testmod(people)
    assert tried
    assert not failed
