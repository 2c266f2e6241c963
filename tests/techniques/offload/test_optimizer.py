"""AdamW on the host: the same weights, a device without gradients and states, and bytes as predicted."""

import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.memory.meter.places import Place, PlacesMeter, account_bytes
from helpers.small_lm.model import untrained
from helpers.techniques.offload.optimizer import HOST_BYTES, HostAdamW
from helpers.techniques.offload.streams import CudaStreams, Lane, SimulatedStreams, ThreadStreams

STREAMS = [lambda: SimulatedStreams(64e9, 1e12), ThreadStreams]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cuda":
    STREAMS = [STREAMS[0], CudaStreams]
OPTIONS = {"lr": 1e-3, "weight_decay": 0.1}


def batch(seed, rows=1, words=16):
    return torch.randint(1, 100, (rows, words), generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def trained(model, optimizer, steps=3, passes=1):
    losses = []
    for step in range(steps):
        for number in range(passes):
            ids = batch(10 * step + number)
            loss = model(ids, labels=ids).loss / passes
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        model.zero_grad()
    return losses


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("streams", STREAMS)
def test_weights_are_those_of_the_optimizer_on_the_device(streams, passes):
    models = [untrained(0).to(DEVICE) for _ in range(2)]
    plain = torch.optim.AdamW(models[0].parameters(), fused=True, **OPTIONS)
    host = HostAdamW(models[1].parameters(), streams(), **OPTIONS)
    losses = [trained(model, one, passes=passes) for model, one in zip(models, (plain, host), strict=True)]
    if DEVICE == "cpu":
        assert losses[0] == losses[1]
        assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_the_master_weights_hear_what_bf16_cannot():
    model = torch.nn.Linear(64, 64).bfloat16()
    reference = torch.nn.Linear(64, 64)
    reference.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    host = HostAdamW(model.parameters(), STREAMS[0](), lr=1e-6)
    plain = torch.optim.AdamW(reference.parameters(), lr=1e-6)
    for _ in range(20):
        for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
            parameter.sum().backward()
            other.grad = torch.ones_like(other)
        host.step()
        plain.step()
    for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(host.masters[parameter], other.detach())
        assert torch.equal(parameter, other.bfloat16())


def test_bytes_of_each_place_to_the_byte():
    model = untrained(0)
    parameters = list(model.parameters())
    weights = account_bytes(p.nbytes for p in parameters)
    buffers = 2 * max(p.nbytes for p in parameters)
    ids = batch(0)
    with PlacesMeter() as meter:
        meter.adopt(parameters, "parameters")
        optimizer = HostAdamW(parameters, STREAMS[0](), **OPTIONS)
        assert meter.bytes_in(Place.HOST) == weights + buffers  # masters alone: moments come with the first step
        loss = model(ids, labels=ids).loss
        loss.backward()
        last = account_bytes(one.nbytes for one in (model.model.layers[0].input_layernorm.weight, parameters[0]))
        assert meter.bytes_in(Place.HOST) == 2 * weights + buffers - last  # two gradients are still on their way
        del loss
        optimizer.step()
        counts = account_bytes(4 for _ in parameters)  # AdamW's steps, a tensor for each parameter
        assert meter.bytes_in(Place.HOST) == 3 * weights + buffers + counts
        assert meter.peak_in(Place.HOST) == 4 * weights + buffers + counts
        assert all(p.grad is None for p in parameters)
    values = sum(p.numel() for p in parameters)
    assert sum(HOST_BYTES.values()) * values == 4 * sum(p.nbytes for p in parameters)
    held = {what: sum(t.nbytes for t in tensors) for what, tensors in optimizer.holds().items()}
    assert held == {"master weights": 4 * values, "moments": 8 * values, "gradients": 0}


def test_gradients_leave_in_the_weights_format_in_every_pass_and_weights_come_once():
    model, streams = torch.nn.Linear(64, 32).bfloat16(), SimulatedStreams(64e9, 1e12)
    optimizer = HostAdamW(model.parameters(), streams, **OPTIONS)
    for _ in range(2):
        model(torch.ones(4, 64, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    moved = {lane: sum(span.size_bytes for span in streams.log if span.lane is lane) for lane in (Lane.UP, Lane.DOWN)}
    assert moved == {Lane.UP: 2 * (64 * 32 + 32), Lane.DOWN: 2 * 2 * (64 * 32 + 32)}


def test_what_got_no_gradient_is_left_alone():
    used, unused = (torch.nn.Parameter(torch.ones(8)) for _ in range(2))
    streams = SimulatedStreams(64e9, 1e12)
    optimizer = HostAdamW([used, unused], streams, **OPTIONS)
    for _ in range(2):
        used.sum().backward()
        optimizer.step()
    assert [span.size_bytes for span in streams.log if span.lane is Lane.UP] == [32, 32]
    assert torch.equal(unused, torch.ones(8))
    assert not torch.equal(used, torch.ones(8))


def test_a_host_that_runs_out_says_so_and_the_device_is_as_before():
    model = untrained(0)
    weights = account_bytes(p.nbytes for p in model.parameters())
    before = [p.clone() for p in model.parameters()]
    with PlacesMeter({Place.HOST: weights}) as meter:
        meter.adopt(model.parameters(), "parameters")
        with pytest.raises((WorkbookError, torch.OutOfMemoryError), match="host"):
            HostAdamW(model.parameters(), STREAMS[0](), **OPTIONS)
        assert meter.bytes_in(Place.DEVICE) == weights
    ids = batch(0)
    model(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters())  # no hook was left on the model
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_closed_it_leaves_gradients_alone():
    model = torch.nn.Linear(4, 4)
    HostAdamW(model.parameters(), STREAMS[0]()).close()
    model(torch.ones(1, 4)).sum().backward()
    assert model.weight.grad is not None


def test_nothing_to_train_is_refused():
    with pytest.raises(WorkbookError, match="no parameter wants a gradient"):
        HostAdamW([torch.ones(3)], STREAMS[0]())
