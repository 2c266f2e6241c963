"""Every rule of the notebook lint is seen red on its counter-example, and the example lab is clean."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat import NotebookNode, v4

from helpers.course import notebook as nb
from helpers.course.address import FOLDED, SETUP
from helpers.course.lint import RULES, findings, lint
from tests.course.example_lab import answer, cell_of, check, code, markdown

IGNORE, RAISES = "nbval-ignore-output", "nbval-raises-exception"
ERROR = v4.new_output("error", ename="ValueError", evalue="boo", traceback=[])


def ran(cell: NotebookNode, text: str = "1", name: str = "stdout") -> NotebookNode:
    """The cell with a count and a stored line."""
    cell.execution_count = 1
    cell.outputs = [v4.new_output("stream", name=name, text=text + "\n")] if text else []
    return cell


def erring(cell: NotebookNode) -> NotebookNode:
    cell.outputs, cell.execution_count = [ERROR], 1
    return cell


def showing(cell: NotebookNode, text: str) -> NotebookNode:
    cell.outputs, cell.execution_count = [v4.new_output("display_data", {"text/markdown": text})], 1
    return cell


def drawing(cell: NotebookNode, **metadata: object) -> NotebookNode:
    picture = v4.new_output("display_data", {"image/png": "AAAA", "text/plain": "[picture]"}, metadata=metadata)
    cell.outputs, cell.execution_count = [picture], 1
    return cell


def with_metadata(cell: NotebookNode, **changes: object) -> NotebookNode:
    cell.metadata["nbgrader"].update(changes)
    return cell


def with_rubric(cell: NotebookNode, *lines: str) -> NotebookNode:
    cell.metadata["workbook"] = {"rubric": list(lines)}
    return cell


GOOD_CHECK = "got = f()\nassert got == 1, 'f() is 1'\nprint(got)"
# Each rule's counter-examples: cells that it, and of all rules only those named with it, must catch.
BROKEN = {
    "counted": [code("x = 1", "c")],
    "not-empty": [ran(code(" \n", "c"), "")],
    "short": [ran(code("\n".join(["x = 1"] * 41), "c"), "")],
    "no-star-import": [ran(code("from math import *", "c"), "")],
    "not-skipped": [ran(code("print(1)", "c", "nbval-skip"))],
    "tags-not-marks": [ran(code("# NBVAL_SKIP\nprint(1)", "c"))],
    "no-error": [erring(code("1 / 0", "c"))],
    "raises": [ran(code("print(1)", "c", RAISES))],
    "no-stderr": [ran(code("warn()", "c"), "oh", "stderr")],
    "no-empty-recording": [
        ran(code("f()", "c"), text)
        for text in ("No GPU has been recorded for this yet", "nothing has been recorded", "Nobody has recorded a GPU")
    ],
    "no-failed-try": [
        ran(code("f()", "c"), "✗ twice(1) gives 3"),
        ran(code("f()", "c", IGNORE), "○ copy: predicted 2"),
        showing(code("f()", "c"), "- a case: ✗"),
    ],
    "no-semicolon": [ran(code("print(1);", "c")), ran(code("print(1);\n", "c"))],
    "shows": [ran(code(source, "c"), "") for source in ("run()", "for i in x:\n    run(i)", "%magic", "assert 1")],
    "stable-output": [
        ran(code("f()", "c"), text)
        for text in (
            "<object at 0x7f00aa11>",
            "saved in /tmp/x",
            "/home/me/x",
            "Out[3]",
            "Wall time: 3 s",
            " 40%|####",
            "0.12345678901",
        )
    ],
    "stable-calls": [
        ran(code(source, "c"))
        for source in ("clear_output()", "interact(f)", "display(x, display_id=True)", "%time f()", "x = Output()")
    ],
    "check-locked": [ran(with_metadata(check("c", GOOD_CHECK), locked=False)), ran(check("c", GOOD_CHECK, 0))],
    "check-compared": [],  # built below: it needs a tag and the metadata
    "check-prints": [ran(check("c", GOOD_CHECK), text) for text in (" ", "True", "ok", "✓", "All checks passed!\nOK")],
    "check-ends": [ran(check("c", GOOD_CHECK + end)) for end in ("\ngot", "\ngot == 1", "\nf()")],
    "check-asserts": [ran(check("c", source)) for source in ("print(f())", "assert f()\nprint(f())")],
    "check-rubric": [
        ran(with_rubric(check("c", GOOD_CHECK, 2), *lines))
        for lines in (
            (),
            ("1 point: the first page",),
            ("2 points: the first page", "1 point: the last"),
            ("2 points",),
            ("the first page", "2 points: the last"),
            ("0.4 points: one of five",) * 5,
        )
    ],
    "answer-single": [ran(answer("c", source), "") for source in ("x = 1", "def f(): pass\ndef g(): pass")],
    "schema": [
        ran(with_metadata(answer("c", "def f(): pass"), schema_version=1), ""),
        ran(with_metadata(answer("c", "def f(): pass"), mine=1), ""),
    ],
    "metadata": [markdown("text", "c")],
    "no-false-list": [markdown(text, "c") for text in ("295. Every byte", "It is\n2) two", "1. one\n3. three")],
    "no-false-formula": [markdown(text, "c") for text in ("$5 here and $7 there", "it costs $3.99")],
    "known-policy": [
        markdown(f"a policy, `{name}`, does", "c")
        for name in ("every:x", "selective:mlp", "sqrt", "recursive:2", "first-2")
    ],
    "picture-words": [
        drawing(code("draw()", "c")),
        drawing(code("draw()", "c", IGNORE), **{"image/png": {"width": 10}}),
        drawing(code("draw()", "c"), **{"image/png": {"alt": ""}}),
    ],
    "alt-text": [markdown("![](x.png)", "c"), markdown('<img src="x.png">', "c")],
}
BROKEN["metadata"][0].metadata["collapsed"] = True
_ignored = ran(check("c", GOOD_CHECK))
_ignored.metadata["tags"] = [IGNORE]
BROKEN["check-compared"].append(_ignored)

GOOD = [
    ran(code("import math\nX = 3\n\n\ndef f():\n    return 1", "c"), ""),
    ran(code("run()", "c", IGNORE), "took 0x7f00aa11 /tmp/x"),
    drawing(code("draw()", "c"), **{"image/png": {"alt": "Bars. a: 3."}}),
    erring(code("1 / 0", "c", RAISES)),
    ran(check("c", GOOD_CHECK), "1\nTrue"),
    ran(with_rubric(check("c", GOOD_CHECK, 3), "0.5 points: the first page", "2.5 points: the last")),
    ran(answer("c", "def f():\n    return 1"), ""),
    markdown('![a bar](x.png) <img src="x.png" alt="a bar">', "c"),
    markdown("`every:K`, `selective:attention`, `sqrt-n`, `nested:4`, `selective`, `module`, `first_fit(x)`", "c"),
    markdown("1. one\n2. two\n\nIt is 295. Every byte; or\n295.5 of them, 3.", "c"),
    ran(code("print('see notebooks/tmp/x, 12 GiB/s, 1.5 x', 0.1234567)", "c"), "see a/tmp/x, 0.1234567 at 40 %"),
]


def broken_by(cell: NotebookNode) -> set[str]:
    return {rule.name for rule in RULES if rule.applies(cell) and rule.broken(cell)}


def test_every_rule_has_a_counter_example():
    assert {rule.name for rule in RULES} == {name for name, cells in BROKEN.items() if cells}


@pytest.mark.parametrize(("name", "cell"), [(name, cell) for name, cells in BROKEN.items() for cell in cells])
def test_the_rule_finds_its_counter_example_and_no_other_rule_does(name, cell):
    assert broken_by(cell) == {name}


@pytest.mark.parametrize("cell", GOOD, ids=lambda cell: cell.source[:20])
def test_a_good_cell_breaks_no_rule(cell):
    assert broken_by(cell) == set()


HEADER = "# 05 Title\n**The promise:** x\n\n| time |\n|---|"
NEEDS = {"memory_gib": 1, "disk_gib": 0, "gpu": "optional", "packages": ["torch"]}


def stating(**changes: object) -> dict:
    """A notebook's metadata with good needs, changed; None takes a key away."""
    stated = {key: value for key, value in (NEEDS | changes).items() if value is not None}
    return {"workbook": {"needs": stated}}


ALONE = Path("elsewhere")  # no pyproject.toml there, so nothing says where the workbook is published
WHOLE = {
    "title": ("solutions", [markdown("no title", "t")]),
    "chapter-header": ("notebooks", [markdown("# 05 Title", "t")]),
    "needs": ("notebooks", [markdown(HEADER, "t")]),
    "exercises": ("solutions", [markdown("# T", "t"), ran(answer("a", "def f(): pass"), "")]),
    "notebook-metadata": ("solutions", [markdown("# T", "t")]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_the_rules_about_a_whole_notebook(name):
    folder, cells = WHOLE[name]
    metadata = {"widgets": {}} if name == "notebook-metadata" else stating() if name == "chapter-header" else {}
    notebook = v4.new_notebook(cells=cells, metadata=metadata)
    assert [found.rule for found in findings(notebook, ALONE / folder / "05_x.ipynb")] == [name]


def test_a_chapter_with_its_header_is_clean():
    cells = [markdown(HEADER, "t"), ran(code("import os, torch.nn\nfrom helpers.memory import budget", "c"), "")]
    assert findings(v4.new_notebook(cells=cells, metadata=stating()), ALONE / "notebooks/05_x.ipynb") == []


@pytest.mark.parametrize(
    ("setup", "title", "words"),
    [
        (SETUP, "# 05 Title", None),
        (SETUP + "\nimport torch", "# 05 Title", "not the setup cell"),
        (SETUP.replace('"", ""', '"https://example.org/a/b", "v1"'), "# 05 Title", "https://example.org/a/b at v1"),
        (SETUP, "# 05 Title\n\n[![Open in Colab](i.svg)](a)", "a badge, and Colab has no link"),
    ],
)
def test_setup_cell_and_badge_agree_with_where_the_workbook_is_published(tmp_path, setup, title, words):
    (tmp_path / "pyproject.toml").write_text('[tool.workbook]\nrepository = ""\nref = ""\n')
    cells = [markdown(HEADER.replace("# 05 Title", title), "t"), ran(code(setup, "c", IGNORE), "")]
    cells[1].metadata.update(FOLDED)
    found = findings(v4.new_notebook(cells=cells, metadata=stating()), tmp_path / "notebooks/05_x.ipynb")
    assert [one.rule for one in found] == (["published"] if words else [])
    assert not words or words in found[0].message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_gib": None}, "has the keys disk_gib, gpu, packages"),
        ({"colour": "red"}, "colour"),
        ({"memory_gib": 0}, "memory_gib=0"),
        ({"memory_gib": "4"}, "memory_gib='4'"),
        ({"memory_gib": True}, "memory_gib=True"),
        ({"memory_gib": float("nan")}, "memory_gib=nan"),
        ({"disk_gib": -1}, "disk_gib=-1"),
        ({"gpu": "yes"}, "gpu='yes'"),
        ({"packages": "torch"}, "packages='torch'"),
        ({"packages": ["torch>=2"]}, "torch>=2"),
        ({"packages": []}, "lacks torch"),
    ],
    ids=str,
)
@pytest.mark.parametrize("folder", ["notebooks", "solutions"])
def test_needs_that_are_not_well_formed_are_found(folder, changes, words):
    cells = [markdown(HEADER, "t"), ran(code("def f():\n    from torch import nn", "c"), "")]
    (found,) = findings(v4.new_notebook(cells=cells, metadata=stating(**changes)), ALONE / folder / "05_x.ipynb")
    assert found.rule == "needs"
    assert words in found.message


CLONE = ("notebooks/02_there.ipynb", "notebooks/05_x.ipynb", "solutions/02_there.ipynb", "docs/page.md")
DEAD = (
    "See [it](03_gone.ipynb).",
    "See [it](../labs/02_there.ipynb#two).",
    "![a bar](bar.png)",
    "Chapter 03 shows it.",
    "See chapter 02. And chapters 02 and 04 to the end.",
    "Chapter 04 is to come. Then chapter 07.",
    "| chapter 02, chapter 03 | to come |",
    "Do lab 05 first.",
    "| fewer bits (02, 04) | sharding (05) |",
)
ALIVE = (
    "See [it](02_there.ipynb), [a page](../docs/page.md#top), [a site](https://x.org/y), [above](#here).",
    "![a bar](attachment:bar.png)",
    "Chapters 02 and 05 show it, chapter 04 (still to come) more; lab 02 too.",
    "Page 03 of 04, f(4, 7), (105, 141) and (3).",
)


@pytest.mark.parametrize("text", [*DEAD, *ALIVE])
@pytest.mark.parametrize("folder", ["notebooks", "solutions"])
def test_what_a_notebook_points_to_is_there_or_said_to_be_to_come(tmp_path, folder, text):
    for name in CLONE:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    if folder == "solutions":
        text = text.replace("(02_there", "(../notebooks/02_there")
    cells = [markdown(HEADER, "t"), markdown(text, "c")]
    found = findings(v4.new_notebook(cells=cells, metadata=stating()), tmp_path / folder / "05_x.ipynb")
    dead = [(one.rule, one.cell) for one in found if one.rule != "leads-on"]
    assert dead == [("dead-reference", "c")] * (text in DEAD)


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("[Lab 05](../labs/05_y.ipynb), then [06](06_z.ipynb).", []),
        ("[Lab 05](../labs/05_y.ipynb#one), then `06_z.ipynb`.", ["06_z.ipynb"]),
        ("`labs/05_y.ipynb`", ["../labs/05_y.ipynb", "06_z.ipynb"]),
    ],
)
def test_a_chapter_leads_on_to_its_lab_and_to_the_next(tmp_path, text, missing):
    for name in ("notebooks/05_x.ipynb", "notebooks/06_z.ipynb", "solutions/05_y.ipynb", "labs/05_y.ipynb"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    notebook = v4.new_notebook(cells=[markdown(HEADER, "t"), markdown(text, "c")], metadata=stating())
    found = [one.message for one in findings(notebook, tmp_path / "notebooks/05_x.ipynb") if one.rule == "leads-on"]
    assert found == [f"no link to {name}" for name in missing]
    assert not [one for one in findings(notebook, tmp_path / "notebooks/06_z.ipynb") if one.rule == "leads-on"]


def test_a_lab_may_leave_its_needs_to_its_chapter():
    cells = [markdown(HEADER, "t"), ran(code("import torch", "c"), "")]
    assert findings(v4.new_notebook(cells=cells), ALONE / "solutions/05_x.ipynb") == []


def test_a_finding_says_where_and_what(course):
    path = course / "solutions/05_numbers.ipynb"
    assert lint([path]) == []
    notebook = nb.read(path)
    cell_of(notebook, "setup").execution_count = None
    nb.write(path, notebook)
    (found,) = lint([path])
    assert str(found) == f"{path}, cell setup: counted: never run, so nbval compares nothing: build it"
