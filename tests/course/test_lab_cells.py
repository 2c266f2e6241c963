"""Threads that parse at the same time do not disturb each other. Without the lock only Python 3.11 is red here."""

from __future__ import annotations

import ast
import gc
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.course.lab_cells import parse

SOURCE = "def f(x):\n    return (((x + 1) * 2) - [y for y in range(3)][0])\n" * 20


@pytest.fixture
def busy_collector():
    """The garbage collector runs often, and lets another thread go on each time."""

    def give_way(*_: object) -> None:
        time.sleep(1e-4)

    before = gc.get_threshold()
    gc.set_threshold(50)
    gc.callbacks.append(give_way)
    yield
    gc.callbacks.remove(give_way)
    gc.set_threshold(*before)


def test_each_thread_gets_its_tree(busy_collector) -> None:
    wanted = ast.dump(ast.parse(SOURCE))
    with ThreadPoolExecutor(4) as threads:
        assert {ast.dump(tree) for tree in threads.map(parse, [SOURCE] * 20)} == {wanted}


def test_what_is_no_python_is_a_syntax_error() -> None:
    with pytest.raises(SyntaxError):
        parse("def")
