"""What a notebook says about where the workbook lies: its setup cell, and its Colab badge.

The setup cell is one text in all notebooks but for two constants. Where `helpers` stands above the notebook, or is
installed, it fetches nothing; it never installs a package.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from nbformat import NotebookNode

from helpers.catalog.errors import WorkbookError
from helpers.course.address import COLAB, Address

SETUP = """\
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: waiting threads give up their core
REPOSITORY, REF = "", ""  # filled in by `workbook publish`
clone = Path.cwd() / "gpu-memory-workbook"
sys.path[:0] = [str(p) for p in (*clone.parents, clone) if (p / "helpers" / "cli").exists()]
if REPOSITORY and not find_spec("helpers"):  # a notebook on its own, as on Colab: fetch the rest
    fetch = f"git -c advice.detachedHead=false clone -q --depth 1 -b {REF} {REPOSITORY} {clone.name}"
    sys.path[:0] = [] if subprocess.run(fetch.split()).returncode else [str(clone)]
if not find_spec("helpers"):
    raise ModuleNotFoundError("no helpers: did git fail above? Else open this in a clone of the workbook")"""
IMAGE = "https://colab.research.google.com/assets/colab-badge.svg"
_CONSTANTS = re.compile(r'(?m)^REPOSITORY, REF = "([^"\n]*)", "([^"\n]*)"')
_BADGE = re.compile(r"\n\n(\[!\[Open in Colab\]\([^)]*\)\]\([^)]*\))(?=\n|\Z)")
_LINK = re.compile(re.escape(COLAB) + r"[^\s)\]\"'<>\\]*")


def setup_source(address: Address) -> str:
    """The setup cell's text for a workbook that lies at `address`."""
    return _CONSTANTS.sub(f'REPOSITORY, REF = "{address.repository}", "{address.ref}"', SETUP)


def is_setup(source: str) -> bool:
    """Whether it is the setup cell's text, wherever it was stamped for."""
    return _CONSTANTS.sub('REPOSITORY, REF = "", ""', source) == SETUP


def badge(address: Address, path: str) -> str:
    """The badge of the notebook at `path`, in Markdown; empty where Colab has no link to it."""
    link = address.colab(path)
    return link and f"[![Open in Colab]({IMAGE})]({link})"


def with_badge(text: str, shown: str) -> str:
    """Markdown whose first line is its title, with `shown` right under it in place of any badge; empty takes it away.

    >>> with_badge("# Title\\n\\nText", "[![Open in Colab](i)](a)")
    '# Title\\n\\n[![Open in Colab](i)](a)\\n\\nText'
    """
    title, newline, rest = _BADGE.sub("", text).partition("\n")
    return f"{title}\n\n{shown}{newline}{rest}" if shown else f"{title}{newline}{rest}"


def for_lab(text: str, name: str) -> str:
    """A solution's first cell as its lab has it: the badge leads to the lab, not to the answers."""
    return _BADGE.sub(lambda found: found[0].replace(f"/solutions/{name})", f"/labs/{name})"), text)


def stamp(notebook: NotebookNode, path: str, address: Address) -> None:
    """Stamp the setup cell and the badge, in place. WorkbookError where the first code cell is no setup cell."""
    cell = _first_code(notebook)
    if cell is None or not is_setup(cell.source):
        raise WorkbookError(
            f"{path}: its first code cell is not the setup cell",
            "the same text in all notebooks, and nothing else in the cell",
            "copy the cell from notebooks/00_start_here.ipynb",
        )
    cell.source = setup_source(address)
    notebook.cells[0].source = with_badge(notebook.cells[0].source, badge(address, path))


def disagreements(notebook: NotebookNode, path: str, address: Address) -> Iterator[str]:
    """How the notebook at `path`, like 'labs/02_x.ipynb', differs from one that is stamped with `address`."""
    cell = _first_code(notebook)
    if cell is None or not is_setup(cell.source):
        yield "the first code cell is not the setup cell that notebooks/00_start_here.ipynb has"
    elif cell.source != setup_source(address):
        repository, ref = _CONSTANTS.search(cell.source).groups()
        yield f"the setup cell fetches from {f'{repository} at {ref}' if repository else 'nowhere'}, not {address}"
    head = notebook.cells[0].source if notebook.cells else ""
    if with_badge(head, badge(address, path)) != head:
        link = address.colab(path)
        yield f"no badge under the title that leads to {link}" if link else "a badge, and Colab has no link to it"
    yield from strays("\n".join(cell.source for cell in notebook.cells), address)


def strays(text: str, address: Address) -> Iterator[str]:
    """The links to Colab in `text` that lead to another repository or ref."""
    mine = address.colab()
    yield from (f"a link to {link}" for link in _LINK.findall(text) if not (mine and link.startswith(mine)))


def _first_code(notebook: NotebookNode) -> NotebookNode | None:
    return next((cell for cell in notebook.cells if cell.cell_type == "code"), None)
