"""Checkpointing by hand against PyTorch's: gradients, random numbers, what is kept; and the traps of both kinds."""

import gc
import inspect

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.memory.meter.meter import Meter
from helpers.memory.meter.watch import adopt
from helpers.techniques.checkpointing import Checkpoint, checkpoint_by_function, checkpoint_by_hooks, flops_of
from tests.techniques.checkpointing.models import Block, chain, peak_bytes

OURS = (checkpoint_by_function, checkpoint_by_hooks)


def reentrant(run, *inputs):
    return checkpoint(run, *inputs, use_reentrant=True)


def non_reentrant(run, *inputs):
    return checkpoint(run, *inputs, use_reentrant=False)


def grads_of(engine, run, *inputs, seed=3):
    """Gradients of the inputs and of the parameters, and the next random number."""
    inputs = [x.clone().requires_grad_() if torch.is_tensor(x) and x.is_floating_point() else x for x in inputs]
    parameters = list(run.parameters()) if isinstance(run, nn.Module) else []
    for parameter in parameters:
        parameter.grad = None
    torch.manual_seed(seed)
    outputs = engine(run, *inputs)
    outputs = (outputs,) if torch.is_tensor(outputs) else outputs
    sum(y.square().sum() for y in outputs if torch.is_tensor(y) and y.requires_grad).backward()
    return [*(x.grad for x in inputs if torch.is_tensor(x)), *(p.grad for p in parameters), torch.rand(2)]


def same(found, expected):
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("ours", OURS)
def test_gradients_are_pytorchs_with_dropout_on(ours):
    block, x = Block(dropout=0.5), torch.randn(8, 32)
    expected = grads_of(lambda run, x: run(x), block, x)
    assert same(grads_of(ours, block, x), expected)
    assert same(grads_of(non_reentrant, block, x), expected)
    assert not same(grads_of(ours, block, x, seed=4), expected), "dropout was off: the check could not fail"


@pytest.mark.parametrize("ours", OURS)
def test_several_outputs_other_arguments_and_an_unused_input(ours):
    def run(x, factor, y, places, unused):
        return x * factor + y[places], "a label", (x * y).sum(), x.argmax()

    inputs = (torch.randn(4), 3.0, torch.randn(4), torch.tensor([0, 0, 2, 1]), torch.randn(2))
    expected = grads_of(lambda run, *inputs: run(*inputs), run, *inputs)
    assert expected[3] is None
    assert same(grads_of(ours, run, *inputs), expected)


@pytest.mark.parametrize("ours", OURS)
def test_nested_checkpoints(ours):
    blocks, x = chain(4, dropout=0.3), torch.randn(8, 32)

    def halves(x):
        return ours(blocks[2:], ours(blocks[:2], x))

    expected = grads_of(lambda run, x: run(x), blocks, x)
    for p in blocks.parameters():
        p.grad = None
    torch.manual_seed(3)
    leaf = x.clone().requires_grad_()
    ours(halves, leaf).square().sum().backward()
    assert same([leaf.grad, *(p.grad for p in blocks.parameters()), torch.rand(2)], expected)


@pytest.mark.parametrize("ours", OURS)
def test_autocast_is_the_same_the_second_time(ours):
    block, x = Block(dropout=0.0), torch.randn(8, 32)

    def in_bf16(engine):
        def step(run, x):
            with torch.autocast("cpu", torch.bfloat16):
                return engine(run, x)

        return step

    assert same(grads_of(in_bf16(ours), block, x), grads_of(in_bf16(lambda run, x: run(x)), block, x))


@pytest.mark.parametrize("engine", [*OURS, reentrant, non_reentrant])
def test_only_the_input_is_kept_and_nothing_after_backward(engine):
    block, given = Block(width=64, hidden=256), torch.randn(128, 64, requires_grad=True)
    with Meter() as meter:
        adopt(meter, block, None)
        meter.adopt([given], "given")
        there = meter.live_bytes
        x = given * 1.0
        y = engine(block, x)
        del x
        assert meter.live_bytes - there == 2 * 128 * 64 * 4  # x and y
        loss = y.sum()
        del y
        loss.backward()
        for p in (given, *block.parameters()):
            p.grad = None
        del loss
        gc.collect()
        assert meter.live_bytes == there
    meter.stop()


@pytest.mark.parametrize("ours", OURS)
def test_the_peak_of_the_backward_pass_is_that_of_pytorchs_engine(ours):
    """What is made again is freed operator by operator, and not when the last has had it."""
    real = {checkpoint_by_function: reentrant, checkpoint_by_hooks: non_reentrant}[ours]
    model, x = chain(4, width=64, hidden=256), torch.randn(128, 64, requires_grad=True)
    assert peak_bytes(model, lambda: ours(model, x).sum()) == peak_bytes(model, lambda: real(model, x).sum())


def test_hooks_give_the_way_to_a_second_backward():
    x = torch.randn(5, requires_grad=True)
    y = checkpoint_by_hooks(lambda x: x.sin().exp(), x).sum()
    (first,) = torch.autograd.grad(y, x, retain_graph=True)
    assert torch.equal(first, torch.autograd.grad(y, x)[0])


def test_an_input_changed_in_place_is_noticed_by_the_function_and_not_by_the_hooks():
    """PyTorch's engines notice it as well. Ours with hooks computes the gradient of something else: its limit."""
    for engine in (checkpoint_by_function, reentrant, non_reentrant):
        leaf = torch.ones(3, requires_grad=True)
        x = leaf * 2
        y = engine(torch.sin, x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


# --- traps of reentrant checkpointing, PyTorch's and ours ---


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("engine", [reentrant, checkpoint_by_function])
def test_trap_without_an_input_that_requires_a_gradient_nothing_is_learned(engine):
    layer, tokens = nn.Linear(4, 4), torch.randn(2, 4)
    y = engine(layer, tokens)
    assert not y.requires_grad
    (y.sum() + torch.zeros((), requires_grad=True)).backward()  # as beside another branch of a model: no error
    assert layer.weight.grad is None


@pytest.mark.parametrize("engine", [non_reentrant, checkpoint_by_hooks])
def test_the_other_kind_has_no_such_trap(engine):
    layer, tokens = nn.Linear(4, 4), torch.randn(2, 4)
    engine(layer, tokens).sum().backward()
    assert layer.weight.grad is not None


def test_trap_the_gradient_of_an_input_asked_for_by_itself():
    x, layer = torch.randn(2, 4, requires_grad=True), nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match=r"use_reentrant=True.*incompatible"):
        torch.autograd.grad(reentrant(layer, x).sum(), x)
    torch.autograd.grad(checkpoint_by_function(layer, x).sum(), x)
    assert layer.weight.grad is not None  # nobody asked for it: backward inside backward fills what it meets


@pytest.mark.parametrize("engine", [reentrant, checkpoint_by_function])
def test_trap_a_tensor_that_the_function_closes_over(engine):
    """Backward inside backward runs on into the graph that made it, once for each checkpoint, and frees it."""
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    scale = w.exp()  # neither an input of the checkpoint nor a leaf
    y = engine(lambda x: x * scale, x) + engine(lambda x: x * scale, x)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


@pytest.mark.parametrize("engine", [non_reentrant, checkpoint_by_hooks])
def test_the_other_kind_may_close_over_anything(engine):
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    scale = w.exp()
    (engine(lambda x: x * scale, x) + engine(lambda x: x * scale, x)).sum().backward()
    assert torch.allclose(w.grad, 2 * x.detach() * scale.detach())


# --- early stop ---


def test_early_stop_leaves_out_what_backward_does_not_need():
    """The last product of a layer: its output is saved by nobody inside it."""
    block, x = Block(dropout=0.0), torch.randn(8, 32, requires_grad=True)
    plain = flops_of(lambda: block(x).sum().backward())
    up = down = 2 * 8 * 32 * 96
    extra = {
        engine: flops_of(lambda engine=engine: engine(block, x).sum().backward()) - plain
        for engine in (*OURS, reentrant, non_reentrant)
    }
    assert extra == {
        checkpoint_by_function: up + down,
        reentrant: up + down,
        checkpoint_by_hooks: up,
        non_reentrant: up,
    }
    late = flops_of(lambda: checkpoint_by_hooks(block, x, early_stop=False).sum().backward()) - plain
    assert late == up + down


def test_the_function_is_small_enough_to_teach():
    assert len(inspect.getsource(Checkpoint).splitlines()) <= 30
