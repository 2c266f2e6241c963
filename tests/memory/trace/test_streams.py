"""In which CUDA stream FSDP2 allocates what, and one pool of the allocator for each."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.distributed.fsdp._fully_shard import _fsdp_param_group

from helpers.memory import trace
from helpers.memory.allocator import replay
from helpers.memory.breakdown import Part
from helpers.memory.meter.timeline import AllocationEvent, StorageLifetime
from helpers.memory.trace.streams import FakeStreams
from tests.memory.trace import rank_cases

DEFAULT, COPY_IN, ALL_GATHER, REDUCE_SCATTER = range(4)  # in the order in which FSDPCommContext makes them


@pytest.fixture(scope="module")
def traced():
    with trace.fake("cuda", ranks=4):
        model, optimizer = rank_cases.sharded(4, "mixed", True, "meta")
        sizes = [sum(-(-len(p) // 4) * p[0].numel() for p in layer.parameters()) for layer in model.model.layers]
        backward, update = rank_cases.halves(model, optimizer)
        return sizes[0], trace.record(lambda: (backward(), update()), model, optimizer)


def made_in(found, stream):
    return [event.block for event in found.events[found.first :] if event.sign > 0 and event.block.stream == stream]


def test_gathered_parameters_come_in_through_the_copy_in_stream(traced):
    """In the forward and again in the backward: a layer's own part in BF16, and the buffer for the parts of all."""
    shard, found = traced
    sizes = [block.size_bytes for block in made_in(found, COPY_IN)]
    own, all_ranks = -(-2 * shard // 512) * 512, -(-8 * shard // 512) * 512
    assert sizes.count(own) == sizes.count(all_ranks) == 3 * 2
    assert not made_in(found, ALL_GATHER)  # there the collective runs, and allocates nothing


def test_reduced_gradients_are_made_in_the_reduce_scatter_stream_in_fp32(traced):
    shard, found = traced
    reduced = made_in(found, REDUCE_SCATTER)
    assert [block.size_bytes for block in reduced].count(-(-4 * shard // 512) * 512) == 3
    assert {block.category for block in reduced} == {Part.GRADIENTS}
    assert len(reduced) == 4  # one buffer for each layer, and one for the rest


def test_what_is_computed_stays_in_the_default_stream(traced):
    _, found = traced
    kinds = {block.category for block in made_in(found, DEFAULT)}
    assert Part.ACTIVATIONS in kinds
    assert not kinds & {Part.GRADIENTS}


def test_a_free_block_serves_its_own_stream_alone():
    """20 MiB freed in stream 1: a second tensor fits into the hole, if it is of that stream."""
    first, again, other = (StorageLifetime(20 << 20, "", "", (), stream=stream) for stream in (1, 1, 2))
    assert (
        replay(
            [AllocationEvent(first, 1, ""), AllocationEvent(first, -1, ""), AllocationEvent(again, 1, "")]
        ).peak_reserved_bytes
        == 20 << 20
    )
    assert (
        replay(
            [AllocationEvent(first, 1, ""), AllocationEvent(first, -1, ""), AllocationEvent(other, 1, "")]
        ).peak_reserved_bytes
        == 40 << 20
    )


def test_the_trace_replays_a_pool_for_each_stream(traced):
    _, found = traced
    together = [AllocationEvent(block, event.sign, "") for event in found.events for block in [one_stream(event.block)]]
    assert found.peak_reserved_bytes > replay(together).peak_reserved_bytes
    assert found.on_gpu.peak_allocated_bytes == replay(together).peak_allocated_bytes


_made: dict[int, StorageLifetime] = {}


def one_stream(block: StorageLifetime) -> StorageLifetime:
    return _made.setdefault(id(block), replace(block, stream=0))


def test_a_cpu_keeps_one_stream_and_fsdp2_its_own_afterwards():
    plain = _fsdp_param_group._get_device_handle
    with trace.fake("cpu", ranks=2):
        assert _fsdp_param_group._get_device_handle("cpu") is torch.cpu
    with trace.fake("cuda", ranks=2):
        assert isinstance(_fsdp_param_group._get_device_handle("cpu"), FakeStreams)
    assert _fsdp_param_group._get_device_handle is plain


def test_streams_nest_and_come_back():
    streams = FakeStreams()
    outer, inner = streams.Stream(priority=-1), streams.Stream()
    with streams.stream(outer):
        with streams.stream(inner):
            assert (streams.number(), streams.current_stream()) == (2, inner)
        assert streams.number() == 1
    assert streams.number() == 0
    assert streams.device_count() == torch.cpu.device_count()
