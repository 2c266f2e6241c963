"""The causes that chapter 08 names, each beside its control."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.functional import silu

from helpers.catalog import Adapter
from helpers.course import notebook as nb
from helpers.lesson import job
from helpers.memory import budget, offload
from helpers.memory.meter import Place, PlacesMeter
from helpers.memory.meter.places import at
from helpers.small_lm import load
from helpers.techniques.offload import engines
from tests.course import prose_numbers_08 as numbers
from tests.house.tree import ROOT


@cache
def sources() -> dict[str, str]:
    (path,) = (ROOT / "notebooks").glob("08_*.ipynb")
    return {cell.id: cell.source for cell in nb.read(path).cells}


def defined(cell: str, name: str, **known: Any) -> Any:
    """What a cell of the chapter defines, from its own text."""
    source = sources()[cell].partition("\nstep = ")[0].replace("from helpers.lesson.drawing.lanes import lanes", "")
    exec(source, names := {"torch": torch, "nn": nn, "at": at, "Place": Place, "silu": silu, **known})
    return names[name]


def host_adamw(parameters, **options):
    return defined("08-host-adamw", "HostAdamW")(parameters, **options)


def card_peak(way, tokens: int) -> float:
    """MiB of the small model's second step, its optimizer on the host."""
    net, ids = load().model, torch.randint(0, 100, (1, tokens), generator=torch.Generator().manual_seed(0))
    with PlacesMeter() as meter:
        meter.adopt([weight.data for weight in net.parameters()], "parameters", Place.DEVICE)
        optimizer = host_adamw(net.parameters(), lr=1e-3)
        for _ in range(2):
            with way(net):
                loss = net(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            del loss
    return meter.peak_in(Place.DEVICE) / 2**20


def without_weights(net):
    hooks = engines.save_on_cpu()
    own = {weight.untyped_storage().data_ptr() for weight in net.parameters()}

    def pack(tensor):
        return tensor if tensor.untyped_storage().data_ptr() in own else hooks.pack_hook(tensor)

    return saved_tensors_hooks(pack, lambda kept: kept if torch.is_tensor(kept) else hooks.unpack_hook(kept))


def test_save_on_cpu_raises_the_peak_of_four_tokens_by_the_weights_that_come_back():
    kept = card_peak(lambda net: nullcontext(), 4)
    assert card_peak(lambda net: engines.save_on_cpu(), 4) > kept + 0.1
    assert card_peak(without_weights, 4) < kept - 0.1
    assert card_peak(lambda net: engines.save_on_cpu(), 256) < card_peak(lambda net: nullcontext(), 256) / 2


def losses_and_weights(make, precision=torch.float32, passes: int = 1, lr: float = 1e-3, steps: int = 3):
    net, losses = load().model.to(precision), []
    optimizer = make(net.parameters(), lr=lr)
    batches = torch.randint(0, 100, (steps, passes, 1, 32), generator=torch.Generator().manual_seed(0))
    for batch in batches:
        for ids in batch:
            (loss := net(input_ids=ids, labels=ids, use_cache=False).loss).backward()
        optimizer.step()
        net.zero_grad()
        losses.append(loss.item())
    return losses, [weight.detach().clone() for weight in net.parameters()], optimizer


@pytest.mark.parametrize("passes", [1, 3])
def test_the_optimizer_on_the_host_computes_what_the_card_s_would(passes):
    ours, plain = (losses_and_weights(make, passes=passes) for make in (host_adamw, fused))
    assert ours[0] == plain[0]
    assert all(map(torch.equal, ours[1], plain[1]))


def fused(parameters, **options):
    return torch.optim.AdamW(parameters, fused=True, **options)


def test_small_updates_are_kept_by_the_copy_in_fp32_and_lost_without_it():
    before = [weight.detach() for weight in load().model.bfloat16().parameters() if weight.dim() > 1]
    _, bf16, _ = losses_and_weights(fused, torch.bfloat16, lr=1e-6)
    _, _, kept = losses_and_weights(host_adamw, torch.bfloat16, lr=1e-6)
    copies = [copy for weight, copy in kept.copies.items() if weight.dim() > 1]
    moved_bf16 = share_moved(before, [weight for weight in bf16 if weight.dim() > 1])
    moved_copies = share_moved(before, copies)
    assert moved_bf16 < 0.1
    assert moved_copies > 0.9


def share_moved(before, after) -> float:
    moved = sum((one.float() != other.float()).sum().item() for one, other in zip(before, after, strict=True))
    return moved / sum(one.numel() for one in before)


def step_seconds(slot: float = 1.0, host: float = 1.0) -> float:
    """The drawn step's, with a slot or a host's memory so many times as fast."""
    flown, flops = numbers.FLOWN, numbers.FLOPS
    times = {"forward_s": flown.forward / flops, "backward_s": (flown.backward + flown.recomputed) / flops}
    rates = {"SLOT": slot * numbers.SLOT, "weights": numbers.WEIGHTS}
    one_step = defined("08-step", "one_step", **times, **rates, update_s=28 * numbers.WEIGHTS / host / numbers.HOST)
    return max(span.end_s for span in one_step())


def test_a_step_waits_for_the_host_s_memory_and_hardly_for_the_slot():
    step = step_seconds()
    assert step == pytest.approx(numbers.STEP_S)
    assert step_seconds(slot=2) > 0.97 * step
    assert step_seconds(host=2) < 0.7 * step


def test_a_request_that_is_refused_raises_and_pages_that_are_touched_are_another_matter():
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        torch.empty(10**15, dtype=torch.uint8)
    assert torch.empty(2**30, dtype=torch.uint8).numel() == 2**30  # granted, and no page of it is there


FAULTS = """
import resource, time, torch
def step(**how):
    weight = torch.zeros(2**23, requires_grad=True)
    weight.grad, optimizer = torch.ones(2**23), torch.optim.AdamW([weight], **how)
    optimizer.step()
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
    for _ in range(3):
        optimizer.step()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 3, time.process_time() - began
fused, foreach = step(fused=True), step(foreach=True)
print(fused[0], foreach[0], foreach[1] / fused[1])
"""
KEEPS = {"MALLOC_MMAP_THRESHOLD_": f"{2**32}", "MALLOC_TRIM_THRESHOLD_": f"{2**35}", "MALLOC_TOP_PAD_": f"{2**31}"}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="variables of glibc")
def test_an_update_without_fused_pays_for_fresh_pages_and_for_more_operators():
    found = []
    for more in ({}, KEEPS):
        words, where = [sys.executable, "-c", FAULTS], {**os.environ, "OMP_NUM_THREADS": "1", **more}
        done = subprocess.run(words, env=where, capture_output=True, text=True, check=True, timeout=120)
        found.append([float(one) for one in done.stdout.split()])
    (fused, fresh, ratio), (_, kept, ratio_kept) = found
    assert fused < 100 < 8000 < fresh
    assert kept < 100
    assert min(ratio, ratio_kept) > 1.5  # by how much pages alone slow it is seconds, which a busy machine bends


def test_two_buffers_are_at_most_twice_as_fast_as_one():
    ratios = []
    for copy, work in ((1, 0.01), (1, 0.5), (1, 1), (1, 3), (1, 100)):
        ratios.append(
            offload.overlapped_s([copy] * 80, [work] * 80, 1) / offload.overlapped_s([copy] * 80, [work] * 80)
        )
    assert max(ratios) <= 2
    assert ratios[2] > 1.9


def test_a_larger_batch_leaves_bytes_and_work_in_proportion_and_a_longer_sequence_does_not():
    qlora = replace(job.SETUP, adapter=Adapter(targets="all-linear", base="nf4-dq"))
    one, eight = (budget.bytes_saved_by(replace(qlora, micro_batch=count), numbers.LAYER) for count in (1, 8))
    assert eight == pytest.approx(8 * one, rel=0.01)
    assert numbers.work_s(65_536) / 65_536 > 2 * numbers.work_s(2_048) / 2_048


def mixture(middle: int = 512):
    torch.manual_seed(0)
    return defined("08-host-experts", "HostExperts")(width=64, middle=middle, experts=16, top=4)


def test_experts_on_the_host_give_what_all_experts_together_would():
    layer, x = mixture(), torch.randn(5, 64)
    with torch.no_grad():
        shares, chosen = layer.router(x).softmax(-1).topk(4)
        every = torch.stack([silu(x @ up.T) @ down.T for up, down in zip(layer.up, layer.down, strict=True)], 1)
        expected = (shares[..., None] * every[torch.arange(5)[:, None], chosen]).sum(1)
        torch.testing.assert_close(layer(x), expected)


def test_what_is_sent_depends_on_tokens_and_what_is_read_on_experts():
    found = {}
    for middle in (512, 1024):
        for tokens in (1, 8):
            layer = mixture(middle)
            with torch.no_grad():
                layer(torch.randn(1, 64).expand(tokens, 64))  # all choose the same
            found[middle, tokens] = layer.sent, layer.read
    assert found[512, 8][0] == 8 * found[512, 1][0] == found[1024, 8][0]
    assert found[512, 8][1] == found[512, 1][1] == found[1024, 1][1] / 2
