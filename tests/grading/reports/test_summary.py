"""What the instructor reads: the numbers are those of the results, whom to look at comes first, nothing acts."""

from __future__ import annotations

import doctest
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.grading.reports import manual, summary
from tests.grading.reports.html_of import Seen, seen
from tests.grading.reports.marked_class import hostile_class, question, result, small_class, unreadable
from tests.grading.reports.test_feedback import CSP, UNSEEN

MANIFEST = {
    "lab": "05_numbers",
    "title": "Lab 05: numbers",
    "seed": 8128,
    "sandbox": "bubblewrap",
    "versions": {"python": "3.11", "nbval": "0.11.0"},
    "reference": "5f3a",
    "started": "S",
    "finished": "F",
    "counts": {"graded": 3},
}


def html_of(results: list, folder: Path, manifest: dict = MANIFEST) -> str:
    summary.write(results, folder, manifest)
    return (folder / "summary.html").read_text(encoding="utf-8")


def page(results: list, folder: Path, manifest: dict = MANIFEST) -> Seen:
    return seen(html_of(results, folder, manifest))


def test_the_numbers_are_those_of_the_class(tmp_path):
    """Mean and pass rates over the four who could be read: 5, 3, 2 and 4 points."""
    text = page(small_class(), tmp_path).words
    for told in (
        "learners 5",
        "graded 3",
        "need attention 1",
        "unreadable 1",
        "mean of 5 3.5",
        "median 3.5",
        "1 · Twice 75 % 3 of 4",
        "2 · Pages 50 % 2 of 4",
        "3 · Half 75 % 3 of 4",
    ):
        assert told in text, told


def test_mean_and_median_are_two_things(tmp_path):
    low = result("cleo", question("twice", "wrong"), question("pages", "wrong"), question("half", "wrong"))
    assert "mean of 5 3.3 median 5" in page([result("ada"), result("ben"), low], tmp_path).words


def test_who_needs_a_person_comes_before_the_scores_and_is_linked(tmp_path):
    found = page(small_class(), tmp_path)
    text = found.words
    assert text.index("Needs a person") < text.index("half ended the kernel") < text.index("Scores")
    assert "unreadable : this is no notebook: invalid JSON in line 1" in text
    links = found.of("a", "href")
    assert links[:2] == ["feedback/eve.html", "feedback/dan.html"]
    assert sorted(links[2:]) == [f"feedback/{name}.html" for name in ("ada", "ben", "cleo", "dan", "eve")]


def test_nobody_needs_a_person(tmp_path):
    assert "Needs a person" not in page([result("ada")], tmp_path).text


def test_the_run_is_told(tmp_path):
    text = page(small_class(), tmp_path).words
    assert "seed 8128 sandbox bubblewrap reference 5f3a versions python 3.11, nbval 0.11.0 started S" in text


def test_the_commonest_error_counts_those_that_differ_by_numbers():
    messages = ["block 7 of [1, 2] is free", "block 12 of [4, 5, 6] is free", "block -3 of [0x7f] is free", "other"]
    class_ = [result(str(at), question("pages", "wrong", message=text)) for at, text in enumerate(messages)]
    pages = summary.question_summaries([*class_, result("e", question("pages", "not started")), result("f")])[1]
    assert (pages.error, pages.error_count, pages.failed) == ("block 7 of [1, 2] is free", 3, 4)
    assert pages.standings == {"full": 1, "part": 0, "none": 4, "open": 1}
    assert pages.pass_percent == pytest.approx(100 / 6)


def test_a_death_without_a_message_is_an_error_too():
    class_ = [result(str(at), question("half", "died")) for at in range(3)]
    half = summary.question_summaries(class_)[2]
    assert (half.error, half.error_count) == ("ended the kernel", 3)


def test_points_by_hand_are_shown_beside_the_checks(tmp_path):
    path = tmp_path / "manual.csv"
    path.write_text("learner,question,max,reason,points,comment\ndan,half,1,,0.5,nearly\n", encoding="utf-8")
    text = page(manual.merged(small_class(), path), tmp_path).words
    assert "dan half 0 0.5 nearly" in text
    assert "need attention 0" in text


@pytest.mark.parametrize(
    "results",
    [[], [unreadable("eve")], [replace(result("ada"), questions=())]],
    ids=["nobody", "all-unreadable", "no-questions"],
)
def test_a_class_without_scores(tmp_path, results):
    found = page(results, tmp_path, {})
    assert not found.unbalanced
    assert f"learners {len(results)}" in found.words


def test_hostile_texts_are_text_and_the_page_can_do_nothing(tmp_path):
    results = [*hostile_class(), *small_class()]
    found, html = page(results, tmp_path), html_of(results, tmp_path)
    tags = {tag for tag, _ in found.elements}
    assert not found.unbalanced
    assert not tags & {"script", "img", "iframe", "object", "embed", "form", "base", "style"} - {"style"}
    assert not [name for _, names in found.elements for name in names if name.startswith("on")]
    assert all(link.startswith("feedback/") and "//" not in link for link in found.of("a", "href"))
    assert found.of("meta", "content")[0].startswith(CSP)
    assert "<script>window.ran = 1</script>" in found.text
    assert not [mark for mark in UNSEEN if mark in html]


def test_the_same_class_gives_the_same_page(tmp_path):
    assert html_of(small_class(), tmp_path / "a") == html_of(small_class(), tmp_path / "b")


@pytest.mark.parametrize(
    ("points", "labels"), [(5, ["0", "1", "2", "3", "4", "5"]), (0, ["0"]), (2.5, ["0", "1", "2"])]
)
def test_a_bar_for_each_whole_score(points, labels):
    assert [bar.label for bar in summary.histogram([], points)] == labels


@pytest.mark.parametrize("points", [1, 5, 20, 21, 40, 100, 1000])
def test_every_score_is_in_one_bar(points):
    scores = [0, points / 3, points - 0.5, points]
    bars = summary.histogram(scores, points)
    assert len(bars) <= summary.MOST_BARS
    assert sum(bar.count for bar in bars) == len(scores)
    assert bars[-1].count >= 1
    assert all(bar.y >= 0 and bar.y + bar.height == pytest.approx(146, abs=0.2) for bar in bars)


@pytest.mark.parametrize("module", [summary])
def test_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed
