"""A number in the prose of a notebook, held against what computes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from helpers.course import notebook as nb
from tests.house.tree import ROOT


def require(chapter: str, cell: str, said: str, form: str | Mapping[Any, str], found: Any) -> None:
    """`said` stands in the cell, and `found` in it, as `form` writes it: a format, or words by value."""
    (path,) = (ROOT / "notebooks").glob(f"{chapter}_*.ipynb")
    (source,) = [one.source for one in nb.read(path).cells if one.id == cell]
    assert said in source
    assert (form.format(found) if isinstance(form, str) else form.get(found, f"{found}?")) in said
