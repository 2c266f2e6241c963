"""Adapters of a frozen base: which of its linear layers get one, of what rank, and how the base is stored. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from .errors import WorkbookError, require_name, require_whole, unknown_name
from .layers import Layer, Linear, TensorShape
from .shape import ModelShape

KINDS = ("lora", "dora")
# By peft's own name (peft 0.21), traced and without a closed form here: those whose trace is a real step's to the byte
TRACED_KINDS = (
    "beft", "c3a", "deft", "delora", "fourierft", "glora", "gralora", "hira", "hra", "ia3",
    "lily", "miss", "peanut", "psoft", "pvera", "randlora", "road", "supertuning", "tinylora", "vera",
)  # fmt: skip
# What trainers make of a frozen base in 4 bits, and of its adapters: peft's documentation prepares the base and leaves
# the adapters in FP32. TRL has done neither since 0.26 (huggingface/trl #4335, #4577, November 2025), and puts the
# adapters into BF16. Unsloth leaves the base as it is, and the adapters in FP32.
TRAINERS = {
    "peft": {"prepared": True, "adapter_dtype": "fp32"},
    "trl": {"prepared": False, "adapter_dtype": "bf16"},
    "unsloth": {"prepared": False, "adapter_dtype": "fp32"},
}
WHO = {"peft": "as peft's documentation has it", "trl": "as TRL does since November 2025", "unsloth": "as Unsloth does"}
BASES = ("nf4", "nf4-dq", "int8")  # of bitsandbytes; "int8" is LLM.int8()
HALVES = ("bf16", "fp16")
ALL_LINEAR = "all-linear"  # peft's word: every linear layer but the head
MAX_RANK = 2**16


@dataclass(frozen=True)
class Adapter:
    """LoRA or DoRA adapters of `rank` on the linear layers called `targets`; or for the trace one of TRACED_KINDS.

    `base` stores the frozen linear layers in bitsandbytes' "nf4" or "nf4-dq" (with double quantization), which makes
    this QLoRA, or in its "int8", which has a trace and no closed form; None leaves them as `TrainSetup.precision` keeps
    weights. `dtype` is what 16 bits are, in the base and in its products: "fp16" on a T4, which has no BF16. `prepared`
    says that a quantized base went through peft's `prepare_model_for_kbit_training`, which casts what is not quantized,
    norms, embedding and head, to FP32: then the
    hidden states are FP32 too. `adapter_dtype` is that of the adapters: "fp32" as peft makes them, or the 16 bits of
    `dtype` (`autocast_adapter_dtype=False`); `trained_by` says both as a trainer has them. A `dropout` keeps, for each
    adapter, a copy of what it reads and a byte for each of its values, whatever the share. Raises WorkbookError.

    >>> Adapter("lora", 8, "all-linear").targets
    ('all-linear',)
    """

    kind: str = "lora"
    rank: int = 16
    targets: Iterable[str] = ("q_proj", "v_proj")
    base: str | None = None
    dtype: str = "bf16"
    prepared: bool = True
    adapter_dtype: str = "fp32"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.kind == "qlora":
            do = "pass --adapter lora --lora-base nf4, in Python Adapter('lora', base='nf4')"
            raise WorkbookError("adapter 'qlora'", "lora: QLoRA is LoRA on a base in 4 bits", do)
        require_name("kind of adapter", self.kind, (*KINDS, *TRACED_KINDS))
        require_whole("the LoRA rank", self.rank, most=MAX_RANK, do="16 is usual")
        if self.base is not None:
            require_name("format of a frozen base", self.base, BASES)
        require_name("16-bit format of a base", self.dtype, HALVES)
        require_name("format of adapters", self.adapter_dtype, ("fp32", self.dtype))
        if self.kind in TRACED_KINDS and (self.base or self.dropout):
            what = f"peft's {self.kind} with {'a base in ' + self.base if self.base else 'a dropout'}"
            raise WorkbookError(what, "a base in 16 bits or more, no dropout: no other was compared", "leave it out")
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            what = f"the LoRA dropout is {self.dropout!r}"
            raise WorkbookError(what, "a share from 0 to below 1", "0.05 and 0.1 are usual, 0 is peft's default")
        object.__setattr__(self, "targets", _names(self.targets))

    def __str__(self) -> str:
        name = "QLoRA" if self.base in ("nf4", "nf4-dq") else "LoRA"
        kind = {"lora": name, "dora": name.replace("LoRA", "DoRA")}.get(self.kind, f"peft's {self.kind}")
        stored = f", base in {self.base}" if self.base else ""
        dropped = f", dropout {self.dropout:g}" if self.dropout else ""
        return f"{kind} of rank {self.rank} on {', '.join(self.targets)}{stored}{dropped}"

    @property
    def width(self) -> int:
        """Bytes of one value of the adapters, and so of its gradient and of each ordinary state of an optimizer."""
        return 4 if self.adapter_dtype == "fp32" else 2

    def trained_by(self, trainer: str) -> Adapter:
        """The same as `trainer`, one of TRAINERS, makes it; only what is quantized is prepared, or not.

        >>> Adapter(base="nf4").trained_by("trl").adapter_dtype, Adapter().trained_by("trl").adapter_dtype
        ('bf16', 'fp32')
        """
        made = TRAINERS[require_name("trainer", trainer, TRAINERS)]
        return replace(self, **made) if self.base else self  # type: ignore[arg-type] # of a dict's mixed values

    @property
    def usual_precision(self) -> str:
        """That most people run it in: a frozen base in the type that it was published in; a quantized one under
        autocast, for peft's preparation makes the hidden states FP32."""
        return "autocast-bf16" if self.base else "bf16"

    @property
    def trainer(self) -> str | None:
        """Of TRAINERS the one whose recipe this is, if it has a quantized base."""
        return next((name for name in TRAINERS if self.base and self == self.trained_by(name)), None)

    @property
    def recipe(self) -> str:
        """What was done to a quantized base, and to the adapters, and which trainers do so.

        >>> Adapter(base="nf4").trained_by("trl").recipe
        'The base is left in BF16 where it is not quantized, the adapters are in BF16: as TRL does since November 2025.'
        """
        told = WHO.get(self.trainer or "", "")
        told = f": {told}" if told else ""
        base = "prepared by peft, which casts to FP32 what is not quantized"
        base = base if self.prepared else f"left in {self.dtype.upper()} where it is not quantized"
        return f"The base is {base}, the adapters are in {self.adapter_dtype.upper()}{told}."

    def adapts(self, linear: Linear) -> bool:
        """Whether a layer inside the decoder gets an adapter."""
        return linear.name in self.targets or self.targets == (ALL_LINEAR,)

    def tensors_of(self, linear: Linear) -> Iterator[TensorShape]:
        """Shapes of what is trained for one layer: A, B, and DoRA's magnitudes.

        >>> list(Adapter("dora", 8).tensors_of(Linear("q_proj", 512, 256)))
        [(8, 512), (256, 8), (256,)]
        """
        if self.kind not in KINDS:
            do = "trace it: `workbook trace train`"
            raise WorkbookError(f"the tensors of peft's {self.kind}", f"those of {', '.join(KINDS)}", do)
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
