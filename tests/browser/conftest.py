"""Chromium, JupyterLab and its pages; skipped with a reason where Chromium or Playwright is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest

from tests.browser.jupyter import ROOT, Lab, jupyter_lab
from tests.needs import missing

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
CHAPTER = ROOT / "notebooks" / "02_where_training_memory_goes.ipynb"
CALCULATOR = "training_memory("
CALCULATORS = (
    "allocation",
    "attention",
    "block_map",
    "checkpointing",
    "fine_tuning",
    "kv_cache",
    "mesh",
    "numbers",
    "offload",
    "planner",
    "quantization",
    "reinforcement",
    "roofline",
    "service_planner",
    "serving_load",
    "tensor_numbers",
    "zero",
)
FIND_CALCULATOR = f"""jupyterapp.shell.currentWidget.content.widgets.findIndex(
    cell => cell.model.sharedModel.source.startsWith('{CALCULATOR}'))"""
WAIT_MS = 40_000


@pytest.fixture(scope="session")
def chromium() -> str:
    if importlib.util.find_spec("playwright") is None:
        missing("the package playwright")
    executable = next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)
    if executable is None:
        missing(f"Chromium (none of {', '.join(CHROMIUM_NAMES)} is on the PATH)")
    return executable


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator:
    """One for each file: while Playwright lives an event loop runs, and no later test could start its own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab on a copy of chapter 02 as it is stored, and on its calculator alone."""
    folder = tmp_path_factory.mktemp("notebooks")
    shutil.copy(CHAPTER, folder / "stored.ipynb")
    nbformat.write(calculator_alone(), folder / "calculator.ipynb")
    for name in CALCULATORS:
        nbformat.write(calculator_of(name), folder / f"{name}.ipynb")
    nbformat.write(calculator_of("training_memory", *CALCULATORS), folder / "every.ipynb")
    with jupyter_lab(folder, tmp_path_factory.mktemp("home")) as lab:
        yield lab


def calculator_of(*names: str) -> nbformat.NotebookNode:
    """A notebook with these calculators in one cell, not yet run."""
    notebook = calculator_alone()
    notebook.cells[1].source = f"from helpers.lesson.calculators import {', '.join(names)}"
    notebook.cells[2].source = f"display({', '.join(f'{name}()' for name in names)})"
    return notebook


def calculator_alone() -> nbformat.NotebookNode:
    """Chapter 02 cut down to its setup cells and its calculator, not yet run."""
    notebook = nbformat.read(CHAPTER, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kept = [*code[:2], *(cell for cell in code if cell.source.startswith(CALCULATOR))]
    assert len(kept) == 3, "chapter 02 begins with two setup cells and shows its calculator once"
    kept[2].source = f"{CALCULATOR})"
    for cell in kept:
        cell.outputs, cell.execution_count = [], None
    notebook.cells = kept
    return notebook


@pytest.fixture(scope="module")
def open_notebook(browser, lab: Lab) -> Callable:
    """`open_notebook(name)` gives a page on which the notebook is rendered, every cell of it."""

    def open_it(name: str):
        page = browser.new_page(viewport={"width": 1200, "height": 1000})
        page.set_default_timeout(WAIT_MS)
        page.goto(lab.url(name))
        page.wait_for_selector(".jp-NotebookPanel .jp-CodeCell")
        return page

    return open_it


@pytest.fixture
def set_theme() -> Callable:
    """`set_theme(page, "JupyterLab Dark")`, and wait until it is on."""

    def change(page, theme: str) -> None:
        page.evaluate(f"jupyterapp.commands.execute('apputils:change-theme', {{theme: '{theme}'}})")
        page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)
        page.wait_for_selector("#jupyterlab-splash", state="detached")

    return change


@pytest.fixture
def screenshot() -> Callable:
    """`screenshot(page, name)` saves what a person would see, where WORKBOOK_SCREENSHOTS names a folder."""

    def save(page, name: str) -> None:
        if folder := os.environ.get("WORKBOOK_SCREENSHOTS"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(folder) / f"{name}.png")

    return save
