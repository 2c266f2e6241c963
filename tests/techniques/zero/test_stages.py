"""The engines on real ranks: the training of one process, the bytes of the closed form, the traffic of the formula."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from helpers.catalog import TrainSetup, WorkbookError
from helpers.catalog.split import Split
from helpers.memory.step.ranks import zero as formula
from helpers.techniques.zero import traced
from tests.techniques.zero import cases

PAIRS = {
    ("tied", "adamw"): pytest.mark.slow,
    ("mix", "momentum"): pytest.mark.slow,
    ("tied", "momentum"): pytest.mark.all,
    ("mix", "adamw"): pytest.mark.all,
}
RUNS = [pytest.param(name, *pair, marks=marks) for name in cases.ENGINES for pair, marks in PAIRS.items()]
SHARDED = {"zero-1": 1, "zero-2": 2, "zero-3": 3}
OPTIONS = [
    pytest.param("zero-1", {"host": True}, marks=pytest.mark.all),
    pytest.param("zero-2", {"host": True}, marks=pytest.mark.all),
    ("zero-3", {"host": True}),
    ("zero-3", {"prefetch": False}),
    ("zero-2", {"bucket_bytes": 1}),
    pytest.param("zero-2", {"bucket_bytes": 2**30}, marks=pytest.mark.all),
    ("ddp", {"bucket_bytes": 2**30}),
    ("zero-3", {"master": torch.float64}),
]
KINDS = ["tied", *(pytest.param(kind, marks=pytest.mark.all) for kind in ("wide", "llama"))]


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.all)])
def ranks(request):
    return request.getfixturevalue(f"ranks{request.param}")


def same_training(ranks, name, kind, optimizer, **options):
    """Ten steps on the ranks against ten in one process. What no loss reaches has no gradient there, and zero here."""
    losses, parameters = cases.alone(kind, optimizer)
    names = [key for key, _ in cases.build(kind).named_parameters()]
    for mine, ours in ranks.run(cases.together, name, kind, optimizer, **options):
        assert mine == pytest.approx(losses, rel=1e-5)
        for key, want, got in zip(names, parameters, ours, strict=True):
            if key != "unused":
                # a hundredth of one of Adam's ten steps
                torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4, msg=key)


@pytest.mark.parametrize(("name", "kind", "optimizer"), RUNS)
def test_four_ranks_train_as_one_process(ranks4, name, kind, optimizer):
    same_training(ranks4, name, kind, optimizer)


@pytest.mark.parametrize("name", cases.ENGINES)
def test_two_ranks_train_as_one_process(ranks2, name):
    same_training(ranks2, name, "llama", "adamw")


@pytest.mark.all
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_with_its_options_too(ranks2, name, options):
    same_training(ranks2, name, "tied", "adamw", **options)


@pytest.mark.all
def test_without_clipping_the_training_is_another(ranks2):
    """The comparison can fail: this one differs in nothing but the norm to which gradients are clipped."""
    clipped, free = cases.alone("tied", "momentum")[0], cases.alone("tied", "momentum", clip=float("inf"))[0]
    assert clipped != pytest.approx(free, rel=1e-3)
    with pytest.raises(AssertionError):
        same_training(ranks2, "zero-2", "tied", "momentum", clip=float("inf"))


def setup_of(kind, stage, ranks, optimizer="adamw-foreach"):
    return TrainSetup(
        cases.build(kind).config, "fp32", optimizer, cases.ROWS // ranks, cases.TOKENS, split=Split(ranks, zero=stage)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", range(4))
def test_what_each_rank_holds_and_sends_is_what_the_closed_form_says(ranks, monkeypatch, stage, kind):
    name = ("ddp", "zero-1", "zero-2", "zero-3")[stage]
    monkeypatch.setattr(formula, "BUCKET_BYTES", 4000)
    setup = setup_of(kind, stage, ranks=ranks.count)
    held, sent = formula.held(setup).device, formula.traffic(setup)
    for step in ranks.run(cases.third_step, name, kind):
        for part in ("parameters", "gradients", "optimizer"):
            beside = 4 * sum(buffer.numel() for buffer in cases.build(kind).buffers()) if part == "parameters" else 0
            assert step.after_backward[part] == held[part] + beside, part
        norms = 4 if stage else 0  # one number, so that all clip alike
        assert step.traffic.payload_bytes == sent.payload_bytes + norms


@pytest.mark.all
@pytest.mark.parametrize("stage", range(4))
def test_passes_are_two_two_two_and_nearly_three(ranks, stage):
    name = ("ddp", "zero-1", "zero-2", "zero-3")[stage]
    model = cases.build("wide")
    psi = sum(p.nbytes for p in model.parameters())
    root = psi - sum(p.nbytes for p in model.model.layers.parameters())
    (step, *_) = ranks.run(cases.third_step, name, "wide")
    wanted = 3 * psi - root if stage == 3 else 2 * psi
    assert step.traffic.passes(psi) * psi == wanted + 8 * (stage > 0)  # the norm's all-reduce: 4 bytes, twice around
    assert step.traffic.sent_bytes == pytest.approx(wanted * (ranks.count - 1) / ranks.count, rel=1e-5)


@pytest.mark.parametrize("stage", range(4))
def test_the_traced_rank_is_the_measured_one(ranks, stage):
    """The same engine on fake tensors and a fake group: held bytes and traffic to the byte, the peak within 1 %."""
    name = ("ddp", "zero-1", "zero-2", "zero-3")[stage]
    (step, *_) = ranks.run(cases.third_step, name, "wide", **({} if stage == 3 else {"bucket_bytes": 25 * 2**20}))
    found = traced(setup_of("wide", stage, ranks=ranks.count), on="cpu")
    assert found.holds.total == step.before.total
    assert found.traffic.payload_bytes == step.traffic.payload_bytes
    assert found.trace.peak_bytes == pytest.approx(step.peak_bytes, rel=0.01)


def test_a_traced_rank_recomputes_as_its_setup_says():
    none, full = (
        traced(replace(setup_of("wide", 3, ranks=4), checkpointing=policy, sequence=512), on="cpu").trace
        for policy in ("none", "full")
    )
    assert full.measured.saved_bytes < 0.5 * none.measured.saved_bytes


@pytest.mark.parametrize("tier", ["offload_optimizer", "offload_parameters"])
def test_a_rank_that_offloads_is_not_traced(tier):
    """A trace counts one device's memory: what is on the host would be counted on it."""
    with pytest.raises(WorkbookError, match=f"{tier} is 'cpu'") as error:
        traced(replace(setup_of("wide", 3, ranks=4), **{tier: "cpu"}), on="cpu")
    assert "held(setup)" in error.value.do


@pytest.mark.parametrize(("name", "passes"), [("ddp", 8), ("zero-1", 2), ("zero-2", 5)])
def test_accumulation_adds_up_and_costs_what_the_formula_says(ranks2, name, passes):
    """Over four micro-batches; this DDP reduces in each of them, as PyTorch's does outside of no_sync()."""
    for difference, carried in ranks2.run(cases.accumulated, name, 4):
        assert difference < 1e-6
        assert carried == pytest.approx(passes, rel=0.02)


def test_the_optimizer_on_the_host_leaves_the_device(ranks2):
    (step, *_) = ranks2.run(cases.third_step, "zero-2", "wide", host=True)
    plan = replace(setup_of("wide", 2, ranks=2), offload_optimizer="cpu")
    shard = formula.held(plan).host["gradients"]
    assert "optimizer" not in step.after_backward
    assert step.after_backward["host"] + step.after_backward["gradients"] == formula.held(plan).host.total
    assert formula.link_bytes(plan).down_bytes == formula.link_bytes(plan).up_bytes == shard
