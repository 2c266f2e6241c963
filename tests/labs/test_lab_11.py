"""What lab 11 says in words is what its code does; its references count as tokens do, one by one."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch

from helpers.course.mutants import find_mutants, load_mutants
from helpers.lesson import draw
from tests.labs.common import checks_passed, lab_path, printed, source
from tests.labs.honest import honest, table

LAB = lab_path("11")
STATES = [name for name in honest("11") if name.startswith("Online")]
TILES = [name for name in honest("11") if name.startswith("attend")]
SHARES = [name for name in honest("11") if name.startswith("backward_tile")]


@pytest.mark.parametrize(
    ("question", "check", "figures"),
    [
        ("q1", "online-bytes", ["35,840 bytes", "24 pieces", "2,048 keys"]),
        ("q2", "attend-shared", ["225"]),
        ("q2", "attend-bytes", ["at most 1 MiB"]),
        ("q3", "tile-bytes", ["at most 3.5 matrices", "at most 2.5"]),
        ("q4", "traffic-naive", ["26,273,120,256"]),
        ("q4", "traffic-causal", ["4,497,342,464"]),
        ("q4", "traffic-window", ["1,325,400,064"]),
        ("q4", "traffic-split", ["38,978,304"]),
        ("q5", "tiles-long", ["2,975,410,688"]),
    ],
)
def test_the_figures_of_a_target_are_printed_by_its_check(lab, question, check, figures):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0]
    assert [figure for figure in figures if figure not in target or figure not in printed(lab, check)] == []


@pytest.mark.parametrize("name", ["Online", *STATES])
def test_an_honest_state_is_far_from_every_bound(names, monkeypatch, name):
    monkeypatch.setitem(names, "Online", with_honest(names)[name])
    kept, most, _, _ = names["weighing"]([0, 200], 256, 32, 2048, 6, 1)
    assert kept <= 35_840 + 2048
    assert most <= 12 * 2**20


@pytest.mark.parametrize("name", ["attend", *TILES])
def test_an_honest_working_set_is_far_from_its_bound_and_flat_in_length(names, monkeypatch, name):
    monkeypatch.setitem(names, "attend", with_honest(names)[name])
    peaks = [names["attending_metered"]((2, 1, length, 64, 128), 1000, 70, 1, [0])[0] for length in (1300, 1700)]
    assert max(peaks) <= 0.8 * 2**20
    assert peaks[0] == peaks[1]


@pytest.mark.parametrize("name", ["backward_tile", *SHARES])
def test_honest_shares_are_far_from_their_bound(names, monkeypatch, name):
    monkeypatch.setitem(names, "backward_tile", with_honest(names)[name])
    for cap, most in ((None, 2.5), (3.0, 3.5)):
        beside, left, _ = names["backward_metered"](4, 512, 512, 64, cap, 1)
        assert beside / (16 * 512 * 512) <= most - 0.3
        assert left <= 4096


def test_the_memory_is_read_and_written_as_it_is_counted(names):
    memory, (output, log_sum_exp), times = names["memory_of"](4, 2, 50, 8, 16, 1)
    memory.read_kv(1, 3)
    assert memory.read_q(3, 3).shape == (2, 8)
    memory.write(3, 3, torch.ones(2, 8), torch.ones(2))
    assert times == {("keys", 1, 3): 1, ("queries", 3, 3): 1, ("output", 3, 3): 1}
    assert output.sum() == 16
    assert int(log_sum_exp.isfinite().sum()) == 2
    for refused in (partial(memory.read_kv, 2, 0), partial(memory.read_q, 0, 4)):
        with pytest.raises(IndexError):
            refused()


def test_the_shares_of_all_tiles_are_the_gradient_of_attention(names):
    rng = draw("test-lab-11/tiles")
    q, do = names["draw_tensor"](rng, 2, 24, 8), names["draw_tensor"](rng, 2, 24, 8)
    k, v = names["draw_tensor"](rng, 24, 8), names["draw_tensor"](rng, 24, 8)
    seen, scale, cap = names["seen_by"](24, 11, 3), 0.4, 1.5
    exact = [one.double().requires_grad_() for one in (q, k, v)]
    scores = (cap * torch.tanh(exact[0] @ exact[1].T * scale / cap)).masked_fill(~seen, -torch.inf)
    out, lse = scores.softmax(-1) @ exact[2], torch.logsumexp(scores, -1).float()
    right = torch.autograd.grad((out * do).sum(), exact)
    delta, found = (out * do).sum(-1).float(), [torch.zeros_like(one) for one in (q, k, v)]
    for row in (slice(0, 16), slice(16, 24)):
        for column in (slice(0, 16), slice(16, 24)):
            tile = (
                q[:, row],
                k[column],
                v[column],
                do[:, row],
                lse[:, row],
                delta[:, row],
                seen[row, column],
                scale,
                cap,
            )
            dq, dk, dv = names["backward_tile"](*tile)
            found[0][:, row] += dq
            found[1][column] += dk
            found[2][column] += dv
    for mine, best in zip(found, right, strict=True):
        assert torch.allclose(mine.double(), best, atol=1e-5)


def test_tiles_hold_the_keys_that_single_queries_see(names):
    rng = draw("test-lab-11/traffic")
    for _ in range(20):
        length, rows, columns = rng.randint(20, 200), rng.randint(4, 40), rng.randint(4, 40)
        window, sinks = rng.choice([None, rng.randint(1, 80)]), rng.randint(0, 30)
        seen, read = names["seen_by"](length, window or length, sinks if window else 0), 0
        for some in seen.split(rows):
            read += sum(part.shape[1] for part in some.split(columns, 1) if part.any())
        shape = {"batch": 2, "heads": 6, "kv_heads": 3, "length": length, "head_dim": 8, "bytes": 2, "kv_bytes": 1}
        right = 12 * (length * (2 * 8 * 2 + 4) + 2 * read * 8 * 1)
        assert names["right_tiled"](shape, rows, columns, window, sinks if window else 0) == right


def test_the_cost_of_a_pair_is_what_its_tiles_read_and_a_price_for_each(names):
    rng = draw("test-lab-11/cost")
    for _ in range(10):
        kernel, work = names["draw_kernel"](rng), {"heads": rng.randint(1, 9), "length": rng.randint(20, 400)}
        card, rows, columns = names["draw_card"](rng), 16 * rng.randint(1, 9), 16 * rng.randint(1, 9)
        tiles = [part for some in names["seen_by"](work["length"], work["length"], 0).split(rows)
                 for part in some.split(columns, 1) if part.any()]  # fmt: skip
        read = sum(2 * part.shape[1] * kernel["head_dim"] * kernel["bytes"] for part in tiles)
        right = work["heads"] * (read + len(tiles) * card["visit_bytes"])
        assert names["cost_of"](card, kernel, work, rows, columns) == right


def test_the_largest_tile_of_queries_costs_what_the_target_says(names, lab):
    largest = next(one for one in load_mutants(find_mutants(LAB)) if "Takes the largest tile of queries." in one.source)
    exec(largest.source, tried := dict(names))
    case = names["CARD"], names["KERNEL"], names["LONG"]
    cost = names["cost_of"](*case, *tried["choose_tiles"](*case))
    assert f"costs {cost:,}" in source(lab, "q5")


def test_keeping_the_row_of_scores_takes_what_the_target_says(names, monkeypatch, lab):
    keeps = next(one for one in load_mutants(find_mutants(LAB)) if "Keeps the row of scores" in one.source)
    exec(keeps.source, tried := dict(names))
    monkeypatch.setitem(names, "attend", tried["attend"])
    one = ((2, 1, 2048, 64, 128), 1700, 70)
    tiles = int(names["seen_tiles"](*one)[-1].sum())
    assert f"{round(tiles * 128 * 128 * 2 * 4 / 2**20, 1)} MiB" in source(lab, "q2")
    assert f"another {round(tiles * 128 * 64 * 2 * 4 / 2**20, 1)}" in source(lab, "q2")
    assert names["attending_metered"](*one, 1, [0])[0] > 2 * 2**20


def with_honest(names):
    tried = dict(names)
    exec(table("11"), tried)
    return tried


# What a half-right answer is paid for: by a sentence in its docstring, the checks that it passes.
HALF_RIGHT = {
    "Keeps every tile of keys that it has read": {"attend-values", "attend-edges"},
    "Holds all queries, and meets each tile": {"attend-values", "attend-edges"},
    "writes nothing but zeros": set(),
}


@pytest.mark.slow
def test_a_half_right_answer_is_paid_for_its_half():
    assert checks_passed(LAB, HALF_RIGHT) == HALF_RIGHT
