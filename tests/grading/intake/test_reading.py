"""Whatever the bytes are: plain cells, or a sentence that says why not."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.grading.intake import reading
from helpers.grading.intake.reading import Cell, Submitted, Unreadable, cleaned, from_json, read

CODE = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
NBGRADER = {"grade_id": "twice", "solution": True, "grade": False, "locked": False, "schema_version": 3}
LAB = {
    "cells": [
        {"cell_type": "markdown", "metadata": {}, "id": "title", "source": ["# Lab\n", "text"]},
        {**CODE, "id": "twice", "metadata": {"nbgrader": NBGRADER, "id": "colab-1"}, "source": "def twice(x): ..."},
        {**CODE, "id": "check", "metadata": {"nbgrader": {"grade_id": "c", "grade": True}}, "source": "print(1)"},
        {**CODE, "metadata": {"nbgrader": {"grade_id": "both", "grade": True, "solution": True}}, "source": "x"},
    ],
    "metadata": {"workbook": {"source": "solutions/05_numbers.ipynb"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture
def read_bytes(tmp_path):
    def call(content: object) -> Submitted:
        path = tmp_path / "lab.ipynb"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return read(path)

    return call


def test_a_cell_keeps_its_source_and_its_ids(read_bytes):
    found = read_bytes(LAB)
    assert found.cells == (
        Cell("markdown", "# Lab\ntext", "title"),
        Cell("code", "def twice(x): ...", "twice", "twice", "colab-1"),
        Cell("code", "print(1)", "check", "c", is_check=True),
        Cell("code", "x", None, "both"),
    )
    assert found.source_lab == "solutions/05_numbers.ipynb"
    assert found.warnings == ()


def test_it_crosses_a_process_border_as_json(read_bytes):
    found = read_bytes({**LAB, "nbformat": 6})
    assert found.warnings
    assert from_json(json.loads(json.dumps(asdict(found)))) == found


@pytest.mark.parametrize("stored", [{}, {"cells": [{"kind": "code"}], "warnings": []}, {"cells": [], "warnings": 3}])
def test_other_json_is_no_notebook(stored):
    with pytest.raises((TypeError, KeyError)):
        from_json(stored)


ODD_CELLS = [
    ({"source": ["a\n", 3, None, "b"]}, Cell("code", "a\nb")),
    ({"source": {"a": 1}}, Cell("code", "")),
    ({"input": "old"}, Cell("code", "old")),
    ({"id": 5, "source": "a"}, Cell("code", "a")),
    ({"id": "x" * 65, "source": "a"}, Cell("code", "a")),
    ({"id": "né", "source": "a"}, Cell("code", "a")),
    ({"source": "a", "metadata": {"nbgrader": {"grade_id": "a\nb"}, "id": "\x1b[2J"}}, Cell("code", "a")),
    ({"source": "a", "metadata": {"nbgrader": {"grade_id": "x" * 201}, "id": ""}}, Cell("code", "a")),
    ({"source": "a", "metadata": {"nbgrader": ["grade_id"], "id": 3}}, Cell("code", "a")),
    ({"source": "a", "metadata": {"nbgrader": {"grade": "yes", "grade_id": "g"}}}, Cell("code", "a", grade_id="g")),
    ({"source": "a\r\nb\rc\x0cd\te"}, Cell("code", "a\nb\nc\x0cd\te")),
    ({"cell_type": "raw", "source": "a"}, Cell("raw", "a")),
    ({"cell_type": "heading", "level": 3, "source": "a"}, Cell("markdown", "### a")),
    ({"cell_type": "heading", "level": "x", "source": "a"}, Cell("markdown", "# a")),
    ({"cell_type": "html", "source": "<b>"}, Cell("markdown", "<b>")),
]


@pytest.mark.parametrize(("fields", "expected"), ODD_CELLS, ids=[str(fields)[:40] for fields, _ in ODD_CELLS])
def test_an_odd_cell_is_read_as_far_as_it_goes(read_bytes, fields, expected):
    cell = {"cell_type": "code", "metadata": {}, **fields}
    assert read_bytes({"nbformat": 4, "cells": [cell]}).cells == (expected,)


def test_cells_of_no_known_type_are_left_out_with_a_warning(read_bytes):
    found = read_bytes({**LAB, "cells": [*LAB["cells"], {"cell_type": ["code"]}, "code", {**CODE, "cell_type": "sql"}]})
    assert len(found.cells) == len(LAB["cells"])
    assert found.warnings == ("3 cells of no known type were left out",)


@pytest.mark.parametrize("character", ["\0", "\x07", "\x1b", "\x7f", "\x9b", "\ud800"])
def test_what_a_terminal_or_an_encoder_would_choke_on_does_not_survive(read_bytes, character):
    found = read_bytes({"nbformat": 4, "cells": [{**CODE, "source": f"a{character}b"}]})
    assert found.cells[0].source == "a\ufffdb"
    assert "in 1 cells" in found.warnings[0]
    cleaned(character).encode()


def test_only_the_last_byte_decides_what_is_too_large(read_bytes, monkeypatch):
    content = json.dumps(LAB).encode()
    monkeypatch.setattr(reading, "MOST_FILE_BYTES", len(content))
    assert read_bytes(content).cells
    with pytest.raises(Unreadable, match="larger than"):
        read_bytes(content + b" ")


def test_large_outputs_are_dropped_before_anything_is_parsed(read_bytes):
    shown = {"output_type": "stream", "name": "stdout", "text": ["x" * 10**6, 'a "quoted" ] \\'] * 30}
    cell = {**CODE, "source": "text = '\"outputs\": [1]'", "outputs": [shown, [[]], {"data": {"a/b": ["[", "]"]}}]}
    large = json.dumps({"nbformat": 4, "cells": [cell, CODE]}).encode()
    assert len(large) > 20 * 10**6
    assert read_bytes(large) == read_bytes({"nbformat": 4, "cells": [{**cell, "outputs": []}, CODE]})


def test_a_large_file_without_outputs_is_refused(read_bytes):
    with pytest.raises(Unreadable, match="20 MB, even without"):
        read_bytes({"nbformat": 4, "metadata": {"x": "y" * 20_000_100}, "cells": [CODE]})


@pytest.mark.parametrize("end", ["", "[", "]", '"', '\\"', "]]]"])
def test_a_large_file_that_is_cut_off_is_a_reason(read_bytes, end):
    with pytest.raises(Unreadable, match="JSON"):
        read_bytes(f'{{"cells": [{{"outputs": ["{"x" * 20_000_100}", {end}'.encode())


def test_only_one_cell_more_is_too_many(read_bytes):
    assert len(read_bytes({"cells": [CODE] * reading.MOST_CELLS}).cells) == reading.MOST_CELLS
    with pytest.raises(Unreadable, match="2,001 cells"):
        read_bytes({"cells": [CODE] * (reading.MOST_CELLS + 1)})


@pytest.mark.parametrize("path", ["missing.ipynb", "."])
def test_a_path_that_cannot_be_opened_is_unreadable(tmp_path, path):
    with pytest.raises(Unreadable, match="cannot be opened"):
        read(tmp_path / path)


LIMITED = """
import resource, sys
from pathlib import Path
from helpers.grading.intake.reading import Unreadable, read
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
try:
    read(Path(sys.argv[1]))
except Unreadable as error:
    print(error)
"""


def limited(path, content: bytes, memory_bytes: int) -> str:
    path.write_bytes(content)
    command = [sys.executable, "-c", LIMITED, str(path), str(memory_bytes)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_lack_of_memory_is_a_reason(tmp_path):
    lists = b'{"x": [' + b"[]," * 1_500_000 + b"0]}"
    assert limited(tmp_path / "lab.ipynb", lists, 120 * 10**6) == "reading it takes too much memory"


@pytest.mark.slow
@pytest.mark.parametrize("item", ["[],", "{},", '{"":0},', "[0],", '"\U0001f999",', "1,", "0.5,"])
def test_twenty_megabytes_of_the_worst_fit_into_two_gigabytes(tmp_path, item):
    size = (reading.MOST_BYTES - 20) // len(item.encode())
    content = f'{{"x": [{item * size}0]}}'.encode()
    assert limited(tmp_path / "lab.ipynb", content, 2 * 10**9) == "it is JSON, but no notebook: it has no list of cells"


def test_reading_imports_nothing_heavy():
    code = "import sys, helpers.grading.intake.reading; print({'nbformat', 'torch', 'jsonschema'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


def usable_or_a_reason(path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        found = read(path)
    except Unreadable as error:
        reason = str(error)
    else:
        reason = "none"
        assert_usable(found)
    assert reason.isprintable()
    assert reason


def assert_usable(found: Submitted) -> None:
    assert found.cells or found.warnings
    json.dumps(asdict(found)).encode()
    assert all(one.type in ("code", "markdown", "raw") for one in found.cells)
    assert all(cleaned(one.source) == one.source for one in found.cells)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "lab.ipynb"


@given(content=st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(scratch, content):
    usable_or_a_reason(scratch, content)


PLAIN = st.sampled_from([None, True, -1, 3, 4, 10**30, 0.5, float("nan"), "", "a", "\ud800", "code", "heading", "html"])
KEYS = st.sampled_from(
    ["cells", "cell_type", "source", "metadata", "id", "nbgrader", "nbformat", "worksheets", "level"]
)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)


@settings(max_examples=50)
@given(stored=st.dictionaries(KEYS, VALUES, max_size=4), cells=st.lists(st.dictionaries(KEYS, VALUES, max_size=4)))
def test_any_json_is_read_or_refused(scratch, stored, cells):
    usable_or_a_reason(scratch, json.dumps(stored | {"cells": cells}).encode())
    usable_or_a_reason(scratch, json.dumps(stored).encode())


def paths(value: object, at: tuple = ()) -> list[tuple]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, child in children for path in paths(child, (*at, key)))]


def replaced(value: object, at: tuple, new: object) -> object:
    if not at:
        return new
    changed = copy.copy(value)
    changed[at[0]] = replaced(value[at[0]], at[1:], new)
    return changed


@settings(max_examples=100)
@given(at=st.sampled_from(paths(LAB)), new=VALUES)
def test_a_notebook_with_any_part_replaced_is_read_or_refused(scratch, at, new):
    usable_or_a_reason(scratch, json.dumps(replaced(LAB, at, new)).encode())


@given(at=st.integers(0, len(json.dumps(LAB)) - 1), new=st.binary(max_size=3), encoding=st.sampled_from(["", "-16"]))
def test_a_notebook_with_any_bytes_replaced_is_read_or_refused(scratch, at, new, encoding):
    content = json.dumps(LAB).encode(f"utf{encoding or '-8'}")
    usable_or_a_reason(scratch, content[:at] + new + content[at + len(new) :])
