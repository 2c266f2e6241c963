"""What a learner reads: words for every outcome, nothing of anybody else, and no markup but ours."""

from __future__ import annotations

import doctest
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.grading import text as pages
from helpers.grading.judging.results import ATTENTION, OUTCOMES
from helpers.grading.reports import feedback, manual
from helpers.grading.reports.feedback import OUTCOME_WORDS, SIGNS, STANDINGS, standing
from tests.grading.reports.html_of import Seen, seen
from tests.grading.reports.marked_class import HOSTILE, hostile_class, question, result, small_class, unreadable

LAB = {"lab": "05_numbers", "title": "Lab 05: numbers"}
CSP = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
UNSEEN = ("\x1b", "\x00", "\x07", "\u202e", "\u2066", "\u200f", "\ud800")


def html_of(one, folder: Path) -> str:
    feedback.write([one], folder, **LAB)
    return (folder / "feedback" / f"{one.slug}.html").read_text(encoding="utf-8")


def page(one, folder: Path) -> Seen:
    return seen(html_of(one, folder))


def test_a_page_for_each_learner_and_nothing_else(tmp_path):
    feedback.write(small_class(), tmp_path, **LAB)
    names = sorted(path.name for path in (tmp_path / "feedback").iterdir())
    assert names == ["ada.html", "ben.html", "cleo.html", "dan.html", "eve.html"]


def test_a_failed_check_says_what_to_do(tmp_path):
    text = page(small_class()[1], tmp_path).text
    for told in (
        "Feedback for ben",
        "Lab 05: numbers",
        "3 of 5 points",
        "2 of 3 questions",
        "What to do next",
        "a check failed, 2 points to gain",
        "5 tokens\n  expected: 2\n  yours:    1\n",
        "Hint Use math.ceil.",
        "workbook check 05 in a terminal",
        "How to go on",
    ):
        assert told in text, told


def test_full_marks_leave_nothing_to_do(tmp_path):
    text = page(small_class()[0], tmp_path).text
    assert "Everything passes." in text
    assert "How to go on" not in text


def test_every_outcome_has_words_and_every_standing_a_sign():
    assert set(OUTCOME_WORDS) == set(OUTCOMES)
    assert set(SIGNS) == set(STANDINGS)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_outcome_is_put_in_words(tmp_path, outcome):
    seen_page = page(result("ada", question("pages", outcome, message="the reason")), tmp_path)
    headline, advice = OUTCOME_WORDS[outcome]
    assert headline in seen_page.text
    assert advice in seen_page.text
    assert ("the reason" in seen_page.text) is (outcome not in ("passed", "not started"))


def test_an_outcome_without_words_is_shown_as_it_is(tmp_path):
    assert "some new outcome" in page(result("ada", question("pages", "some new outcome")), tmp_path).text


@pytest.mark.parametrize(
    ("outcome", "earned", "points", "where"),
    [
        ("passed", 2, 2, "full"),
        ("passed", 0, 0, "full"),
        ("wrong", 0, 0, "none"),
        ("wrong", 1, 2, "part"),
        ("wrong", 0, 2, "none"),
        ("died", 2, 2, "full"),  # by hand
        ("not started", 0, 2, "open"),
        ("missing", 0, 2, "open"),
        ("not reached", 0, 2, "none"),
    ],
)
def test_where_a_question_stands(outcome, earned, points, where):
    assert standing(question("pages", outcome, earned=earned, points=points)) == where


def test_a_reason_for_attention_is_not_for_the_learner(tmp_path):
    text = page(result("dan", status=ATTENTION, reasons=("a solution was read",)), tmp_path).text
    assert "Not final." in text
    assert "a solution was read" not in text


def test_an_unreadable_notebook_says_why_and_what_to_do(tmp_path):
    text = page(unreadable("eve", reason="it is a shortcut to another file"), tmp_path).text
    assert "could not be read" in text
    assert "it is a shortcut to another file" in text
    assert "Restart Kernel and Run All Cells" in text
    assert "workbook check 05" in text
    assert "1 · Twice" not in text  # questions that nobody has seen are no advice


def test_points_and_a_comment_by_hand(tmp_path):
    path = tmp_path / "manual.csv"
    path.write_text("learner,question,max,reason,points,comment\ndan,half,1,,1,well argued <b>\n", encoding="utf-8")
    text = page(manual.merged(small_class(), path)[3], tmp_path).text
    assert "Points given by your instructor" in text
    assert "well argued <b>" in text
    assert OUTCOME_WORDS["died"][0] not in text
    assert "Everything passes." in text


@pytest.mark.parametrize(("outcome", "told"), [("wrong", True), ("died", False)])
def test_some_points_by_hand_keep_what_a_check_said(tmp_path, outcome, told):
    """Why no check could judge is no longer of interest; what one has found still is."""
    path = tmp_path / "manual.csv"
    path.write_text("learner,question,max,reason,points,comment\nada,pages,2,,1,\n", encoding="utf-8")
    one = result("ada", question("pages", outcome, message="the reason"))
    text = page(manual.merged([one], path)[0], tmp_path).text
    assert ("the reason" in text) is told
    assert OUTCOME_WORDS[outcome][1] not in text


def test_warnings_and_rubric_are_shown(tmp_path):
    one = question("pages", "wrong", message="no", rubric=("1 point: `ceil`", "1 point: **zero**"))
    text = page(replace(result("ada", one), warnings=("answer 'pages' was found 2 times",)), tmp_path).text
    assert "answer 'pages' was found 2 times" in text
    assert "1 point: ceil" in text
    assert "1 point: zero" in text


@pytest.mark.parametrize(
    "message",
    ["x" * 100_000, "line\n" * 20_000, "\x1b[31m" * 20_000, "<b>" * 33_000, "é\u202e" * 50_000],
    ids=["one-line", "many-lines", "escapes", "markup", "marks"],
)
def test_a_message_of_100_kb_is_cut(tmp_path, message):
    html = html_of(result("ada", question("pages", "wrong", message=message + "because")), tmp_path)
    assert len(html) < 60_000
    assert "because" in html  # the reason stands at the end
    lines = feedback.message_lines(message)
    assert len(lines) <= feedback.MESSAGE_LINES + 1
    assert sum(len(line) for _, line in lines) <= feedback.MESSAGE_CHARS + 100


def test_hostile_texts_are_text(tmp_path):
    """The same elements as with harmless texts: nothing that a learner wrote became one, or an attribute."""
    for number, one in enumerate(hostile_class()):
        harmless = [
            replace(each, message="a\n" * each.message.count("\n") + "a", hint="a", rubric=("a",), title="a")
            for each in one.questions
        ]
        benign = replace(one, learner="a", reasons=("a",), warnings=("a",), questions=tuple(harmless))
        hostile_page, benign_page = page(one, tmp_path / f"{number}"), page(benign, tmp_path / f"{number}b")
        assert hostile_page.elements == benign_page.elements
        assert not hostile_page.unbalanced
        for shown in ("<script>window.ran = 1</script>", "{{ 7 * 7 }}", "{% raise %}&lt;b&gt;", "red link"):
            assert shown in hostile_page.text.replace("\n", " "), shown
        assert not [mark for mark in UNSEEN if mark in html_of(one, tmp_path / f"{number}")]


def test_a_page_can_do_nothing(tmp_path):
    for one in [*small_class(), *hostile_class()]:
        found = page(one, tmp_path)
        tags = {tag for tag, _ in found.elements}
        assert not tags & {"script", "iframe", "object", "embed", "img", "form", "base", "audio", "video"}
        assert not [name for _, names in found.elements for name in names if name.startswith("on")]
        assert all(link.startswith("#q") for link in found.of("a", "href"))
        assert found.of("link", "href") == ["data:,"]  # or a browser asks for /favicon.ico
        assert found.of("meta", "content")[0].startswith(CSP)
        assert found.elements[2:4] == [("meta", ("charset",)), ("meta", ("http-equiv", "content"))]  # before all else


def test_it_tells_nothing_of_the_grader(tmp_path):
    """No traceback, no path, no seed: the message is all that came from the run."""
    one = replace(small_class()[1], extra={"traceback": "File /grader/engine.py"}, fingerprint="f00d", seconds=9.75)
    html = html_of(one, tmp_path)
    assert not [word for word in ("Traceback", "engine.py", "f00d", "9.75", "seed ") if word in html]


def test_the_same_result_gives_the_same_page(tmp_path):
    one = small_class()[1]
    assert html_of(one, tmp_path / "a") == html_of(replace(one, seconds=77), tmp_path / "b")


@pytest.mark.parametrize("module", [pages, feedback])
def test_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed


def test_every_hostile_text_is_used():
    one = hostile_class()[0].questions[0]
    assert all(text in field for text in HOSTILE for field in (one.message, one.hint, one.title, one.rubric[0]))
