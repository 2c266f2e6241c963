"""Several models under one budget."""

import pytest
import torch
from torch import nn

from helpers.catalog.errors import WorkbookError
from helpers.memory.meter.places import Place, PlacesMeter
from helpers.techniques.offload.models import ModelPool
from helpers.techniques.offload.streams import CudaStreams, SimulatedStreams, ThreadStreams

STREAMS = [lambda: SimulatedStreams(64e9, 1e12), ThreadStreams]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cuda":
    STREAMS = [CudaStreams]
X = torch.ones(1, 64, device=DEVICE)
SIZE = 64 * 64 * 4 + 256  # a layer's weight and bias: 16,640, rounded to 16,896


def models(count=3):
    torch.manual_seed(0)
    return {name: nn.Linear(64, 64).to(DEVICE) for name in "abcdef"[:count]}


@pytest.fixture(params=STREAMS)
def filled(request):
    made = models()
    wanted = {name: model(X).detach() for name, model in made.items()}
    pool = ModelPool(2 * 16896, request.param())
    for name, model in made.items():
        pool.add(name, model)
    return pool, wanted


def run(pool, name, wanted):
    with pool.use(name) as model, torch.no_grad():
        assert torch.equal(model(X), wanted[name])


def test_the_least_recently_used_makes_room(filled):
    pool, wanted = filled
    for name, loaded in (("a", "a"), ("b", "ab"), ("a", "ba"), ("c", "ac"), ("b", "cb"), ("b", "cb")):
        run(pool, name, wanted)
        assert pool.loaded == tuple(loaded)
    assert (pool.loads, pool.hits, pool.evictions, pool.loaded_bytes) == (4, 2, 2, 4 * SIZE)


def test_what_is_in_use_stays(filled):
    pool, wanted = filled
    with pool.use("a") as a, pool.use("b"):
        with pytest.raises(WorkbookError, match="models in use hold 33,792 of 33,792"), pool.use("c"):
            pass
        assert pool.loaded == ("a", "b")
        assert torch.equal(a(X).detach(), wanted["a"])
    with pool.use("a"), pool.use("a"):
        run(pool, "b", wanted)
        run(pool, "c", wanted)
        assert pool.loaded == ("a", "c")
    run(pool, "b", wanted)


def test_nothing_is_evicted_for_a_load_that_cannot_be():
    torch.manual_seed(0)
    pool = ModelPool(3 * 16896, STREAMS[0]())
    for name, width in (("a", 64), ("b", 64), ("wide", 160)):
        pool.add(name, nn.Linear(64, width).to(DEVICE))
    with pool.use("b"):
        pass
    with pool.use("a"), pytest.raises(WorkbookError, match="'wide' takes"), pool.use("wide"):
        pass
    assert pool.loaded == ("b", "a")


def test_bytes_follow_the_pool_to_the_byte():
    made = models()
    with PlacesMeter() as meter:
        for model in made.values():
            meter.adopt(model.parameters(), "parameters")
        pool = ModelPool(2 * 16896, STREAMS[0]())
        for name, model in made.items():
            pool.add(name, model)
        assert (meter.bytes_in(Place.DEVICE), meter.bytes_in(Place.HOST)) == (0, 3 * 16896)
        for name in "abcab":
            with pool.use(name):
                assert meter.bytes_in(Place.DEVICE) == pool.used_bytes <= pool.budget_bytes
        assert meter.peak_in(Place.HOST) == 3 * 16896


def test_a_load_that_fails_leaves_nothing_on_the_device(filled):
    pool, wanted = filled
    with PlacesMeter() as meter:
        copy = pool.streams.copy

        def failing(*arguments, **options):
            raise OSError("the cable")

        pool.streams.copy = failing
        with pytest.raises(OSError, match="the cable"), pool.use("a"):
            pass
        assert (meter.bytes_in(Place.DEVICE), pool.loaded, pool.loads) == (0, (), 0)
        pool.streams.copy = copy
    run(pool, "a", wanted)


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda pool: pool.add("a", nn.Linear(2, 2)), "there is a model 'a' already"),
        (lambda pool: pool.add("big", nn.Linear(1000, 1000)), "'big' takes 4,004,352 bytes, and the budget is 33,792"),
        (lambda pool: pool.use("z").__enter__(), "unknown model 'z'"),
        (lambda pool: pool.add("none", nn.ReLU()), "'none' has no weights"),
        (lambda pool: ModelPool(0, pool.streams), "budget_bytes is 0"),
    ],
)
def test_bad_input(filled, act, told):
    with pytest.raises(WorkbookError, match=told):
        act(filled[0])
