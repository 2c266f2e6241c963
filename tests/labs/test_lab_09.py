"""What lab 09 says in words is what its code and PyTorch's own engine do; other right answers pass."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.forked_cells import CellRun, Trial, run_in_forks
from tests.labs.common import lab_path, printed, source

LAB = lab_path("09")
pytestmark = pytest.mark.slow  # three ranks for every question
FIGURES = """
psi, ten = 4 * sum(map(prod, TEN)), fullest(TEN)
print(f"{8 * ten:,} {2 * psi:,} {2 * psi * 2 // 3:,}; all-reduced {2 * 2 * 4515 * 2 // 3:,}")
print(*(f"{4 * rows * columns:,} {4 * N * -(-rows // N) * columns:,}" for rows, columns in THREE))
print(f"{(49 + 3 * 24**2) ** 0.5:.4g} {2 + 3 + 6 + 24}; a router of {4 * 8 * 4096:,} bytes")
print(f"{seconds_right('llama-2-70b', LARGE, 3, 128, 'none', 1)[1]:.4g}")
"""
SLIPS = [
    ("raise NotImplementedError('write mean_shard here')", "NotImplementedError: write mean_shard here"),
    ("return torch.cat([p.grda for p in parameters])", "AttributeError: 'Parameter' object has no attribute 'grda'"),
    ("return None", "a tensor is asked for, not NoneType"),
]


@pytest.fixture(scope="module")
def trials(lab) -> dict[str, tuple[CellRun, ...]]:
    """How everything went that is tried on the worked lab: slips, and figures."""
    one = answered(lab, "mean_shard_")[1]
    tried = {body: (f"def mean_shard(parameters):\n    {body}", one) for body, _ in SLIPS}
    cells = {key: (first, *(cell.source for cell in (*one.asks, *one.checks))) for key, (first, one) in tried.items()}
    cells["figures"] = (FIGURES,)
    ran = run_in_forks(LAB.parent, [cell.source for _, cell in nb.code_cells(lab)], [*map(Trial, cells.values())])
    assert [run.error for run in ran.before if run.error] == []
    return dict(zip(cells, ran.trials, strict=True))


def answered(lab, name: str) -> tuple[str, lab_cells.Exercise]:
    """(the answer, its exercise) that `name`, of an honest answer, begins with."""
    pairs = [(cell, one) for one in lab_cells.exercises(lab) for cell in one.answers]
    found = next(pair for pair in pairs if name.startswith(lab_cells.grade_id(pair[0]).replace("-", "_") + "_"))
    return lab_cells.names_of([found[0]])[0], found[1]


@pytest.mark.parametrize(
    ("question", "answer", "figures"),
    [
        ("q1", "fsdp2_", ["65,536", "32,768", "3,096,576"]),
        ("q2", "mean_shard_", ["4,514", "1,505", "6,020"]),
        ("q3", "by_tensor_", ["50,400", "16,800", "134,400", "403,200", "268,800"]),
        ("q4", "gathered_", ["14,848", "413,760", "465,216"]),
        ("q5", "clip_", ["25"]),
        ("q6", "links_s_", ["1.293"]),
    ],
)
def test_the_figures_of_a_target_are_printed_by_its_checks(lab, question, answer, figures):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0]
    checks = "".join(printed(lab, check.id) for check in answered(lab, answer)[1].checks)
    assert [figure for figure in figures if figure not in target or figure not in checks] == []


def test_the_figures_that_no_check_prints(lab, trials):
    (computed,) = trials["figures"]
    said = "".join(source(lab, f"q{number}") for number in range(1, 7))
    figures = re.findall(r"\d[\d,.]*\d", computed.printed)
    assert (computed.error, len(figures)) == ("", 14)
    assert [figure for figure in figures if figure not in said] == []


@pytest.mark.parametrize(("body", "told"), SLIPS)
def test_a_slip_is_told(trials, body, told):
    assert any(told in run.error for run in trials[body])


def test_given_ranks_wait_for_the_first_call(lab):
    """Where answers are only weighed there is none, so that none is started."""
    given: dict = {"Ranks": lambda count, **options: options, "N": 3}
    exec(source(lab, "ranks"), given)
    assert given["ranks"]["start"] is False


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
