"""What lab 09 says in words is what its code and PyTorch's own engine do; other right answers pass."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.kernel import RunCell, error_in, kernel
from helpers.lesson.judged import REPLAY
from tests.labs.common import answers, lab_path, printed, source, without_answers

LAB = lab_path("09")
pytestmark = pytest.mark.slow  # three ranks, started anew for every answer that ends them
OTHERS = Path(__file__).with_name("other_answers_09.py").read_text("utf-8")
OTHER_ANSWERS = [node.name for node in ast.parse(OTHERS).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


@pytest.fixture(scope="module")
def solved(lab) -> Iterator[RunCell]:
    """A kernel with three ranks, in which the worked lab has run, and the other answers are defined."""
    with kernel(LAB.parent, cell_timeout_s=120) as run:
        for cell in [one for _, one in nb.code_cells(lab)]:
            assert error_in(run(cell.source)) is None, cell.id
        assert error_in(run(OTHERS.replace("from __future__ import annotations", ""))) is None
        yield run


def text(outputs: list) -> str:
    """What a cell printed, or its error."""
    error = error_in(outputs)
    return f"{error.ename}: {error.evalue}" if error else "".join(one.get("text", "") for one in outputs)


def answered(lab, name: str) -> tuple:
    """(the exercise, the answer cell) that `name`, of another answer, begins with."""
    pairs = [(exercise, cell) for exercise in lab_cells.exercises(lab) for cell in exercise.answers]
    return next(pair for pair in pairs if name.startswith(lab_cells.grade_id(pair[1]).replace("-", "_") + "_"))


def defined(cell) -> str:
    return ast.parse(cell.source).body[0].name


@pytest.mark.parametrize(
    ("question", "check", "figures"),
    [
        ("q1", "fsdp2-check", ["65,536", "32,768", "3,096,576"]),
        ("q2", "mean-shard-check", ["4,514", "1,505", "6,020"]),
        ("q3", "by-tensor-check", ["50,400", "16,800"]),
        ("q4", "gathered-check", ["14,848", "413,760", "465,216"]),
        ("q5", "clip-check", ["25"]),
        ("q6", "links-s-check", ["1.293"]),
    ],
)
def test_the_figures_of_a_target_are_printed_by_its_check(lab, question, check, figures):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0]
    assert [figure for figure in figures if figure not in target or figure not in printed(lab, check)] == []


def test_the_figures_that_no_check_prints(lab, solved):
    computed = text(
        solved("""
psi = 4 * sum(map(prod, TEN))
print(f"{8 * fullest(TEN):,} {2 * psi:,} {2 * psi * 2 // 3:,}; all-reduced {2 * 2 * 4515 * 2 // 3:,}")
print(*(f"{4 * rows * columns:,} {4 * N * -(-rows // N) * columns:,}" for rows, columns in THREE))
print(f"{(49 + 3 * 24**2) ** 0.5:.4g} {2 + 3 + 6 + 24}; a router of {4 * 8 * 4096:,} bytes")
print(f"{links_s(replace(job('llama-2-70b'), zero=3, ranks=128), LARGE, 1)['between']:.4g}")
""")
    )
    said = "".join(source(lab, f"q{number}") for number in range(1, 7))
    figures = re.findall(r"\d[\d,.]*\d", computed)
    assert len(figures) == 14
    assert [figure for figure in figures if figure not in said] == []


@pytest.mark.parametrize("other", OTHER_ANSWERS)
def test_a_right_answer_written_otherwise_passes(lab, solved, other):
    exercise, answer = answered(lab, other)
    solved(f"{defined(answer)} = {other}")
    found = [without_answers(text(solved(check.source))) for check in exercise.checks]
    solved(answer.source)
    assert found == [without_answers(printed(lab, check.id)) for check in exercise.checks]


def test_what_the_first_call_leaves_is_not_the_learners(lab, solved):
    """Imports within it make garbage whose frames hold tensors; ranks are new after one of them failed."""
    solved("ranks.restart()")
    assert text(solved(source(lab, "gathered-check"))) == printed(lab, "gathered-check")


def test_every_answer_was_written_otherwise(lab):
    tried = {lab_cells.grade_id(answered(lab, other)[1]) for other in OTHER_ANSWERS}
    assert {lab_cells.grade_id(cell) for cell in lab.cells if lab_cells.is_answer(cell)} == tried


def weighed(lab, solved, check: str, recorded: list[str]) -> str:
    """What a check says about recorded answers."""
    solved(f"import os; os.environ[{REPLAY!r}] = {json.dumps(recorded)!r}")
    found = text(solved(source(lab, check)))
    solved(f"del os.environ[{REPLAY!r}]")
    return found


OWNERS, LINKS = "by-tensor-owners-check", "links-s-check"


@pytest.mark.parametrize("check", [OWNERS, LINKS])
def test_recorded_answers_are_weighed_without_the_functions_that_gave_them(lab, solved, check):
    solved("def best_plan(*_): raise SystemExit\n\nByTensor = best_plan")
    found = weighed(lab, solved, check, answers(printed(lab, check)))
    for key in ("by-tensor", "best-plan"):
        solved(source(lab, key))
    assert found == printed(lab, check)


@pytest.mark.parametrize(
    ("check", "number", "answer", "words"),
    [
        (OWNERS, 0, [[0, 5, 7], [1, 3, 8], [2, 4, 6]], "the states of number 9 are on 0 ranks"),
        (OWNERS, 1, [[0], [1], [0]], "the states of number 0 are on 2 ranks"),
        (OWNERS, 1, [[0, 1], [], []], "ranks own [5800, 0, 0] values, 3,000 at most by the rule"),
        (LINKS, 0, [1, 8, "cpu", 1.293], "stage 2 or 3, not 1"),
        (LINKS, 0, [3, 12, "cpu", 1.293], "a group is one of [1, 2, 4, 8, 16, 32, 64, 128], not 12"),
        (LINKS, 0, [3, 8, "disk", 1.293], "offloaded to 'none' or 'cpu', not 'disk'"),
        (LINKS, 0, [2, 8, "none", 1.293], "bytes, a card has"),
        (LINKS, 0, [3, 8, "cpu", 1.2], "takes 1.293 s, not 1.2"),
        (LINKS, 0, None, "1.293 s are possible, your plan None takes None"),
        (LINKS, 8, [3, 1, "none", 9], "bytes, a card has"),
    ],
)
def test_an_answer_that_is_none_says_why(lab, solved, check, number, answer, words):
    recorded = answers(printed(lab, check))
    recorded[number] = json.dumps(answer)
    assert words in weighed(lab, solved, check, recorded)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "raise NotImplementedError('write mean_shard here')",
            "every rank raised NotImplementedError: write mean_shard",
        ),
        ("return torch.cat([p.grda for p in parameters])", "return torch.cat([p.grda for p in parameters])"),
        ("return None", "a tensor is asked for, not NoneType"),
        ("return ranks.run(mean_shard)", "a function that is sent runs on a rank and cannot call them"),
    ],
)
def test_a_slip_is_told_in_the_learners_own_words(lab, solved, body, told):
    check, answer = source(lab, "mean-shard-check"), source(lab, "mean-shard")
    solved(f"def mean_shard(parameters):\n    {body}")
    found = text(solved(check))
    solved(answer)
    assert told in found


def hybrid() -> list[tuple[str, int, int]]:
    """On one of four ranks: what FSDP2 sends in a step on two groups of two, layers of 64 values, no gradient of x."""
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from helpers.memory.measure import Collectives

    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(3)))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "group"))
    for layer in [*model, model]:
        fully_shard(layer, mesh=mesh)
    with Collectives() as counted:
        model(torch.ones(2, 8)).sum().backward()
    return [(call.kind, call.payload_bytes, call.ranks) for call in counted.calls]


def test_fsdp2_shards_in_groups_as_question_6_says_and_gathers_the_first_layer_twice_as_4_says(ranks4):
    shard_bytes, whole_bytes = 4 * 64 // 2, 4 * 64
    expected = {
        ("all_gather", whole_bytes, 2): 6,
        ("reduce_scatter", whole_bytes, 2): 3,
        ("all_reduce", shard_bytes, 2): 3,
    }
    assert [Counter(calls) for calls in ranks4.run(hybrid, timeout_s=120)] == [expected] * 4
