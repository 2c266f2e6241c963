"""What a forward pass keeps for its backward, by the operator that keeps it: a layer on the tape, which notes it down.

    for operator in layer_operators(setup, setup.model.layers[0]):
        print(operator.name, operator.kept)

As on a GPU, with dropout off. A storage that two operators keep is counted once, at the one that reads it last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...catalog.hardware import REFERENCE, cuda_of
from ...catalog.layers import Layer, Linear
from ...catalog.losses import FULL
from ...catalog.train_setup import TrainSetup
from ..breakdown import Breakdown, Point, rounded
from .decoders.decoder import CenteredNorm, Decoder
from .decoders.families import decoder
from .operators import Operators
from .refusals import require_kernel, require_page
from .tape import Block, Rule, Tensor

RESIDUAL, ATTENTION, ACTIVATION, PRODUCT = "+ residual", "attention", "activation", "gate × up"
QKV, LOGS = "q, k, v", "log-sum-exp"
PROJECTIONS, OUTPUT, WEIGHTS = "q, k, v projections", "output projection", "every projection"
NORMS = {2: ("norm", "norm"), 4: ("norm", "norm of attention", "norm", "norm of the MLP")}  # of a layer, in order
OF_RMS_NORM = ("input in FP32", "1/rms", "normalised")
OF_CENTERED_NORM = ("input in FP32", "1/rms", "1 + weight", "normalised")
OF_LAYER_NORM = ("input", "mean and 1/σ", "mean and 1/σ", "weight and bias in FP32")


@dataclass(frozen=True)
class Operator:
    """A step of a layer's forward, and what its backward keeps: (name, bytes), the largest first."""

    name: str
    kept: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> int:
        return sum(size for _, size in self.kept)


def layer_operators(setup: TrainSetup, layer: Layer | None) -> tuple[Operator, ...]:
    """The operators of one decoder layer in order, those that keep nothing too; or of what is behind all layers.

    WorkbookError for an unknown model.
    """
    require_page(setup)
    require_kernel(setup)
    notes = Notes()
    page = decoder(setup, notes, cuda=cuda_of(REFERENCE))
    hidden = notes.leaf(setup.tokens * setup.model.hidden, page.width.residual)
    if layer:
        _name_places(page, notes, layer)
    out = page.layer(hidden, layer) if layer else page.loss(hidden)  # noqa: F841 - holds its nodes
    return tuple(notes.operators())


def saved_by_layer(setup: TrainSetup, layer: Layer) -> Breakdown:
    """Bytes that one decoder layer keeps for its backward pass, by operator and tensor.

    Llama-2-7B, micro-batch 1, sequence 2048, BF16, SDPA: 364.3 MiB a layer, of which the four SwiGLU tensors
    are 172 MiB: gate, its activation, up and their product.
    """
    return _summed(layer_operators(setup, layer))


def saved_outside_layers(setup: TrainSetup) -> Breakdown:
    """Bytes kept by the final norm, the rotary tables and the cast of `lm_head`; the loss is counted as logits."""
    found = _summed(one for one in layer_operators(replace(setup, loss=FULL), None) if one.name != Point.LOSS)
    tables = sum(rounded(setup.sequence * one) for one in decoder(setup, Operators()).table_bytes)
    return Breakdown({**found, "rotary tables": tables} if tables else found)


def _summed(operators: Iterable[Operator]) -> Breakdown:
    sizes: Counter[str] = Counter()
    for operator in operators:
        for name, size in operator.kept:
            sizes[f"{operator.name}: {name}"] += size
    return Breakdown(sizes)


@dataclass
class Place:
    """Where the forward is: an operator, and how it calls what it keeps, the next tensor after `count` others."""

    operator: str
    name: str | Callable[[Tensor, int], str] = "its tensors"
    count: int = 0


class Notes(Operators):
    """A tape that notes down where each block was made, where it is kept, and as what."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Place] = []
        self.half = 0  # of the layer: how many sums with the residual stream there were
        self.rows: dict[tuple[int, str], None] = {}
        self.made_at: dict[Block, str] = {}
        self.kept_at: dict[Block, tuple[tuple[int, str], str]] = {}

    def made(self, block: Block) -> None:
        super().made(block)
        self.made_at[block] = self.places[-1].operator if self.places else ""

    def cached_cast(self, copy: Tensor) -> Tensor:
        if copy.block:
            self.made_at[copy.block] = WEIGHTS
        return super().cached_cast(copy)

    def record(self, out: Tensor, inputs: Sequence[Tensor], kept: Iterable[Tensor], rule: Rule) -> Tensor:
        place, kept = self.places[-1] if self.places else Place(self.stage or RESIDUAL), tuple(kept)
        self.rows[self.half, place.operator] = None
        for tensor in kept if any(one.node for one in inputs) else ():
            if tensor.block and not tensor.is_logits:
                self._keep(tensor.block, tensor, place)
        if place.operator == RESIDUAL:
            self.half += 1
        return super().record(out, inputs, kept, rule)

    def _keep(self, block: Block, tensor: Tensor, place: Place) -> None:
        row = self.half, place.operator
        if self.made_at[block] == WEIGHTS:
            self.kept_at[block] = (2, WEIGHTS), "BF16 copies of the weights"
        elif block not in self.kept_at or self.kept_at[block][0] != row:
            self.kept_at[block] = row, place.name if isinstance(place.name, str) else place.name(tensor, place.count)
            place.count += 1

    def operators(self) -> Iterator[Operator]:
        for row in dict.fromkeys([*self.rows, *(row for row, _ in self.kept_at.values())]):
            sizes: Counter[str] = Counter()
            for block, (at, name) in self.kept_at.items():
                if at == row and block.keepers:  # its node may be gone, with a result that nobody used
                    sizes[name] += block.size_bytes
            yield Operator(row[1], tuple(sorted(sizes.items(), key=lambda one: (-one[1], one[0]))))


def _name_places(page: Decoder, notes: Notes, layer: Layer) -> None:
    """Have the methods of `page` say where they are; those that are called inside of others win."""
    mlp, norms = layer.mlp, iter(NORMS.get(layer.norms, ()))
    rows, products = page.tokens * layer.attention.heads, iter(((QKV, QKV), (QKV, "their cast")))
    in_mlp = "experts" if mlp.experts else PRODUCT if mlp.gated else ACTIVATION
    of_norm = OF_CENTERED_NORM if isinstance(page, CenteredNorm) else OF_RMS_NORM
    of_norm = OF_LAYER_NORM if page.model.norm == "layernorm" else of_norm

    def inside(method: str, place: Callable[..., Place]) -> None:
        run = getattr(page, method)

        def named(*given: Any) -> Any:
            notes.places.append(place(*given))
            returned = run(*given)
            notes.places.pop()
            return returned

        setattr(page, method, named)

    def norm(*given: Any) -> Place:
        operator = "norm of q and k" if notes.places else next(norms, "norm")
        return Place(operator, lambda _, count: of_norm[min(count, len(of_norm) - 1)])

    def factor(tensor: Tensor, count: int) -> str:
        return "activated gate" if tensor.block and notes.made_at[tensor.block] == ACTIVATION else "up"

    def product(scores: Tensor, value: Tensor, *_: Any) -> Place:
        """Q by K, then the scores by V: each is kept itself or as a cast of it, V first."""
        names = next(products, ("its tensors",) * 2)
        known = {value.block: names[0], scores.block: names[1]}
        return Place(ATTENTION, lambda tensor, count: known.get(tensor.block, names[count]))

    inside("norm", norm)
    inside("linear", lambda _, one: Place(*_projection(one, layer)))
    inside("attention", lambda *_: Place(ATTENTION, lambda tensor, _: LOGS if tensor.values == rows else QKV))
    inside("_matmul", product)
    inside("_capped", lambda *_: Place(ATTENTION, "capped scores"))
    inside("_softmax", lambda *_: Place(ATTENTION, "probabilities"))
    inside("mlp", lambda *_: Place(in_mlp, factor if in_mlp == PRODUCT else "its tensors"))
    inside("activated", lambda *_: Place(ACTIVATION, "gate" if mlp.gated else "its tensors"))


def _projection(linear: Linear, layer: Layer) -> tuple[str, str]:
    """The operator that a linear layer is, and what it keeps: its input."""
    attention, mlp = layer.attention.linears, layer.mlp
    gated = mlp.gated and not mlp.experts
    name, kept = "gate and up projections" if mlp.gated else "first projection", "the norm's output"
    if linear in attention:
        name = OUTPUT if linear == attention[-1] else PROJECTIONS
        kept = "attention's output" if linear == attention[-1] else kept
    elif linear == mlp.linears[-1]:
        name = "down projection" if mlp.gated else "second projection"
        kept = "their product" if gated else "the activation's output"
    return name, kept
