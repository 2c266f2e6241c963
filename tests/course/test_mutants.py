"""A lab's checks are tried against its solution, its stubs and its mutants; each way to be wrong is seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.course import notebook as nb
from helpers.course.mutants import find_mutants, load_mutants, problems
from tests.course.example_lab import ASK_HALF, ASK_PAGES, CHECK_PAGES, save, with_sources

KILLED = '''
from helpers.course.mutants import mutant

@mutant("twice", feedback="did you add two?")
def twice(x):
    """Adds."""
    return x + 2

@mutant("twice", feedback="twice(1) is 2")
def twice(x):
    return 1

@mutant("pages", feedback="a started page is a page")
class Pages:
    def count(self, tokens):
        return 0

@mutant("pages", feedback="a started page")
class Pages:
    def count(self, tokens):
        return -1

@mutant("half", feedback="half of 4 is 2")
def half(x):
    return x

@mutant("half", feedback="half of 4 is 2")
def half(x):
    return x // 3
'''
LAB = "solutions/05_numbers.ipynb"


def tried(course: Path, source: str = KILLED, seed: str = "0", **cells: str) -> list[str]:
    """The problems of the example lab with these mutants and these cells changed."""
    path = course / LAB
    save(with_sources(nb.read(path), cells), path)
    find_mutants(path).parent.mkdir(exist_ok=True)
    find_mutants(path).write_text(source)
    return problems(path, seed=seed)


def test_a_mutant_is_its_source_without_the_decorator(tmp_path):
    path = tmp_path / "lab_05.py"
    path.write_text(KILLED)
    first, *_, last = load_mutants(path)
    assert first.source == 'def twice(x):\n    """Adds."""\n    return x + 2'
    assert (first.grade_id, first.feedback, first.where) == ("twice", "did you add two?", "lab_05.py:5")
    assert last.source == "def half(x):\n    return x // 3"


def test_what_several_share_comes_with_those_that_name_it(tmp_path):
    path = tmp_path / "lab_05.py"
    path.write_text(f"def plus(x, y):\n    return x + y\n\n{KILLED.replace('return x + 2', 'return plus(x, 2)')}")
    first, *others = load_mutants(path)
    assert first.source.startswith("def plus(x, y):\n    return x + y\n\n\ndef twice(x):")
    assert [one for one in others if "plus" in one.source] == []


@pytest.mark.parametrize("bad", ["@other('a', feedback='b')", "@mutant('a')", "@mutant('a', feedback=b)", "@mutant"])
def test_a_bad_mutant_is_an_error_not_skipped(bad, tmp_path):
    path = tmp_path / "lab_05.py"
    path.write_text(f"{bad}\ndef f():\n    pass\n")
    with pytest.raises(WorkbookError, match=r"lab_05.py:2: not a mutant"):
        load_mutants(path)


def test_killed_mutants_leave_no_problem(course):
    assert tried(course) == []


def test_survivors_and_wrong_sentences_are_named(course):
    right = "class Pages:\n    def count(self, tokens):\n        return -(-tokens // 4)"
    survivor = KILLED.replace("class Pages:\n    def count(self, tokens):\n        return -1", right)
    mute = survivor.replace('feedback="did you add two?"', 'feedback="another sentence"')
    found = tried(course, mute)
    assert len(found) == 2, found
    assert "fails without its sentence 'another sentence'" in found[0]
    assert "survives" in found[1]


def test_a_mutant_that_only_prints_otherwise_fails_but_without_a_sentence(course):
    printed = KILLED.replace("return x // 3", "return {4: 2}.get(x, 0)")
    (found,) = tried(course, printed)
    assert "fails without its sentence 'half of 4 is 2': printed" in found


def test_the_right_answer_is_put_back_after_each_mutant(course):
    builds_on_twice = CHECK_PAGES + "\nassert again == 2, 'twice was left wrong'"
    changed = {"ask-pages": f"{ASK_PAGES}\nagain = asked(twice, 1)", "check-pages": builds_on_twice}
    assert tried(course, **changed) == []


def test_a_check_that_fails_its_own_solution_is_named(course):
    assert "solution fails" in tried(course, **{"check-half": "assert False, 'never'"})[0]


def test_a_check_that_never_asks_is_named_and_its_mutants_survive(course):
    own = ASK_HALF.replace("asked(half, 4), asked(half, drawn)", "2, drawn / 2")
    found = tried(course, **{"ask-half": own})
    assert found[0] == "3 Half: a check passes although 'half' is untouched"
    assert sum("survives" in problem for problem in found) == 2


def test_with_another_seed_a_check_prints_something_else(course):
    assert tried(course, seed="7") == ["'check-twice' draws nothing: it prints the same with another seed"]


def test_every_exercise_needs_two_mutants_and_every_mutant_an_exercise(course):
    fewer = KILLED[: KILLED.rindex("@mutant")] + KILLED[KILLED.rindex("@mutant") :].replace('"half"', '"hlf"')
    found = tried(course, fewer)
    assert "did you mean 'half'?" in found[0]
    assert found[1] == "3 Half: 1 mutants, at least 2 wanted"
