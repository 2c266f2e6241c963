"""Results that are remembered are those that an operator gives, and only where nothing else can happen."""

import pytest
import torch

from helpers.memory import trace
from helpers.memory.trace.shapes import ShapeCache


def remembered(run):
    """The same asked three times, and how many results are remembered."""
    shapes = ShapeCache()
    with trace.fake("cpu"):
        results = [run(lambda func, *args: shapes.call(func, args, {})) for _ in range(3)]
    return results, len(shapes.known)


def facts(tensor):
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def test_a_new_tensor_has_the_same_shape_and_its_own_memory():
    def run(asked):
        return asked(torch.ops.aten.mm.default, torch.empty(3, 4), torch.empty(4, 5))

    results, known = remembered(run)
    assert known == 1
    assert len({facts(one) for one in results}) == 1
    assert len({one.untyped_storage()._cdata for one in results}) == 3


def test_a_view_shares_the_memory_of_its_argument():
    def run(asked):
        base = torch.empty(4, 6)
        return base, asked(torch.ops.aten.slice.Tensor, base, 1, 2, 5)

    results, known = remembered(run)
    assert known == 1
    for base, view in results:
        assert facts(view) == (torch.Size([4, 3]), (6, 1), 2, torch.float32)
        assert view.untyped_storage()._cdata == base.untyped_storage()._cdata


def test_a_view_whose_schema_does_not_say_so_shares_it_too():
    def run(asked):
        base = torch.empty(4, 6)
        return base, asked(torch.ops.aten._unsafe_view.default, base, [24])

    for base, view in remembered(run)[0]:
        assert view.untyped_storage()._cdata == base.untyped_storage()._cdata


def test_arguments_that_differ_in_type_or_stride_are_other_arguments():
    with trace.fake("cpu"):
        shapes, x = ShapeCache(), torch.empty(4, 4)
        add = torch.ops.aten.add.Scalar
        results = [shapes.call(add, (x.int(), value), {}).dtype for value in (1, 1.0, True, 1)]
        assert results == [torch.int32, torch.float32, torch.int32, torch.int32]
        relu = torch.ops.aten.relu.default
        assert shapes.call(relu, (x,), {}).stride() != shapes.call(relu, (x.t(),), {}).stride()


def test_what_writes_and_what_returns_several_is_never_remembered():
    with trace.fake("cpu"):
        shapes, x = ShapeCache(), torch.empty(4, 4)
        assert shapes.call(torch.ops.aten.add_.Tensor, (x, x), {}) is x
        assert len(shapes.call(torch.ops.aten.max.dim, (x, 0), {})) == 2
        assert not shapes.known


FOREACH = (
    (torch.ops.aten._foreach_sqrt.default, 1, ()),
    (torch.ops.aten._foreach_add.List, 2, ()),
    (torch.ops.aten._foreach_mul_.Scalar, 1, (2.0,)),
    (torch.ops.aten._foreach_addcdiv_.ScalarList, 3, ([0.5] * 4,)),
)


def weights(lists):
    """Four places in each list, of two kinds."""
    return [[torch.empty(3, 4), torch.empty(5), torch.empty(3, 4), torch.empty(4, 3).t()] for _ in range(lists)]


class Counted:
    """An operator, and how many tensors it was asked for."""

    def __init__(self, func):
        self.func, self._schema, self.places = func, func._schema, 0

    def __call__(self, *args, **kwargs):
        self.places += len(args[0])
        return self.func(*args, **kwargs)


@pytest.mark.parametrize(("func", "lists", "more"), FOREACH, ids=lambda one: str(one) if callable(one) else "")
def test_of_lists_of_tensors_each_kind_is_asked_for_once(func, lists, more):
    with trace.fake("cpu"):
        shapes, counted = ShapeCache(), Counted(func)
        results = [shapes.call(counted, (*weights(lists), *more), {}) for _ in range(2)]
        truth = func(*weights(lists), *more)
    assert counted.places == 3
    assert [one and [facts(tensor) for tensor in one] for one in results] == [truth and [*map(facts, truth)]] * 2
    storages = {tensor.untyped_storage()._cdata for one in results for tensor in one or ()}
    assert len(storages) == (8 if truth else 0)


def test_lists_that_do_not_fit_are_the_operators_to_refuse():
    with trace.fake("cpu"):
        shapes, add = ShapeCache(), torch.ops.aten._foreach_add_.List
        shapes.call(add, ([torch.empty(3)], [torch.empty(3)]), {})
        with pytest.raises(RuntimeError):
            shapes.call(add, ([torch.empty(3), torch.empty(4)], [torch.empty(3), torch.empty(7)]), {})
        with pytest.raises(RuntimeError):
            shapes.call(add, ([torch.empty(3)] * 2, [torch.empty(3)]), {})


def test_numbers_whose_values_are_known_are_left_to_the_fake_mode():
    with trace.fake("cpu"):
        shapes, steps = ShapeCache(), [torch.tensor(0.0), torch.tensor(0.0)]
        for _ in range(2):
            shapes.call(torch.ops.aten._foreach_add_.Scalar, (steps, 1), {})
    assert [step.constant.item() for step in steps] == [2, 2]
