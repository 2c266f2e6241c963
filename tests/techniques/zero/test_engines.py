"""FSDP2 and DeepSpeed beside ours: the same training, the bytes they hold and what they send."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.distributed as dist

from helpers.catalog import WorkbookError
from helpers.techniques.zero import Zero3, fake_ranks
from helpers.techniques.zero.deepspeed import DeepSpeed, loaded
from helpers.techniques.zero.fsdp2 import FSDP2
from tests.techniques.zero import cases, engine_cases

needs_deepspeed = pytest.mark.needs("deepspeed", "pip install -r requirements-deepspeed.txt")
FAST, FOUR = ("fsdp2", "fsdp2 host"), ("fsdp2", "deepspeed-2", "deepspeed-3")
IN_MEMORY = tuple(name for name in engine_cases.MAKERS if "disk" not in name)  # test_offload.py has the disk's


def engines(fast, names=IN_MEMORY, rest=pytest.mark.all):
    """Parameters of a test: those not in `fast` get the mark `rest`, DeepSpeed's need it installed."""
    marks = {name: [needs_deepspeed] if name.startswith("deepspeed") else [] for name in names}
    return [pytest.param(name, marks=[*marks[name], *([] if name in fast else [rest])]) for name in names]


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.all)])
def ranks(request):
    return request.getfixturevalue(f"ranks{request.param}")


def same_training(ranks, name, kind, optimizer, **options):
    losses, parameters = cases.alone(kind, optimizer)
    for mine, norms, ours in ranks.run(engine_cases.together, name, kind, optimizer, **options):
        assert mine == pytest.approx(losses, rel=1e-5)
        assert norms[0] > cases.CLIP  # as it was before clipping
        for want, got in zip(parameters, ours, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("name", engines(FAST))
def test_two_ranks_train_as_one_process(ranks2, name):
    same_training(ranks2, name, "tied", "adamw")


@pytest.mark.parametrize("name", engines((), FOUR, rest=pytest.mark.slow))
def test_four_ranks_train_as_one_process(ranks4, name):
    same_training(ranks4, name, "llama", "momentum")


@pytest.mark.all
@pytest.mark.parametrize("name", engines(["fsdp2"], FOUR))
def test_without_clipping_the_training_is_another(ranks2, name):
    """The comparison can fail."""
    with pytest.raises(AssertionError):
        same_training(ranks2, name, "tied", "momentum", clip=float("inf"))


def rows_of(kind, ranks, rank=None):
    """Bytes of FSDP2's shards: of a rank's own rows, or of as many as the first rank has, the padded part."""
    return sum(engine_cases.rows(parameter, rank or 0, ranks) for parameter in cases.build(kind).parameters())


@pytest.mark.parametrize("kind", ["wide", "tied"])
def test_fsdp2_pads_each_parameter_s_rows(ranks, kind):
    """Hence a vocabulary of 101 on four ranks: 26 rows for each, of which the last has 23 to update."""
    buffers = sum(buffer.nbytes for buffer in cases.build(kind).buffers())
    padded = rows_of(kind, ranks.count)
    for rank, step in enumerate(ranks.run(engine_cases.third_step, "fsdp2", kind)):
        mine = rows_of(kind, ranks.count, rank)
        assert step.after_backward["parameters"] == padded + buffers
        assert mine <= step.after_backward["gradients"] <= padded
        assert step.before["optimizer"] == 2 * mine


@pytest.mark.parametrize("name", ["fsdp2", "fsdp2 kept"])
def test_fsdp2_sends_what_stage_3_and_stage_2_send(ranks, name):
    rows = {
        key: -(-len(p) // ranks.count) * ranks.count * (p.nbytes // len(p))
        for key, p in cases.build("wide").named_parameters()
    }
    whole, root = sum(rows.values()), sum(size for key, size in rows.items() if ".layers." not in key)
    for step in ranks.run(engine_cases.third_step, name, "wide"):
        gathered = whole if name == "fsdp2 kept" else 2 * whole - root
        assert step.traffic.of("all_gather").payload_bytes == gathered
        assert step.traffic.of("reduce_scatter").payload_bytes == whole


@pytest.mark.parametrize(("name", "kept"), [("fsdp2", {False}), ("fsdp2 host", {True})])
def test_fsdp2_s_policy_is_every_layer_s(ranks2, name, kept):
    assert ranks2.run(engine_cases.on_the_host, name) == [kept, kept]


@pytest.mark.all
def test_every_norm_of_fsdp2_is_summed_in_one_collective(ranks2):
    """The operators within a DTensor are seen too."""
    count = len(list(cases.build("wide").parameters()))
    for step in ranks2.run(engine_cases.third_step, "fsdp2", "wide"):
        assert step.traffic.of("all_reduce").payload_bytes == 4 * count


def test_fsdp2_peaks_where_ours_does(ranks2):
    ours = ranks2.run(cases.third_step, "zero-3", "wide")[0]
    theirs = ranks2.run(engine_cases.third_step, "fsdp2", "wide")[0]
    assert theirs.peak_bytes == pytest.approx(ours.peak_bytes, rel=0.1)


@pytest.mark.slow
@needs_deepspeed
def test_deepspeed_has_a_copy_of_its_shard_even_of_an_fp32_model(ranks2):
    model = cases.build("wide")
    whole, buffers = (sum(t.nbytes for t in found) for found in (model.parameters(), model.buffers()))
    largest = max(p.nbytes for p in model.parameters())  # the one across the border stays whole on both sides
    for stage in (1, 2, 3):
        for step in ranks2.run(engine_cases.third_step, f"deepspeed-{stage}", "wide"):
            assert step.before["optimizer"] == 3 * whole // 2
            assert step.before["parameters"] == (whole // 2 if stage == 3 else whole) + buffers
            assert whole // 2 <= step.after_backward["gradients"] <= whole // 2 + largest
            assert step.before["gradients"] == (whole // 2 if stage == 3 else 0)  # stage 3 keeps the room


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize("name", ["deepspeed-2", "deepspeed-2 host", "deepspeed-3", "deepspeed-3 host"])
def test_no_buffer_of_deepspeed_s_is_missed(ranks2, name):
    """Its attributes are known by name: a release that adds one turns this red."""
    assert ranks2.run(engine_cases.unnamed_bytes, name) == [0, 0]


@pytest.mark.slow
@needs_deepspeed
@pytest.mark.parametrize(
    ("name", "passes"), [("deepspeed-0", 2), ("deepspeed-1", 3), ("deepspeed-2", 3), ("deepspeed-1 reduce", 2)]
)
def test_deepspeed_all_reduces_what_could_be_scattered(ranks2, name, passes):
    (step, *_) = ranks2.run(engine_cases.third_step, name, "wide")
    whole = sum(p.nbytes for p in cases.build("wide").parameters())
    assert float(step.traffic.passes(whole)) == pytest.approx(passes, rel=1e-4)
    assert not step.traffic.of("reduce_scatter").calls


@pytest.mark.slow
@needs_deepspeed
def test_deepspeed_s_stage_3_scatters(ranks2):
    (step, *_) = ranks2.run(engine_cases.third_step, "deepspeed-3", "wide")
    whole = sum(p.nbytes for p in cases.build("wide").parameters())
    assert step.traffic.of("reduce_scatter").payload_bytes == whole
    assert whole < step.traffic.of("all_gather").payload_bytes <= 2 * whole


@pytest.mark.slow
@needs_deepspeed
def test_a_bf16_model_s_states_are_fp32_under_deepspeed_only(ranks2):
    fsdp2, deepspeed = ranks2.run(engine_cases.states_of_a_bf16_model)[0]
    assert (fsdp2, deepspeed) == ("torch.bfloat16", "torch.float32")


@needs_deepspeed
@pytest.mark.slow
def test_engines_do_not_disturb_one_another(ranks2):
    losses, _ = cases.alone("tied", "adamw", steps=5)
    for found in ranks2.run(engine_cases.in_turn, ["deepspeed-3", "fsdp2", "deepspeed-2", "deepspeed-3"])[0]:
        assert found == pytest.approx(losses, rel=1e-5)


@needs_deepspeed
@pytest.mark.slow
def test_deepspeed_survives_a_new_process_group(ranks2):
    ranks2.run(engine_cases.together, "deepspeed-3", "tied", "adamw", 1)
    ranks2.run(dist.destroy_process_group)
    same_training(ranks2, "deepspeed-3", "tied", "adamw")


BAD = [
    (lambda: FSDP2(cases.build("mix"), torch.optim.SGD), "is in two layers", "Zero3"),
    (lambda: FSDP2(torch.nn.Linear(2, 2), torch.optim.SGD), "no list of layers", "layers="),
    pytest.param(
        lambda: DeepSpeed(cases.build("mix"), torch.optim.SGD, stage=4), "stage is 4", "stage=3", marks=needs_deepspeed
    ),
    pytest.param(
        lambda: DeepSpeed(cases.build("mix"), torch.optim.SGD, reduce_bucket=1),
        "'reduce_bucket'",
        "'reduce_bucket_size'",
        marks=needs_deepspeed,
    ),
]


@pytest.mark.parametrize(("call", "what", "do"), BAD)
def test_bad_input(call, what, do, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with fake_ranks(2), pytest.raises(WorkbookError) as error:
        call()
    assert what in error.value.what
    assert do in error.value.do


@pytest.mark.parametrize("engine", [FSDP2, DeepSpeed, Zero3])
def test_outside_of_a_rank(engine):
    with pytest.raises(WorkbookError, match="no process group"):
        engine(cases.build("mix"), torch.optim.SGD)


def test_without_deepspeed_the_way_to_get_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(WorkbookError) as error:
        loaded(torch.device("cpu"))
    assert "pip install deepspeed" in error.value.do
