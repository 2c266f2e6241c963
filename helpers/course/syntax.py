"""Parsing Python where several threads do so at once."""

from __future__ import annotations

import ast
import threading

_ONE_AT_A_TIME = threading.Lock()


def parse(source: str) -> ast.Module:
    """`ast.parse(source)`. Python 3.11 counts the depth of all threads' trees in one place.

    So a tree that is made while another thread makes one may end in "SystemError: AST constructor recursion depth
    mismatch" (python/cpython#106905).
    """
    with _ONE_AT_A_TIME:
        return ast.parse(source)
