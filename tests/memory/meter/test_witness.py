"""An independent witness: PyTorch's own profiler counts the bytes of the same step, inside the CPU allocator."""

import gc
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from helpers.catalog import TrainSetup
from helpers.memory import measure, rounded
from helpers.memory.measure import steps
from helpers.memory.meter.meter import Meter

CASES = [
    ("tiny-llama", "fp32", "adamw-fused", 2, 128),
    ("tiny-llama", "autocast-bf16", "adamw-fused", 2, 128, "every:2"),
    ("tiny-gpt2", "bf16", "adamw-foreach", 1, 32),
    pytest.param(("tiny-gpt2", "fp32", "adamw-fused", 1, 256, "none", "eager"), marks=pytest.mark.all),
    pytest.param(("tiny-qwen3", "bf16", "sgd-momentum", 2, 128, "full"), marks=pytest.mark.all),
    ("tiny-llama", "torchao-fp8", "sgd", 1, 64),
]
# What the two may differ by: the meter rounds each tensor to 512 bytes, the profiler sees an operator's temporaries.
ALLOWED = 0.001


# What these take for themselves and give back before they return depends on the CPU: oneDNN packs matrices for the
# instructions that it finds. The meter counts what operators return.
KERNELS = {
    "aten::mm",
    "aten::_scaled_mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
}


def allocations(nodes, kernel=None):
    """(time, bytes, address, the kernel it happened in) of every allocation and free in the profiler's tree."""
    for node in nodes:
        if node.tag.name == "Allocation":
            yield node.start_time_ns, node.extra_fields.alloc_size, node.extra_fields.ptr, kernel
        inside = kernel or (node.id if node.name in KERNELS else None)
        yield from allocations(node.children, inside)


def without_scratch(events):
    """The events in order, less what one kernel both allocated and freed."""
    events = sorted(events, key=lambda event: event[0])
    born, scratch = {}, set()
    for number, (_, size, address, kernel) in enumerate(events):
        if size > 0:
            born[address] = number, kernel
        elif kernel is not None and born.get(address, (None, None))[1] == kernel:
            scratch |= {born[address][0], number}
    return [event for number, event in enumerate(events) if number not in scratch]


def witnessed_bytes(run):
    """The highest running total of allocations less frees, from the profiler's own memory events."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run.step()
    total = peak = 0
    for _, size, _, _ in without_scratch(allocations(profiler.profiler.kineto_results.experimental_event_tree())):
        total += size
        peak = max(peak, total)
    assert total == 0, "a step in its stride frees what it allocates"
    return peak


def standing_bytes(run):
    """Rounded bytes that the step finds there: the model, its buffers and the optimizer's states."""
    states = [v for state in run.optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    tensors = (*run.model.parameters(), *run.model.buffers(), *states)
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(map(rounded, storages.values()))


def metered_bytes(run):
    return measure.step(run.step, run.model, run.optimizer, warmup=0).peak_bytes - standing_bytes(run)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "-".join(map(str, case)))
def warm_run(request):
    run = steps.training_run(TrainSetup(*request.param), "cpu")
    run.step()
    gc.collect()
    return run


def test_the_meter_and_the_profiler_see_the_same_peak(warm_run):
    assert metered_bytes(warm_run) == pytest.approx(witnessed_bytes(warm_run), rel=ALLOWED)


def test_the_meter_knows_which_gradients_autograd_adds_in_place(warm_run, monkeypatch):
    """Under a mode it adds none so. Without one, the profiler sees `add_` where a node's gradients come together."""
    taken, add_in_place = [], Meter._add_in_place
    monkeypatch.setattr(Meter, "_add_in_place", lambda self, *how: taken.append(add_in_place(self, *how)))
    metered_bytes(warm_run)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        warm_run.step()
    engine = "autograd::engine::evaluate_function"
    added = [e for e in profiler.events() if e.name == "aten::add_" and e.cpu_parent and engine in e.cpu_parent.name]
    assert len(taken) == len(added) > 10


def test_a_meter_that_misses_frees_is_found_out(monkeypatch):
    run = steps.training_run(TrainSetup(*CASES[0]), "cpu")
    run.step()
    truth = witnessed_bytes(run)
    monkeypatch.setattr(Meter, "_freed", lambda self, key: self.live.pop(key))
    assert metered_bytes(run) > (1 + 100 * ALLOWED) * truth


def test_a_meter_that_counts_views_again_is_found_out(monkeypatch):
    run = steps.training_run(TrainSetup(*CASES[0]), "cpu")
    run.step()
    truth, see = witnessed_bytes(run), Meter._see

    def by_tensor(self, tensor, category="workspace"):
        self.live.pop(tensor.untyped_storage()._cdata, None)
        see(self, tensor, category)

    monkeypatch.setattr(Meter, "_see", by_tensor)
    monkeypatch.setattr(Meter, "_freed", lambda self, key: None)
    assert metered_bytes(run) > (1 + 100 * ALLOWED) * truth


def a_weight_used_twice():
    weight, x = torch.zeros(1024, 1024, requires_grad=True), torch.ones(())

    def step():
        ((weight * x).sum() + (weight * x).sum()).backward()
        weight.grad = None

    return SimpleNamespace(step=step)


def test_two_gradients_are_added_in_place_when_nobody_watches(monkeypatch):
    """Autograd makes a third tensor under any mode, the meter's too: the profiler sees the step without it."""
    run = a_weight_used_twice()
    truth = witnessed_bytes(run)
    assert truth == pytest.approx(2 * 4 * 2**20, rel=ALLOWED)
    with Meter() as meter:
        run.step()
    assert meter.peak_bytes == pytest.approx(truth, rel=ALLOWED)
    monkeypatch.setattr("helpers.memory.meter.meter.adds_gradients", lambda *_: False)
    with Meter() as meter:
        run.step()
    assert meter.peak_bytes == pytest.approx(1.5 * truth, rel=ALLOWED)
