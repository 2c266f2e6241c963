"""The runner on real ranks: the gradients of the unsplit model, bytes as predicted, sentences for the rest."""

from __future__ import annotations

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.lesson.ranks import Ranks
from helpers.lesson.ranks.errors import RankError
from helpers.techniques.parallel.pipeline import StageBytes, in_flight, predicted_peak, traffic
from helpers.techniques.parallel.pipeline.deferred import defer_weights
from helpers.techniques.parallel.pipeline.engines import SCHEDULES, stages_of
from tests.techniques.parallel import pipeline_cases as cases
from tests.versions import since

NAMES = ("gpipe", "1f1b", "interleaved", "zero-bubble")
BOUNDARY_BYTES, TIED_BYTES = 8 * cases.ROWS * cases.TOKENS * cases.WIDTH, 8 * cases.VOCAB * cases.WIDTH
RANKS = [2, 4]
sends_to_no_rank_itself = since("torch", "2.12", "connects two stages of one rank by a message, which gloo refuses")
THEIRS = [pytest.param(name, marks=sends_to_no_rank_itself if name == "ZBVZeroBubble" else ()) for name in SCHEDULES]


@pytest.fixture(params=RANKS)
def ranks(request):
    return request.getfixturevalue(f"ranks{request.param}")


def same_step(found, micro_batches: int, tied: bool = False) -> None:
    """Each rank's (loss, gradients): the loss on one of them, the gradients of every parameter of the whole model."""
    loss, gradients = cases.alone(micro_batches, tied)
    assert [mean.item() for mean, _ in found if mean is not None] == [pytest.approx(loss, abs=1e-12)]
    together = {}
    for _, mine in found:
        for name, gradient in mine.items():
            torch.testing.assert_close(gradient, gradients[name], rtol=0, atol=1e-12, msg=name)
        together |= mine
    assert together.keys() == gradients.keys()


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("uneven", [False, True], ids=["even", "uneven"])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_unsplit_model_and_bytes_those_of_the_formula(ranks, name, uneven, tied):
    found = ranks.run(cases.step, name, 8, uneven, tied)
    same_step([rank[:2] for rank in found], 8, tied)
    schedule = cases.schedule_of(name, ranks.count, 8)
    for rank, (*_, sent_bytes) in enumerate(found):
        assert sent_bytes == traffic(schedule, rank, BOUNDARY_BYTES, tied * TIED_BYTES).sent_bytes


def test_messages_may_be_read_in_another_order_than_they_were_sent(ranks2):
    same_step([rank[:2] for rank in ranks2.run(cases.step, "turned", 4)], 4)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero-bubble"])
def test_fewer_micro_batches_than_ranks_will_do(ranks4, name, micro_batches):
    same_step([rank[:2] for rank in ranks4.run(cases.step, name, micro_batches)], micro_batches)


@pytest.mark.parametrize("name", NAMES)
def test_peaks_are_within_two_percent_and_what_is_in_flight_exact(ranks, name):
    """After each action to the byte; the last stage has its losses as well, a block of 512 bytes each."""
    schedule = cases.schedule_of(name, ranks.count, 8)
    for rank, (peak, peak_predicted, held, predicted) in enumerate(ranks.run(cases.measured_step, name, 8)):
        assert peak == pytest.approx(peak_predicted, rel=0.02)
        losses = 8 * 512 * (rank == ranks.count - 1)
        assert all(0 <= one - other <= losses for one, other in zip(held, predicted, strict=True))
        if name in ("gpipe", "1f1b"):  # one stage a rank, and a micro-batch is freed at once
            assert max(held) // held[0] == in_flight(schedule)[rank]


@pytest.mark.parametrize("name", THEIRS)
def test_pytorch_finds_the_same_loss_and_gradients(ranks, name):
    same_step(ranks.run(cases.torch_step, name, 8), 8)


@pytest.mark.parametrize(("ours", "theirs"), [("gpipe", "GPipe"), ("1f1b", "1F1B")])
def test_pytorch_holds_as_much_and_a_buffer_for_each_message(ranks4, ours, theirs):
    """It receives each of a step's messages in a buffer of its own, and keeps them all from one step to the next."""
    message = 4 * cases.MEASURED_BOUNDARY.numel()
    kept, above = zip(*ranks4.run(cases.torch_bytes, theirs, 8), strict=True)
    assert kept == (8 * message, 16 * message, 16 * message, 8 * message)
    assert above == pytest.approx([peak for peak, *_ in ranks4.run(cases.measured_step, ours, 8)], rel=0.1)


@pytest.mark.slow
def test_stages_of_one_rank_hand_over_without_a_message():
    with Ranks(1) as alone:
        ((loss, gradients, sent_bytes),) = alone.run(cases.step, "interleaved", 4, tied=True)
    same_step([(loss, gradients)], 4, tied=True)
    assert sent_bytes == 0
    with pytest.raises(WorkbookError, match="several stages on a single rank"):
        predicted_peak(cases.schedule_of("interleaved", 1, 4), 0, dict.fromkeys(range(2), StageBytes(1, 0, 1, 1, 1, 0)))


def test_the_first_rank_of_zbv_has_the_last_stage():
    assert [stages_of("ZBVZeroBubble", rank, 2) for rank in range(2)] == [(0, 3), (1, 2)]


def test_a_step_adds_to_the_gradients_that_are_there_a_tied_one_too(ranks2):
    for once, twice in ranks2.run(cases.two_steps):
        for name in once:
            torch.testing.assert_close(twice[name], 2 * once[name])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("schedule", r"rank 1 has the plan \('1F1B'"),
        ("boundary", r"rank 1 has the plan .*\(2, 6, 12\)"),
        ("stages", r"rank 1 has the stages \[0\]"),
        ("tied", "a tied weight on rank 1 alone"),
        ("ranks", "a schedule for 3 ranks on 2"),
        pytest.param("output", r"F0 on stage 0 gives torch.float64 of shape \(2, 4, 12\)", marks=pytest.mark.slow),
        ("pieces", "3 pieces of the batch"),
    ],
)
def test_what_does_not_fit_is_a_sentence(ranks2, wrong, told):
    with pytest.raises(RankError, match=told):
        ranks2.run(cases.mistaken, wrong, timeout_s=20)


def test_a_module_is_divided_once():
    layers = torch.nn.Sequential(torch.nn.Linear(2, 2))
    defer_weights(layers)
    with pytest.raises(WorkbookError, match="replaced before"):
        defer_weights(layers)


def test_the_weights_part_gives_the_gradients_of_autograd():
    torch.manual_seed(0)
    x, layer = torch.randn(2, 3, 4, dtype=torch.float64), torch.nn.Linear(4, 5).double()
    layer(x).square().sum().backward()
    want = [parameter.grad.clone() for parameter in layer.parameters()]
    layer.zero_grad()
    layer.weight.requires_grad_()
    later = defer_weights(torch.nn.Sequential(layer))
    layer(x).square().sum().backward()
    assert layer.weight.grad is None
    later.pop()()
    torch.testing.assert_close([parameter.grad for parameter in layer.parameters()], want)
