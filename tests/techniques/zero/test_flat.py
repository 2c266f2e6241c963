"""Buffers, buckets and units, in one process that is one of several ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.catalog import WorkbookError
from helpers.memory.measure import held
from helpers.techniques.zero import DDP, Bucket, FlatBucket, Unit, Zero1, Zero3, buckets, fake_ranks, units
from helpers.techniques.zero.stage3 import decoder_layers
from tests.techniques.zero.cases import Mix

ADAM = torch.optim.AdamW


def parameters(*sizes):
    return [nn.Parameter(torch.arange(float(size)) + 100 * at) for at, size in enumerate(sizes)]


def test_ten_values_on_four_ranks_are_padded_to_twelve():
    with fake_ranks(4, rank=3):
        flat = FlatBucket(parameters(7, 3))
        assert (flat.values, flat.length) == (10, 12)
        assert flat.data.tolist() == [0, 1, 2, 3, 4, 5, 6, 100, 101, 102, 0, 0]
        assert flat.mine(flat.data).tolist() == [102, 0, 0]


def test_the_parameters_live_in_the_buffer():
    with fake_ranks(2):
        one, other = parameters(4, 2)
        flat = FlatBucket([one, other])
        flat.data.zero_()
        assert one.tolist() == [0, 0, 0, 0]
        assert other.untyped_storage().data_ptr() == flat.data.untyped_storage().data_ptr()


def test_gradients_are_taken_and_freed():
    with fake_ranks(2):
        one, other, without = parameters(2, 1, 2)
        one.grad, other.grad = torch.tensor([5.0, 6.0]), torch.tensor([7.0])
        assert Bucket([one, other, without]).take_gradients().tolist() == [5, 6, 7, 0, 0, 0]
        assert one.grad is other.grad is without.grad is None


def test_a_unit_has_no_bytes_between_release_and_gather():
    with fake_ranks(2):
        (weight,) = parameters(6)
        unit = Unit([weight])
        view = weight.view(2, 3)
        unit.release()
        assert held({"whole": [weight, view, unit.data]}) == {"whole": 0}
        unit.gather()
        unit.wait()
        assert view.untyped_storage().nbytes() == 24  # the same storage: what autograd saved is filled again
        assert unit.whole


@settings(max_examples=100)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(4, 300))
def test_buckets_hold_every_parameter_once_from_the_last_on(sizes, bucket_bytes):
    given_ones = parameters(*sizes)
    groups = buckets(given_ones, bucket_bytes)
    assert [id(p) for group in groups for p in group] == [id(p) for p in reversed(given_ones)]
    for group in groups[:-1]:
        assert sum(p.nbytes for p in group) >= bucket_bytes  # closed when full
    for group in groups:
        assert sum(p.nbytes for p in group[:-1]) < bucket_bytes  # and not before


@settings(max_examples=50)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 7))
def test_the_shards_of_all_ranks_are_the_buffer(sizes, ranks):
    shards = []
    for rank in range(ranks):
        with fake_ranks(ranks, rank):
            flat = FlatBucket(parameters(*sizes))
            shards.append(flat.mine(flat.data).clone())
    assert len({len(shard) for shard in shards}) == 1
    assert torch.equal(torch.cat(shards), flat.data)
    assert flat.length - flat.values < ranks


def test_what_two_layers_share_is_the_root_s():
    model = Mix()
    root, *layers = units(model, list(model.layers))
    assert {id(p) for p in root} == {id(model.embedding.weight), id(model.unused), id(model.layers[0][2].bias)}
    assert [len(layer) for layer in layers] == [3, 4, 3]
    assert sum(map(len, (root, *layers))) == len(list(model.parameters()))


def test_the_decoder_s_list_is_found():
    model = Mix()
    assert decoder_layers(model) is model.layers


def mixed():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].half()
    return model


BAD = [
    (lambda: Zero1(nn.Linear(2, 2), ADAM), "there is no process group", "torchrun"),
    (lambda: DDP(nn.Linear(2, 2), ADAM), "there is no process group", "torchrun"),
]
BAD_ON_A_RANK = [
    (lambda: Zero1(mixed(), ADAM), "2 kinds", "model.to("),
    (lambda: Zero3(nn.Linear(2, 2), ADAM), "no list of layers", "layers="),
    (lambda: fake_ranks(2).__enter__(), "a rank already", "in the notebook itself"),
]


@pytest.mark.parametrize(("call", "what", "do"), BAD)
def test_outside_of_a_rank(call, what, do):
    with pytest.raises(WorkbookError) as error:
        call()
    assert what in error.value.what
    assert do in error.value.do


@pytest.mark.parametrize(("call", "what", "do"), BAD_ON_A_RANK)
def test_bad_models(call, what, do):
    with fake_ranks(2), pytest.raises(WorkbookError) as error:
        call()
    assert what in error.value.what
    assert do in error.value.do
