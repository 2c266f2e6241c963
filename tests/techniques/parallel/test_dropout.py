"""A divided layer drops what the whole one drops; and what PyTorch's own dropout does on ranks, which is the trap."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from helpers.techniques.parallel import SplitDropout
from tests.techniques.parallel import dropout_cases as cases


@pytest.fixture(params=[2, 4])
def ranks(request):
    return request.getfixturevalue(f"ranks{request.param}")


@pytest.mark.parametrize("sequence", [False, True])
def test_result_and_gradients_are_those_of_the_whole_layer(ranks, sequence):
    whole, of_x, of_up, of_down = cases.alone()
    for rank, found in enumerate(ranks.run(cases.together, sequence)):
        own = [one.chunk(ranks.count, 1)[rank] if sequence else one for one in (whole, of_x)]
        own += [of_up.chunk(ranks.count)[rank], of_down.chunk(ranks.count, 1)[rank]]
        for got, want in zip(found, own, strict=True):
            assert_close(got, want, rtol=1e-6, atol=1e-9)


def test_one_seed_makes_pytorch_drop_the_same_places_of_every_ranks_tokens(ranks2):
    first, second = ranks2.run(cases.by_pytorch, own_seeds=False)
    assert first.equal(second)


def test_own_seeds_make_ranks_disagree_on_what_all_of_them_hold(ranks2):
    first, second = ranks2.run(cases.by_pytorch, own_seeds=True)
    assert not first.equal(second)


def test_it_drops_its_share_keeps_the_mean_and_nothing_while_it_evaluates():
    drops, ones = SplitDropout(0.25, seed=3), torch.ones(400, 400)
    once, again = drops(ones), drops(ones)
    assert (once == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert once.mean().item() == pytest.approx(1, abs=0.02)
    assert not once.equal(again)
    assert drops.eval()(ones) is ones
