"""Every rule of the house holds, and every rule can fail."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.house import rules, sizes, tree
from tests.house.rules import RULES, Guarded

DISTINCT = sorted({guarded.rule for guarded in RULES}, key=lambda rule: rule.__name__)


@pytest.mark.parametrize("rule", DISTINCT, ids=lambda rule: rule.__name__)
def test_the_repository_keeps_the_rule(rule: rules.Rule) -> None:
    broken = [f"{path}: {found}" for path in tree.files() for found in rule(path, tree.text_of(path))]
    assert not broken, "\n".join([rule.__doc__ or rule.__name__, *broken])


@pytest.mark.parametrize("guarded", RULES, ids=lambda guarded: f"{guarded.rule.__name__}-{guarded.path}")
def test_the_counter_example_is_found(guarded: Guarded) -> None:
    assert list(guarded.rule(Path(guarded.path), guarded.broken))


def test_every_rule_has_a_counter_example() -> None:
    names = [
        name
        for name, rule in inspect.getmembers(rules, inspect.isfunction)
        if rule.__module__ == rules.__name__ and next(iter(inspect.signature(rule).parameters)) == "path"
    ]
    assert set(names) == {rule.__name__ for rule in DISTINCT}


def test_imports_inside_a_room_and_downwards_are_fine() -> None:
    source = "import math\nfrom . import account\nfrom ..catalog.errors import WorkbookError\n"
    assert not list(rules.imports_go_one_way(Path("helpers/memory/x.py"), source))


def test_sizes_names_what_is_long() -> None:
    long_function = "def f():\n" + "    x = 1\n" * 60
    assert list(sizes.long_ones("a.py", long_function)) == ["a.py:1: f has 61 lines"]
    assert list(sizes.long_ones("b.py", "x = 1\n" * 301)) == ["b.py: 301 lines"]
    assert not list(sizes.long_ones("c.py", "x = 1\n" * 300))
