"""The published history "transformer-step", predicted: its model and optimizer written anew by shapes and operators.

What ran is named in data/published/sources.json: RMSNorm, softmax, SiLU and the loss out of single operators, and
an Adam whose moments are new tensors in every step. Here stand the same operators in the same order, so that the trace
allocates what the card did. Masks, angles and step counts lie on the host and take no memory of the card; what is
copied from there does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate

import torch
from torch import nn

from .. import trace
from ..allocator.snapshot_summary import summarize
from ..breakdown import rounded
from ..trace.record import Trace
from .cases import HISTORY, AccuracyRow, Case
from .published import history

NAME = "transformer-step"
VOCAB, HIDDEN, LAYERS, HEADS, INNER = 10_000, 512, 4, 16, 1_344
BATCH, TOKENS, STEPS = 10, 100, 3
CARD = "a100"  # any before Hopper: the workspace of cuBLAS is theirs


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.einsum("...i,oi->...o", x, weight)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + 1e-5) * weight


def softmax(x: torch.Tensor) -> torch.Tensor:
    """The exponential is taken twice."""
    most, _ = torch.max(x, dim=-1, keepdim=True)
    return torch.exp(x - most) / torch.sum(torch.exp(x - most), dim=-1, keepdim=True)


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions on (batch, heads, tokens, width); sines and cosines come from the host, one copy each."""
    angles = x.shape[-2], x.shape[-1] // 2
    sin, cos = torch.empty(angles)[..., None], torch.empty(angles)[..., None]
    pairs = x.unflatten(-1, (-1, 2))
    first = cos * pairs[..., :1] - sin * pairs[..., 1:]
    second = sin * pairs[..., :1] + cos * pairs[..., 1:]
    return torch.cat([first, second], dim=-1).flatten(-2)


class PublishedLayer(nn.Module):
    """Attention and SwiGLU, each behind its norm; the weights in the order in which they were made."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.Parameter(torch.ones(HIDDEN)), nn.Parameter(torch.ones(HIDDEN))
        self.q, self.k, self.v, self.o = (nn.Parameter(torch.empty(HIDDEN, HIDDEN)) for _ in range(4))
        self.w1 = nn.Parameter(torch.empty(INNER, HIDDEN))
        self.w2 = nn.Parameter(torch.empty(HIDDEN, INNER))
        self.w3 = nn.Parameter(torch.empty(INNER, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self._attention(rms_norm(x, self.norm1)) + x
        return self._mlp(rms_norm(x, self.norm2)) + x

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (product(x, weight).unflatten(-1, (HEADS, -1)).transpose(1, 2) for weight in (self.q, self.k, self.v))
        q, k = turned(q), turned(k)
        mask = torch.empty(TOKENS, TOKENS)
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / torch.sqrt(torch.empty(()))
        weights = softmax(scores.masked_fill_(~mask.bool(), -math.inf))
        return product(torch.einsum("bhqk,bhkd->bhqd", weights, v).transpose(1, 2).flatten(-2), self.o)

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        gate = product(x, self.w1)
        gate = gate * torch.sigmoid(gate)
        return product(gate * product(x, self.w3), self.w2)


class Model(nn.Module):
    """The language model; of its logits the loss reads those of the last token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.empty(VOCAB, HIDDEN))
        self.layers = nn.ModuleList(PublishedLayer() for _ in range(LAYERS))
        self.ends = nn.ParameterList([torch.ones(HIDDEN), torch.empty(VOCAB, HIDDEN)])  # the norm and the head

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding[ids]
        for layer in self.layers:
            x = layer(x)
        norm, head = self.ends
        return product(rms_norm(x, norm), head)


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    most, _ = torch.max(logits, dim=-1, keepdim=True)
    logs = logits - most - torch.log(torch.sum(torch.exp(logits - most), dim=-1, keepdim=True))
    hot = torch.zeros_like(logs)
    hot.scatter_(-1, labels.unsqueeze(-1), 1)
    return -torch.sum(hot * logs) / BATCH


class Adam:
    """Each moment is a new tensor in every step, and the old one is freed when the new one is there."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self.weights = weights
        self.m, self.v = [], []
        for weight in weights:
            self.m.append(torch.zeros_like(weight.data))
            self.v.append(torch.zeros_like(weight.data))

    def step(self) -> None:
        for at, weight in enumerate(self.weights):
            grad = weight.grad
            assert grad is not None
            new_m = 0.9 * self.m[at] + 0.1 * grad
            self.m[at] = new_m
            new_v = 0.999 * self.v[at] + 0.001 * grad**2
            self.v[at] = new_v
            weight.data = weight.data - 0.001 * (new_m / (torch.sqrt(new_v) + 1e-8))
            weight.data = weight.data - 0.001 * 0.0 * weight.data


def predicted() -> Trace:
    """Three steps from an empty allocator."""
    with trace.fake(gpu=CARD):
        model = Model()
        optimizer = Adam(list(model.parameters()))
        ids, labels = torch.zeros(BATCH, TOKENS, dtype=torch.long), torch.zeros(BATCH, dtype=torch.long)

        def step() -> None:
            for weight in model.parameters():
                weight.grad = None
            logits = model(ids)
            every = torch.ops.aten.slice(logits, 0, 0, BATCH)  # the first index of logits[:, -1, :] was an operator
            loss_of(every[:, -1], labels).backward()
            optimizer.step()

        return trace.record(step, model, warmup=STEPS - 1)


@dataclass(frozen=True)
class Agreement:
    """How far the prediction goes: allocations on the card, those that agree in size and order, and three peaks each.

    Peaks are of tensors, rounded to 512 bytes; of whole blocks, which is "allocated"; and reserved.
    """

    allocations: int
    in_order: int
    measured: tuple[int, int, int]
    predicted: tuple[int, int, int]

    @property
    def share(self) -> float:
        return self.in_order / self.allocations


def compare(found: Trace) -> Agreement:
    """The prediction beside the history, event by event: the longest runs of equal sizes in the same order."""
    snapshot = history(NAME).snapshot
    real = [(event.action, event.address, rounded(event.size_bytes)) for event in snapshot.trace()]
    sizes = [size for action, _, size in real if action == "alloc"]
    mine = [event.block.size_bytes for event in found.events if event.sign > 0 and event.block.size_bytes]
    blocks = SequenceMatcher(None, sizes, mine, autojunk=False).get_matching_blocks()
    told = summarize(snapshot)
    changes = [
        size if action == "alloc" else -size for action, _, size in real if action in ("alloc", "free_completed")
    ]
    traced = (event.sign * event.block.size_bytes for event in found.events)
    replayed = found.on_gpu
    return Agreement(
        len(sizes),
        sum(block.size for block in blocks),
        (max(accumulate(changes)), told.peak_allocated_bytes, told.peak_reserved_bytes),
        (max(accumulate(traced)), replayed.peak_allocated_bytes, replayed.peak_reserved_bytes),
    )


PEAKS = ("peak of tensors", "peak allocated", "peak reserved")
ORDER = "allocations in order"


def rows() -> Iterator[AccuracyRow]:
    """The run as rows of `workbook accuracy`: its three peaks, and its allocations that are predicted in order."""
    found = compare(predicted())
    for quantity, measured, answer in zip(PEAKS, found.measured, found.predicted, strict=True):
        yield AccuracyRow(_case("MiB", {quantity: measured / 2**20}), quantity, measured, answer)
    why = "sizes that agree in the longest runs of equal order"
    yield AccuracyRow(_case("blocks", {ORDER: found.allocations}), ORDER, found.allocations, found.in_order, why)


def _case(unit: str, figures: dict[str, float]) -> Case:
    setup = {"layers": LAYERS, "hidden": HIDDEN, "batch": BATCH, "sequence": TOKENS, "steps": STEPS}
    return Case(NAME, HISTORY, "a card before Hopper", setup, figures, unit, history(NAME).source)
