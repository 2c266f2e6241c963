"""Answers that are the same, or nearly, named beside one another; and those that are the worked lab's.

An answer is compared by what it does and not by how it looks: comments, docstrings, layout and the texts of strings are
gone, and the names that it chose itself are all one. What is left is cut into every run of RUN tokens; the likeness of
two answers is how many runs they share, of all that either has. Runs that the given stub has do not count, and an
answer with few others is left out: two short right answers are alike because there is one way to write them.

A likeness is no proof of anything. An answer that many have is more likely the obvious one, a book's or the worked
lab's than a neighbour's, so every group says how many have it.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from ...course import lab_cells
from ...course.lab_cells import parse
from ...course.stubs import stub
from ..judging.results import Result
from ..text import number, one_line
from .gradebook import names, write_table

RUN = 4  # tokens in a run
LEAST_RUNS = 40  # of an answer beyond its stub: about six lines
NEARLY = 0.75
MOST_CHARACTERS = 100_000
COLUMNS = ("question", "title", "likeness", "worked_lab", "learners", "names")
PAIRS_UP_TO = 8  # learners of a group: in a larger one, no two have more to do with each other
_TOKEN = re.compile(r"\w+|[^\w\s]")
_GIVEN = frozenset(keyword.kwlist) | frozenset(dir(builtins))

Runs = frozenset[int]  # their hashes: compared within one process only
Answers = Mapping[str, str]  # sources by grade id


@dataclass(frozen=True)
class SimilarGroup:
    """Learners (slugs) whose answers to one question are alike: the least likeness that joins them, runs, lines.

    `is_worked` says that theirs is like the worked lab's.
    """

    question: str
    slugs: tuple[str, ...]
    likeness: float
    runs: int
    is_worked: bool


@dataclass(frozen=True)
class SimilarPair:
    """Two learners (slugs) and the questions in which they are alike."""

    slugs: tuple[str, str]
    questions: tuple[str, ...]


@dataclass(frozen=True)
class Alike:
    """What is alike in a class, and each question's title."""

    groups: tuple[SimilarGroup, ...] = ()
    pairs: tuple[SimilarPair, ...] = ()
    titles: Mapping[str, str] = field(default_factory=dict)


def write(results: Sequence[Result], out: Path, worked: NotebookNode, executed: Mapping[str, str]) -> Alike:
    """Write similar.csv into the folder `out`, from the notebooks in executed/; what the summary shows of it.

    `worked` is the worked lab. `executed` has, by slug, what the notebook is called there; who has none is left out.
    """
    right = _answers(worked)
    answers = {one.slug: _executed(out / "executed" / f"{executed[one.slug]}.ipynb") for one in results}
    classes = {slug: written for slug, written in answers.items() if written}
    found = groups(classes, right, {key: stub(source) for key, source in right.items()})
    exercises = lab_cells.exercises(worked)
    titles = {lab_cells.grade_id(cell): exercise.title for exercise in exercises for cell in exercise.answers}
    shown = names(results)
    rows = [_row(group, titles[group.question], [shown[slug] for slug in group.slugs]) for group in found]
    write_table(out / "similar.csv", COLUMNS, rows)
    return Alike(tuple(found), tuple(pairs(found)), titles)


def _row(group: SimilarGroup, title: str, learners: Sequence[str]) -> list[str]:
    percent, worked = number(round(100 * group.likeness)), "yes" if group.is_worked else ""
    return [group.question, one_line(title, 200), percent, worked, number(len(learners)), "; ".join(learners)]


def _answers(notebook: NotebookNode) -> dict[str, str]:
    return {lab_cells.grade_id(cell): cell.source for cell in notebook.cells if lab_cells.is_answer(cell)}


def _executed(path: Path) -> dict[str, str]:
    """The answers of a notebook that the grader wrote; none where there is no such file."""
    with suppress(OSError, ValueError, KeyError, AttributeError):
        return _answers(nbformat.reads(path.read_text(encoding="utf-8"), nbformat.NO_CONVERT))
    return {}


def groups(classes: Mapping[str, Answers], worked: Answers, stubs: Answers) -> list[SimilarGroup]:
    """Who is alike, by question, the largest likeness first. `classes` has each slug's answers by grade id.

    Of a question of the worked lab a group may have one learner: it is like the worked one.
    """
    found = []
    for question in worked:
        given = runs(stubs.get(question, ""))
        by_slug = {slug: runs(answers.get(question, "")) - given for slug, answers in classes.items()}
        long = {slug: own for slug, own in by_slug.items() if len(own) >= LEAST_RUNS}
        found += _groups(question, long, runs(worked[question]) - given)
    return sorted(found, key=lambda one: (-one.likeness, -one.runs, one.question, one.slugs))


def pairs(found: Iterable[SimilarGroup]) -> list[SimilarPair]:
    """Two who are alike in several questions, the most first; nobody of a group with many, or like the worked lab."""
    shared: dict[tuple[str, str], list[str]] = {}
    for group in found:
        if len(group.slugs) <= PAIRS_UP_TO and not group.is_worked:
            for pair in combinations(sorted(group.slugs), 2):
                shared.setdefault(pair, []).append(group.question)
    several = [SimilarPair(pair, tuple(sorted(questions))) for pair, questions in shared.items() if len(questions) > 1]
    return sorted(several, key=lambda one: (-len(one.questions), one.slugs))


def runs(source: str) -> Runs:
    """Every run of RUN tokens of an answer, names of its own and texts made equal.

    >>> runs("def f(a):\\n    return torch.zeros(a)  # mine") == runs("def f(size): return torch.zeros(size)")
    True
    """
    tokens = _TOKEN.findall(_normal(source[:MOST_CHARACTERS]))
    return frozenset(map(hash, zip(*(tokens[at:] for at in range(RUN)), strict=False)))


def _normal(source: str) -> str:
    """The source without what a reader of the result would not see; of one that is no Python, without comments."""
    try:
        tree = parse(source)
        return ast.unparse(_Normal(tree).visit(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return re.sub(r"#.*", "", source)


class _Normal(ast.NodeTransformer):
    """Names that the cell binds become `v`, texts become `s`, docstrings go. What it imports or is given stays."""

    def __init__(self, tree: ast.AST) -> None:
        bound: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound.add(node.id)
            elif isinstance(node, ast.arg):
                bound.add(node.arg)
        self.own = bound - _GIVEN

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("v", node.ctx) if node.id in self.own else node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg("v")

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("s") if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.Constant:
        return ast.Constant("s")

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return self.generic_visit(ast.Assign([node.target], node.value, lineno=0)) if node.value else None

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if text else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)


def _groups(question: str, by_slug: Mapping[str, Runs], worked: Runs) -> list[SimilarGroup]:
    by_runs: dict[Runs, list[str]] = {}
    for slug, own in by_slug.items():
        by_runs.setdefault(own, []).append(slug)
    different = sorted(by_runs, key=lambda own: (len(own), by_runs[own]))
    found = []
    for members, least in _joined(len(different), _alike(different)):
        slugs = tuple(sorted(slug for at in members for slug in by_runs[different[at]]))
        near = max(_likeness(different[at], worked) for at in members)
        is_worked = len(worked) >= LEAST_RUNS and near >= NEARLY
        if len(slugs) > 1 or is_worked:
            likeness = least if len(slugs) > 1 else near
            found.append(SimilarGroup(question, slugs, likeness, len(different[members[0]]), is_worked))
    return found


def _joined(count: int, links: Iterable[tuple[int, int, float]]) -> Iterator[tuple[list[int], float]]:
    """The groups that the links make of 0 … count - 1, each with its least likeness (1.0 where there is no link)."""
    of = {at: [at] for at in range(count)}  # the group of each, one list for all who are in it
    least = dict.fromkeys(range(count), 1.0)  # by the first of a group
    for at, other, likeness in links:
        one, two = of[at], of[other]
        lowest = min(least[one[0]], least[two[0]], likeness)
        if one is not two:
            one += two
            of |= dict.fromkeys(two, one)
        least[one[0]] = lowest
    for at, members in of.items():
        if members[0] == at:
            yield members, least[at]


def _alike(different: Sequence[Runs]) -> Iterable[tuple[int, int, float]]:
    """Pairs of at least NEARLY, by size: an answer half as long again cannot be near, and is not compared."""
    for at, own in enumerate(different):
        for other in range(at + 1, len(different)):
            if len(own) < NEARLY * len(different[other]):
                break
            if (likeness := _likeness(own, different[other])) >= NEARLY:
                yield at, other, likeness


def _likeness(one: Runs, other: Runs) -> float:
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared) if shared else 0.0
