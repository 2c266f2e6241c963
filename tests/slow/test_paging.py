"""The engine's speed beside `generate` in static batches, on the same requests; and the block manager, for longer."""

import random
import statistics
import time

import pytest
import torch
from hypothesis import settings

from helpers.small_lm import held_out_documents, load
from helpers.techniques import paging
from tests.techniques.paging.test_blocks import CollidingOperations, Operations

pytestmark = pytest.mark.slow


class LongOperations(Operations):
    """A class of its own: Hypothesis keeps one test case for each, and its settings with it."""


class LongColliding(CollidingOperations):
    """The same."""


TestLongOperations = pytest.mark.all(LongOperations.TestCase)
TestLongOperations.settings = settings(max_examples=300, stateful_step_count=100)
TestLongColliding = pytest.mark.all(LongColliding.TestCase)
TestLongColliding.settings = settings(max_examples=150, stateful_step_count=100)


def mixed(count=16):
    """Prompts of 5 to 200 tokens, answers of 4 to 64."""
    draw = random.Random(0)
    return [
        (list(document.ids[: draw.randint(5, 200)]), draw.choice([4, 8, 16, 64]))
        for document in held_out_documents(count, 300)
    ]


def in_static_batches(net, asked, batch):
    """`generate` on `batch` requests at a time, padded on the left, until the longest answer of each batch is done."""
    answers = []
    for at in range(0, len(asked), batch):
        part = asked[at : at + batch]
        longest = max(len(prompt) for prompt, _ in part)
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt, _ in part])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt, _ in part])
        out = net.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=max(new for _, new in part))
        answers += [row[longest : longest + new].tolist() for row, (_, new) in zip(out, part, strict=True)]
    return answers


def seconds(call):
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


@pytest.mark.alone
def test_at_least_as_fast_as_static_batches(capsys):
    net, asked = load().model, mixed()
    contenders = {
        "static batches of 8": lambda: in_static_batches(net, asked, 8),
        "engine": lambda: [answer.tokens for answer in paging.Engine(net, blocks=160).run(asked)],
        "Transformers' engine": lambda: paging.transformers_batch(net, asked, blocks=160),
    }
    expected = contenders["static batches of 8"]()  # warms up, too
    taken = {name: [] for name in contenders}
    for _ in range(3):
        for name, call in contenders.items():
            time_s, tokens = seconds(call)
            assert tokens == expected, name
            taken[name].append(time_s)
    median = {name: statistics.median(times) for name, times in taken.items()}
    ratio = median["static batches of 8"] / median["engine"]
    with capsys.disabled():
        print("\n" + ", ".join(f"{name} {time_s:.2f} s" for name, time_s in median.items()) + f"; ratio {ratio:.2f}")
    assert ratio >= 1
