"""What a cell's text spells: dotted names, and texts that are put together from constants."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice

_MOST_PARTS = 50


def dotted(node: ast.AST | None) -> str:
    """`a.b.c` for a name and its attributes, '' for attributes of anything else. ast.unparse would recurse."""
    parts: list[str] = []
    while type(node) is ast.Attribute:
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def endings(name: str, most: int = 8) -> Iterator[str]:
    """A dotted name, whatever led to it: "a.sys.modules" and "sys.modules", its last part alone not.

    No more than `most` parts of it: a cell may hold a chain of thousands, and each of its links is asked.
    """
    parts = name.rsplit(".", most)[-most:]
    yield from (".".join(parts[at:]) for at in range(max(1, len(parts) - 1)))


def joined(node: ast.expr) -> str:
    """The name that two constants make: nobody who means well writes "f_" + "locals". A sentence is none."""
    text = _added(node)
    return text if re.fullmatch(r"[\w.]*", text) else ""


def _added(node: ast.expr) -> str:
    parts: list[str] = []
    waiting = [node]
    while waiting and len(parts) < _MOST_PARTS:  # a sum may have thousands of terms, and each of its sums is asked
        one = waiting.pop()
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Add):
            waiting += one.left, one.right
        else:
            parts.append(one.value if isinstance(one, ast.Constant) and isinstance(one.value, str) else "")
    return "".join(reversed(parts))


def folded(node: ast.AST, deep: int = 8) -> str | None:
    """The text that constants alone make: `"".join(["f_", "back"])`, `"kcab_f"[::-1]`, `f"{'f_'}back"`; else None."""
    inside = partial(folded, deep=deep - 1)
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.FormattedValue(value=value, format_spec=None) if deep:
            return inside(value)
        case ast.JoinedStr(values=parts) if deep:
            return _put_together("", map(inside, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right) if deep:
            return _put_together("", map(inside, (left, right)))
        case ast.Call(func=ast.Attribute(value=between, attr="join"), args=[ast.List() | ast.Tuple() as parts]) if deep:
            return _put_together(inside(between), map(inside, parts.elts))
        case ast.Subscript(value=whole, slice=ast.Slice(lower=lower, upper=upper, step=step)) if deep:
            with contextlib.suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                ends = (None if one is None else ast.literal_eval(one) for one in (lower, upper, step))
                return (inside(whole) or "")[slice(*ends)] or None
    return None


def _put_together(between: str | None, parts: Iterable[str | None]) -> str | None:
    told = list(islice(parts, _MOST_PARTS))
    return None if between is None or None in told else between[:_MOST_PARTS].join(filter(None, told))


def texts(call: ast.Call) -> list[str]:
    """The texts that a call is given, of parts that are put together too."""
    return [text for one in call.args for text in [joined(one) or folded(one)] if text]


def is_filled_in(node: ast.AST) -> bool:
    """Whether it is an f-string in which something is put; of one with nothing in it the text is plain to see."""
    return isinstance(node, ast.JoinedStr) and any(isinstance(one, ast.FormattedValue) for one in node.values)


def by_text(node: ast.Subscript | ast.Call) -> str:
    """`a.b` for what a text names: `vars(a)["b"]`, `a.__dict__["b"]` and `getattr(a, "b")`; else ''."""
    if isinstance(node, ast.Subscript):
        return within(holder(node.value), node.slice)
    named = dotted(node.func) == "getattr" and len(node.args) > 1
    return within(node.args[0], node.args[1]) if named else ""


def holder(node: ast.expr) -> ast.expr | None:
    """The `a` of `vars(a)` and `a.__dict__`."""
    if isinstance(node, ast.Call) and dotted(node.func) == "vars" and node.args:
        return node.args[0]
    return node.value if isinstance(node, ast.Attribute) and node.attr == "__dict__" else None


def within(holder: ast.expr | None, attribute: ast.expr) -> str:
    name = dotted(holder)
    what = attribute.value if isinstance(attribute, ast.Constant) else None
    return f"{name}.{what}" if name and isinstance(what, str) else name
