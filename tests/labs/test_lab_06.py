"""What lab 06 says in words is what its code does: the targets, the models of bytes, and the other right answers."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch

from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.forked_cells import Trial, run_in_forks
from tests.labs.common import answers, printed, weighed, without_answers

LAB = Path(__file__).resolve().parents[2] / "solutions" / "06_activation_checkpointing.ipynb"
SHOWN = {  # where the figures of each question are printed
    "q1": ["recompute-check"],
    "q3": ["others-shown", "policy-check"],
    "q5": ["mover-check"],
    "q6": ["accumulate-check"],
}
OTHER_RIGHT_ANSWERS = {
    "recompute": """
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, module, options, count, *tensors):
        ctx.module, ctx.options, ctx.count, ctx.state = module, options, count, torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        return module(*tensors[:count], **options)

    @staticmethod
    def backward(ctx, grad):
        twins = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
        names = [name for name, _ in ctx.module.named_parameters()]
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            inputs, parameters = tuple(twins[: ctx.count]), dict(zip(names, twins[ctx.count :]))
            output = torch.func.functional_call(ctx.module, parameters, inputs, ctx.options)
        torch.set_rng_state(now)
        output.backward(grad)
        return None, None, None, *(twin.grad for twin in twins)
""",
    "predict": """
def predict(layers, segments):
    size = len(layers) // segments
    last = sum(saved for _, saved in layers[size * (segments - 1) :])
    before = sum(layers[size * number][0] for number in range(segments - 1))
    kept = peak = before + last
    for number in reversed(range(segments - 1)):
        before -= layers[size * number][0]
        peak = max(peak, before + sum(saved for _, saved in layers[size * number : size * (number + 1)]))
    return [kept, peak]
""",
    "best-segments": """
def best_segments(layers, budget_bytes):
    def cost(segments):
        return len(layers) - len(layers[len(layers) // segments * (segments - 1) :]), predict(layers, segments)[1]

    fits = [segments for segments in range(1, len(layers) + 1) if cost(segments)[1] <= budget_bytes]
    return min(fits, key=cost, default=None)
""",
    "policy": """
def policy(context, operator, *args, **kwargs):
    if "attention" in str(operator):
        return engine.CheckpointPolicy.MUST_SAVE
    if str(operator) == "aten.mm.default" and not args[0].shape[-1] > args[1].shape[-1]:
        return engine.CheckpointPolicy.PREFER_SAVE
    return engine.CheckpointPolicy.MUST_RECOMPUTE
""",
    "stage-plan": """
def stage_plan(layers, in_flight, budget_bytes):
    best = None
    for again in {0} | {saved - kept for kept, saved, _ in layers}:
        over = in_flight * sum(saved for _, saved, _ in layers) + again - budget_bytes
        free = max(0, -(-over // in_flight))
        table = {0: (0, [])}  # by bytes freed, no more than are asked for
        for number, (kept, saved, flops) in enumerate(layers):
            for freed, (cost, plan) in list(table.items()) if saved - kept <= again else ():
                total = min(free, freed + saved - kept)
                if total not in table or cost + flops < table[total][0]:
                    table[total] = cost + flops, [*plan, number]
        if free in table and (best is None or table[free][0] < best[0]):
            best = table[free]
    return best and best[1]
""",
    "mover": """
class Mover:
    def __init__(self, host, keep=()):
        self.host, self.known = host, []
        self.keep = [tensor.untyped_storage().data_ptr() for tensor in keep]

    def pack(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self.keep or storage.nbytes() < 1024:
            return tensor
        self.known = [pair for pair in self.known if pair[0]() is not None and pair[1]() is not None]
        ticket = next((ticket() for seen, ticket in self.known if seen() is storage), None)
        if ticket is None:
            try:
                ticket = self.host.put(tensor)
            except MemoryError:
                return tensor
            self.known.append((weakref.ref(storage), weakref.ref(ticket)))
        return ticket, tensor.dtype, tensor.storage_offset(), tensor.size(), tensor.stride()

    def unpack(self, packed):
        if not isinstance(packed, tuple):
            return packed
        ticket, dtype, *view = packed
        return torch.empty(0, dtype=dtype).set_(self.host.get(ticket).untyped_storage(), *view)
""",
    "accumulate": """
def accumulate(net, xs, ys, rows, recompute):
    total = (ys != -100).sum()
    for at in range(0, len(xs), rows):
        hidden, y = xs[at : at + rows], ys[at : at + rows]
        for number, block in enumerate(net.blocks):
            again = number < recompute
            hidden = Recompute.apply(block, {}, 1, hidden, *block.parameters()) if again else block(hidden)
        (functional.cross_entropy(net.head(hidden), y) * ((y != -100).sum() / total)).backward()
""",
    "fitted": """
def fitted(net, xs, ys, rows):
    recompute, failed = 0, True
    while failed:
        for parameter in net.parameters():
            parameter.grad = None
        try:
            accumulate(net, xs, ys, rows, recompute)
            failed = False
        except RuntimeError:
            if recompute == len(net.blocks):
                raise
            recompute += 1
    return recompute
""",
}


@pytest.mark.parametrize(("question", "shown"), SHOWN.items())
def test_every_number_of_a_target_is_printed(lab, question, shown):
    text = next(cell.source for cell in lab.cells if cell.id == question)
    wanted = set(re.findall(r"\d{1,3}(?:,\d{3})+", re.search(r"\*\*Target:\*\*.*", text)[0]))
    outputs = "".join(printed(lab, cell_id) for cell_id in shown)
    assert wanted
    assert {number for number in wanted - {"1,024"} if number not in outputs} == set()


@pytest.mark.slow
def test_other_right_answers_pass(lab):
    """One more for each answer, written differently: another loop, another engine, another list of what is known."""
    cells = [cell for _, cell in nb.code_cells(lab)]
    pairs = [(exercise, answer) for exercise in lab_cells.exercises(lab) for answer in exercise.answers]
    trials = [
        Trial((OTHER_RIGHT_ANSWERS[lab_cells.grade_id(answer)], *(check.source for check in exercise.checks)))
        for exercise, answer in pairs
    ]
    ran = run_in_forks(LAB.parent, [cell.source for cell in cells], trials, seed="7")
    right = {cell.id: without_answers(run.printed) for cell, run in zip(cells, ran.before, strict=True)}
    for (exercise, _), (_, *checks) in zip(pairs, ran.trials, strict=True):
        found = {
            check.id: (without_answers(run.printed), run.error)
            for check, run in zip(exercise.checks, checks, strict=True)
        }
        assert found == {key: (right[key], "") for key in found}


def test_a_plan_is_weighed_without_its_function(lab, names):
    output = printed(lab, "stage-plan-check")
    assert weighed(lab, names, "stage-plan-check", answers(output)) == output


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("null", "you return None"),
        ("0", "a list of layers' numbers"),
        ('{"0": 1}', "a list of layers' numbers"),
        ("[true]", "layers have whole numbers"),
        ("[0, 0]", "each layer once"),
        ("[2]", "numbers from 0 to 1"),
        ("[]", "your plan [] takes 40: in_flight times"),
        ("[0, 1]", "5 FLOPs, you have 10"),
    ],
)
def test_a_plan_that_is_none_says_why(lab, names, plan, words):
    first, second, *rest = answers(printed(lab, "stage-plan-check"))
    assert (first, second) == ("[]", "[0]")
    with pytest.raises(AssertionError, match=re.escape(words)):
        weighed(lab, names, "stage-plan-check", [first, plan, *rest])


def test_the_greedy_plan_of_the_target(names):
    layers, plan = names["draw_stage"](random.Random(25), 24), set()
    left = sorted(range(24), key=lambda i: (layers[i][0] - layers[i][1]) / layers[i][2])
    while names["needed"](layers, 4, plan)[0] > 3630:
        plan.add(left.pop(0))
    assert names["needed"](layers, 4, plan)[1] == 272


@pytest.mark.parametrize(("depth", "width", "rows"), [(6, 32, 256), (3, 24, 192), (6, 40, 320)])
def test_the_caps_lie_between_two_numbers_of_blocks(names, depth, width, rows):
    """A cap has at least a third of a block to spare on both sides, so that no engine's temporaries decide."""
    net, xs, ys = names["draw_batch"](random.Random(1), depth, width, 4 * rows - 50)
    peaks = []
    for recompute in range(depth + 1):
        net.zero_grad()
        with names["metered"](net, xs, ys) as meter:
            names["accumulate"](net, xs, ys, rows, recompute)
        peaks.append(meter.peak_bytes)
    block_bytes = peaks[0] - peaks[1]
    for recompute in range(depth):
        spare_bytes = names["enough"](net, xs, rows, recompute) - peaks[recompute]
        assert 1 / 3 < spare_bytes / block_bytes < 2 / 3


def test_the_last_block_recomputed_frees_nothing(names):
    net, xs, ys = names["draw_batch"](random.Random(1), 4, 32, 512)
    peaks = []
    for recompute in (3, 4):
        net.zero_grad()
        with names["metered"](net, xs, ys) as meter:
            names["accumulate"](net, xs, ys, 256, recompute)
        peaks.append(meter.peak_bytes)
    assert abs(peaks[0] - peaks[1]) <= 1024


def test_a_host_gives_room_back_and_keeps_what_is_out_of_sight(names):
    host, device = names["Host"](10_000), torch.arange(1000, dtype=torch.float32)
    with names["metered"](device) as meter:
        before = meter.live_bytes
        ticket = host.put(device[10:20])
        assert (meter.live_bytes - before, host.free_bytes, host.bytes_out) == (0, 6000, 4000)
        back = host.get(ticket)
        assert torch.equal(back.view(torch.float32), device)
        assert meter.live_bytes - before == 4096
        host.get(ticket)
        assert host.bytes_back == 4000, "a copy that is alive is handed out again"
    with pytest.raises(MemoryError):
        host.put(torch.zeros(2000))
    del ticket
    assert host.free_bytes == 10_000
