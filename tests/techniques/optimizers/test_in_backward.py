"""A step inside backward: the weights of an ordinary step, bit for bit, tied ones once, and no gradient left."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from helpers.catalog import WorkbookError
from helpers.techniques.optimizers import AdamW8bit, step_in_backward
from tests.techniques.optimizers import small


class Tied(torch.nn.Module):
    """An embedding that is its own output head, and two layers that are one."""

    def __init__(self, recompute=False):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(20, 16)
        self.layer, self.head = torch.nn.Linear(16, 16), torch.nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight
        self.recompute = recompute

    def forward(self, ids):
        hidden = self.embedding(ids)
        for _ in range(2):
            hidden = hidden + (
                checkpoint(self.layer, hidden, use_reentrant=False) if self.recompute else self.layer(hidden)
            )
        return torch.nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), ids.flatten())


def adamw(weights):
    return torch.optim.AdamW(weights, lr=1e-2, foreach=False)


def batches(steps=3):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 20, (2, 8), generator=generator) for _ in range(steps)]


def ordinary(model, make):
    optimizer = make(list(model.parameters()))
    for ids in batches():
        model(ids).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def assert_same_weights(model, other):
    for (name, weight), reference in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(weight, reference), name


@pytest.mark.parametrize("make", [adamw, lambda weights: AdamW8bit(weights, lr=1e-2, min_8bit_size=256)])
@pytest.mark.parametrize("recompute", [False, True])
def test_weights_are_those_of_an_ordinary_step(make, recompute):
    model = Tied(recompute)
    step_in_backward(model, make)
    for ids in batches():
        model(ids).backward()
    assert_same_weights(model, ordinary(Tied(), make))


def test_of_the_small_model_too():
    model, other = small.model(), small.model()
    handle, optimizer = step_in_backward(model, adamw), adamw(list(other.parameters()))
    ids = torch.randint(0, 416, (1, 16), generator=torch.Generator().manual_seed(0))
    model(input_ids=ids, labels=ids).loss.backward()
    other(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    assert_same_weights(model, other)
    assert len(handle.optimizers) == 39


def test_no_more_than_one_gradient_exists_at_a_time():
    model, alive = Tied(), []
    for weight in model.parameters():  # hooks run in the order of their registration: these before the step
        weight.register_post_accumulate_grad_hook(
            lambda _: alive.append(sum(weight.grad is not None for weight in model.parameters()))
        )
    step_in_backward(model, adamw)
    model(batches(1)[0]).backward()
    assert alive == [1, 1, 1]  # the tied weight, used at both ends, and the layer's weight and bias, used twice
    assert all(weight.grad is None for weight in model.parameters())


def test_removed_it_leaves_gradients_alone():
    model = Tied()
    handle = step_in_backward(model, adamw)
    before = model.layer.weight.detach().clone()
    handle.remove()
    model(batches(1)[0]).backward()
    assert torch.equal(model.layer.weight, before)
    assert model.layer.weight.grad is not None


def test_what_is_frozen_has_no_optimizer():
    model = Tied()
    model.embedding.weight.requires_grad_(False)
    assert len(step_in_backward(model, adamw).optimizers) == 2


def test_two_weights_in_one_storage_are_refused():
    model = Tied()
    model.head.weight = torch.nn.Parameter(model.embedding.weight.detach())  # ties the bytes, not the gradient
    with pytest.raises(WorkbookError, match="same storage"):
        step_in_backward(model, adamw)


def test_nothing_to_train_is_refused():
    with pytest.raises(WorkbookError, match="trains nothing"):
        step_in_backward(Tied().requires_grad_(False), adamw)
