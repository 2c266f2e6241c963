"""Counted bytes and FLOPs: what operators move, what a meter sees, what autograd keeps, which slices are cut."""

from collections import Counter
from functools import partial
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from torch.nn.functional import scaled_dot_product_attention as sdpa

from helpers.catalog import TrainSetup
from helpers.catalog.errors import WorkbookError
from helpers.memory.measure import Traffic
from helpers.memory.meter import FreshMeter
from helpers.memory.step.activations import ATTENTION, OUTPUT, layer_operators
from helpers.techniques import attention
from helpers.techniques.attention import counts
from helpers.techniques.attention.counts import Call
from helpers.techniques.attention.tiles import Cut
from tests.techniques.attention.drawn import cases

MASK_MAKING = {"arange", "le", "ge", "gt", "lt", "bitwise_not", "bitwise_and", "bitwise_or", "eq"}
FORMATS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def tensors_of(call, grads=False):
    shapes = [(call.heads, call.queries), (call.kv_heads, call.keys), (call.kv_heads, call.keys)]
    dtype = FORMATS[call.number_format]
    return [torch.randn(call.batch, heads, n, call.head_dim).to(dtype).requires_grad_(grads) for heads, n in shapes]


SMALL = Call(40, 56, heads=6, kv_heads=2, head_dim=8, batch=2, number_format="fp32", tile=(16, 24))
CALLS = [SMALL, Call(33, heads=2, kv_heads=2, head_dim=16, number_format="bf16", tile=(8, 8)), Call(1, 64, 4, 1, 8)]


@pytest.mark.parametrize("call", CALLS)
def test_naive_is_what_its_operators_move(call):
    tensors = tensors_of(call, grads=True)
    with Traffic() as forward:
        output = attention.naive(*tensors)
    grad = torch.randn_like(output)
    with Traffic() as backward:
        torch.autograd.grad(output, tensors, grad)
    for measured, counted in ((forward, counts.naive(call)), (backward, counts.naive_backward(call))):
        kernels = [work for name, work in measured.kernels if name not in MASK_MAKING]
        assert sum(work.bytes for work in kernels) == counts.sum_of(counted).bytes
        assert measured.flops == counts.sum_of(counted).flops


@pytest.mark.parametrize("call", CALLS)
def test_saved_bytes(call):
    tensors = tensors_of(call, grads=True)
    for kernel, expected in (
        (attention.naive, call.naive_saved_bytes),
        (attention.attention, call.saved_bytes),
        (partial(sdpa, enable_gqa=True), call.saved_bytes),
    ):
        kept: dict[int, torch.UntypedStorage] = {}

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            kernel(*tensors)
        assert sum(storage.nbytes() for storage in kept.values()) == expected


def test_the_closed_form_of_a_step_keeps_the_same():
    setup = TrainSetup("llama-3-8b", precision="bf16", sequence=4096, attention="sdpa")
    kept = {one.name: one for one in layer_operators(setup, setup.model.layers[0])}
    assert [name for name, _ in kept[ATTENTION].kept] == ["q, k, v", "log-sum-exp"]
    assert kept[ATTENTION].total + kept[OUTPUT].total == Call(4096).saved_bytes


PEAKS = [
    Call(tokens, 0, heads, kv_heads, 64, 1, attention.Causal(), number_format, (tile, tile))
    for tokens, heads, kv_heads, number_format, tile in [
        (256, 4, 4, "fp32", 128),
        (1024, 4, 4, "fp32", 128),
        (1000, 4, 2, "fp32", 128),
        (300, 4, 4, "fp32", 16),
        (64, 4, 4, "fp32", 128),
        (500, 4, 4, "bf16", 64),
        (500, 4, 2, "bf16", 64),
    ]
]


@pytest.mark.parametrize("call", PEAKS)
def test_peaks(call):
    tensors, tile = tensors_of(call), call.tile
    with FreshMeter() as naive:
        attention.naive(*tensors)
    with FreshMeter() as forward:
        output, log_sum_exp = attention.tiled(*tensors, tile=tile)
    grad = output.clone()
    with FreshMeter() as backward:
        attention.tiled_backward(*tensors, output, log_sum_exp, grad, tile=tile)
    assert naive.peak_bytes == call.naive_peak_bytes
    assert forward.peak_bytes == call.peak_bytes + call.working_set_bytes
    assert backward.peak_bytes == call.backward_peak_bytes


def test_the_working_set_does_not_know_the_length():
    of_many, of_few = (Call(tokens, heads=4, kv_heads=4, number_format="fp32") for tokens in (2**16, 2**9))
    assert of_many.working_set_bytes == of_few.working_set_bytes


class Cuts(Counter):
    """Bytes of the slices that kernels cut, by the tensor that they are cut from; "made" for those made inside."""

    def __init__(self, **tensors):
        super().__init__()
        self.names = {tensor.untyped_storage()._cdata: name for name, tensor in tensors.items()}

    def watched(self, method):
        def cut(of, tensor, at):
            part = method(of, tensor, at)
            self[self.names.get(tensor.untyped_storage()._cdata, "made")] += part.nbytes
            return part

        return cut

    def __enter__(self):
        self.patches = [mock.patch.object(Cut, name, self.watched(getattr(Cut, name))) for name in ("rows", "slots")]
        for patch in self.patches:
            patch.start()
        return self

    def __exit__(self, *problem):
        for patch in self.patches:
            patch.stop()


def call_of(case):
    heads = case.kv_heads * case.group
    return Call(case.queries, case.keys, heads, case.kv_heads, 8, case.batch, case.mask, "fp32", case.tile)


@settings(max_examples=100, deadline=None)
@given(cases)
def test_tiled_reads_the_slices_that_it_cuts(case):
    call = call_of(case)
    q, k, v = tensors_of(call)
    with Cuts(q=q, k=k, v=v) as cuts:
        output, log_sum_exp = attention.tiled(q, k, v, case.mask, case.tile)
    counted = counts.tiled(call)
    assert cuts["q"] + cuts["k"] + cuts["v"] == counted.read_bytes
    assert output.nbytes + log_sum_exp.nbytes == counted.written_bytes


@settings(max_examples=100, deadline=None)
@given(cases)
def test_tiled_backward_reads_the_slices_that_it_cuts(case):
    call = call_of(case)
    q, k, v = tensors_of(call)
    output, log_sum_exp = attention.tiled(q, k, v, case.mask, case.tile)
    grad = output.clone()
    with Cuts(q=q, k=k, v=v, log_sum_exp=log_sum_exp, grad=grad) as cuts:
        attention.tiled_backward(q, k, v, output, log_sum_exp, grad, case.mask, case.tile)
    counted = counts.tiled_backward(call)
    of_inside = cuts["log_sum_exp"] + cuts["q"]  # delta is read; the gradient of q is read, and then written
    of_keys = cuts["k"] + cuts["v"]  # and as much of their gradients is written
    assert cuts["made"] == of_inside + of_keys
    delta = 2 * call.query_bytes
    assert counted.read_bytes == delta + of_keys + cuts["q"] + cuts["grad"] + cuts["log_sum_exp"] + of_inside
    zeros = call.query_bytes + 2 * call.key_bytes - of_keys
    assert counted.written_bytes == zeros + call.sum_bytes + cuts["q"] + of_keys


def test_flops_of_a_causal_mask():
    call = Call(4096, heads=1, kv_heads=1, head_dim=64)
    assert counts.tiled(call).flops == 4 * 64 * 528 * 128**2
    assert counts.tiled_backward(call).flops == 10 * 64 * 528 * 128**2


def test_splits_read_the_keys_once():
    call = Call(1, 4096, number_format="bf16")
    for splits in (1, 2, 32):
        parts = counts.split(call, splits)
        assert parts["splits"].read_bytes == splits * call.query_bytes + 2 * call.key_bytes
        assert parts["merge"].read_bytes == parts["splits"].written_bytes == splits * 32 * (128 + 1) * 4


def test_a_tile_as_large_as_everything_moves_everything_once():
    call = Call(300, 300, mask=attention.Full(), tile=(512, 512))
    assert counts.tiled(call).bytes == counts.once(call).bytes + call.sum_bytes
    assert counts.tiled(call).flops == counts.once(call).flops


@pytest.mark.parametrize("wrong", [{"queries": 0}, {"heads": 3}, {"tile": (0, 8)}, {"number_format": "fp7"}])
def test_sizes_that_are_none(wrong):
    with pytest.raises(WorkbookError):
        counts.tiled(Call(**{"queries": 8, **wrong}))
