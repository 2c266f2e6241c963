"""Where the bytes of a training step pass, and the micro-batch that hides them."""

from dataclasses import replace

import pytest

from helpers.catalog import TrainSetup, device
from helpers.catalog.errors import WorkbookError
from helpers.catalog.split import Split
from helpers.memory import offload
from helpers.memory.step.ranks.zero import held, link_bytes

STATES = TrainSetup(
    "llama-2-70b",
    precision="megatron-bf16",
    optimizer="adamw-fused",
    split=Split(8, zero=3),
    offload_optimizer="cpu",
    offload_parameters="cpu",
    sequence=2048,
    checkpointing="full",
)


def hops(setup, **options):
    return {hop.name: hop for hop in offload.training_hops(setup, "h100", "dgx-h100-dram", **options)}


def test_where_a_step_s_bytes_pass():
    found, moved = hops(STATES), link_bytes(STATES)
    assert found["PCIe, down"].size_bytes == moved.down_bytes == held(STATES).host["gradients"]
    assert found["PCIe, up"].size_bytes == moved.up_bytes
    memory = next(hop for name, hop in found.items() if name.startswith("memory of the host"))
    host = held(STATES).host
    update = 2 * host["optimizer"] + host["gradients"] + host["parameters"]  # each new weight is written, too
    assert memory.size_bytes == 8 * (update + moved.down_bytes + moved.up_bytes)
    assert memory.seconds == pytest.approx(4.264, rel=1e-3)


def test_a_disk_s_bytes_pass_through_memory_too():
    on_disk = replace(STATES, offload_optimizer="nvme", offload_parameters="nvme")
    found, moved = hops(on_disk, disk="dgx-2-nvme"), link_bytes(on_disk)
    *_, memory, read, written = found.values()
    assert read.size_bytes == 8 * moved.nvme_read_bytes
    assert written.size_bytes == 8 * moved.nvme_written_bytes
    assert memory.size_bytes - hops(STATES).popitem()[1].size_bytes == read.size_bytes + written.size_bytes
    assert read.seconds == pytest.approx(read.size_bytes / 28e9)


def test_gradients_of_several_micro_batches_are_summed_in_the_host_s_memory():
    on_disk = replace(STATES, offload_optimizer="nvme", offload_parameters="nvme")
    for setup in (STATES, on_disk):
        one, three = (hops(replace(setup, micro_batches=count), disk="dgx-2-nvme") for count in (1, 3))
        moved = [link_bytes(setup, micro_batches=count) for count in (1, 3)]
        over_links = [found.down_bytes + found.up_bytes + found.nvme_read_bytes for found in moved]
        summed = 2 * 3 * 8 * held(setup).host["gradients"]  # of two more: read both, write one, on eight ranks
        grown = three["memory of the host"].size_bytes - one["memory of the host"].size_bytes
        assert grown == 8 * (over_links[1] - over_links[0]) + summed
    assert three["disk, written"] == one["disk, written"]


def test_as_many_hosts_as_ranks_need_share_the_work():
    few, many = (hops(replace(STATES, split=Split(ranks, zero=3))).popitem()[1] for ranks in (8, 64))
    assert many.size_bytes == pytest.approx(few.size_bytes / 8, rel=1e-3)
    two, eight = (hops(replace(STATES, split=Split(64, zero=3)), ranks_per_host=ranks).popitem()[1] for ranks in (2, 8))
    assert eight.size_bytes == 4 * two.size_bytes


def test_seconds_of_computing_grow_with_the_batch_and_those_of_hops_do_not():
    larger = replace(STATES, micro_batch=8)
    assert offload.training_compute_s(larger, "h100") == pytest.approx(8 * offload.training_compute_s(STATES, "h100"))
    assert offload.training_hops(larger, "h100", "dgx-h100-dram") == offload.training_hops(
        STATES, "h100", "dgx-h100-dram"
    )
    passes = replace(STATES, micro_batches=4)
    assert offload.training_compute_s(passes, "h100") == pytest.approx(4 * offload.training_compute_s(STATES, "h100"))
    assert hops(passes)["PCIe, down"].size_bytes == 4 * hops(STATES)["PCIe, down"].size_bytes


def test_the_least_micro_batch_that_hides_the_longest_hop():
    found = offload.training_hops(STATES, "h100", "dgx-h100-dram")
    assert [hop.place for hop in found][:2] == ["PCIe of the NVIDIA H100 SXM 80 GB, each way"] * 2
    count, longest_s = offload.micro_batch_that_hides(STATES, "h100", found), max(hop.seconds for hop in found)
    assert count == 2  # 4.26 s of the host's memory, 2.22 s of compute for each sequence
    times = [offload.training_compute_s(replace(STATES, micro_batch=size), "h100") for size in (count - 1, count)]
    assert times[0] < longest_s <= times[1]
    never = (offload.Hop(offload.Passage.READ, 10**18, 1.0, "a snail"),)
    assert offload.micro_batch_that_hides(STATES, "h100", never) is None


def test_a_recipe_computes_in_its_own_format():
    bf16, fp32 = (replace(STATES, precision=name) for name in ("bf16", "fp32"))
    ratio = offload.training_compute_s(fp32, "h100") / offload.training_compute_s(bf16, "h100")
    assert ratio == pytest.approx(device("h100").flops_per_s("bf16") / device("h100").flops_per_s("fp32"))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: offload.training_hops(STATES, "m4-max", "desktop"), "share one memory"),
        (lambda: offload.training_hops(STATES, "h100", "990-pro"), "is no memory of a host"),
        (lambda: hops(replace(STATES, offload_optimizer="nvme"), disk="desktop"), "is no disk"),
        (lambda: hops(replace(STATES, offload_optimizer="nvme"), disk="100gbe"), "is no disk"),
        (lambda: hops(TrainSetup("llama-2-7b")), "offloads nothing"),
        (lambda: hops(replace(STATES, offload_optimizer="nvme")), "none is named"),
        (lambda: hops(STATES, ranks_per_host=0), "ranks_per_host is 0"),
        (lambda: offload.training_compute_s(STATES, "h100", efficiency=0), "efficiency is 0"),
    ],
)
def test_bad_input(call, told):
    with pytest.raises(WorkbookError, match=told):
        call()
