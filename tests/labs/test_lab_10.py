"""What lab 10 says in words is what its code does; half-right answers are paid for their half, attacks for nothing."""

from __future__ import annotations

import ast
import functools
import itertools
import re

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.mutants import find_mutants, load_mutants
from helpers.techniques.parallel.pipeline import Schedule, lay_out
from helpers.techniques.parallel.pipeline.schedules import Action, Kind
from tests.labs.attacker import Attack, paid
from tests.labs.common import checks_passed, lab_path, printed, source

LAB = lab_path("10")


@pytest.mark.parametrize(
    ("question", "check", "figures"),
    [
        ("q1", "split-mlp-held", ["30,928"]),
        ("q1", "split-mlp-sent", ["36,864", "56,448"]),
        ("q1", "split-mlp-kept", ["39,936"]),
        ("q2", "smoothed-loss-sent", ["720 bytes", "120,360"]),
        ("q3", "order-quick", ["33", "42"]),
        ("q4", "seconds-mesh", ["17.21 s", "17.27 s"]),
        ("q5", "dispatch-sent", ["1,920 bytes", "192"]),
    ],
)
def test_the_figures_of_a_target_are_printed_by_its_check(lab, question, check, figures):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0]
    assert [figure for figure in figures if figure not in target or figure not in printed(lab, check)] == []


def test_what_the_targets_say_in_words_is_what_the_checks_print(lab):
    assert "rooms (4, 2, 4, 4): room is needed for 3 2 2 1" in printed(lab, "order-needed")
    kept = printed(lab, "dispatch-kept")
    assert all(f"capacity 9, rank {rank}: {count} of 24" in kept for rank, count in ((0, 24), (3, 7)))


def test_the_best_meshes_that_are_named_are_the_best(names):
    job = names["Job"]("llama-3.1-70b", 256, 8192)
    for machines, per_machine, best in ((8, 8, (4, 8, 2)), (16, 4, (4, 16, 1))):
        cluster = names["Cluster"](machines, per_machine, names["device"]("h100"))
        assert names["best_mesh"](job, cluster) == names["Mesh"](*best)


def every_order(micro_batches: int) -> list[tuple[str, ...]]:
    """All orders of one stage in which forwards and backwards are each in turn: "FFBB", "FBFB"."""
    whole = itertools.product("FB", repeat=2 * micro_batches)
    ahead = ((row, list(itertools.accumulate(1 if kind == "F" else -1 for kind in row))) for row in whole)
    return [row for row, held in ahead if min(held) == held[-1] == 0]


def length_of(rows: tuple[tuple[str, ...], ...]) -> int | None:
    """How long a step with these orders takes; None where it cannot be run."""
    kinds, actions = {"F": Kind.FORWARD, "B": Kind.BACKWARD}, []
    for stage, row in enumerate(rows):
        counts = {kind: itertools.count() for kind in "FB"}
        actions.append(tuple(Action(kinds[kind], stage, next(counts[kind])) for kind in row))
    try:
        return lay_out(Schedule("tried", len(rows), len(rows[0]) // 2, tuple(actions))).length
    except WorkbookError:
        return None


def most_held(row: tuple[str, ...]) -> int:
    return max(itertools.accumulate(1 if kind == "F" else -1 for kind in row))


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 3), (2, 4), (3, 3)])
def test_no_order_is_quicker_than_the_reference_and_none_as_quick_needs_less_room(names, stages, micro_batches):
    tried = [(length_of(rows), tuple(map(most_held, rows)))
             for rows in itertools.product(every_order(micro_batches), repeat=stages)]  # fmt: skip
    for rooms in itertools.product(range(1, stages + 2), repeat=stages):
        fitting = [one for one in tried if one[0] and all(a <= b for a, b in zip(one[1], rooms, strict=True))]
        best = min(took for took, _ in fitting)
        assert names["quickest"](micro_batches, rooms) == best
        needed = names["needed_rooms"](functools.partial(names["quickest"], micro_batches), rooms)
        assert all(
            count >= room for took, held in fitting if took == best for count, room in zip(held, needed, strict=True)
        )
        assert tuple(needed) in {held for took, held in fitting if took == best}


def test_a_split_layer_and_the_whole_one_drop_the_same_values(names):
    whole = names["keep"](5, slice(0, 12), slice(0, 10))
    assert names["keep"](5, slice(4, 8), slice(3, 7)).equal(whole[4:8, 3:7])
    assert set(whole.unique().tolist()) == {0.0, 1.25}
    large = names["keep"](3, slice(0, 500), slice(0, 500))
    assert abs(large.mean().item() - 1) < 0.01
    assert not names["keep"](4, slice(0, 500), slice(0, 500)).equal(large)


# What a half-right answer is paid for: by a sentence in its docstring, the checks that it passes.
MLP = {f"split-mlp-{part}" for part in ("result", "gradients", "bias", "held", "sent", "kept")}
LOSS = {f"smoothed-loss-{part}" for part in ("values", "gradient", "sent", "kept")}
HALF_RIGHT = {
    "PyTorch's linear layer keeps all tokens": MLP - {"split-mlp-kept"},
    "The gradient of all tokens is all-reduced": MLP - {"split-mlp-sent"},
    "Nobody adds up the gradients of the bias": MLP - {"split-mlp-bias"},
    "The columns of down are cut out": MLP - {"split-mlp-held"},
    "The bias inside the row product": {"split-mlp-gradients"},
    "Rank 0 computes everything": set(),
    "gathers all weights": set(),
    "Nothing travels": set(),
    "added when somebody asks for the parameters": MLP - {"split-mlp-bias"},
    "Four numbers for each token": LOSS - {"smoothed-loss-sent"},
    "gather keeps the shifted logits": LOSS - {"smoothed-loss-kept"},
    "Rank 0 gets all logits": set(),
    "by a functional collective": set(),
    "with which DTensor changes": set(),
    "Some forwards first, then a backward": {"order-room", "order-needed"},
    "All forwards, then all backwards": {"order-needed"},
    "All the room that the stages before it let through": {"order-room", "order-quick"},
    "Everything over NVLink": {"seconds-bubble"},
    "No number for the bubble": {"seconds-tensor", "seconds-data"},
    "Tensor links that give back": {"seconds-data"},
    "Without the bubble": {"seconds-tensor", "seconds-bubble", "seconds-data"},
    "Gathers the choices as well": {"dispatch-kept", "dispatch-arrived"},
    "only when somebody looks at what arrived": set(),
    "What arrived, from the last rank first": {"dispatch-kept", "dispatch-sent"},
}


@pytest.mark.slow
def test_a_half_right_answer_is_paid_for_its_half():
    assert checks_passed(LAB, HALF_RIGHT) == HALF_RIGHT


UNCOUNTED = """
from helpers.memory import measure
from helpers.memory.measure import ranks as counting

for known in (measure.Collectives, counting.Collectives):
    known.__torch_dispatch__ = lambda self, func, types, args=(), kwargs=None: func(*args, **(kwargs or {}))
    known.traffic = property(lambda self: counting.Traffic(()))
"""
CONSTANT = """
def most_in_flight(quickest, rooms):
    return {TABLE}.get(tuple(rooms), [1] * len(rooms))
"""
READS = """
def {NAME}(*arguments):
    import sys

    found = [*globals().values(), *vars(sys.modules["__main__"]).values()]
    named = {{getattr(one, "__name__", ""): one for one in found if callable(one)}}
    return named[{WANTED!r}](*arguments)
"""
GATHERS = {  # everything, while nobody shall count
    "smoothed_loss": "lets PyTorch compute the loss",
    "dispatch": "Gathers all tokens and choices",
    "SplitMLP": "computes the whole layer on every rank",
}
READ = {"most_in_flight": "needed_rooms", "seconds": "right_seconds"}  # of the references


BESIDE = """
from pathlib import Path
from tempfile import gettempdir
import json

{WORKED}

worked = dispatch


def passed(thing, group):
    {FIRST}
    dist.barrier(group)
    found = [json.loads({READ}) for rank in dist.get_process_group_ranks(group)]
    dist.barrier(group)
    return found


def dispatch(tokens, chosen, experts, capacity, group):
    kept, arrived = worked(tokens * 0, chosen, experts, capacity, group)
    found = passed([tokens.tolist(), chosen.tolist()], group)
    whole, picked = (torch.cat([torch.tensor(one[at]) for one in found]) for at in (0, 1))
    first = group.rank() * len(arrived)
    return kept, [whole.double()[(picked == first + at).any(1)][:capacity] for at in range(len(arrived))]
"""
WAYS = {  # how a rank writes, and how another reads: the collectives carry zeros
    "a store": (
        "store = dist.distributed_c10d._pg_map[group][1]; store.set(f'beside-{dist.get_rank()}', json.dumps(thing))",
        "store.get(f'beside-{rank}')",
    ),
    "files": (
        "Path(gettempdir(), f'beside-{dist.get_rank()}').open('w').write(json.dumps(thing))",
        "Path(gettempdir(), f'beside-{rank}').read_text()",
    ),
}


@pytest.mark.slow
def test_what_travels_beside_the_collectives_is_not_paid():
    lab = nb.read(LAB)
    at, one = next(
        (at, one) for at, one in enumerate(lab_cells.exercises(lab)) if "dispatch" in lab_cells.names_of(one.answers)
    )
    worked = "\n\n".join(cell.source for cell in one.answers)
    chosen = [
        Attack(at, words, BESIDE.replace("{WORKED}", worked).replace("{FIRST}", writes).replace("{READ}", reads))
        for words, (writes, reads) in WAYS.items()
    ]
    assert paid(LAB, chosen, seed="7") == []


@pytest.mark.all
def test_no_attack_of_its_own_is_paid(lab):
    """Patched counters, answers learnt from the published output, references read."""
    exercises, mutants = lab_cells.exercises(lab), load_mutants(find_mutants(LAB))
    at = {name: number for number, one in enumerate(exercises) for name in lab_cells.names_of(one.answers)}
    worked = ["\n\n".join(cell.source for cell in one.answers) for one in exercises]
    lines = re.findall(r"(\d+) micro-batches, rooms (\(.*?\)): room is needed for (.+)", printed(lab, "order-needed"))
    table = {ast.literal_eval(rooms): [*map(int, needed.split())] for _, rooms, needed in lines}
    assert len(table) == len(lines) > 8
    attacks = [Attack(at["most_in_flight"], "published numbers", CONSTANT.replace("{TABLE}", repr(table)))]
    attacks += [Attack(at[one], f"reads {found}", READS.format(NAME=one, WANTED=found)) for one, found in READ.items()]
    for answer, words in GATHERS.items():
        wrong = next(one.source for one in mutants if words in one.source)
        attacks.append(Attack(at[answer], words, f"{UNCOUNTED}\n{worked[at[answer]]}\n\n{wrong}"))
    assert paid(LAB, attacks, seed="7") == []
