"""Answers that are alike: what counts, what does not, and how long a large class takes."""

from __future__ import annotations

import doctest
import random
import time

import pytest

from helpers.course import notebook as nb
from helpers.grading.reports import similar, summary
from helpers.grading.reports.similar import SimilarGroup, groups, pairs, runs
from tests.course.example_lab import example_lab, with_sources
from tests.grading.reports.marked_class import result

STUB = '''def peak(steps, sizes):
    """The most bytes at once."""
    raise NotImplementedError("write peak here")'''
WORKED = '''def peak(steps, sizes):
    """The most bytes at once."""
    ### BEGIN SOLUTION
    held, most = {}, 0
    for number, (name, kind) in enumerate(steps):
        if kind == "alloc":
            held[name] = torch.empty(sizes[name], dtype=torch.uint8).numel()
        elif kind == "free":
            held.pop(name, None)
        else:
            raise ValueError(f"step {number} is {kind}")
        most = max(most, sum(held.values()))
    return most
    ### END SOLUTION'''
RENAMED = """def peak(events, bytes_of):
    # my own work
    alive, highest = {}, 0
    for i, (tensor, what) in enumerate(events):
        if what == 'new': alive[tensor] = torch.empty(bytes_of[tensor], dtype=torch.uint8).numel()
        elif what == 'gone': alive.pop(tensor, None)
        else: raise ValueError(f"what is {what}?" )
        highest = max(highest,
                      sum(alive.values()))
    return highest"""
OTHER = """def peak(steps, sizes):
    timeline = [0]
    for name, kind in steps:
        sign = {"alloc": 1, "free": -1}[kind]
        timeline.append(timeline[-1] + sign * sizes[name])
    assert len(timeline) == len(steps) + 1, "every step counts"
    best = timeline[0]
    for now in timeline:
        if now > best:
            best = now
    return best"""


def of(**answers: str) -> list[SimilarGroup]:
    return groups({name: {"peak": source} for name, source in answers.items()}, {"peak": WORKED}, {"peak": STUB})


def test_another_way_is_not_alike():
    assert of(ada=OTHER) == []
    assert [group.slugs for group in of(ada=OTHER, ben=OTHER)] == [("ada", "ben")]


def test_names_layout_comments_and_texts_do_not_count():
    [group] = of(ada=OTHER, ben=RENAMED, cleo=WORKED)
    assert group.slugs == ("ben", "cleo")
    assert group.likeness > 0.95
    assert group.is_worked


def test_one_changed_line_is_near_and_half_is_not():
    changed = OTHER.replace("best = timeline[0]", "best = min(timeline[0], 10**9) + 0")
    [group] = of(ada=OTHER, ben=changed)
    assert 0.75 <= group.likeness < 1
    assert of(ada=OTHER, ben=OTHER.partition("    assert")[0] + "    return max(timeline)") == []


def test_what_was_given_and_what_is_short_does_not_count():
    assert of(ada=STUB, ben=STUB) == []
    short = STUB.replace('raise NotImplementedError("write peak here")', "return max(itertools.accumulate(sizes))")
    assert of(ada=short, ben=short) == []


def test_a_long_stub_is_nobodys_answer():
    given = OTHER.replace("return best", "return NotImplemented")
    found = {name: {"peak": given.replace("NotImplemented", f"best + {name}")} for name in ("ada", "ben")}
    assert groups(found, {"peak": WORKED}, {"peak": given}) == []


def test_chains_are_one_group():
    """Two who are each near a third are named together, with the least likeness that joins them."""
    second = OTHER.replace("best = timeline[0]", "best = timeline[0] + 0 * 1")
    third = second.replace("if now > best", "if now > best and True or now == best + 1")
    [group] = of(ada=OTHER, ben=second, cleo=third, dan=third)
    assert group.slugs == ("ada", "ben", "cleo", "dan")


@pytest.mark.parametrize(
    "source", ["def peak(:\n" + "    x = y + z * 3\n" * 30, "(" * 5000, "\x00" * 99, "x = " + "-" * 90_000 + "1", ""]
)
def test_what_is_no_python_is_compared_as_text(source):
    runs(source)
    assert len(of(ada=source, ben=source)) <= 1


def test_two_in_several_questions_come_first():
    found = [
        SimilarGroup("a", ("x", "y"), 1.0, 50, False),
        SimilarGroup("b", ("x", "y", "z"), 0.9, 50, False),
        SimilarGroup("c", ("x", "z"), 1.0, 50, True),  # like the worked lab: nothing is known of these two
        SimilarGroup("d", tuple("pqrstuvwxyz"), 1.0, 50, False),  # many: nor of these
    ]
    assert [(one.slugs, one.questions) for one in pairs(found)] == [(("x", "y"), ("a", "b"))]


def test_the_table_and_the_summary_name_them(tmp_path):
    lab = with_sources(example_lab(), {"twice": WORKED})
    (tmp_path / "executed").mkdir()
    for slug, source in (("ada", OTHER), ("ben", RENAMED), ("cleo", OTHER)):
        nb.write(tmp_path / f"executed/{slug}.ipynb", with_sources(lab, {"twice": source}))
    class_ = [result(name) for name in ("ada", "ben", "cleo", "dan")]
    alike = similar.write(class_, tmp_path, lab, {one.slug: one.slug for one in class_})
    assert (tmp_path / "similar.csv").read_text(encoding="utf-8-sig").splitlines() == [
        "question,title,likeness,worked_lab,learners,names",
        "twice,1 Twice,100,yes,1,ben",
        "twice,1 Twice,100,,2,ada; cleo",
    ]
    summary.write(class_, tmp_path, {"lab": "05"}, alike)
    page = (tmp_path / "summary.html").read_text()
    assert "Answers that are alike" in page
    assert "like the worked lab" in page


@pytest.mark.slow
def test_three_hundred_learners_take_seconds():
    """All different and of one size, so that every pair is compared: CPU time, because a machine is shared."""
    drawn = random.Random(0)

    def changed(source: str) -> str:
        lines = source.splitlines()
        for _ in range(12):
            at = drawn.randrange(2, len(lines))
            indent = len(lines[at]) - len(lines[at].lstrip())
            lines.insert(
                at, " " * indent + f"y.{drawn.choice('abcdefg')} = {drawn.randrange(1000)} * z.{drawn.choice('abc')}"
            )
        return "\n".join(lines)

    class_ = {f"s{n}": {f"q{k}": changed(OTHER) for k in range(8)} for n in range(300)}
    start = time.process_time()
    groups(class_, {f"q{k}": WORKED for k in range(8)}, {f"q{k}": STUB for k in range(8)})
    assert time.process_time() - start < 15


def test_examples():
    failed, tried = doctest.testmod(similar)
    assert tried
    assert not failed
