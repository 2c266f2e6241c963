"""Copies of chapters and labs for learners: cleared, with gaps, links that lead on from where the copy lies.

    labs/chapters/NN_*.ipynb           what Colab opens; `workbook release` writes them, and nobody edits them
    labs/chapters/deeper/NN_*.ipynb    chapters' companions; and labs/chapters/A_*.ipynb, the appendix
    workspace/                         a learner's own, see `workspace`

A copy knows how it was given: `is_touched` says whether somebody wrote in it since.
"""

from __future__ import annotations

import copy
import hashlib
import json
import posixpath
import re

from nbformat import NotebookNode, v4

from .address import Address, badge, stamped_with, with_badge
from .notebook import NUMBERED, home
from .stubs import SOLUTION, stub, worked

GENERATOR = "workbook release"
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)")
_ELSEWHERE = re.compile(r"\w+:|[/<]")


def cleared(chapter: NotebookNode, source: str) -> NotebookNode:
    """The chapter at `source` as a learner opens it from labs/chapters/: nothing has run, and gaps are to be filled.

    Right below a gap stands what was there, folded. WorkbookError for marks of a gap that do not fit together.
    """
    given = copy.deepcopy(chapter)
    target, address = home(source), stamped_with(given)
    given.cells = [part for cell in given.cells for part in _opened(cell, source)]
    for cell in given.cells:
        if cell.cell_type == "markdown":
            cell.source = relinked(cell.source, source, target, address)
    for cell in given.cells[:1]:
        cell.source = with_badge(cell.source, badge(address, target))
    own = {"generator": GENERATOR, "source": source}
    given.metadata["workbook"] = dict(given.metadata.get("workbook", {})) | own
    return as_given(given)


def relinked(text: str, source: str, target: str, address: Address, workspace: str = "") -> str:
    """Markdown of the notebook at `source` for its copy at `target`: links to files lead where learners open them.

    Of what is published on GitHub they are Colab's links, since Colab follows no path; in a workspace they are paths.

    >>> relinked("[lab](../labs/02_x.ipynb)", "notebooks/02_x.ipynb", "labs/chapters/02_x.ipynb", Address())
    '[lab](../02_x.ipynb)'
    """

    colab = address.colab()

    def led(found: re.Match[str]) -> str:
        link = found[1]
        if colab and link.startswith(colab):
            path = link.removeprefix(colab)
        elif _ELSEWHERE.match(link):
            return link
        else:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
        path = home(path, workspace)
        if colab and not workspace and NUMBERED.fullmatch(posixpath.basename(path)):
            return address.colab(path)
        return posixpath.relpath(path, posixpath.dirname(target))

    return _LINK.sub(led, text)


def as_given(notebook: NotebookNode) -> NotebookNode:
    """`notebook`, in place, with the mark by which `is_touched` knows how it was given."""
    notebook.metadata["workbook"] = dict(notebook.metadata.get("workbook", {})) | {"given": digest(notebook)}
    return notebook


def is_touched(notebook: NotebookNode) -> bool:
    """Whether somebody wrote in it since it was given. What was run, and an empty cell, is nothing written."""
    return digest(notebook) != notebook.metadata.get("workbook", {}).get("given")


def digest(notebook: NotebookNode) -> str:
    """Of what is written: each cell's kind and source in order, without empty cells and without any output."""
    cells = [[cell.cell_type, cell.source.strip()] for cell in notebook.cells if cell.source.strip()]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]


def _opened(cell: NotebookNode, source: str) -> list[NotebookNode]:
    """The cell as nobody has run it; where lines of it are the reader's to write, with a gap and its answer below."""
    if cell.cell_type != "code":
        return [cell]
    cell.execution_count = None
    if "claims.read(" not in cell.source:  # which shows the claim, and asks: a reader need not run it to see
        cell.outputs = []
    if not any(mark in cell.source for mark in SOLUTION):
        return [cell]
    where = f"{source}, cell {cell.id!r}"
    answer = "\n\n".join(f"```python\n{lines}\n```" for lines in worked(cell.source, where))
    cell.source = stub(cell.source, where)
    folded = f"<details><summary>A worked answer</summary>\n\n{answer}\n\n</details>"
    return [cell, v4.new_markdown_cell(folded, id=f"{cell.id[:57]}-worked")]
