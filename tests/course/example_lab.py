"""A small worked lab without torch, so that its kernel starts in a second: three exercises, five points."""

from __future__ import annotations

import copy
from pathlib import Path

import nbformat
from nbformat import NotebookNode, v4

TWICE = """def twice(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION"""
ASK_TWICE = """rng = draw("lab-05/twice")
doubled = {x: asked(twice, x) for x in (1, 5, 100, rng.randint(6, 99))}"""
CHECK_TWICE = """for x in (1, 5):
    got = doubled[x]
    assert got == 2 * x, f"twice({x}) is {2 * x}: did you add two?"
    print(f"{x} -> {got}")
### BEGIN HIDDEN TESTS
assert doubled[100] == 200, "twice(100) is 200"
### END HIDDEN TESTS"""
PAGES = """class Pages:
    def count(self, tokens):
        ### BEGIN SOLUTION
        return math.ceil(tokens / 4)
        ### END SOLUTION"""
ASK_PAGES = """def count_pages(tokens):
    return Pages().count(tokens)


rng = draw("lab-05/pages")
counted = {tokens: asked(count_pages, tokens) for tokens in (4, 5, rng.randint(6, 99))}"""
CHECK_PAGES = """for tokens, pages in counted.items():
    assert pages > 0, "a started page is a page"
    print(f"{tokens} -> {pages}")"""
HALF = """def half(x):
    ### BEGIN SOLUTION
    return x / 2
    ### END SOLUTION"""
ASK_HALF = """drawn = draw("lab-05/half").randrange(10**6)
halves = asked(half, 4), asked(half, drawn)"""
CHECK_HALF = """assert halves[0] == 2, "half of 4 is 2"
print(f"{drawn} -> {halves[1]:.1f}")"""
RIGHT = {
    "twice": "def twice(x):\n    return x + x",
    "pages": "class Pages:\n    def count(self, tokens):\n        return -(-tokens // 4)",
    "half": "def half(x):\n    return 0.5 * x",
}


def markdown(source: str, key: str) -> NotebookNode:
    """A markdown cell with the id `key`."""
    return v4.new_markdown_cell(source, id=key)


def code(source: str, key: str, *tags: str, **graded: object) -> NotebookNode:
    """A code cell with the id `key`; keywords make it a graded one with `key` as its grade_id."""
    cell = v4.new_code_cell(source, id=key or "nameless")
    if tags:
        cell.metadata["tags"] = list(tags)
    if graded:
        plain = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
        cell.metadata["nbgrader"] = plain | {"grade_id": key} | graded
    return cell


def answer(key: str, source: str) -> NotebookNode:
    """An answer cell."""
    return code(source, key, solution=True)


def ask(key: str, source: str) -> NotebookNode:
    """A cell that draws inputs and calls the answers above it."""
    cell = code(source, key, "nbval-ignore-output", locked=True)
    cell.metadata["workbook"] = {"role": "ask"}
    return cell


def check(key: str, source: str, points: int = 1) -> NotebookNode:
    """A check cell."""
    cell = code(source, key, grade=True, locked=True, points=points)
    cell.metadata["workbook"] = {"rubric": [f"{points} points: the answer is right"]}
    return cell


def example_lab() -> NotebookNode:
    """The worked lab, not yet executed."""
    return v4.new_notebook(
        cells=[
            markdown("# Lab 05: numbers", "title"),
            code("import math\n\nfrom helpers.lesson import asked, draw", "setup"),
            markdown("## 1 Twice\n\nDouble it: `twice(5)` is 10.", "twice-text"),
            answer("twice", TWICE),
            ask("ask-twice", ASK_TWICE),
            check("check-twice", CHECK_TWICE, 2),
            markdown("## 2 Pages", "pages-text"),
            answer("pages", PAGES),
            ask("ask-pages", ASK_PAGES),
            check("check-pages", CHECK_PAGES, 2),
            markdown("## 3 Half", "half-text"),
            answer("half", HALF),
            ask("ask-half", ASK_HALF),
            check("check-half", CHECK_HALF, 1),
        ]
    )


def with_sources(notebook: NotebookNode, sources: dict[str, str]) -> NotebookNode:
    """A copy of `notebook` where the cells with these ids have these sources."""
    changed = copy.deepcopy(notebook)
    for cell in changed.cells:
        cell.source = sources.get(cell.id, cell.source)
    return changed


def cell_of(notebook: NotebookNode, key: str) -> NotebookNode:
    """The cell with the id `key`."""
    return next(cell for cell in notebook.cells if cell.id == key)


def save(notebook: NotebookNode, path: Path) -> Path:
    """Write `notebook` to `path`, folders included; the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path
