"""Recall questions: every chapter ends with them, once, folded, and above the recap that would give them away."""

from __future__ import annotations

import re

import pytest
from nbformat import NotebookNode, v4

from helpers.course import notebook as nb
from tests.house.tree import ROOT

CHAPTERS = nb.find_all(ROOT, [nb.CHAPTERS])
COUNTS = {"Five": 5, "Six": 6, "Seven": 7, "Eight": 8, "Nine": 9, "Ten": 10, "Eleven": 11, "Twelve": 12}
TITLE = re.compile(r"(?m)^## (?:\d+ · )?(\w+) questions$")
FOLD = re.compile(r"(?s)<details><summary>(\d+)\. [^\n]+</summary>\n\n(.+?)\n</details>")


def faults(cells: list[NotebookNode], chapter: str) -> list[str]:
    """What is wrong with the recall questions of a chapter; nothing where they are as promised."""
    texts = [(cell.id, cell.source) for cell in cells if cell.cell_type == "markdown"]
    titled = [at for at, (_, source) in enumerate(texts) if TITLE.search(source)]
    recaps = [at for at, (_, source) in enumerate(texts) if re.search(r"(?m)^## (?:\d+ · )?In short$", source)]
    if [texts[at][0] for at in titled] != [f"{chapter}-recall"]:
        return [f"not one cell of questions called {chapter}-recall"]
    source = texts[titled[0]][1]
    numbers = [int(number) for number, _ in FOLD.findall(source)]
    wrong = {
        "the recap stands above the questions": not recaps or titled[0] >= recaps[0],
        "a question is not folded, or not in order": numbers != list(range(1, source.count("<summary>") + 1)),
        "the title counts otherwise": COUNTS.get(TITLE.search(source)[1]) != len(numbers),
    }
    return [what for what, found in wrong.items() if found]


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem[:2])
def test_a_chapter_asks_recall_questions_before_its_recap(path):
    assert faults(nb.read(path).cells, path.stem[:2]) == []


def asked(count: int, title: str = "Five", answer: str = "It is 8.") -> str:
    folds = (f"<details><summary>{n}. How many?</summary>\n\n{answer}\n</details>" for n in range(1, count + 1))
    return f"## {title} questions\n\n" + "\n".join(folds)


def ended(*cells: tuple[str, str]) -> list[NotebookNode]:
    return [v4.new_markdown_cell(source, id=name) for name, source in cells]


RECAP = ("short", "## In short\n\nA table.")
BROKEN = {
    "none": (RECAP,),
    "two sets": (("05-recall", asked(5)), ("again", asked(5)), RECAP),
    "another name": (("questions", asked(5)), RECAP),
    "below the recap": (RECAP, ("05-recall", asked(5))),
    "in the recap": (("05-recall", RECAP[1] + "\n\n" + asked(5)),),
    "no answer": (("05-recall", asked(5).replace("\n\nIt is 8.\n", "\n", 1)), RECAP),
    "counted wrong": (("05-recall", asked(6)), RECAP),
}


@pytest.mark.parametrize("cells", BROKEN.values(), ids=BROKEN)
def test_each_way_to_break_recall_questions_is_found(cells):
    assert faults(ended(*cells), "05")
    assert faults(ended(("05-recall", asked(5)), RECAP), "05") == []
