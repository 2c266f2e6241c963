"""Optimizers: the bytes that each keeps for a parameter tensor, and what it makes for a moment while it updates one.

    OPTIMIZERS["adamw-8bit"].state_bytes((4096, 4096), 4)   # 34078720, where AdamW keeps 134217728
    optimizer("galore:64")                                  # the rank of GaLore and APOLLO follows their name

A rule speaks of one tensor, by its shape, its role and the bytes of the value that is updated. Step counters (4 bytes a
tensor, on the host by default) are left out, and so is the decomposition that GaLore makes in one step of 200.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from .errors import WorkbookError, require_whole, unknown_name
from .layers import TensorShape

SMALLEST_8BIT_TENSOR = 4096  # bitsandbytes: min_8bit_size; smaller tensors keep FP32 states
SMALLEST_PAGED_TENSOR = 100_000  # bitsandbytes: get_state_buffer pages from here on
BLOCK_VALUES = 256  # of bitsandbytes' 8-bit states: one FP32 scale each
EMBEDDING, HEAD = "embedding", "head"  # roles of tensors: looked up by token or by position, and the output's


@dataclass(frozen=True)
class Optimizer:
    """States of the size of the parameter, in the dtype of the updated value, or `state_width` bytes a value.

    `copies` temporaries of that size are made while a tensor is updated, and all those of a model together where
    `foreach` is true. `carried` of them live on until the next tensor is begun: loops that bind a name anew.
    `paged` states of bitsandbytes come from `cudaMallocManaged`, from 100,000 values on. The code of those that are
    `ours` is in helpers.techniques.optimizers, that of the others in torch, bitsandbytes or Transformers.
    """

    name: str
    states: int
    copies: int = 0
    foreach: bool = False
    carried: int = 0
    state_width: int = 0
    ours: bool = False
    paged: bool = False

    factored: ClassVar[bool] = False  # states that are no copies of the parameter: a rank has a share of the whole
    whole_matrices: ClassVar[bool] = False  # an update needs all of a matrix, which a rank with a shard has not

    def rule_of(self, shape: TensorShape, role: str = "") -> Optimizer:
        """The rule that updates such a tensor: another's, where this is not made for it."""
        return self

    def state_bytes(self, shape: TensorShape, optimized_bytes: int, role: str = "") -> int:
        """Bytes of the states of one parameter tensor of `shape`, of `optimized_bytes` per updated value.

        `role` is EMBEDDING or HEAD, "" for all others.

        >>> OPTIMIZERS["adamw"].state_bytes((4096, 4096), optimized_bytes=4) == 8 * 4096 * 4096
        True
        >>> OPTIMIZERS["adafactor"].state_bytes((4096, 11008), optimized_bytes=4)
        60416
        >>> [OPTIMIZERS["muon"].state_bytes((32000, 4096), 4, role) // (32000 * 4096) for role in ("", EMBEDDING)]
        [4, 8]
        """
        return self.rule_of(shape, role).own_state_bytes(shape, optimized_bytes)

    def own_state_bytes(self, shape: TensorShape, width: int) -> int:
        """`state_bytes` of a tensor that this rule itself updates."""
        return self.states * prod(shape) * (self.state_width or width)

    def temporaries(self, shape: TensorShape, width: int) -> tuple[int, ...]:
        """Bytes of each tensor that is alive, beside the states, at the peak of the update of one tensor."""
        return self.copies * (prod(shape) * width,)

    def carried_bytes(self, shape: TensorShape, width: int) -> int:
        """What of `temporaries` is still there when the next tensor's are made."""
        return self.carried * prod(shape) * width

    def table_bytes(self, shape: TensorShape) -> int:
        """Beside the states of `shape`, what one optimizer keeps once for all its tensors: FP32 levels of 8 bits."""
        return 0

    def paged_bytes(self, shape: TensorShape, role: str = "") -> int:
        """Of `state_bytes`, what lies in unified memory: a GPU's allocator does not count it, and it may be moved.

        >>> optimizer("paged_adamw_32bit").paged_bytes((4096, 4096)) == 8 * 4096 * 4096
        True
        """
        return self.rule_of(shape, role).own_paged_bytes(shape)

    def own_paged_bytes(self, shape: TensorShape) -> int:
        """`paged_bytes` of a tensor that this rule itself updates."""
        values = prod(shape)
        return self.states * values * self.state_width if self.paged and values >= SMALLEST_PAGED_TENSOR else 0


@dataclass(frozen=True)
class Blockwise(Optimizer):
    """bitsandbytes' states of 8 bits, with an FP32 scale for each block of 256 values; FP32 in small tensors.

    `embeddings` is what updates embeddings.
    """

    embeddings: Optimizer | None = None

    def rule_of(self, shape: TensorShape, role: str = "") -> Optimizer:
        return self.embeddings if self.embeddings and role == EMBEDDING else self

    def own_state_bytes(self, shape: TensorShape, width: int) -> int:
        values = prod(shape)
        if values < SMALLEST_8BIT_TENSOR:
            return self.states * 4 * values
        return self.states * (values + 4 * -(-values // BLOCK_VALUES))

    def table_bytes(self, shape: TensorShape) -> int:
        return self.states * 4 * 256 if prod(shape) >= SMALLEST_8BIT_TENSOR else 0

    def own_paged_bytes(self, shape: TensorShape) -> int:
        """The codes; their scales are ordinary tensors."""
        values = prod(shape)
        return self.states * values if self.paged and values >= SMALLEST_PAGED_TENSOR else 0


@dataclass(frozen=True)
class Factored(Optimizer):
    """Adafactor: of a matrix the means of its rows and of its columns, of a vector the whole second moment.

    torch.optim's computes in the dtype of the weights. With `fp32`, Transformers' does in FP32, and a 16-bit weight and
    its gradient are copied for that.
    """

    fp32: bool = False

    factored: ClassVar[bool] = True

    def own_state_bytes(self, shape: TensorShape, width: int) -> int:
        values, width = prod(shape), 4 if self.fp32 else width
        if len(shape) < 2:
            return values * width
        # the rows' means keep every dimension but the last, the columns' every one but the last but one
        return (values // shape[-1] + values // shape[-2]) * width

    def temporaries(self, shape: TensorShape, width: int) -> tuple[int, ...]:
        upcast = 2 if self.fp32 and width < 4 else 0
        return (self.copies + upcast) * (prod(shape) * (4 if self.fp32 else width),)

    def carried_bytes(self, shape: TensorShape, width: int) -> int:
        return super().carried_bytes(shape, 4 if self.fp32 else width)


@dataclass(frozen=True)
class OfMatrices(Optimizer):
    """A rule for the matrices between embedding and head; vectors, stacked experts and both ends have AdamW's."""

    whole_matrices: ClassVar[bool] = True

    def rule_of(self, shape: TensorShape, role: str = "") -> Optimizer:
        return self if len(shape) == 2 and not role else ADAMW_FOREACH


@dataclass(frozen=True)
class Muon(OfMatrices):
    """torch.optim.Muon: one momentum. It multiplies in BF16, the matrix and two squares of its shorter side."""

    def temporaries(self, shape: TensorShape, width: int) -> tuple[int, ...]:
        values, square = prod(shape), min(shape) ** 2
        return (values * width, 2 * values, 2 * values, 2 * square, 2 * square)


@dataclass(frozen=True)
class LowRank(OfMatrices):
    """Adam's two moments of a gradient that is projected to `rank` directions of its shorter side, or all there are.

    GaLore keeps the `projector`; APOLLO draws it anew from a seed, and keeps one norm.
    """

    rank: int = 128
    projector: bool = False

    def own_state_bytes(self, shape: TensorShape, width: int) -> int:
        rank = min(self.rank, *shape)
        kept = rank * min(shape) * width if self.projector else 4  # the norm is FP32
        return self.states * rank * max(shape) * width + kept

    def temporaries(self, shape: TensorShape, width: int) -> tuple[int, ...]:
        """The full update, and the same scaled; beside them the small update, APOLLO's small gradient, its factors."""
        small = min(self.rank, *shape) * max(shape) * width
        full = 2 * (prod(shape) * width,)
        return (*full, small) if self.projector else (*full, small, small)


# PyTorch's default on CUDA; at the peak of step() the square roots of all second moments are a copy of the parameters
ADAMW_FOREACH = Optimizer("adamw-foreach", 2, copies=1, foreach=True)
ADAMW_32BIT = Optimizer("adamw-32bit", 2, state_width=4)  # bitsandbytes': states in FP32 whatever the weights are in
PAGED_32BIT = replace(ADAMW_32BIT, name="adamw-32bit-paged", paged=True)
GALORE = LowRank("galore:128", 2, projector=True, ours=True)
APOLLO = LowRank("apollo:128", 2, ours=True)


def _rules() -> Iterator[Optimizer]:
    yield ADAMW_FOREACH
    yield Optimizer("adamw-fused", 2)  # AdamW(fused=True): one kernel updates without a copy
    yield Blockwise("adamw-8bit", 2)  # bitsandbytes' AdamW8bit
    # As Transformers' Trainer runs it (optim="adamw_bnb_8bit"): the embeddings' states stay in FP32
    yield Blockwise("adamw-8bit-trainer", 2, embeddings=ADAMW_32BIT)
    yield Blockwise("adamw-8bit-paged", 2, paged=True)
    yield Blockwise("adamw-8bit-paged-trainer", 2, embeddings=PAGED_32BIT, paged=True)
    yield from (ADAMW_32BIT, PAGED_32BIT)
    yield Factored("adafactor", 1, copies=1, carried=1)  # torch.optim's
    yield Factored("adafactor-transformers", 1, copies=2, carried=1, fp32=True)
    yield Optimizer("lion", 1, copies=3, ours=True)
    yield Blockwise("lion-8bit", 1)
    yield Muon("muon", 1)
    yield Optimizer("sgd-momentum", 1)
    yield Optimizer("sgd", 0)


OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": ADAMW_FOREACH,
    **{rule.name: rule for rule in _rules()},
    "galore": GALORE,
    "apollo": APOLLO,
    "apollo-mini": replace(APOLLO, name="apollo:1", rank=1),
}
RANKED = {"galore": GALORE, "apollo": APOLLO}
# By the names of `TrainingArguments(optim=...)` in Transformers; "adafactor", "sgd" and "adamw" alone mean torch's here
TRAINER_NAMES = {
    "adamw_torch": "adamw-foreach",
    "adamw_torch_fused": "adamw-fused",
    "adamw_bnb_8bit": "adamw-8bit-trainer",
    "adamw_8bit": "adamw-8bit-trainer",
    "paged_adamw_8bit": "adamw-8bit-paged-trainer",
    "paged_adamw_32bit": "adamw-32bit-paged",
}


def optimizer(name: str) -> Optimizer:
    """The rule called `name`: of OPTIMIZERS or TRAINER_NAMES, or "galore:R", "apollo:R" of another rank. WorkbookError.

    >>> optimizer("GaLore:64").state_bytes((4096, 11008), 2) == 2 * (2 * 64 * 11008 + 64 * 4096)
    True
    """
    word, colon, rank = str(name).lower().partition(":")
    word = TRAINER_NAMES.get(word, word)
    if not colon and word in OPTIMIZERS:
        return OPTIMIZERS[word]
    if word not in RANKED:
        raise unknown_name("optimizer", name, (*OPTIMIZERS, *TRAINER_NAMES, *(f"{known}:R" for known in RANKED)))
    if not (rank.isascii() and rank.isdigit()):
        raise WorkbookError(f"the rank of {word} is {rank!r}", "a whole number, 1 or more", f"write {word}:128")
    rule = RANKED[word]
    return replace(rule, name=f"{word}:{require_whole(f'the rank of {word}', int(rank), most=2**20)}", rank=int(rank))
