"""The mutations by which tests are weighed: each is one edit, is found again when lines move, and dies or does not."""

from __future__ import annotations

import ast

import pytest

from tests.house import kills

SOURCE = '''
MOST = 3


class Pool:
    def room(self, used: int, size: int = 2) -> bool:
        """1 < 2 is no code."""
        if used + size <= MOST and not self.closed:
            self.note(used)
            return True
        raise ValueError(f"{used + 1}")
'''


def words(source):
    return {(one.scope, one.old, one.new) for one in kills.mutated("pool.py", source)}


def test_an_edit_for_every_operator_number_condition_and_call():
    where, test = "Pool.room", "used + size <= MOST and not self.closed"
    assert words(SOURCE) == {
        ("", "3", "(3 + 1)"),
        (where, "2", "(2 + 1)"),
        (where, "+", "-"),
        (where, "<=", "<"),
        (where, " and ", " or "),
        (where, test, f"(not ({test}))"),
        (where, "self.note(used)", "None"),
    }


def test_each_changes_one_line_and_can_be_read():
    for mutation, made in kills.mutated("pool.py", SOURCE).items():
        ast.parse(made)
        changed = [(old, new) for old, new in zip(SOURCE.splitlines(), made.splitlines(), strict=True) if old != new]
        assert [old.strip() for old, _ in changed] == [mutation.line]


def test_it_is_found_again_where_lines_have_moved_and_is_gone_where_its_line_is():
    before = set(kills.mutated("pool.py", SOURCE))
    assert set(kills.mutated("pool.py", f"# a note\n\n{SOURCE}\n\nOTHER = 5\n")) > before
    replaced = SOURCE.replace("used + size", "size + used")
    gone = before - set(kills.mutated("pool.py", replaced))
    assert {one.line for one in gone} == {"if used + size <= MOST and not self.closed:"}


@pytest.mark.slow
def test_a_mutation_dies_by_a_test_that_is_green_without_it(tmp_path):
    file = "helpers/memory/breakdown.py"
    source = (kills.tree.ROOT / file).read_text()
    copies, test = kills.Copies(1, tmp_path), "tests/memory/test_breakdown.py"
    assert copies.red(file, source, [test]) == ""
    assert copies.red(file, source.replace("def rounded(", "def rounded_up("), [test]).startswith(test)
    assert (tmp_path / "0" / file).read_text() == source
    red = "tests/house/test_always_red.py"
    (tmp_path / "0" / red).write_text("def test_red():\n    assert False\n")
    assert copies.red(file, source, [red]) == "", "it is red without a mutation too"
