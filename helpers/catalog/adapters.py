"""Adapters of a frozen base: which of its linear layers get one, of what rank, and how the base is stored. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from .errors import WorkbookError, require_name, require_whole, unknown_name
from .layers import Layer, Linear, TensorShape
from .shape import ModelShape

KINDS = ("lora", "dora")
BASES = ("nf4", "nf4-dq")  # of bitsandbytes; its LLM.int8() looks for outliers in the activations, and has no rows here
HALVES = ("bf16", "fp16")
ALL_LINEAR = "all-linear"  # peft's word: every linear layer but the head
MAX_RANK = 2**16


@dataclass(frozen=True)
class Adapter:
    """LoRA or DoRA adapters of `rank`, in FP32 as peft makes them, on the linear layers called `targets`.

    `base` stores the frozen linear layers in bitsandbytes' "nf4" or "nf4-dq" (with double quantization), which makes
    this QLoRA; None leaves them as `TrainSetup.precision` keeps weights. `dtype` is what 16 bits are, in the base and
    in its products: "fp16" on a T4, which has no BF16. `prepared` says that a quantized base went through peft's
    `prepare_model_for_kbit_training`, which casts what is not quantized, norms, embedding and head, to FP32: then the
    hidden states are FP32 too. Raises WorkbookError.

    >>> Adapter("lora", 8, "all-linear").targets
    ('all-linear',)
    """

    kind: str = "lora"
    rank: int = 16
    targets: Iterable[str] = ("q_proj", "v_proj")
    base: str | None = None
    dtype: str = "bf16"
    prepared: bool = True

    def __post_init__(self) -> None:
        require_name("kind of adapter", self.kind, KINDS)
        require_whole("the LoRA rank", self.rank, most=MAX_RANK, do="16 is usual")
        if self.base is not None:
            require_name("format of a frozen base", self.base, BASES)
        require_name("16-bit format of a base", self.dtype, HALVES)
        object.__setattr__(self, "targets", _names(self.targets))

    def __str__(self) -> str:
        name = {None: "LoRA", "nf4": "QLoRA", "nf4-dq": "QLoRA"}[self.base]
        kind = name if self.kind == "lora" else name.replace("LoRA", "DoRA")
        stored = f", base in {self.base}" if self.base else ""
        return f"{kind} of rank {self.rank} on {', '.join(self.targets)}{stored}"

    def adapts(self, linear: Linear) -> bool:
        """Whether a layer inside the decoder gets an adapter."""
        return linear.name in self.targets or self.targets == (ALL_LINEAR,)

    def tensors_of(self, linear: Linear) -> Iterator[TensorShape]:
        """Shapes of what is trained for one layer: A, B, and DoRA's magnitudes.

        >>> list(Adapter("dora", 8).tensors_of(Linear("q_proj", 512, 256)))
        [(8, 512), (256, 8), (256,)]
        """
        yield from ((self.rank, linear.inputs), (linear.outputs, self.rank))
        if self.kind == "dora":
            yield (linear.outputs,)

    def tensors_in(self, layer: Layer) -> list[TensorShape]:
        """Shapes of all that is trained in one decoder layer."""
        adapted = (one for one in (*layer.attention.linears, *layer.mlp.linears) if self.adapts(one))
        return [shape for linear in adapted for shape in self.tensors_of(linear)]

    def tensors(self, model: ModelShape) -> Counter[TensorShape]:
        """The same of all layers, each shape with how many of it there are."""
        found: Counter[TensorShape] = Counter()
        for layer, count in Counter(model.layers).items():
            for shape in self.tensors_in(layer):
                found[shape] += count
        return found

    def parameters(self, model: ModelShape) -> int:
        """Values that are trained. Llama-2-7B, rank 16 on q and v: 8,388,608, which is 0.12 % of the model's."""
        return sum(count * prod(shape) for shape, count in self.tensors(model).items())

    def require_targets(self, model: ModelShape) -> None:
        """Refuse targets that `model` has not: peft would adapt the others, and say nothing."""
        layers = [group for layer in dict.fromkeys(model.layers) for group in layer.linears()] or model.linears()
        known = dict.fromkeys(group.linear.name for group in layers if group.part in ("attention", "mlp"))
        for name in self.targets:
            if name not in (*known, ALL_LINEAR):
                raise unknown_name(f"linear layer of {model.name} to adapt", name, (*known, ALL_LINEAR))


def _names(given: object) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, Iterable) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        do = "pass targets=('q_proj', 'v_proj'), or targets='all-linear'"
        raise WorkbookError(f"the targets of the adapters are {given!r}", "names of linear layers, one or more", do)
    if ALL_LINEAR in names and len(set(names)) > 1:
        what = f"the targets of the adapters are {', '.join(names)}"
        raise WorkbookError(what, f"{ALL_LINEAR} alone, or names", f"leave {ALL_LINEAR} or the others out")
    return tuple(dict.fromkeys(names))
