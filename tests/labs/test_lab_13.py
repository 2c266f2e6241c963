"""What lab 13 says in words is what its code does; honest answers pass."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from helpers.course import notebook as nb
from helpers.course.kernel import RunCell, error_in, kernel
from tests.labs.common import checks_passed, lab_path, printed, source
from tests.labs.honest import faults, honest

LAB = lab_path("13")


@pytest.fixture(scope="module")
def solved(lab) -> Iterator[RunCell]:
    """A kernel in which the worked lab has run."""
    with kernel(LAB.parent, cell_timeout_s=120) as run:
        for _, cell in nb.code_cells(lab):
            assert error_in(run(cell.source)) is None, cell.id
        yield run


def text(outputs: list) -> str:
    """What a cell printed, or its error."""
    error = error_in(outputs)
    return f"{error.ename}: {error.evalue}" if error else "".join(one.get("text", "") for one in outputs)


@pytest.mark.parametrize(
    ("question", "check", "figures"),
    [
        ("q1", "slot-steps-whole", ["77.7", "2,048"]),
        ("q1", "slot-steps-drafted", ["1.6", "7.5", "3.3"]),
        ("q1", "slot-steps-largest", ["39"]),
        ("q2", "window-manager-window", ["1,000", "64", "4", "6", "63"]),
        ("q3", "next-beams-copies", ["40", "13", "60"]),
        ("q4", "radix-cache-found", ["4,656", "9,860", "150", "23,046", "26,845"]),
        ("q5", "cascade-once", ["20", "44", "184"]),
        ("q6", "preemption-s-prefix", ["842"]),
        ("q6", "preemption-s-floors", ["65.5", "58.7", "16.4", "69.2"]),
    ],
)
def test_the_figures_of_a_target_are_printed_by_its_check(lab, question, check, figures):
    target, shown = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0], printed(lab, check)
    said = {
        f"{float(number):.{len(figure.partition('.')[2])}f}"
        for figure in figures
        for number in re.findall(r"\d+(?:\.\d+)?", shown.replace(",", ""))
    }
    assert [figure for figure in figures if figure not in target or figure.replace(",", "") not in said] == []


def test_the_figures_that_no_check_prints(lab, solved):
    computed = text(
        solved("""
class Whole(RadixCache):
    def match(self, tokens):
        return super().match(tokens)[0], None


for trace, blocks in [(CHAT, 150), (CODE, 300)]:
    pool = Pool(blocks, 16)
    print(f"{sum(serve(Whole(pool), pool, trace)):,}")
print(users_that_fit(LLAMA_3_8B, 90, paging.block_bytes(model("llama-3-8b")), 0, 1500))
print(paging.block_bytes(model("llama-3-8b")) == 2**21)
""")
    )
    assert computed.split() == ["4,080", "22,592", "287", "True"]
    assert [one for one in computed.split()[:2] if one not in source(lab, "q4")] == []
    assert "287" in source(lab, "q6")


def test_a_pool_hands_out_copies_of_its_books(solved):
    shown = solved("""
pool = Pool(3, 2)
print(*(type(one).__name__ for one in (pool.free, pool.references, pool.memory)))
""")
    assert text(shown).split() == ["tuple"] * 3


@pytest.mark.slow
def test_scores_of_any_size_are_no_reason_to_refuse_an_answer():
    """Seed 4 once drew scores too large for question 5."""
    assert faults("13", "4", [name for name in honest("13") if name.startswith("cascade")]) == {}


def test_no_check_takes_a_name_that_another_cell_defines(lab):
    """A check may be run again after any other cell: what it assigns must not hide a function."""
    defined, assigned = set(), set()
    for cell in [one for _, one in nb.code_cells(lab)]:
        for node in ast.parse(cell.source).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.add(node.name)
            else:
                names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
                assigned |= {one.id for one in names if isinstance(one.ctx, ast.Store)}
    assert defined & assigned == set()


# What a half-right answer is paid for: by a sentence in its docstring, the checks that it passes.
HALF_RIGHT = {
    "Makes one hole in a table": set(),
    "Makes holes, and gives back what stood there": set(),  # the counts say that nothing was given back
    "one value of each row is NaN": set(),
    "attention that no query has a say in": set(),
    "from where the store's function has it": set(),
    "into texts that base64's own lines make": {"cascade-output", "cascade-unfilled"},
    "heads in turn, instead of side by side": {"cascade-once", "cascade-unfilled"},
}


@pytest.mark.slow
def test_a_half_right_answer_is_paid_for_its_half():
    assert checks_passed(LAB, HALF_RIGHT) == HALF_RIGHT
