"""`workbook build` stores what nbval compares, alike on every machine, and never half a notebook."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat import v4

from helpers.catalog.errors import WorkbookError
from helpers.course import notebook as nb
from helpers.course.build import WIDGET_VIEW, build, clean
from helpers.course.kernel import error_in, kernel
from tests.course.example_lab import cell_of, code, markdown, save

IGNORE = "nbval-ignore-output"
CELLS = [
    markdown("# 01 All kinds of output", "title"),
    code("print('seed', __import__('os').environ['WORKBOOK_SEED'])", "printed"),
    code("6 * 7", "result"),
    code("6 * 7;", "semicolon"),
    code("import os\nos.system('echo from-a-process')", "process"),
    code("1 / 0", "raising", "nbval-raises-exception"),
    code("import os\nprint(os.getcwd())", "measured", IGNORE),
]


@pytest.fixture
def chapter(tmp_path: Path) -> Path:
    return save(v4.new_notebook(cells=CELLS), tmp_path / "solutions/01_outputs.ipynb")


@pytest.mark.slow
def test_the_stored_outputs_pass_nbval_and_a_second_build_changes_nothing(chapter, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WORKBOOK_SEED", "7")  # somebody's own seed must not get into what everybody compares
    monkeypatch.delenv("PYTEST_CURRENT_TEST")  # as when `workbook build` is typed
    assert build(["01"], tmp_path) == 1
    assert "cell semicolon: no-semicolon" in capsys.readouterr().out  # the one rule that it breaks, and stored it is
    first = chapter.read_bytes()
    build(["01_outputs"], tmp_path)
    assert chapter.read_bytes() == first
    assert b"seed 0" in first
    assert str(tmp_path).encode() not in first
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull]
    env = os.environ | {"WORKBOOK_SEED": "0"}
    done = subprocess.run(
        [*command, "--nbval", "--nbval-current-env", str(chapter)], capture_output=True, text=True, env=env
    )
    assert "6 passed" in done.stdout, done.stdout


@pytest.mark.parametrize(
    ("source", "words"),
    [("# why\nraise ValueError('boo')", "ValueError: boo"), ("import os\nos._exit(1)", "KernelDied")],
)
def test_a_failing_cell_is_named_and_the_file_left_alone(source, words, tmp_path, capsys):
    cells = [code("print(1)", "fine"), code(source, "failing")]
    path = save(v4.new_notebook(cells=cells), tmp_path / "notebooks/02_fails.ipynb")
    before = path.read_bytes()
    assert build([], tmp_path) == 1
    told = capsys.readouterr().err
    assert "cell [2]" in told
    assert nb.first_line(source) in told
    assert words in told
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(("name", "hint"), [("1", "'01'"), ("01_output", "'01_outputs'"), ("9.ipynb", "names")])
def test_an_unknown_name_lists_what_is_there(name, hint, chapter, tmp_path):
    with pytest.raises(WorkbookError) as raised:
        build(["01", name], tmp_path)
    assert "01_outputs" in raised.value.expected
    assert hint in raised.value.do
    assert cell_of(nb.read(chapter), "printed").execution_count is None, "nothing may run before all names are known"


def test_an_empty_course_is_an_error_not_a_success(tmp_path):
    with pytest.raises(WorkbookError, match="holds no notebooks"):
        build([], tmp_path)


def test_a_number_names_the_chapter_and_its_lab(tmp_path):
    for folder in ("notebooks", "solutions"):
        save(v4.new_notebook(), tmp_path / folder / "03_pair.ipynb")
    found = nb.find("03", tmp_path, ["notebooks", "solutions"])
    assert [path.parent.name for path in found] == ["notebooks", "solutions"]


@pytest.mark.parametrize("broken", ["{", "", "[]", '{"cells": 3}', '{"nbformat": 4, "cells": [{}]}', "\ufeff{}"])
def test_an_unreadable_notebook_is_an_error_for_people(broken, tmp_path):
    path = tmp_path / "x.ipynb"
    path.write_text(broken, encoding="utf-8")
    with pytest.raises(WorkbookError, match="cannot read"):
        nb.read(path)


def test_a_kernel_ends_with_its_block_and_a_hung_one_too(tmp_path):
    with kernel(tmp_path, cell_timeout_s=1) as run:
        pid = int(run("import os\nprint(os.getpid())")[0].text)
        assert error_in(run("while True: pass")).ename == "TimedOut"
        assert error_in(run("print(1)")).ename == "TimedOut", "its answers are no longer those of the cells asked"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_widget_leaves_its_picture_and_a_machine_leaves_no_trace():
    def shown(**kinds: str):
        return v4.new_output("display_data", {kind.replace("_", "/"): text for kind, text in kinds.items()})

    picture, widget = shown(image_png="iVBO", text_plain="a figure"), shown(text_plain="VBox()")
    picture.data[WIDGET_VIEW] = widget.data[WIDGET_VIEW] = {"model_id": "1"}
    ignored, compared = code("show()", "a", IGNORE), code("show()", "b")
    ignored.outputs, compared.outputs = [picture, widget], [shown(text_plain="/somewhere/course/x")]
    ignored.metadata["execution"] = {"start": "now"}
    book = v4.new_notebook(cells=[ignored, compared], metadata={"widgets": {}, "workbook": {"mine": 1}})
    clean(book, Path("/somewhere/course"))
    assert [set(output.data) for output in ignored.outputs] == [{"image/png", "text/plain"}]
    assert compared.outputs[0].data["text/plain"] == "/somewhere/course/x", "for lint to see, not to be hidden"
    assert set(ignored.metadata) == {"tags"}
    assert set(book.metadata) == {"kernelspec", "language_info", "workbook"}
