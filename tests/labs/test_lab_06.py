"""What lab 06 says in words is what its code does: the targets, the models of bytes, and the other right answers."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest
import torch

from tests.labs.common import lab_path, printed

LAB = lab_path("06")
SHOWN = {  # where the figures of each question are printed
    "q1": ["recompute-kept"],
    "q3": ["others-shown", "policy-bytes"],
    "q5": ["mover-once"],
    "q6": ["accumulate-memory", "accumulate-cap"],
}


@pytest.mark.parametrize(("question", "shown"), SHOWN.items())
def test_every_number_of_a_target_is_printed(lab, question, shown):
    text = next(cell.source for cell in lab.cells if cell.id == question)
    wanted = set(re.findall(r"\d{1,3}(?:,\d{3})+", re.search(r"\*\*Target:\*\*.*", text)[0]))
    outputs = "".join(printed(lab, cell_id) for cell_id in shown)
    assert wanted
    assert {number for number in wanted - {"1,024"} if number not in outputs} == set()


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (None, "you return None"),
        (0, "a list of layers' numbers"),
        ({"0": 1}, "a list of layers' numbers"),
        ([True], "layers have whole numbers"),
        ([0, 0], "each layer once"),
        ([2], "numbers from 0 to 1"),
        ([], "your plan [] takes 40: in_flight times"),
    ],
)
def test_a_plan_that_is_none_says_why(names, plan, words):
    with pytest.raises(AssertionError, match=re.escape(words)):
        names["flops_again"]("two layers", plan, [(2, 10, 5), (2, 10, 5)], 2, 32)


def test_the_fewest_flops_are_those_of_trying_everything(names):
    rng, found = random.Random(5), set()
    for _ in range(20):
        layers, in_flight = names["draw_stage"](rng, 6), rng.randint(1, 5)
        budget = rng.randint(40, 300) * in_flight
        plans = [[i for i, chosen in enumerate(bits) if chosen] for bits in product([0, 1], repeat=6)]
        costs = [names["needed"](layers, in_flight, plan) for plan in plans]
        least = names["fewest"](layers, in_flight, budget)
        assert least == min((flops for size, flops in costs if size <= budget), default=None)
        found.add(least)
    assert None in found
    assert len(found) > 5


def test_the_greedy_plan_of_the_target(names):
    layers, plan = names["draw_stage"](random.Random(25), 24), set()
    left = sorted(range(24), key=lambda i: (layers[i][0] - layers[i][1]) / layers[i][2])
    while names["needed"](layers, 4, plan)[0] > 3630:
        plan.add(left.pop(0))
    assert names["needed"](layers, 4, plan)[1] == 272


@pytest.mark.parametrize(("depth", "width", "rows"), [(6, 32, 256), (3, 24, 192), (6, 40, 320)])
def test_the_caps_lie_between_two_numbers_of_blocks(names, depth, width, rows):
    """A cap has at least a third of a block to spare on both sides, so that no engine's temporaries decide."""
    net, xs, ys = names["batch_of"](1, depth, width, 4 * rows - 50)
    peaks = []
    for recompute in range(depth + 1):
        net.zero_grad()
        with names["metered"](net, xs, ys) as meter:
            names["accumulate"](net, xs, ys, rows, recompute)
        peaks.append(meter.peak_bytes)
    block_bytes = peaks[0] - peaks[1]
    for recompute in range(depth):
        spare_bytes = names["enough"](net, xs, rows, recompute) - peaks[recompute]
        assert 1 / 3 < spare_bytes / block_bytes < 2 / 3


def test_the_last_block_recomputed_frees_nothing(names):
    net, xs, ys = names["batch_of"](1, 4, 32, 512)
    peaks = []
    for recompute in (3, 4):
        net.zero_grad()
        with names["metered"](net, xs, ys) as meter:
            names["accumulate"](net, xs, ys, 256, recompute)
        peaks.append(meter.peak_bytes)
    assert abs(peaks[0] - peaks[1]) <= 1024


def test_a_host_gives_room_back_and_keeps_what_is_out_of_sight(names):
    host, device = names["Host"](10_000), torch.arange(1000, dtype=torch.float32)
    with names["metered"](device) as meter:
        before = meter.live_bytes
        ticket = host.put(device[10:20])
        assert (meter.live_bytes - before, host.free_bytes, host.bytes_out) == (0, 6000, 4000)
        back = host.get(ticket)
        assert torch.equal(back.view(torch.float32), device)
        assert meter.live_bytes - before == 4096
        host.get(ticket)
        assert host.bytes_back == 4000, "a copy that is alive is handed out again"
    with pytest.raises(MemoryError):
        host.put(torch.zeros(2000))
    del ticket
    assert host.free_bytes == 10_000


def test_a_new_storage_gets_the_address_of_one_that_went_to_the_host(names):
    """Else the check cannot tell who takes an address for a name."""
    assert names["with_one_address"](1.0, 2.0) == [[1.0], [2.0]]
