"""`measure.step` on steps of one's own: it sees every byte, changes nothing, and leaves nothing behind."""

import gc
import inspect
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.modules import module as global_hooks
from torch.optim import optimizer as optimizer_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from helpers.catalog import TrainSetup, WorkbookError
from helpers.memory import budget, measure
from helpers.memory.breakdown import Phase

WIDTH, ROWS = 256, 64
MATRIX = 4 * WIDTH * WIDTH  # bytes of one weight
ACTIVATION = 4 * ROWS * WIDTH


@pytest.fixture
def mlp():
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))


def training(model, optimizer, rows=ROWS, micro_batches=1):
    """A step as people write it; every micro-batch goes through forward and backward before the optimizer."""
    x = torch.randn(rows, WIDTH)

    def run():
        for _ in range(micro_batches):
            model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


def phase(measured, name):
    return next(moment for moment in measured.moments if moment.name == name)


def of_modules(measured):
    """What the modules saved; what the loss outside of them saved has no owner."""
    return {name: size for name, size in measured.saved_by_module.items() if name}


def global_hook_count():
    registries = [
        value
        for holder in (global_hooks, optimizer_hooks)
        for name, value in vars(holder).items()
        if name.startswith("_global") and hasattr(value, "__len__")
    ]
    assert len(registries) > 4, "torch keeps its global hooks elsewhere now"
    return sum(map(len, registries))


def test_an_mlp_byte_for_byte(mlp):
    sgd = torch.optim.SGD(mlp.parameters(), lr=0.1, momentum=0.9, foreach=True)
    measured = measure.step(training(mlp, sgd), mlp, sgd)
    last = phase(measured, "optimizer step")
    assert dict(last.parts) == {"parameters": 3 * MATRIX, "gradients": 3 * MATRIX, "optimizer": 3 * MATRIX}
    assert of_modules(measured) == {"0": ACTIVATION, "1": ACTIVATION, "2": ACTIVATION}  # the input is the caller's
    highest = max(measured.timeline.total(at) for at in range(len(measured.timeline)))
    assert measured.peak_bytes == measured.peak.total == highest
    assert (measured.device, measured.unseen_bytes) == ("cpu", 0)
    assert measured.seconds > 0


def test_accumulating_micro_batches_keeps_gradients_and_not_activations(mlp):
    sgd = torch.optim.SGD(mlp.parameters(), lr=0.1)
    once = measure.step(training(mlp, sgd, rows=4 * ROWS), mlp, sgd)
    in_four = measure.step(training(mlp, sgd, micro_batches=4), mlp, sgd)
    assert sum(of_modules(once).values()) == 4 * sum(of_modules(in_four).values()) == 4 * 3 * ACTIVATION
    assert "gradients" not in phase(once, "forward").parts
    assert phase(in_four, "forward").parts["gradients"] == 3 * MATRIX  # they wait for the next micro-batch


def test_a_step_without_an_optimizer_keeps_its_gradients(mlp):
    x = torch.randn(ROWS, WIDTH)
    measured = measure.step(lambda: mlp(x).mean().backward(), mlp)
    assert [moment.name for moment in measured.moments] == ["forward", "backward"]
    assert phase(measured, "forward").parts["gradients"] == 3 * MATRIX  # those of the warm-up step
    assert "optimizer" not in measured.timeline.parts


def two_optimizers(mlp):
    """Muon-like: matrices of momentum for the first layer, two states for the others; and a step of both."""
    sgd = torch.optim.SGD(mlp[0].parameters(), lr=0.1, momentum=0.9, foreach=True)
    adam = torch.optim.AdamW([*mlp[1].parameters(), *mlp[2].parameters()], foreach=True)
    x = torch.randn(ROWS, WIDTH)

    def run():
        mlp(x).square().mean().backward()
        for optimizer in (sgd, adam):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return sgd, adam, run


PASSED = {
    "several": lambda *both: both,
    "in a dict": lambda sgd, adam: {"hidden": sgd, "rest": adam},
    "one of two": lambda sgd, adam: sgd,
    "none": lambda *both: None,
}


@pytest.mark.parametrize("passed", PASSED.values(), ids=PASSED)
def test_several_optimizers_are_counted_whole(mlp, passed):
    sgd, adam, run = two_optimizers(mlp)
    measured = measure.step(run, mlp, passed(sgd, adam))
    assert phase(measured, "optimizer step").parts["optimizer"] == (1 + 2 * 2) * MATRIX + 2 * 512
    assert [moment.name for moment in measured.moments] == list(Phase)


def test_states_that_nobody_named_are_refused_and_not_left_out(mlp):
    sgd, adam, run = two_optimizers(mlp)
    run()
    with pytest.raises(WorkbookError, match=r"(?s)AdamW has states from before.*pass all that step"):
        measure.step(run, mlp, sgd, warmup=0)
    assert "optimizer" in measure.step(run, mlp, [sgd, adam], warmup=0).parts


def test_an_optimizer_that_others_wrap_is_known_by_its_states(mlp):
    adam = torch.optim.AdamW(mlp.parameters(), foreach=True)
    run = training(mlp, adam)
    run()

    class Wrapping(torch.optim.Optimizer):  # as accelerate's
        def __init__(self):
            self.param_groups, self.state = adam.param_groups, adam.state

    assert measure.step(run, mlp, Wrapping(), warmup=0).parts["optimizer"] == 6 * MATRIX + 3 * 512


def test_an_optimizer_of_one_step_alone_is_not_kept_alive(mlp):
    x = torch.randn(ROWS, WIDTH)

    def run():
        adam = torch.optim.AdamW(mlp.parameters(), foreach=True)
        mlp(x).square().mean().backward()
        adam.step()
        adam.zero_grad(set_to_none=True)

    assert "optimizer" not in phase(measure.step(run, mlp), "forward").parts


def test_a_step_inside_the_backward_is_the_backward_s(mlp):
    makers = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9, foreach=True) for p in mlp.parameters()}

    def update(p):
        makers[p].step()
        makers[p].zero_grad(set_to_none=True)

    x = torch.randn(ROWS, WIDTH)
    handles = [p.register_post_accumulate_grad_hook(update) for p in makers]
    measured = measure.step(lambda: mlp(x).square().mean().backward(), mlp, makers)
    assert [moment.name for moment in measured.moments] == ["forward", "backward"]
    assert max(measured.timeline.parts["gradients"]) == MATRIX  # one at a time, each freed where it was used
    assert measured.parts["optimizer"] == 3 * MATRIX
    assert measured.peak_bytes < measure.step(run_of(mlp, handles), mlp).peak_bytes


def run_of(mlp, handles):
    """The same training with the optimizer after the backward."""
    for handle in handles:
        handle.remove()
    return training(mlp, torch.optim.SGD(mlp.parameters(), lr=0.1, momentum=0.9, foreach=True))


def test_states_inside_objects_are_seen(mlp):
    """As galore-torch keeps its projector."""

    class Holder:
        def __init__(self, tensor):
            self.matrix = tensor

    sgd = torch.optim.SGD(mlp.parameters(), lr=0.1)
    sgd.state[mlp[0].weight]["projector"] = Holder(torch.ones(1024))
    assert measure.step(training(mlp, sgd), mlp, sgd).parts["optimizer"] == 4096


def test_without_warmup_the_states_are_made_before_our_eyes(mlp):
    adam = torch.optim.AdamW(mlp.parameters(), fused=True)
    run = training(mlp, adam)
    first, second = measure.step(run, mlp, adam, warmup=0), measure.step(run, mlp, adam, warmup=0)
    assert (first.seconds, "optimizer" in phase(first, "forward").parts) == (None, False)
    assert first.timeline.parts["optimizer"][-1] == phase(second, "forward").parts["optimizer"] >= 6 * MATRIX


def test_a_leak_stands_in_the_timeline(mlp):
    sgd, history, x = torch.optim.SGD(mlp.parameters(), lr=0.1), [], torch.randn(ROWS, WIDTH)

    def leaky():
        loss = mlp(x).square().mean()
        loss.backward(retain_graph=True)
        history.append(loss)
        sgd.step()
        sgd.zero_grad()

    clean = measure.step(training(mlp, sgd), mlp, sgd).timeline
    leaked = measure.step(leaky, mlp, sgd).timeline
    end, clean_end = leaked.breakdown(len(leaked) - 1), clean.breakdown(len(clean) - 1)
    assert clean_end == {"parameters": 3 * MATRIX}
    assert end["activations"] >= 3 * ACTIVATION


@pytest.mark.parametrize("warmup", [0, 1])
def test_a_step_that_raises_leaves_nothing_behind(mlp, warmup):
    adam = torch.optim.AdamW(mlp.parameters())
    before, calls = global_hook_count(), []

    def breaks():
        loss = mlp(torch.randn(ROWS, WIDTH)).mean()
        loss.backward()
        adam.step()
        calls.append(1)
        if len(calls) > warmup:
            raise RuntimeError("the reader's own mistake")

    with pytest.raises(RuntimeError, match="own mistake"):
        measure.step(breaks, mlp, adam, warmup=warmup)
    assert global_hook_count() == before
    assert not _get_current_dispatch_mode_stack()
    assert not any(p._post_accumulate_grad_hooks for p in mlp.parameters())
    assert measure.step(training(mlp, adam), mlp, adam).peak_bytes > 0


def test_a_step_that_raises_inside_a_module_leaves_the_names_right(mlp):
    def breaks():
        mlp(torch.randn(ROWS, WIDTH + 1))

    for _ in range(2):
        with pytest.raises(RuntimeError, match="shapes"):
            measure.step(breaks, mlp, warmup=0)
    sgd = torch.optim.SGD(mlp.parameters(), lr=0.1)
    assert set(of_modules(measure.step(training(mlp, sgd), mlp, sgd))) == {"0", "1", "2"}


def test_measuring_changes_no_weight():
    def train(measured):
        torch.manual_seed(7)
        model = nn.Linear(WIDTH, 4)
        adam = torch.optim.AdamW(model.parameters())
        run = training(model, adam)
        if measured:
            measure.step(run, model, adam, warmup=1)
        else:
            run(), run()
        return model.weight.detach()

    assert torch.equal(train(measured=True), train(measured=False))


def test_recomputed_activations_belong_to_the_backward():
    setup = TrainSetup("tiny-llama", "fp32", "sgd", 4, 128, "full")
    plain, checkpointed = (measure.training_step(s, "cpu") for s in (replace(setup, checkpointing="none"), setup))
    assert checkpointed.saved_bytes < plain.saved_bytes / 2
    at_end = budget.train(setup).moments[0].parts
    assert checkpointed.saved_bytes == pytest.approx(at_end["activations"] + 4 * 4 * 128 * 4096, rel=0.01)


def test_a_frozen_layer_has_no_gradient(mlp):
    mlp[0].weight.requires_grad_(False)
    sgd = torch.optim.SGD((p for p in mlp.parameters() if p.requires_grad), lr=0.1)
    measured = measure.step(training(mlp, sgd), mlp, sgd)
    assert phase(measured, "optimizer step").parts["gradients"] == 2 * MATRIX


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (("not a function", nn.Linear(1, 1)), "run is a str"),
        ((lambda: None, "not a model"), "model is a str"),
        ((lambda: None, nn.Linear(1, 1), "adamw"), "an optimizer is a str"),
        ((lambda: None, nn.Linear(1, 1), [nn.Linear(1, 1)]), "an optimizer is a Linear"),
    ],
)
def test_bad_arguments_are_told_apart(arguments, phrase):
    with pytest.raises(WorkbookError, match=phrase):
        measure.step(*arguments)


def test_a_measurement_holds_no_tensor_alive(mlp):
    sgd = torch.optim.SGD(mlp.parameters(), lr=0.1)
    measured = measure.step(training(mlp, sgd), mlp, sgd)
    gc.collect()
    assert not any(isinstance(found, torch.Tensor) for found in gc.get_referents(*vars(measured).values()))
    assert inspect.signature(measure.step).parameters["warmup"].default == 1
