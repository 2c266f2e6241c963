"""The meter: a storage counts once, from its birth to its death, rounded, and not a byte past the wall."""

import gc
import weakref
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

from helpers.catalog.errors import WorkbookError
from helpers.memory.measure.traffic import Traffic
from helpers.memory.meter import meter as meter_module
from helpers.memory.meter.exports import TorchAlone
from helpers.memory.meter.meter import FreshMeter, Meter
from tests.memory.doors import Door

MIB = 2**20


def floats(mib):
    return torch.empty(mib * MIB // 4)


def test_a_storage_counts_once_whatever_looks_at_it():
    with Meter() as meter:
        x = floats(1)
        views = [x.view(-1), x[10:], x.view(2, -1).t(), x.detach(), x.add_(1), x.expand(3, -1)]
    assert (meter.live_bytes, meter.peak_bytes, len(meter.events)) == (MIB, MIB, 1)
    del x, views
    gc.collect()
    assert meter.live_bytes == 0


def test_a_storage_that_grows_counts_as_large_as_it_is():
    """By `resize_`, and as the `out=` of an operator, which grows what is too small for its answer."""
    with Meter() as meter:
        grown = torch.zeros(1).resize_(MIB // 4)
        assert (meter.live_bytes, meter.peak_bytes) == (MIB, MIB)
        torch.add(grown, 1, out=(answer := torch.empty(0)))
        assert meter.live_bytes == 2 * MIB
        answer2 = torch.zeros(1)
        torch.mul(grown, 2, out=answer2.resize_(0))
        assert meter.live_bytes == 3 * MIB
    del grown, answer, answer2
    gc.collect()
    assert meter.live_bytes == 0


def test_a_view_keeps_its_whole_storage_alive():
    with Meter() as meter:
        x = floats(1)
        view = x[:1]
        del x
        assert meter.live_bytes == MIB
        del view
    assert meter.live_bytes == 0


def test_peak_is_the_highest_point_and_frees_are_seen():
    with Meter() as meter:
        a = floats(2)
        b = floats(1)
        del a
        c = floats(1)
    assert (meter.peak_bytes, meter.live_bytes) == (3 * MIB, 2 * MIB)
    assert [event.sign for event in meter.events] == [1, 1, -1, 1]
    assert len({id(event.block) for event in meter.events}) == 3
    del b, c


@pytest.mark.parametrize(("values", "size_bytes"), [(1, 512), (128, 512), (129, 1024), (0, 0)])
def test_sizes_are_rounded_as_the_caching_allocator_does(values, size_bytes):
    with Meter() as meter:
        x = torch.empty(values)
    assert meter.live_bytes == size_bytes
    del x


def test_tensors_from_before_are_counted_when_adopted_and_not_otherwise():
    before, after = floats(1), floats(2)
    meter = Meter()
    meter.adopt([before, before.view(-1)], "parameters")
    with meter:
        after.add_(1)  # an operator returns it: from here on it is known
    assert meter.live_bytes == 3 * MIB
    assert [event.block.category for event in meter.events] == ["parameters", "workspace"]


def test_relabel_settles_what_a_live_block_is():
    with Meter() as meter:
        x, y = floats(1), floats(1)
        meter.relabel([x, torch.empty(0)], "gradients")
    assert [event.block.category for event in meter.events] == ["gradients", "workspace"]
    del x, y


def test_where_is_asked_for_each_block():
    with Meter(where=lambda: ("forward", "layer.0")) as meter:
        x = floats(1)
    assert (meter.events[0].phase, meter.events[0].block.owner) == ("forward", "layer.0")
    del x


def test_the_wall_stops_the_first_allocation_that_would_pass_it():
    with Meter(limit_bytes=3 * MIB) as meter:
        kept = [floats(1) for _ in range(3)]  # up to the last byte
        with pytest.raises(torch.OutOfMemoryError, match=r"Tried to allocate 1.00 MiB.*0.00 MiB is free"):
            floats(1)
        assert meter.live_bytes == 3 * MIB
        kept.pop()
        kept.append(floats(1))
    assert meter.peak_bytes == 3 * MIB


def test_after_stop_frees_no_longer_arrive():
    with Meter() as meter:
        x = floats(1)
    meter.stop()
    del x
    gc.collect()
    assert meter.live_bytes == MIB


def test_a_reused_address_is_a_new_storage():
    with Meter() as meter:
        for _ in range(50):
            floats(1)
    assert (meter.peak_bytes, meter.live_bytes, len(meter.events)) == (MIB, 0, 100)


class Twice(torch.autograd.Function):
    """A backward written in Python that adds two tensors of its own, one of which nobody else has."""

    @staticmethod
    def forward(context, x):
        return x * 2

    @staticmethod
    def backward(context, grad):
        return grad.clone() + grad


def born_in_backward(run):
    with Meter() as meter:
        loss = run()
        before = len(meter.events)
        loss.backward()
    return [event.block.size_bytes for event in meter.events[before:] if event.sign > 0]


def test_a_second_gradient_is_added_to_the_first_in_place():
    """Without a mode autograd does so; under any mode it makes a third tensor, which the meter leaves out."""
    weight, x = floats(1).requires_grad_(), torch.ones(())
    assert born_in_backward(lambda: (weight * x).sum() + (weight * x).sum()).count(MIB) == 2
    weight.grad = None
    assert born_in_backward(lambda: (weight * x).sum() + (weight * x).sum() + (weight * x).sum()).count(MIB) == 3


def test_the_peak_does_not_know_of_the_third_tensor():
    weight, x = floats(1).requires_grad_(), torch.ones(())
    with Meter() as meter:
        ((weight * x).sum() + (weight * x).sum()).backward()
    assert 2 * MIB <= meter.peak_bytes < 2.1 * MIB
    assert MIB <= meter.live_bytes < 1.1 * MIB
    weight.grad = None
    gc.collect()
    assert meter.live_bytes < 0.1 * MIB
    born, dead = ({id(event.block) for event in meter.events if event.sign == sign} for sign in (1, -1))
    assert dead <= born, "what lies in the first one's block is freed as that block"


def test_a_gradient_that_somebody_keeps_is_left_as_it_is():
    weight, x, kept = floats(1).requires_grad_(), torch.ones(()), []

    def run():
        products = weight * x, weight * x
        for product in products:
            product.grad_fn.register_hook(lambda to, _: kept.append(to[0]))
        return sum(product.sum() for product in products)

    assert born_in_backward(run).count(MIB) == 3


def test_a_gradient_that_is_a_view_is_left_as_it_is():
    """Its base holds the same storage. So a tied head, whose gradient is a transposed product, costs a third one."""
    weight, x = floats(1).requires_grad_(), torch.ones(())
    assert born_in_backward(lambda: sum((weight.view(512, 512) * x).sum() for _ in range(2))).count(MIB) == 3


def test_what_a_backward_of_yours_adds_is_counted():
    x = floats(1).requires_grad_()
    assert born_in_backward(lambda: Twice.apply(x).sum()).count(MIB) == 2  # the clone, and the sum


@pytest.mark.parametrize(("graph", "tensors"), [(False, 2), (True, 3)])
def test_where_the_backward_is_to_be_differentiated_nothing_is_added_in_place(graph, tensors):
    weight, x = floats(1).requires_grad_(), torch.ones(())
    with Meter() as meter:
        loss = (weight * x).sum() + (weight * x).sum()
        before = len(meter.events)
        torch.autograd.grad(loss, weight, create_graph=graph)
    assert [event.block.size_bytes for event in meter.events[before:] if event.sign > 0].count(MIB) == tensors


@pytest.mark.parametrize("kind", [Meter, FreshMeter])
def test_what_a_tensor_with_a_dispatch_of_its_own_does_is_seen(kind):
    kept = []
    with kind() as meter:
        torch.neg(Door(lambda: kept.append(torch.ones(1000))))
        assert meter.live_bytes == 4096
        assert meter.peak_bytes == 4096 + 512  # and what it gave back


def test_nobody_but_its_storage_says_that_it_is_free():
    with Meter() as meter:
        kept = torch.ones(1000)
        for reference in weakref.getweakrefs(kept.untyped_storage()):
            if reference.__callback__ is not None:
                reference.__callback__(reference)
        assert meter.live_bytes == 4096


def test_what_was_made_before_counts_once_it_grows():
    before = torch.ones(10)
    with FreshMeter() as meter:
        before.mul_(2)
        assert meter.live_bytes == 0
        before.resize_(1000)
        assert meter.live_bytes == 4096
        del before
        assert meter.live_bytes == 0


# Ways to make a tensor of 1,000 numbers that are no tensor yet.
OF_DATA = {
    "tensor": lambda data: torch.tensor(data),
    "as_tensor": lambda data: torch.as_tensor(data),
    "asarray": lambda data: torch.asarray(data),
    "FloatTensor": lambda data: torch.FloatTensor(data),
    "from_numpy": lambda data: torch.from_numpy(np.array(data, np.float32)),
    "tensor of an array": lambda data: torch.tensor(np.array(data, np.float32)),
}


@pytest.mark.parametrize("way", OF_DATA)
def test_what_is_made_of_data_counts_once(way):
    with FreshMeter() as meter:
        made = OF_DATA[way]([0.5] * 1000)
        assert meter.live_bytes == 4096
        made.mul_(2)
        assert meter.live_bytes == 4096
        del made
        assert meter.live_bytes == 0


def test_a_count_of_steps_is_no_tensor_of_a_blocks_own():
    with FreshMeter() as meter:
        kept = [torch.tensor(0.0) for _ in range(48)]  # 24,576 B in blocks of 512
        kept[0].add_(1)
    assert meter.peak_bytes == 0


def test_what_an_operator_writes_into_and_does_not_return_is_seen():
    before = [torch.ones(1000)]
    with Meter() as meter:
        torch._foreach_copy_(before, [torch.zeros(1000)])
        assert meter.peak_bytes == 2 * 4096


TREELESS = pytree.NodeDef(torch.Tensor, lambda tensor: ([], tensor), lambda leaves, tensor: tensor, None)


@pytest.mark.parametrize("kind", [Meter, FreshMeter])
def test_what_is_counted_does_not_depend_on_a_registry_that_anybody_may_change(kind):
    """PyTorch's registry of trees says that a tensor is a tree without leaves."""
    with mock.patch.dict(pytree.SUPPORTED_NODES, {torch.Tensor: TREELESS}):
        assert pytree.tree_leaves(torch.ones(1)) == []
        with kind() as meter, Traffic() as moved:
            kept = torch.zeros(1000)
        with TorchAlone(10), pytest.raises(WorkbookError, match="leave PyTorch"):
            torch.from_numpy(np.zeros(1000, np.float32)).copy_(kept)
    assert (meter.live_bytes, moved.bytes) == (4096, 4000)


@pytest.mark.parametrize("kind", [Meter, FreshMeter])
def test_no_finalizer_that_weakref_lists_leads_to_a_meter(kind):
    before = {*weakref.finalize._registry}
    given = torch.ones(1)
    with kind() as meter:
        made = given + 1
        new = [one for finalizer, one in weakref.finalize._registry.items() if finalizer not in before]
    parts = [meter, *(one for one in vars(meter).values() if isinstance(one, dict))]
    assert new
    assert [one for one in new if any(getattr(one.func, "__self__", None) is part for part in parts)] == []
    del made
    assert meter.live_bytes == 0


def test_no_function_of_its_module_leads_to_an_open_meter():
    with Meter() as meter:
        waiting, seen = (
            [one for name, one in vars(meter_module).items() if name.startswith("_") and callable(one)],
            set(),
        )
        for one in waiting:
            cells = [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
            held = [*cells, getattr(one, "__self__", None), *(one if isinstance(one, list | weakref.WeakSet) else ())]
            waiting += [each for each in held if id(each) not in seen]
            seen |= set(map(id, held))
    assert id(meter) not in seen
