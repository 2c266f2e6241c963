"""What is kept of a card: by card, engine and ranks, held against what groups of ranks were seen to take."""

import doctest
from pathlib import Path

import pytest

from helpers.catalog import ServeSetup, WorkbookError, device
from helpers.catalog.contexts import MIB, context
from helpers.catalog.devices import DEVICES
from helpers.catalog.engines import ENGINES, engine
from helpers.memory.fit import reserves as model
from helpers.memory.fit.reserves import reserve
from helpers.memory.serve.engines.vllm import launch

FIGURES = (("t4", 1), ("rtx-4090", 1), ("h100", 1), ("h100", 8))
COUNTS = (1, 2, 3, 4, 8, 9, 16, 64, 1024)


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(model).failed == 0


@pytest.mark.parametrize("name", ENGINES)
def test_it_never_falls_when_ranks_rise_and_is_positive_on_every_card(name):
    for card in DEVICES.values():
        kept = [reserve(card, name, ranks).size_bytes for ranks in COUNTS]
        assert kept[0] > 0
        assert kept == sorted(kept), card.name


def test_one_process_of_pytorch_keeps_its_context_alone():
    for card in DEVICES.values():
        assert reserve(card).size_bytes == context(card).size_bytes


# NVIDIA/nccl, issue 964: four A100 with NVLink, 544 MiB a group of two, 688 one of more; and nvlsTotalSize of eight
# ranks in a log of NCCL 2.28, on top of 688. Without NVLink there are two channels of 24.
@pytest.mark.parametrize(
    ("name", "ranks", "mib"),
    [
        ("a100-80gb", 2, 544),
        ("a100-80gb", 4, 688),
        ("a100-80gb", 64, 688),
        ("h100-80gb", 2, 544),
        ("h100-80gb", 8, 688 + 268435456 / MIB),
        ("h100-80gb", 64, 688 + 268435456 / MIB),
        ("rtx-4090-24gb", 8, 112),
        ("m4-max-128gb", 8, 0),
    ],
)
def test_ranks_that_work_together_have_buffers(name, ranks, mib):
    assert reserve(device(name), ranks=ranks).size_bytes - reserve(device(name)).size_bytes == mib * MIB
    assert ("NCCL" in reserve(device(name), ranks=ranks).told) == bool(mib)


# Messages of runs on several cards: what was held, what PyTorch had allocated, what it had cached.
@pytest.mark.parametrize(
    ("name", "ranks", "held", "allocated", "cached"),
    [
        ("a100-40gb", 4, 38.80, 35.58, 2.13),
        ("a100-40gb", 4, 38.82, 35.59, 2.14),
        ("a100-80gb", 4, 76.22, 75.13, 18.76 / 1024),
        ("rtx-3080-10gb", 8, 9.54, 6.61, 2.57),
        ("rtx-2080-ti-11gb", 2, 10.01, 8.43, 1.32),
    ],
)
def test_groups_that_were_seen_are_within_it(name, ranks, held, allocated, cached):
    measured, said = (held - allocated - cached) * 2**30, reserve(device(name), ranks=ranks).size_bytes
    assert 0.7 * said <= measured <= said + 15 * MIB  # three figures that are printed to 0.01 GiB


def test_a_card_that_can_be_bridged_counts_as_bridged():
    """Four RTX 3090 without bridges, axolotl-ai-cloud/axolotl, issue 1717: 106 MiB more than one of them alone."""
    measured = (23.61 - 23.15 - 64.54 / 1024) * 2**30
    card = device("rtx-3090-24gb")
    assert reserve(card).size_bytes < measured < reserve(card).size_bytes + model.WITHOUT_LINK_MIB * MIB
    assert reserve(card, ranks=4).size_bytes - reserve(card).size_bytes == model.GROUP_MIB * MIB


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_what_vllm_has_outside_torch_is_said_once(tensor):
    made = launch(ServeSetup("llama-3.1-8b"), engine("vllm", "0.19"), "h100", tensor)
    outside = made.card.capacity_bytes - made.free_bytes + made.outside_bytes
    assert reserve(device("h100"), "vllm", tensor).size_bytes == outside


def test_llamacpp_has_no_groups():
    assert reserve(device("h100"), "llama.cpp", 8).size_bytes == reserve(device("h100")).size_bytes


@pytest.mark.parametrize(("asked", "what"), [({"ranks": 0}, "ranks"), ({"engine": "vlm"}, "engine")])
def test_what_is_no_question(asked, what):
    with pytest.raises(WorkbookError, match=what):
        reserve(device("h100"), **asked)


def test_the_readme_has_the_figures_of_the_model():
    readme = " ".join((Path(__file__).parents[3] / "README.md").read_text("utf-8").split())
    kept = [reserve(device(name), ranks=ranks).size_bytes // MIB for name, ranks in FIGURES]
    assert (
        "up to {:,} MiB on a T4, {:,} on an RTX 4090, {:,} on an H100 and {:,} on one of eight".format(*kept) in readme
    )
