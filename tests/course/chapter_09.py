"""The code of chapter 09, out of its cells: what tests try is what a reader sees."""

from __future__ import annotations

import ast
from typing import Any

from helpers.course import notebook as nb
from tests.house.tree import ROOT

CHAPTER = nb.read(ROOT / "notebooks/09_zero_and_fsdp.ipynb")


def sources(*cells: str) -> str:
    """Imports, functions and classes of these cells, and constants: no more of them is run."""
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    found = [cell for cell in CHAPTER.cells if cell.id in ("1cbac902", *cells)]
    assert len(found) == len(cells) + 1
    statements = [one for cell in found for one in nb.statements(cell)]
    named = ("AUTOCAST", "POLICY", "policy", "in_bf16")
    wanted = [one for one in statements if isinstance(one, kept) or ast.unparse(one).startswith(named)]
    return "\n".join(map(ast.unparse, wanted))


def names(source: str) -> dict[str, Any]:
    found: dict[str, Any] = {"__name__": "chapter_09"}
    exec(source, found)
    return found


ENGINES, SHARDERS = sources("zero1", "zero2", "zero3"), sources("fa452993", "09-ladder", "09-traced")
