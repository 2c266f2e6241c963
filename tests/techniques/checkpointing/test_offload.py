"""Activations in host memory: what leaves, what stays, what comes back, and when the peak rises."""

import pytest
import torch
from torch import nn

from helpers.techniques.checkpointing import NaiveOffload, Offload
from helpers.techniques.checkpointing.offload import on_host
from tests.techniques.checkpointing.models import chain, decoder, forward_of, gradients, peak_bytes, saved_bytes


def through(offload, forward):
    def run():
        with offload:
            return forward()

    return run


@pytest.mark.parametrize("kind", [NaiveOffload, Offload, torch.autograd.graph.save_on_cpu])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_gradients_do_not_notice(name, kind):
    model = decoder(name)
    forward = forward_of(model)
    plain = gradients(model, forward)
    assert all(torch.equal(a, b) for a, b in zip(plain, gradients(model, through(kind(), forward)), strict=True))


def test_a_storage_saved_by_three_operators_moves_once():
    weights = [torch.randn(64, 64, requires_grad=True) for _ in range(3)]
    given = torch.randn(32, 64)

    def run(offload):
        with offload:
            x = given.exp()
            y = sum(x @ w for w in weights) + (x.T @ x.detach()).sum()
        y.sum().backward()
        return offload

    size = 32 * 64 * 4
    naive, real = run(NaiveOffload()), run(Offload(keep=weights))
    assert naive.bytes_out == naive.bytes_back == 3 * size  # none of the weights: x needs no gradient
    assert (real.bytes_out, real.bytes_back) == (size, size)


def test_views_of_one_storage_come_back_as_they_were():
    base = torch.arange(24.0).view(4, 6)
    views = [base[1:3], base.T, base[:, ::2], base.reshape(-1)[5:9], base.view(torch.int32)]
    offload = Offload(small_bytes=0)
    packed = [offload.pack(view) for view in views]
    assert offload.bytes_out == base.nbytes
    for _ in range(2):  # and again, as after retain_graph
        for view, one in zip(views, packed, strict=True):
            back = offload.unpack(one)
            assert torch.equal(back, view)
            assert (back.stride(), back.dtype) == (view.stride(), view.dtype)
            assert back.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()
        assert offload._last is None
    assert offload.bytes_back == 2 * base.nbytes


def test_a_new_tensor_at_an_old_address_is_another_one():
    offload, seen = Offload(small_bytes=0), set()
    packed = []
    for value in range(20):
        tensor = torch.full((1000,), float(value))
        seen.add(tensor.data_ptr())
        packed.append(offload.pack(tensor))
        del tensor
    assert len(seen) < 20, "no address came twice: the check could not fail"
    assert [offload.unpack(one)[0].item() for one in packed] == list(range(20))
    assert not offload._known


def test_parameters_and_small_tensors_stay():
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
    offload = Offload(keep=model.parameters())
    x = torch.randn(16, 64)
    model_out = through(offload, lambda: model(x))()
    assert offload.bytes_out == 2 * 16 * 64 * 4  # the two inputs
    assert offload.bytes_left == 2 * 16 * 4  # mean and 1/std
    model_out.sum().backward()
    assert offload.bytes_back == offload.bytes_out


def test_less_stays_on_the_device_and_the_peak_falls():
    model, x = chain(8, width=64, hidden=256), torch.randn(64, 64, requires_grad=True)
    forward = lambda: model(x).square().sum()  # noqa: E731
    offloaded = through(Offload(keep=model.parameters()), forward)
    assert saved_bytes(model, offloaded) < 0.15 * saved_bytes(model, forward)
    assert peak_bytes(model, offloaded) < 0.4 * peak_bytes(model, forward)


def test_the_naive_one_raises_the_peak_where_a_weight_is_larger_than_what_is_saved():
    """Weights are saved for backward too. Each comes back as a copy beside the one that never left."""
    model, x = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512)), torch.randn(4, 32, requires_grad=True)
    forward = lambda: model(x).sum()  # noqa: E731
    plain, real = peak_bytes(model, forward), peak_bytes(model, through(Offload(keep=model.parameters()), forward))
    naive = peak_bytes(model, through(NaiveOffload(), forward))
    weight = 512 * 512 * 4
    assert real <= plain + 4 * 512 * 4
    assert naive > plain + weight // 2


def test_host_copies_are_copies_and_out_of_the_meters_sight():
    from helpers.memory.meter.meter import Meter

    x = torch.ones(1000)
    with Meter() as meter:
        host = on_host(x)
        assert meter.live_bytes == 0
        _ = x + 1
    meter.stop()
    x.zero_()
    assert host.sum() == 1000


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinned memory needs a GPU")
def test_on_a_gpu_copies_are_pinned_and_memory_is_given_back():
    model, x = chain(8, width=512, hidden=2048).cuda(), torch.randn(512, 512, device="cuda")
    plain = torch.cuda.memory_allocated()
    y = model(x)
    kept = torch.cuda.memory_allocated() - plain
    del y
    offload = Offload(keep=model.parameters())
    y = through(offload, lambda: model(x))()
    assert torch.cuda.memory_allocated() - plain < 0.2 * kept
    y.sum().backward()
    assert on_host(x).is_pinned()
    assert offload.bytes_back >= offload.bytes_out
