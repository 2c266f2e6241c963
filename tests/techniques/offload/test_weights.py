"""Weights through buffers: the same results, two layers on the device, and seconds as predicted."""

import itertools

import pytest
import torch
from torch import nn

from helpers.catalog.errors import WorkbookError
from helpers.memory import offload as closed
from helpers.memory.breakdown import rounded
from helpers.memory.meter.places import Place, PlacesMeter, account_bytes
from helpers.small_lm.model import untrained
from helpers.techniques.offload.disk import Mapped, save
from helpers.techniques.offload.streams import CudaStreams, Lane, SimulatedStreams, ThreadStreams, exposed_s, hazards
from helpers.techniques.offload.weights import WeightStreamer

MAKE = [lambda: SimulatedStreams(64e9, 1e12), ThreadStreams]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cuda":
    MAKE = [CudaStreams]


def chain(widths=(8, 16, 12, 8, 20), rows=4):
    torch.manual_seed(0)
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*layers).to(DEVICE), torch.randn(rows, widths[0], device=DEVICE)


@pytest.mark.parametrize("buffers", [1, 2, 3, 9])
@pytest.mark.parametrize("make", MAKE)
def test_results_are_the_same_for_any_number_of_buffers_and_forwards(make, buffers):
    model, x = chain()
    streams = make()
    with torch.no_grad():
        want = model(x)
        with WeightStreamer(list(model), streams, buffers):
            assert all(torch.equal(model(x), want) for _ in range(3))
        assert torch.equal(model(x), want)
    assert not hazards(streams.log)
    assert all("forward" not in vars(layer) for layer in model)


def test_a_model_generates_the_same_tokens():
    model = untrained(0).to(DEVICE)
    ids = torch.arange(1, 9, device=DEVICE)[None]
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    want = model.generate(ids, **options)
    with WeightStreamer(model.model.layers, MAKE[0]()):
        assert torch.equal(model.generate(ids, **options), want)
    assert torch.equal(model.generate(ids, **options), want)


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_bytes_on_both_sides_to_the_byte(buffers):
    model = untrained(0)
    layers = model.model.layers
    inside = {id(p) for p in layers.parameters()}
    root = account_bytes(p.nbytes for p in model.parameters() if id(p) not in inside)
    layer = sum(p.nbytes for p in layers[0].parameters())
    with PlacesMeter() as meter, torch.no_grad():
        meter.adopt(model.parameters(), "parameters")
        with WeightStreamer(layers, SimulatedStreams(64e9, 1e12), buffers):
            assert meter.bytes_in(Place.DEVICE) == root + buffers * rounded(layer)
            assert meter.bytes_in(Place.HOST) == len(layers) * rounded(layer)
        assert meter.bytes_in(Place.HOST) == 0
    assert meter.bytes_in(Place.DEVICE) == account_bytes(p.nbytes for p in model.parameters())


@pytest.mark.parametrize("buffers", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 16, 64, 1024])
def test_the_clock_shows_what_is_predicted(rows, buffers):
    model, x = chain((64,) * 7, rows)
    streams = SimulatedStreams(link_bytes_per_s=1e6, flops_per_s=1e7)
    with torch.no_grad(), WeightStreamer(list(model), streams, buffers):
        model(x)
        spans = [span for span in streams.log if span.name]
        first = [span for span in spans if span.lane is Lane.UP][:6]
        copies = [span.seconds for span in first]
        computes = [span.seconds for span in spans if span.lane is Lane.COMPUTE]
        seconds = max(span.end_s for span in spans if span.lane is Lane.COMPUTE)
    assert seconds == pytest.approx(closed.overlapped_s(copies, computes, buffers))
    layer_bytes, flops = 64 * 64 * 4 + 64 * 4, 2 * rows * 64 * 64
    assert copies == pytest.approx([layer_bytes / 1e6] * 6)
    assert computes == pytest.approx([flops / 1e7] * 6)


def test_two_buffers_hide_what_one_exposes():
    exposed = {}
    for buffers in (1, 2):
        model, x = chain((64,) * 7, rows=64)
        streams = SimulatedStreams(1e6, 1e7)  # a layer computes for three times as long as it travels
        with torch.no_grad(), WeightStreamer(list(model), streams, buffers):
            model(x)
        exposed[buffers] = exposed_s([span for span in streams.log if span.end_s <= streams.log[-1].end_s])
    copy_s = (64 * 64 + 64) * 4 / 1e6
    assert exposed[1] == pytest.approx(6 * copy_s)
    assert exposed[2] == pytest.approx(copy_s)


def test_weights_may_come_from_a_file_s_pages(tmp_path):
    model, x = chain()
    save({f"layers.{name}": tensor for name, tensor in model.state_dict().items()}, tmp_path / "w")
    pages = Mapped(tmp_path / "w", "layers.")
    with torch.no_grad():
        want = model(x)
        with PlacesMeter() as meter, WeightStreamer(list(model), MAKE[0](), source=pages.layer):
            assert torch.equal(model(x), want)
            assert meter.bytes_in(Place.HOST) == 0
        assert torch.equal(model(x), want)


def test_a_forward_that_breaks_off_does_not_spoil_the_next():
    model, x = chain()
    with torch.no_grad():
        want = model(x)
        with WeightStreamer(list(model), MAKE[0]()):
            with pytest.raises(RuntimeError):
                model[0](x[:, :3])
            model[0](x)
            assert torch.equal(model(x), want)
        assert torch.equal(model(x), want)


class Counting(ThreadStreams):
    """Counts the copies that were asked for."""

    copies = 0

    def copy(self, *arguments, **options):
        self.copies += 1
        return super().copy(*arguments, **options)


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_the_next_layers_are_on_their_way_before_a_layer_computes(buffers):
    """Where computing holds the program, as on a CPU, a copy that is asked for afterwards comes too late."""
    model, x = chain()
    streams, seen = Counting(), []
    for layer in model:
        layer.forward = lambda given, own=layer.forward: seen.append(streams.copies) or own(given)
    with torch.no_grad(), WeightStreamer(list(model), streams, buffers):
        model(x)
    assert seen == [turn + buffers for turn in range(4)]


class BrokenThread(ThreadStreams):
    """The third copy fails in its thread, and is heard of where somebody waits for it."""

    def _timed(self, what, function, before):
        if what.name == "layer 2":
            raise OSError("the cable")
        return super()._timed(what, function, before)


def test_a_copy_that_fails_on_its_way_is_told_of_once_and_the_weights_come_back():
    model, x = chain()
    with torch.no_grad():
        want = model(x)
        with pytest.raises(OSError, match="the cable"), WeightStreamer(list(model), BrokenThread(), buffers=4):
            model(x)
        assert torch.equal(model(x), want)


def test_a_device_without_room_for_the_buffers_gets_the_model_back():
    model, x = chain((64, 512, 8, 8, 8))  # four buffers of the first layer's size are more than the model
    weights = account_bytes(p.nbytes for p in model.parameters())
    with torch.no_grad():
        want = model(x)
        with PlacesMeter({Place.DEVICE: weights}) as meter:
            meter.adopt(model.parameters(), "parameters", Place.DEVICE)
            with pytest.raises(torch.OutOfMemoryError), WeightStreamer(list(model), MAKE[0](), buffers=4):
                pass
            assert (meter.bytes_in(Place.DEVICE), meter.bytes_in(Place.HOST)) == (weights, 0)
        assert torch.equal(model(x), want)


class BrokenLink(SimulatedStreams):
    """The third copy fails."""

    def copy(self, *arguments, **options):
        if len([span for span in self.log if span.lane is Lane.UP]) == 2:
            raise OSError("the cable")
        return super().copy(*arguments, **options)


def test_after_a_copy_that_fails_the_weights_are_whole_and_back():
    model, x = chain()
    with torch.no_grad():
        want = model(x)
        with (
            pytest.raises(OSError, match="the cable"),
            PlacesMeter() as meter,
            WeightStreamer(list(model), BrokenLink(1e9, 1e9)),
        ):
            model(x)
        assert torch.equal(model(x), want)
    assert meter.bytes_in(Place.HOST) == 0


def test_a_host_without_room_leaves_the_model_as_it_was():
    model, x = chain()
    with torch.no_grad():
        want = model(x)
        with (
            PlacesMeter({Place.HOST: 1500}),
            pytest.raises(WorkbookError, match="the host has no room for"),
            WeightStreamer(list(model), MAKE[0]()),
        ):
            pass
        assert torch.equal(model(x), want)


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda model, x: model(x), "needs? its weights again in backward|would need its weights"),
        (lambda model, x: torch.no_grad()(lambda: (model[0](x), model[2](x)))(), "layer 2 is called where layer 1"),
    ],
)
def test_wrong_uses_are_refused(act, told):
    model, x = chain()
    with WeightStreamer(list(model), MAKE[0]()), pytest.raises(WorkbookError, match=told):
        act(model, x)


@pytest.mark.parametrize(
    ("layers", "buffers", "told"), [([], 2, "no layer"), (None, 0, "buffers is 0"), (None, True, "buf")]
)
def test_bad_input(layers, buffers, told):
    with pytest.raises(WorkbookError, match=told):
        WeightStreamer(list(chain()[0]) if layers is None else layers, MAKE[0](), buffers)


def test_no_copy_begins_before_what_used_its_memory_is_done():
    """Also the first ones: the allocator may give a buffer bytes that work under way on the device still reads."""

    class Watched(SimulatedStreams):
        def copy(self, pairs, after=(), **what):
            waits.append([event for event in after if event is not None])
            return super().copy(pairs, after, **what)

    model, x = chain()
    waits, streams = [], Watched(1000, 1000)
    _, before = streams.compute(lambda: x @ x.T)  # under way when the streamer opens
    with WeightStreamer(list(model), streams), torch.no_grad():
        model(x)
    assert len(waits) == 5
    assert all(waits)
    assert min(span.start_s for span in streams.log if span.lane is Lane.UP) >= before.handle > 0
