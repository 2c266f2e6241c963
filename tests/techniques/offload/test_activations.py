"""Activations out and back in time: the same gradients, the same bytes moved, and each copy before it is asked for."""

import pytest
import torch
from torch import nn

from helpers.catalog.errors import WorkbookError
from helpers.memory.breakdown import rounded
from helpers.memory.meter.places import Place, PlacesMeter
from helpers.techniques.checkpointing import Offload
from helpers.techniques.offload.activations import PrefetchingOffload
from helpers.techniques.offload.streams import CudaStreams, Lane, SimulatedStreams, ThreadStreams
from tests.techniques.checkpointing.models import decoder, forward_of, gradients

STREAMS = [lambda: SimulatedStreams(64e9, 1e12), ThreadStreams]
if torch.cuda.is_available():
    STREAMS = [CudaStreams]


def within(offload, forward):
    def run():
        with offload:
            return forward()

    return run


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("streams", STREAMS)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_gradients_do_not_notice(name, streams, ahead):
    model = decoder(name)
    forward = forward_of(model)
    plain = gradients(model, forward)
    offload = PrefetchingOffload(streams(), ahead=ahead)
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(plain, gradients(model, within(offload, forward)), strict=True))


def test_as_many_bytes_move_as_without_fetching_ahead():
    model = decoder("llama")
    forward = forward_of(model)
    found = []
    for offload in (Offload(model.parameters()), PrefetchingOffload(STREAMS[0](), model.parameters())):
        gradients(model, within(offload, forward))
        found.append((offload.bytes_out, offload.bytes_left))
    assert found[0] == found[1]


def layers(depth=6, width=64):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)))


def ran(streams, ahead, stash=2):
    model, x = layers(), torch.randn(256, 64)
    offload = PrefetchingOffload(streams, model.parameters(), ahead=ahead, stash=stash)
    with PlacesMeter() as meter:
        with offload:
            loss = model(x).sum()
        loss.backward()
    return offload, meter


def test_while_one_is_used_the_one_before_it_comes():
    streams = SimulatedStreams(1e9, 1e12)
    offload, _ = ran(streams, ahead=1)
    ups = [span for span in streams.log if span.lane is Lane.UP]
    assert len(ups) == len([span for span in streams.log if span.lane is Lane.DOWN]) == 7  # x and six activations
    starts = [span.start_s for span in ups]
    assert starts[1] < ups[0].end_s or starts[1] == ups[0].end_s  # the second is asked for with the first
    assert not offload._coming
    assert offload.bytes_back == offload.bytes_out


@pytest.mark.parametrize("ahead", [0, 1, 2, 4])
def test_the_device_holds_the_one_in_use_and_those_ahead(ahead):
    size = 256 * 64 * 4
    with PlacesMeter() as meter:
        x = torch.randn(256, 64).requires_grad_()
        with PrefetchingOffload(STREAMS[0](), ahead=ahead):
            y = x
            for _ in range(9):
                y = y.tanh()
            loss = y.sum()
        del y
        loss.backward()
        assert meter.bytes_in(Place.HOST) == 0
    beside = 3 * size + 2 * rounded(loss.nbytes)  # x, a gradient that comes and one that goes; the loss and its own
    assert meter.peak_in(Place.DEVICE) == beside + (1 + ahead) * size


def test_what_was_fetched_goes_when_a_graph_is_dropped():
    model, x = layers(), torch.randn(256, 64)
    offload = PrefetchingOffload(STREAMS[0](), model.parameters())
    with PlacesMeter() as meter:
        with offload:
            loss = model(x).sum()
        torch.autograd.grad(loss, model[-1][0].weight)  # asks for one, and fetches another
        del loss
        assert meter.bytes_in(Place.HOST) == 256 * 64 * 4  # the last one asked for, until another is
    assert not offload._coming


def test_a_second_backward_and_views_and_what_two_saved():
    w = torch.randn(64, 64, requires_grad=True)
    x = torch.randn(32, 64, requires_grad=True)

    def loss():
        y = x.exp()
        return (y @ w).sum() + (y.T @ y).sum() + y[::2].sin().sum() + (y.view(16, 128) * 2).tanh().sum()

    want = torch.autograd.grad(loss(), (x, w))
    with PrefetchingOffload(STREAMS[0](), [w], ahead=2):
        value = loss()
    for again in (True, False):
        found = torch.autograd.grad(value, (x, w), retain_graph=again)
        assert all(torch.equal(a, b) for a, b in zip(want, found, strict=True))


def test_a_host_that_runs_out_says_so_and_the_model_trains_on_without():
    model, x = layers(), torch.randn(256, 64)
    with (
        PlacesMeter({Place.HOST: 3 * 256 * 64 * 4}),
        pytest.raises(WorkbookError, match="the host has no room for 65,536 bytes"),
        PrefetchingOffload(STREAMS[0](), model.parameters()),
    ):
        model(x)
    model(x).sum().backward()
    assert model[0][0].weight.grad is not None


@pytest.mark.parametrize(("options", "told"), [({"ahead": -1}, "ahead is -1"), ({"stash": 0}, "stash is 0")])
def test_bad_input(options, told):
    with pytest.raises(WorkbookError, match=told):
        PrefetchingOffload(STREAMS[0](), **options)
