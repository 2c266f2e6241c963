"""The first page and a learner's copy in real JupyterLab: links lead on, the setup cell is folded, a guess is noted."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from helpers.course.workspace import workspace
from helpers.lesson import notes
from tests.browser.conftest import WAIT_MS
from tests.browser.jupyter import ROOT, jupyter_lab

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CHAPTER = "00_start_here.ipynb"
GUESS = "guess = predict('two and two', unit='tokens', guess=5)"
OPEN = "{path: 'workspace/START.md', factory: 'Markdown Preview'}"  # `make lab` makes this the default viewer
LINK = "[Lab 01](../labs/01_the_memory_hierarchy.ipynb)"


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Chapter 00 cut down to its first screen and one guess, a lab, and the learner's copies of both."""
    root = tmp_path_factory.mktemp("clone")
    for folder in ("notebooks", "labs"):
        (root / folder).mkdir()
    chapter = nbformat.read(ROOT / "notebooks" / CHAPTER, as_version=4)
    lines = ("from helpers.lesson import compare, predict", GUESS, "compare(4, unit='tokens', you=guess)")
    setup = next(cell for cell in chapter.cells if cell.cell_type == "code")
    cells = [nbformat.v4.new_code_cell(line) for line in lines]
    chapter.cells = [chapter.cells[0], nbformat.v4.new_markdown_cell(LINK), setup, *cells]
    nbformat.write(chapter, root / "notebooks" / CHAPTER)
    shutil.copy(ROOT / "labs/01_the_memory_hierarchy.ipynb", root / "labs")
    workspace(root)
    return root


@pytest.fixture(scope="module")
def page(browser, clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    with jupyter_lab(clone, tmp_path_factory.mktemp("home")) as lab:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(WAIT_MS)
        page.goto(lab.url("workspace").replace("/doc/", "/lab/"))
        page.wait_for_function("() => window.jupyterapp")
        page.evaluate("jupyterapp.restored")
        page.evaluate(f"jupyterapp.commands.execute('docmanager:open', {OPEN})")
        yield page
        page.close()


def test_from_the_first_page_to_a_guess_that_is_noted(page, clone, screenshot):
    page.wait_for_selector(".jp-MarkdownViewer >> text=Begin with chapter 00")
    screenshot(page, "start")
    page.click(".jp-MarkdownViewer >> text=Start here")
    page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell")
    page.evaluate("jupyterapp.shell.currentWidget.context.sessionContext.ready")
    folded = page.locator(".jp-CodeCell").first.locator(".jp-InputCollapser + .jp-Placeholder, .jp-Placeholder")
    assert folded.first.is_visible()
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    page.wait_for_selector("text=+25.00 %")
    screenshot(page, "chapter")
    noted = notes.read(clone / "workspace")["chapters"]["00"]
    assert noted["predictions"] == {"two and two": {"guess": 5, "unit": "tokens", "off": 0.25}}
    assert noted["opened"]
    page.click(".jp-MarkdownOutput >> text=Lab 01")
    page.wait_for_selector("h1:has-text('Lab 01 · The memory hierarchy')")
