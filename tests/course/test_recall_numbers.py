"""Numbers in the answers of recall questions: each is computed as its chapter teaches, and must stand there."""

from __future__ import annotations

import math

import pytest
import torch

from helpers.catalog import OPTIMIZERS, NumberFormat, TrainSetup, model, number_format
from helpers.course import notebook as nb
from helpers.memory import budget, offload
from helpers.techniques.attention import Partial, Window, counts, merge
from helpers.techniques.parallel import pipeline
from helpers.techniques.quantization import Grid
from helpers.techniques.scheduling import Policy, Scheduler, batching, nim
from tests.house.tree import ROOT

MIB, GIB, MATRIX = 2**20, 2**30, (4096, 11008)


def bytes_per_parameter(precision: str, optimizer: str) -> float:
    """Of a step with few tokens, in the optimizer's step."""
    setup = TrainSetup("llama-2-7b", precision=precision, optimizer=optimizer, sequence=8)
    return budget.train(setup).moments[-1].total / setup.model.parameters


def logits_gib() -> float:
    setup = TrainSetup("llama-3-8b", precision="bf16", optimizer="adamw-fused", sequence=4096)
    return budget.train(setup).parts["logits"] / GIB


def least_move(weight: float) -> float:
    """Half of the distance from a BF16 weight to its upper neighbour."""
    stored = torch.tensor(weight, dtype=torch.bfloat16)
    return (torch.nextafter(stored, torch.tensor(math.inf, dtype=torch.bfloat16)) - stored).item() / 2


def last_count() -> int:
    """Where a BF16 counter stops."""
    count = torch.zeros((), dtype=torch.bfloat16)
    while (above := count + 1) != count:
        count = above
    return int(count)


def scales() -> list[int]:
    """Exponents of the scales at which FP16 keeps both 2**-26 and 2**-4."""
    powers = torch.arange(64, dtype=torch.float64)
    small, large = (torch.exp2(powers + power).half() for power in (-26, -4))
    return powers[(small > 0) & large.isfinite()].int().tolist()


def step(zero_point: bool) -> float:
    grid = Grid(2, 4, symmetric=not zero_point)
    return grid.scales(torch.tensor([[-0.2, 0.0, 0.5, 1.0]])).scale.item()


def first_token_steps() -> int:
    """Steps until a prompt of 50 tokens has its first token beside twelve who decode, with a budget of 32."""
    scheduler = Scheduler(Policy(token_budget=32), blocks=400, block_size=4)
    for _ in range(12):
        scheduler.submit([0], new_tokens=40)
    run(scheduler, 0)
    late = scheduler.submit(range(50), new_tokens=2)
    return next(count for count in range(1, 40) if late in run(scheduler, count))


def run(scheduler: Scheduler, now: int) -> list:
    """One step; the sequences that got a token in it."""
    plan = scheduler.schedule(now=now)
    got = list(scheduler.generates(plan))
    scheduler.complete(plan, dict.fromkeys(got, 0), now=now)
    return got


def merged() -> float:
    one, other = (
        Partial(*(torch.tensor([[float(value)]]) for value in state)) for state in ((4, 0, 2), (4, math.log(2), 1))
    )
    return merge(one, other).result()[0].item()


def window_tiles() -> int:
    return sum(tile.row == 16 for tile in Window(256).tiles(4096, 4096))


THREE_BITS = NumberFormat("three", 3, "FP16", "", block_values=32, scale_bits=16 + 3)
ANSWERS = [
    ("02", "{:.0f} GB: 4 bytes for the weight", lambda: 3 * bytes_per_parameter("fp32", "sgd-momentum")),
    ("02", "12 × 4,096 × 128,256 bytes are {:.1f} GiB", logits_gib),
    ("04", "2⁻⁹ = {:.5f}", lambda: least_move(0.6)),
    ("04", "At {}. From there on", last_count),
    ("04", "2² to 2¹⁹. With 2 the small one", lambda: scales() == list(range(2, 20)) or pytest.fail(str(scales()))),
    ("05", "{:.1f} %. The linear layers", lambda: 100 * (8 * number_format("nf4").bits_per_value + 32) / 160),
    ("05", "(16 + 3) ÷ 32 = {:.2f}.", lambda: THREE_BITS.bits_per_value),
    ("05", "{:.1f} and 0.4. Absmax", lambda: step(zero_point=False)),
    ("05", "1.0 and {:.1f}. Absmax", lambda: step(zero_point=True)),
    ("07", "two numbers for each weight, {:.0f} MiB", lambda: OPTIMIZERS["adamw"].state_bytes(MATRIX, 4) / MIB),
    ("07", "and the scales, {:.0f} MiB", lambda: OPTIMIZERS["adamw-8bit"].state_bytes(MATRIX, 4) / MIB),
    (
        "07",
        "{:.2f}, 6 and 4.03 GB",
        lambda: 8 - 4 + OPTIMIZERS["adamw-8bit"].state_bytes(MATRIX, 2) / math.prod(MATRIX),
    ),
    ("08", "From {:,.0f}. A weight's byte", lambda: offload.break_even_tokens(400e12, 25e9, "fp8-e4m3")),
    ("10", "2 × 3/4 of it: {:.0f} MiB.", lambda: 2 * 3 / 4 * 4_096 * model("llama-3.1-70b").hidden * 2 / MIB),
    ("10", "units, {:.0f} %.", lambda: float(100 * pipeline.bubble(pipeline.one_f_one_b(8, 56)))),
    ("11", "{:.0f} GiB, and 2 for the piece", lambda: counts.Call(16_384, heads=16).matrix_bytes / GIB),
    ("11", "The result is {:.0f}. Scaled", merged),
    ("11", "{:.1f}: the query and the output", lambda: counts.Call(4096).saved_bytes / MIB),
    ("11", "{}, where 256 keys would fill two", lambda: {3: "Three"}.get(window_tiles())),
    ("12", "bytes: {:.0f} KiB, more than", lambda: model("llama-2-7b").cache_bytes("bf16", 1) / 1024),
    ("12", "4.5 of 16: {:.0f} %.", lambda: 100 * (4 + 16 / 32) / 16),
    ("12", "80 GB become 50: {:.1f} times", lambda: 80 / (20 + 60 / 2)),
    ("14", "which makes {}. Continuous", lambda: batching.static_forwards([8, 2, 2, 2], 2)),
    ("14", "so {} are enough", lambda: batching.continuous_forwards([8, 2, 2, 2], 2)),
    ("14", "{}. The twelve take a token each", lambda: {3: "Three"}.get(first_token_steps())),
    ("14", "1,200 × 0.05 = {:.0f} run", lambda: nim.Row(100, 10, 0.05, 1200).running),
    ("14", "{:.2f} tokens, in 1.5", lambda: 1 + 0.6 + 0.6**2),
    ("14", "time: {:.2f} times as fast", lambda: (1 + 0.6 + 0.6**2) / 1.5),
]


@pytest.mark.parametrize(("chapter", "answer", "compute"), ANSWERS, ids=[f"{row[0]}-{row[1][:24]}" for row in ANSWERS])
def test_a_recall_answer_has_the_number_that_helpers_compute(chapter, answer, compute):
    (path,) = (ROOT / "notebooks").glob(f"{chapter}_*.ipynb")
    (source,) = [cell.source for cell in nb.read(path).cells if cell.id == f"{chapter}-recall"]
    assert answer.format(compute()) in source
