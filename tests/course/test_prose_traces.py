"""Numbers in the prose of chapters 02 and 03 that a trace, a replay or a meter gives, and the causes that it names."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch.nn import functional

from helpers.lesson import job
from helpers.memory import trace
from helpers.memory.allocator import MIB, alloc, empty_cache, free, replay
from helpers.memory.meter import Meter
from helpers.memory.trace import Trace
from tests.course import prose

GIB = 2**30
pytestmark = pytest.mark.slow  # two steps of the job are traced once


@cache
def traced() -> Trace:
    return trace.train(job.SETUP, gpu="rtx-4090-24gb")


def reserved_in_forward(fewest_mib: int, most_mib: int) -> float:
    """GiB of the segments between two sizes that the first forward pass had the driver make for what is no weight."""
    sizes, before = [], 0
    for event, after in zip(traced().events, traced().on_gpu.reserved, strict=True):
        if event.phase == "backward" and event.block.category == "gradients":
            break
        if after > before and event.block.category in ("activations", "logits", "workspace"):
            sizes.append(after - before)
        before = after
    return sum(size for size in sizes if fewest_mib * MIB <= size <= most_mib * MIB) / GIB


def new_segments(size_mib: int) -> float:
    """GiB of the new segments for gradients of a size in the layers' first backward pass."""
    events, reserved = traced().events, traced().on_gpu.reserved
    grown = [
        n for n in range(2_701, 8_606) if reserved[n] > reserved[n - 1] and events[n].block.size_bytes == size_mib * MIB
    ]
    return len(grown) * size_mib * MIB / GIB


def emptied() -> float:
    """The most GiB that `empty_cache()` behind a forward pass of the job gives back, where `Trainer` calls it."""
    requests, phase = [], ""
    for event in traced().events:
        requests += [empty_cache()] if (phase, event.phase) == ("forward", "backward") else []
        block, phase = event.block, event.phase
        requests.append(alloc(id(block), block.size_bytes) if event.sign > 0 else free(id(block)))
    return max(outcome.returned_bytes for outcome in replay(requests).outcomes) / GIB


def grown_by_cat(settings: str) -> float:
    """MiB reserved for sixteen tensors of 32 MiB, each made anew 64 KiB longer 128 times."""
    events = [alloc((n, 0), 32 * MIB) for n in range(16)]
    for step in range(1, 129):
        for n in range(16):
            events += [alloc((n, step), 32 * MIB + step * 64 * 1024), free((n, step - 1))]
    return replay(events, settings).peak_reserved_bytes / MIB


def bytes_of_logits(cast: bool) -> float:
    """Bytes for each token and word at the peak of a BF16 loss and its backward pass."""
    tokens, words = 1024, 8192
    weight = torch.nn.Parameter(torch.randn(words, 64, dtype=torch.bfloat16))
    hidden = torch.randn(tokens, 64, dtype=torch.bfloat16, requires_grad=True)
    meter = Meter()
    with meter:
        logits = functional.linear(hidden, weight)
        loss = functional.cross_entropy(logits.float() if cast else logits, torch.zeros(tokens, dtype=torch.long))
        del logits
        loss.backward()
    meter.stop()
    return meter.peak_bytes / tokens / words


NUMBERS = [
    ("02", "ee5d068d", "take twelve bytes", {12: "twelve"}, lambda: round(bytes_of_logits(cast=True))),
    ("02", "ee5d068d", "would take six", {6: "six"}, lambda: round(bytes_of_logits(cast=False))),
    ("03", "03-reserved-ask", "took 17.4 GiB in segments of 56", "{:.1f}", lambda: reserved_in_forward(1, 56)),
    ("03", "03-reserved-ask", "10.5 in segments of 112", "{:.1f}", lambda: reserved_in_forward(57, 112)),
    ("03", "03-reserved-told", "need new ones: 17.3 GiB", "{:.1f}", lambda: new_segments(224)),
    ("03", "03-reserved-told", "and 2.0 for the word table", "{:.1f}", lambda: new_segments(2_004)),
    ("deeper/03", "03d-pieces", "3.9 in segments of 1,002", "{:.1f}", lambda: reserved_in_forward(1_002, 1_002)),
    ("03", "03-do-this", "reserves 1,192 MiB", "{:,.0f}", lambda: grown_by_cat("roundup_power2_divisions:4")),
    ("03", "03-do-this", "not 3,028", "{:,.0f}", lambda: grown_by_cat("")),
    ("03", "03-do-this", "18 GiB go back", "{:.0f}", emptied),
]  # fmt: skip


@pytest.mark.parametrize(
    ("chapter", "cell", "said", "form", "compute"), NUMBERS, ids=[f"{row[0]}-{row[2]}" for row in NUMBERS]
)
def test_a_number_in_the_prose_is_the_one_that_a_trace_gives(chapter, cell, said, form, compute):
    prose.require(chapter, cell, said, form, compute())
