"""Copies beside computation: order, waiting and clocks, on every kind of streams that this machine has."""

import itertools

import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.techniques.offload import streams as streams_module
from helpers.techniques.offload.streams import (
    CudaStreams,
    Lane,
    SimulatedStreams,
    Span,
    ThreadStreams,
    exposed_s,
    hazards,
    streams_for,
)

KINDS = [lambda: SimulatedStreams(1e6, 1e6), lambda: ThreadStreams(1e8), ThreadStreams]
if torch.cuda.is_available():
    KINDS.append(CudaStreams)


def tensors(count, values=1000):
    return [torch.full((values,), float(number)) for number in range(count)]


@pytest.mark.parametrize("make", KINDS)
def test_each_lane_keeps_its_order_and_events_join_lanes(make):
    streams, (a, b), target = make(), tensors(2), torch.empty(1000)
    first = streams.copy([(target, a)], name="a")
    second = streams.copy([(target, b)], after=[first, None], name="b")
    result, done = streams.compute(lambda: target.sum().item(), after=[second], name="sum")
    streams.wait(streams.copy([(a, target)], after=[done], lane=Lane.DOWN, name="down"))
    assert (result, a[0].item()) == (1000.0, 1.0)
    spans = {span.name: span for span in streams.log}
    assert list(spans) == ["a", "b", "sum", "down"]
    for earlier, later in itertools.pairwise(spans.values()):
        assert earlier.end_s <= later.start_s
    assert [spans[name].size_bytes for name in spans] == [4000, 4000, 0, 4000]


def test_attention_takes_its_time_on_a_cpu_too():
    """PyTorch's own counter does not know the kernel that runs there."""
    streams = SimulatedStreams(link_bytes_per_s=1000, flops_per_s=1000)
    q, k, v = torch.ones(3, 1, 2, 5, 8)
    streams.compute(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert streams.seconds == pytest.approx(4 * 2 * 5 * 5 * 8 / 1000)


def test_a_simulated_clock_is_bytes_and_flops_over_rates():
    streams = SimulatedStreams(link_bytes_per_s=1000, flops_per_s=500)
    x, y, source = torch.ones(5, 10), torch.ones(10, 2), torch.ones(100)
    streams.copy([(torch.empty(100), source)])
    streams.compute(lambda: x @ y)  # 2 * 5 * 10 * 2 FLOPs
    assert [(span.start_s, span.end_s) for span in streams.log] == [(0, 0.4), (0, 0.4)]
    assert streams.seconds == 0.4


def test_lanes_run_beside_each_other_and_waiting_holds_the_program():
    streams, (source,) = SimulatedStreams(4000, 1e9), tensors(1)
    arrived = streams.copy([(torch.empty(1000), source)])  # a second
    streams.copy([(torch.empty(500), source[:500])], lane=Lane.DOWN)
    assert streams.seconds == 1
    streams.wait(arrived)
    streams.copy([(torch.empty(1000), source)], lane=Lane.DOWN)
    assert [span.start_s for span in streams.log] == [0, 0, 1]


def test_a_joined_event_holds_arithmetic_and_not_the_program():
    streams, (source,) = SimulatedStreams(4000, 1e9), tensors(1)
    streams.join(streams.copy([(torch.empty(1000), source)]))
    streams.compute(lambda: None, name="later")
    streams.copy([(torch.empty(1000), source)], lane=Lane.DOWN)
    assert {span.name or span.lane: span.start_s for span in streams.log}["later"] == 1
    assert streams.log[-1].start_s == 0
    assert streams.so_far().handle == 1


def test_a_copy_that_fails_is_told_of_where_it_is_waited_for():
    streams = ThreadStreams()
    event = streams.copy([(torch.empty(3), torch.ones(4))])
    with pytest.raises(RuntimeError, match="size"):
        streams.wait(event)


def test_a_slow_link_takes_its_time_and_computing_goes_on_meanwhile():
    streams, (source,) = ThreadStreams(link_bytes_per_s=4000 / 0.2), tensors(1)
    event = streams.copy([(torch.empty(1000), source)])
    _, done = streams.compute(lambda: torch.ones(2).sum())
    streams.wait(done)
    streams.wait(event)
    compute, copy = streams.log
    assert (compute.lane, copy.lane) == (Lane.COMPUTE, Lane.UP)
    assert copy.seconds >= 0.2
    assert compute.start_s < copy.end_s


def span(lane, start, end, buffer):
    return Span(lane, "", 0, buffer, start, end)


@pytest.mark.parametrize(
    ("log", "races"),
    [
        ([span(Lane.UP, 0, 1, 0), span(Lane.COMPUTE, 1, 2, 0)], 0),
        ([span(Lane.UP, 0, 1, 0), span(Lane.COMPUTE, 0.5, 2, 0)], 1),  # computes before it has arrived
        ([span(Lane.COMPUTE, 0, 2, 0), span(Lane.UP, 1, 3, 0)], 1),  # overwritten while it computes
        ([span(Lane.COMPUTE, 0, 2, 0), span(Lane.UP, 1, 3, 1)], 0),
        ([span(Lane.UP, 0, 2, 0), span(Lane.UP, 1, 3, 0)], 1),
        ([span(Lane.UP, 0, 2, None), span(Lane.COMPUTE, 1, 3, None)], 0),
    ],
)
def test_two_that_touch_a_buffer_at_once_are_a_hazard(log, races):
    assert len(hazards(log)) == races


def test_exposed_is_when_nothing_computes():
    log = [span(Lane.UP, 0, 3, 0), span(Lane.COMPUTE, 3, 5, 0), span(Lane.UP, 3, 6, 1), span(Lane.COMPUTE, 6, 8, 1)]
    assert exposed_s(log) == 4


@pytest.mark.parametrize("rates", [(0, 1), (-1, 1), (1, 0), (float("nan"), 1), ("fast", 1), (1, True)])
def test_rates_that_are_none(rates):
    with pytest.raises(WorkbookError, match="per_s"):
        SimulatedStreams(*rates)


def test_a_thread_s_rate_that_is_none():
    with pytest.raises(WorkbookError, match="link_bytes_per_s is 0"):
        ThreadStreams(0)


def test_the_machine_s_own():
    assert isinstance(streams_for("cpu", 4e8), ThreadStreams)


def test_a_simulated_copy_is_done_when_it_has_been_started(monkeypatch):
    """Its events are times on a clock: on a GPU nothing else would wait for a copy from pinned memory."""
    started = []
    monkeypatch.setattr(streams_module, "carry", lambda pairs, asynchronous: started.append(asynchronous))
    for streams in (SimulatedStreams(1, 1), ThreadStreams()):
        streams.wait(streams.copy([(torch.empty(1), torch.ones(1))]))
    assert started == [False, True]
