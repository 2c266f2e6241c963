"""What `asked` promises in a notebook, in a learner's kernel, and where recorded answers are weighed."""

from __future__ import annotations

import json
import linecache
import math

import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.lesson import asked, asking, reference
from helpers.lesson.asking import MOST_RAISED, Unanswered, absent, give_back, left, refer, writing
from helpers.lesson.tracebacks import NONE


@pytest.fixture(autouse=True)
def a_clear_desk(monkeypatch):
    monkeypatch.setattr(asking, "_desk", asking._Desk())


def twice(x: object) -> object:
    return 2 * x


def fails(x: object) -> object:
    raise ValueError(f"no {x}")


# A notebook


def test_an_answer_is_plain_data_and_one_line_says_what_was_asked(capsys):
    assert asked(twice, 3) == 6
    assert asked(lambda size: (size, [size]), torch.Size([2]), case="a size") == [[2], [[2]]]
    assert asked(torch.tensor, [1, 2], tensors=True).dtype == torch.int64
    assert asked(torch.tensor, [1, 2]) == [1, 2]
    lines = ["twice(3) -> 6", "a size -> [[2], [[2]]]", "tensor([1, 2]) -> int64 2", "tensor([1, 2]) -> [1, 2]"]
    assert capsys.readouterr().out.splitlines() == lines


def test_what_is_returned_is_a_copy():
    kept = [1, [2]]
    found = asked(lambda: kept)
    kept[1].append(3)
    assert found == [1, [2]]


def test_an_error_of_the_answer_is_the_answers_with_what_was_asked():
    with pytest.raises(ZeroDivisionError) as raised:
        asked(lambda: 1 / 0, case="one over nothing")
    assert raised.value.__notes__ == ["asked: one over nothing"]


@pytest.mark.parametrize("found", [object(), b"x", float, "x" * 400_001])
def test_what_is_no_plain_data_is_told(found, capsys):
    def plan() -> object:
        return found

    with pytest.raises(WorkbookError, match=f"plan returned {type(found).__name__} that is no plain data"):
        asked(plan)
    assert capsys.readouterr().out == ""


# The learner's kernel: written down


def test_answers_are_written_down_in_order_and_nothing_is_printed(capsys):
    with writing({}) as rows:
        assert [asked(twice, x) for x in (1, "ab", (3,))] == [2, "abab", [3, 3]]
    assert [json.loads(row["answer"]) for row in rows] == [2, "abab", [3, 3]]
    assert capsys.readouterr().out == ""
    assert asked(twice, 1) == 2, "and afterwards it is a notebook again"
    assert len(rows) == 3


def test_an_error_is_a_row_too_and_the_next_is_asked():
    with writing({}) as rows:
        found = [asked(one, 4) for one in (fails, twice)]
    assert rows == [{"raised": "fails raised ValueError: no 4"}, {"answer": "8"}]
    with pytest.raises(AssertionError, match="fails raised ValueError: no 4"):
        _ = found[0] == 8
    assert found[1] == 8


def test_after_two_errors_that_took_long_nothing_more_is_asked(monkeypatch):
    monkeypatch.setattr("helpers.lesson.asking.MOST_S", 0.0)
    calls = []

    def counted(x: int) -> None:
        calls.append(x)
        raise ValueError

    with writing({}) as rows:
        found = [asked(counted, x) for x in range(5)]
    assert (calls, len(rows)) == ([0, 1], MOST_RAISED)
    with pytest.raises(AssertionError, match=r"counted\(4\): not asked, after 2 errors; the last: counted raised V"):
        str(found[4])
    give_back(rows)
    given = [asked(absent("counted"), x) for x in range(5)]
    with pytest.raises(AssertionError, match=r"counted\(4\): not asked, after 2 errors; the last: counted raised V"):
        str(given[4])


def test_errors_that_come_at_once_keep_no_other_case_from_being_asked():
    with writing({}) as rows:
        found = [asked(lambda x: 6 // x, x) for x in (0, 0, 0, 2)]
    assert (found[3], len(rows)) == (3, 4)
    give_back(rows)
    assert [asked(absent("answer"), x) for x in (0, 0, 0, 2)][3] == 3


class Oracle:
    """What knows the answer."""

    def __init__(self, x: int) -> None:
        self.found = 2 * x


class Child(Oracle):
    pass


def test_nor_later_by_a_generator():
    def looks_up(x: int):
        yield Oracle(x).found

    with writing({}) as rows:
        asked(looks_up, 3, without=[Oracle])
    assert "looks_up raised WorkbookError: looks_up has an object of Oracle made" in rows[0].get("raised", "")


def known(x: int, *, more: int = 0) -> int:
    return 2 * x + more


def test_nor_by_a_function_under_another_name():
    another = known

    def looks_up(x: int) -> int:
        return another(x, more=1)

    with writing({}) as rows:
        asked(looks_up, 3, without=[known])
        asked(twice, 3, without=[known])
    assert "a function is called that knows the answer" in rows[0]["raised"]
    assert rows[1:] == [{"answer": "6"}]
    assert known(3, more=1) == 7


@pytest.mark.parametrize("cls", [Oracle, Child])
def test_what_is_to_be_worked_out_is_not_looked_up(cls):
    def looks_up(x: int) -> int:
        return cls(x).found

    with writing({}) as rows:
        asked(looks_up, 3, without=[Oracle])
        asked(twice, 3, without=[Oracle, Child])
        asked(looks_up, 3)
    assert "looks_up has an object of Oracle made, which knows the answer" in rows[0]["raised"]
    assert rows[1:] == [{"answer": "6"}, {"answer": "6"}]
    with pytest.raises(WorkbookError, match="worked out from the arguments alone"):
        asked(looks_up, 3, without=[Oracle])
    assert Child(3).found == 6
    assert "__init__" not in vars(Child), "an inherited one is inherited again"


@pytest.mark.parametrize("given", [3, None])
def test_a_learner_is_told_the_line_of_their_own(given):
    source = "def layers(x):\n    return x.nothing\n"
    names: dict = {}
    linecache.cache["<answer>"] = (len(source), None, source.splitlines(keepends=True), "<answer>")
    exec(compile(source, "<answer>", "exec"), names)
    with writing(blames=names) as rows:
        asked(lambda x: names["layers"](x), given)
    why = f"{type(given).__name__!r} object has no attribute 'nothing'\n  at line 2: return x.nothing"
    assert rows[0]["raised"].endswith(why)


def test_none_that_only_an_apparatus_stumbles_over_is_told_as_such():
    with writing({}) as rows:
        asked(lambda: None + 1, case="one more than what was forgotten")
    assert rows == [{"raised": NONE}]


class UnprintableError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (UnprintableError(), "raises raised UnprintableError"),
        (ValueError("x" * 10**6), "raises raised ValueError: " + "x" * 1974),
        (ValueError("\ud800\x00"), "raises raised ValueError: \ud800\x00"),
        (AssertionError(), "raises raised AssertionError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_all_kinds_become_a_row(error, words):
    def raises() -> None:
        raise error

    with writing({}) as rows:
        asked(raises)
    assert [row["raised"].partition("\n")[0] for row in rows] == [words]
    json.dumps(rows)


def test_what_leaves_the_kernel_leaves_the_question():
    with pytest.raises(SystemExit), writing({}) as rows:
        asked(lambda: exit())
    assert rows == []


def test_what_an_answer_asks_itself_is_not_written_down(capsys):
    def asks(x: int) -> int:
        asked(lambda: "a row of its own")
        assert asking._desk.writes is None
        return twice(x)

    with writing({}) as rows:
        assert [asked(one, 4) for one in (asks, twice)] == [8, 8]
    assert rows == [{"answer": "8"}, {"answer": "8"}]


def test_no_plain_data_is_a_row():
    with writing({}) as rows:
        asked(lambda: object(), case="an object")
    assert "returned object that is no plain data" in rows[0]["raised"]


def test_answers_that_one_question_gave_back_are_not_those_of_the_next():
    give_back([{"answer": "1"}])
    with writing({}) as rows:
        assert asked(twice, 4) == 8
    assert len(rows) == 1


# The court: given back


def test_a_replay_calls_nothing_and_takes_the_answers_in_order(capsys):
    give_back([{"answer": "[1, 2]"}, {"answer": '{"set": [3]}'}])
    assert left() == 2
    assert asked(absent("split"), 4) == [1, 2]
    assert asked(lambda: pytest.fail("called")) == {3}
    assert left() == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], r"split\(4\): there is no answer"),
        ([{"raised": "split raised ValueError"}], r"split\(4\): split raised ValueError"),
        ([{"answer": "{not json"}], r"split\(4\): Expecting"),
        ([{"answer": "[" * 10**5}], r"split\(4\): no recorded answer"),
        ([{"answer": "9" * 5000}], r"split\(4\): "),
        ([{"answer": '{"evil": 1}'}], r"split\(4\): "),
        ([{}], r"split\(4\): "),
        ([{"else": "1"}], r"split\(4\): "),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_row_that_was_never_written_down_is_no_answer(rows, words):
    give_back(rows)
    found = asked(absent("split"), 4)
    assert type(found) is Unanswered
    with pytest.raises(AssertionError, match=words):
        _ = found == 1


def test_more_rows_than_questions_are_left():
    give_back([{"answer": "1"}] * 3)
    asked(absent("split"))
    assert left() == 2


def test_in_court_an_answer_cannot_be_called():
    with pytest.raises(AssertionError, match=r"split was called outside of `asked`"):
        absent("split")(3)
    assert absent("split").__name__ == "split"


USES = [
    lambda one: one == 1,
    lambda one: one != 1,
    lambda one: one < 3,
    lambda one: 3 - one,
    lambda one: 2**one,
    lambda one: one // 2,
    lambda one: divmod(one, 2),
    lambda one: -one,
    lambda one: abs(one),
    lambda one: round(one, 2),
    lambda one: int(one),
    lambda one: math.isclose(one, 1.0),
    lambda one: sum([one]),
    lambda one: max(one, 3),
    lambda one: sorted([one, 1]),
    lambda one: [*one],
    lambda one: dict(one),
    lambda one: {**one},
    lambda one: set(one),
    lambda one: {one: 1},
    lambda one: 3 in one,
    lambda one: len(one),
    lambda one: bool(one),
    lambda one: one["key"],
    lambda one: one.items(),
    lambda one: one(),
    lambda one: isinstance(one, list),
    lambda one: isinstance(one, int | float),
    lambda one: f"{one:,}",
    lambda one: f"{one!r}",
    lambda one: str(one),
    lambda one: range(3)[one],
    lambda one: torch.equal(one, torch.ones(1)),
    lambda one: torch.tensor(one),
    lambda one: torch.allclose(torch.ones(1), one),
]


@pytest.mark.parametrize("use", USES)
def test_whoever_uses_an_answer_that_never_came_learns_why(use):
    with pytest.raises((AssertionError, TypeError), match=r"why it is not there|must be Tensor"):
        use(Unanswered("why it is not there"))


def test_an_answer_that_never_came_is_never_a_whole_number():
    assert type(Unanswered("why")) is not int


# References


def measured(x: int) -> tuple[int, torch.Tensor]:
    return x, torch.arange(x)


def test_a_reference_is_measured_once_and_given_to_all_the_others(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: shown.append(data[asking.MIME]))
    refer([])
    found, of_three = reference(measured, 2)
    assert (found, of_three.tolist()) == (2, [0, 1])
    reference(measured, 3)
    asking.publish_references()
    refer(json.loads(shown[0]))
    again = [reference(lambda x: pytest.fail("measured"), x) for x in (2, 3)]
    assert [(one, tensor.tolist(), tensor.dtype) for one, tensor in again] == [
        (2, [0, 1], torch.int64),
        (3, [0, 1, 2], torch.int64),
    ]
    assert reference(measured, 1)[0] == 1, "what is used up is measured"
    asking.publish_references()
    assert len(json.loads(shown[1])) == 1


def test_a_reference_in_a_notebook_is_just_what_it_is():
    assert reference(twice, 4) == 8
