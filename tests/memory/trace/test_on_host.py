"""Linear layers made in host memory: only what is cast leaves the account."""

import torch
from torch import nn

from helpers.memory import trace
from helpers.memory.trace.on_host import linears_made_on_host


def sizes(cast):
    """Sizes of the parameter's blocks in the order of their making, for a layer of 256 x 256 in FP32."""
    with trace.fake("cuda") as session:
        with linears_made_on_host(session.meter):
            layer = nn.Linear(256, 256, bias=False)
            if cast:
                layer.weight = nn.Parameter(layer.weight.data.to(torch.float16))
        return [event.block.size_bytes for event in session.meter.events if event.sign > 0]


def test_a_layer_that_is_cast_never_was_on_the_device_in_its_first_type():
    assert sizes(cast=True) == [0, 2 * 256 * 256]


def test_a_layer_that_keeps_its_type_counts_where_it_was_built():
    assert sizes(cast=False) == [4 * 256 * 256]
