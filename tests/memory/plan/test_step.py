"""Seconds of a step, where they are decided: which link a group of ranks has, and what is computed again."""

import pytest

from helpers.catalog.models import model
from helpers.memory.plan import Cards
from helpers.memory.plan.training import Job, Layout, StepEngine

FABRIC = Cards("h100", 64, node=8, network_bytes_per_s=50e9)


@pytest.mark.parametrize(
    ("ranks", "stride", "rate"),
    [
        (8, 1, 450e9),  # one machine
        (2, 4, 450e9),  # every fourth card of one machine
        (64, 1, 400e9),  # eight machines, a port for each of eight cards
        (16, 4, 100e9),  # two cards in each machine
        (8, 8, 50e9),  # one in each
        (4, 16, 50e9),  # and one in every second
    ],
)
def test_between_machines_a_group_has_the_ports_of_its_cards(ranks, stride, rate):
    assert FABRIC.link_bytes_per_s(ranks, stride) == rate


def test_the_network_never_makes_a_ring_faster_than_the_machine():
    assert Cards("rtx-4090", 16).link_bytes_per_s(16) == 32e9


def test_megatron_runs_the_whole_layer_again_and_pytorch_stops_before_its_last_product():
    job = Job(model("llama-3.1-70b"), 8192)
    ours, theirs = (
        job.flops(Layout(engine, checkpointing="full")) for engine in (StepEngine.ZERO, StepEngine.MEGATRON)
    )
    hidden, wide, layers, vocab = 8192, 28672, 80, 128256
    assert theirs.recomputed - ours.recomputed == layers * 2 * 8192 * wide * hidden
    assert theirs.recomputed == theirs.forward - 2 * 8192 * vocab * hidden
