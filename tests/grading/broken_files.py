"""The submissions of the group "Broken files": a builder each, and what must come of it.

A builder gets the path of the learner's folder, which does not exist yet, and a right notebook as plain JSON values.
What it leaves must be readable, with all the answers that the notebook had, or give a reason. No builder costs
more than a fraction of a second, or a few megabytes of disk.
"""

from __future__ import annotations

import codecs
import copy
import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SOLUTIONS = Path(__file__).parents[2] / "solutions"
Notebook = dict


@dataclass(frozen=True)
class Broken:
    """One learner's folder. `reason` is part of why it cannot be graded, or '' when it must be readable.

    `item` is the words of the specification's list that it is an example of; `warning` is part of one that must be
    given. `learner` is the folder's name where it matters, `shown` the learner's name that must come of it.
    """

    name: str
    item: str
    build: Callable[[Path, Notebook], object]
    reason: str = ""
    warning: str = ""
    learner: str = ""
    shown: str = ""
    for_ordinary_users: bool = False

    @property
    def folder(self) -> str:
        """The learner's folder."""
        return self.learner or self.name

    @property
    def row(self) -> str:
        """The learner's name in the gradebook."""
        return self.shown or self.folder

    def __str__(self) -> str:
        return self.name


def put(path: Path, content: Notebook | str | bytes) -> Path:
    """Write a file, with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str | bytes) else json.dumps(content)
    path.write_bytes(text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text)
    return path


def with_cell(lab: Notebook, source: object, **fields: object) -> Notebook:
    """The notebook and one more code cell."""
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": source} | fields
    return {**lab, "cells": [*lab["cells"], cell]}


def with_metadata(lab: Notebook, **fields: object) -> Notebook:
    """The notebook with other metadata beside its own."""
    return {**lab, "metadata": {**lab["metadata"], **fields}}


def each_cell(lab: Notebook, change: Callable[[dict, int], object]) -> Notebook:
    """The notebook with `change` applied to a copy of each cell, in place."""
    changed = copy.deepcopy(dict(lab))
    for number, cell in enumerate(changed["cells"]):
        change(cell, number)
    return changed


def file(edit: Callable[[Notebook], Notebook | str | bytes], name: str = "lab.ipynb") -> Callable:
    """A builder of one notebook file."""
    return lambda folder, lab: put(folder / name, edit(lab))


def files(*builders: Callable[[Path, Notebook], object]) -> Callable:
    """A builder that is several."""
    return lambda folder, lab: [build(folder, lab) for build in builders]


def encoded(encoding: str, mark: bytes = b"") -> Callable:
    """A builder of the notebook, with letters that are not ASCII, in an encoding."""

    def edit(lab: Notebook) -> bytes:
        return mark + json.dumps(with_cell(lab, "# naïve 数"), ensure_ascii=False).encode(encoding)

    return file(edit)


def format_3(lab: Notebook) -> Notebook:
    """The notebook as IPython 2 saved it."""

    def old(cell: dict) -> dict:
        kept = {key: value for key, value in cell.items() if key not in ("id", "source")}
        return kept | {"input" if cell["cell_type"] == "code" else "source": cell["source"]}

    cells = [old(cell) for cell in lab["cells"]]
    heading = {"cell_type": "heading", "level": 2, "source": "A heading", "metadata": {}}
    return {
        "metadata": lab["metadata"],
        "nbformat": 3,
        "nbformat_minor": 0,
        "worksheets": [{"cells": [heading, *cells]}],
    }


def without_ids(lab: Notebook) -> Notebook:
    """The notebook as it was before cells had ids."""
    return {**each_cell(lab, lambda cell, _: cell.pop("id", None)), "nbformat_minor": 0}


def from_colab(lab: Notebook) -> Notebook:
    """The notebook as Colab saves it: ids in the metadata, widgets without their state."""

    def change(cell: dict, number: int) -> None:
        cell["metadata"] |= {"id": cell.get("id") or f"c{number}", "outputId": "f00", "colab": {"height": 35}}

    widgets = {"application/vnd.jupyter.widget-state+json": {"abc": {"model_name": "HBoxModel"}}}
    return with_metadata(without_ids(each_cell(lab, change)), widgets=widgets, colab={"provenance": []})


def odd_ids(lab: Notebook) -> Notebook:
    """The notebook with cell ids that no format allows, or that repeat."""
    ids = [5, None, "", "x y", "a" * 1000, ["a"], "same", "same"]
    odd = [{**cell, "metadata": {**cell["metadata"]}, "id": ids[n % len(ids)]} for n, cell in enumerate(lab["cells"])]
    return {**lab, "cells": odd}


def odd_metadata(lab: Notebook) -> Notebook:
    """The notebook with a cell whose metadata is of another type, for each type."""
    for odd in (None, 3, "text", ["nbgrader"], {"nbgrader": ["grade_id"], "tags": "skip", "id": {}}):
        lab = with_cell(lab, "pass", metadata=odd)
    return lab


def nested(depth: int) -> Callable[[Notebook], str]:
    """The notebook's text with lists in lists in its metadata."""
    return lambda lab: json.dumps(with_metadata(lab, deep=0)).replace(
        '"deep": 0', f'"deep": {"[" * depth}{"]" * depth}'
    )


def cut_off(lab: Notebook) -> str:
    """The first half of the notebook's text."""
    text = json.dumps(lab, indent=1)
    return text[: len(text) // 2]


def large(folder: Path, lab: Notebook) -> None:
    """200 MB, of which the disk holds a few kilobytes."""
    with put(folder / "lab.ipynb", lab).open("r+b") as hole:
        hole.truncate(200 * 10**6)


def linked_folder(folder: Path, lab: Notebook) -> None:
    """The learner's folder is a link to the solutions."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(SOLUTIONS)


def linked(folder: Path, lab: Notebook) -> None:
    """A link to a solution."""
    folder.mkdir(parents=True)
    (folder / "lab.ipynb").symlink_to(sorted(SOLUTIONS.glob("*.ipynb"))[0])


def special(kind: int) -> Callable[[Path, Notebook], None]:
    """A FIFO or a socket."""

    def build(folder: Path, lab: Notebook) -> None:
        folder.mkdir(parents=True)
        os.mknod(folder / "lab.ipynb", kind | 0o644)

    return build


def unreadable(folder: Path, lab: Notebook) -> None:
    """A notebook that nobody may read."""
    put(folder / "lab.ipynb", lab).chmod(0)


def empty_folder(folder: Path, lab: Notebook) -> None:
    """Nothing."""
    folder.mkdir(parents=True)


def beside(name: str) -> Callable[[Path, Notebook], Path]:
    """A Python file that would leave a trace if anybody imported it."""
    return lambda folder, lab: put(folder / name, "open(__file__ + '.ran', 'w').close()\n")


SCRIPT = "<script>alert(1)</script>"
SCRIPT_OUTPUT = {"output_type": "display_data", "metadata": {}, "data": {"text/html": SCRIPT}}
RIGHT = file(lambda lab: lab)
MODULES = [beside(name) for name in ("conftest.py", "torch.py", "sitecustomize.py", "pytest.ini")]
BOM_16 = codecs.BOM_UTF16_BE

BROKEN = (
    Broken("cut-off", "invalid JSON", file(cut_off), "no valid JSON"),
    Broken("not-json", "invalid JSON", file(lambda lab: "def answer():\n    return 42"), "no valid JSON"),
    Broken("random-bytes", "invalid JSON", file(lambda lab: bytes(range(256)) * 9), "no valid JSON"),
    Broken("web-page", "invalid JSON", file(lambda lab: "<!DOCTYPE html><p>404"), "web page"),
    Broken("zipped", "invalid JSON", file(lambda lab: b"PK\x03\x04 and so on"), "zip archive"),
    Broken("conflict", "invalid JSON", file(lambda lab: '<<<<<<< HEAD\n{"cells": []\n=======\n}'), "Git conflict"),
    Broken("json-list", "invalid JSON", file(lambda lab: [lab]), "no notebook"),
    Broken("no-cells", "invalid JSON", file(lambda lab: {"nbformat": 4}), "no list of cells"),
    Broken("cells-of-a-dict", "invalid JSON", file(lambda lab: {**lab, "cells": {"1": 2}}), "no list of cells"),
    Broken("numbers", "invalid JSON", file(lambda lab: with_metadata(lab, big=float("nan"), inf=float("-inf")))),
    Broken("huge-number", "invalid JSON", file(lambda lab: json.dumps(lab)[:-1] + f', "n": {"9" * 9999}}}')),
    Broken("repeated-keys", "invalid JSON", file(lambda lab: '{"cells": [], ' + json.dumps(lab)[1:])),
    Broken("not-in-utf-8", "invalid JSON", encoded("gb18030"), warning="cannot be read or printed"),
    Broken("empty-file", "empty", file(lambda lab: b""), "empty"),
    Broken("blank-file", "empty", file(lambda lab: " \n\n"), "empty"),
    Broken("zeroed-file", "empty", file(lambda lab: bytes(4096)), "empty"),
    Broken("empty-folder", "empty", empty_folder, "there are no files"),
    Broken("no-cell", "empty", file(lambda lab: {**lab, "cells": []}), "without a single cell"),
    Broken("bom", "BOM", encoded("utf-8", codecs.BOM_UTF8)),
    Broken("utf-16", "UTF-16", encoded("utf-16")),
    Broken("utf-16-be", "UTF-16", encoded("utf-16-be", BOM_16)),
    Broken("utf-16-le-unmarked", "UTF-16", encoded("utf-16-le")),
    Broken("utf-16-be-unmarked", "UTF-16", encoded("utf-16-be")),
    Broken("utf-32", "UTF-16", encoded("utf-32")),
    Broken("format-3", "nbformat 3", file(format_3)),
    Broken("format-4.0", "4.0 without ids", file(without_ids)),
    Broken("format-6", "6", file(lambda lab: {**lab, "nbformat": 6}), warning="format 6"),
    Broken("no-format", "6", file(lambda lab: {**lab, "nbformat": "four"}), warning="does not say its format"),
    Broken("format-6-other-shape", "6", file(lambda lab: {"nbformat": 6, "blocks": lab["cells"]}), "no list of cells"),
    Broken("kernelspec", "wrong kernelspec", file(lambda lab: with_metadata(lab, kernelspec={"name": "ir"}))),
    Broken("no-metadata", "wrong kernelspec", file(lambda lab: {**lab, "metadata": None})),
    Broken("odd-metadata", "wrong kernelspec", file(odd_metadata)),
    Broken("surrogate", "lone surrogate", file(lambda lab: with_cell(lab, "# \ud800")), warning="printed"),
    Broken("raw-surrogate", "lone surrogate", file(lambda lab: json.dumps(lab)[:-1] + ', "x": "\ud800"}')),
    Broken("nul", "NUL", file(lambda lab: with_cell(lab, "# \0")), warning="printed"),
    Broken(
        "raw-nul", "NUL", file(lambda lab: json.dumps(with_cell(lab, "# N")).replace("# N", "# \0")), warning="printed"
    ),
    Broken("escapes", "terminal escapes", file(lambda lab: with_cell(lab, "# \x1b[2J\x9b1m")), warning="printed"),
    Broken("deep", "deep nesting", file(nested(100_000)), "nested too deeply"),
    Broken("not-so-deep", "deep nesting", file(nested(100))),
    Broken("large", "200 MB", large, "200 MB"),
    Broken("large-code", "200 MB", file(lambda lab: with_cell(lab, ["#" * 999] * 2100)), "its code is longer"),
    Broken("flooded", "200 MB", file(lambda lab: with_cell(lab, "1", outputs=[{"text": "0\n" * 10**6}]))),
    Broken("many-cells", "50,000 cells", file(lambda lab: {**lab, "cells": [{}] * 50_000}), "50,000 cells"),
    Broken("odd-cells", "50,000 cells", file(lambda lab: {**lab, "cells": [1, {}, *lab["cells"]]}), warning="2 cells"),
    Broken("odd-sources", "50,000 cells", file(lambda lab: with_cell(with_cell(lab, {"a": 1}), [1, None, "x = 1"]))),
    Broken("colab", "Colab widgets without state", file(from_colab)),
    Broken("link", "symlink to the solution", linked, "is a link"),
    Broken("linked-folder", "symlink to the solution", linked_folder, "is a link"),
    Broken("link-and-file", "symlink to the solution", files(linked, file(lambda lab: lab, "b.ipynb")), warning="link"),
    Broken("fifo", "FIFO", special(stat.S_IFIFO), "not a regular file"),
    Broken("socket", "FIFO", special(stat.S_IFSOCK), "not a regular file"),
    Broken(
        "folder-as-file", "folder named x.ipynb", lambda at, lab: (at / "x.ipynb").mkdir(parents=True), "is a folder"
    ),
    Broken("file-in-such", "folder named x.ipynb", file(lambda lab: lab, "x.ipynb/lab.ipynb")),
    Broken("such-a-learner", "folder named x.ipynb", RIGHT, learner="x.ipynb", shown="x"),
    Broken("locked", "unreadable", unreadable, "permission denied", for_ordinary_users=True),
    Broken("browser-copy", '"lab (1).ipynb"', file(lambda lab: lab, "lab (1).ipynb")),
    Broken("misnamed", '"lab (1).ipynb"', file(lambda lab: lab, "lab.ipynb.txt"), "must be named .ipynb"),
    Broken("capitals", '"lab (1).ipynb"', file(lambda lab: lab, "LAB.IPYNB")),
    Broken(
        "two", "two files", files(file(from_colab, "lab.ipynb"), file(odd_ids, "lab (1).ipynb")), warning="'lab.ipynb'"
    ),
    Broken("same-twice", "two files", files(RIGHT, file(lambda lab: lab, "lab (1).ipynb"))),
    Broken("odd-cell-ids", "odd ids", file(odd_ids)),
    Broken("spaces", "odd ids", RIGHT, learner="  Ada  Lovelace ", shown="Ada Lovelace"),
    Broken("option", "odd ids", RIGHT, learner="-rf"),
    Broken("dots", "odd ids", RIGHT, learner="...", shown="..."),
    Broken("newline", "odd ids", RIGHT, learner="ada\nbob", shown="ada | bob"),
    Broken("colour", "odd ids", RIGHT, learner="\x1b[31mred", shown="red"),
    Broken("backwards", "odd ids", RIGHT, learner="\u202egpj", shown="gpj"),
    Broken("llama", "odd ids", RIGHT, learner="🦙 数"),
    Broken("not-text", "odd ids", RIGHT, learner="caf\udce9", shown="caf\ufffd"),
    Broken("beside-it", "conftest.py", files(RIGHT, *MODULES)),
    Broken("script-output", "script in an output", file(lambda lab: with_cell(lab, "1", outputs=[SCRIPT_OUTPUT]))),
    Broken("script-name", "or a name", RIGHT, learner="<img src=x onerror=alert(1)>"),
    Broken("formula", "a name that is a spreadsheet formula", RIGHT, learner='=HYPERLINK("x";A1)'),
)


def write_class(root: Path, lab: Notebook) -> list[Broken]:
    """Every case as a folder below `root`; those that were written (root reads what nobody may read)."""
    written = [case for case in BROKEN if not (case.for_ordinary_users and os.geteuid() == 0)]
    for case in written:
        case.build(root / case.folder, lab)
    return written
