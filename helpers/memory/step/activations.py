"""What the forward pass saves for the backward pass, tensor by tensor, in closed form.

A `Saved` is one storage that today's PyTorch and Transformers kernels keep alive, counted once. They were
read off a meter on the running models (chapter 02 shows how) and hold for dense decoders with dropout off.
Shape letters: N = micro-batch x sequence, h = hidden, f = ffn, q = heads x head_dim, k = kv_heads x head_dim.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, unique

from ...catalog.errors import WorkbookError
from ...catalog.layers import Layer
from ...catalog.setup import TrainSetup
from ..breakdown import Breakdown, rounded
from .refusals import require_kernel

FAMILIES = ("gemma2", "gpt2", "llama", "mistral", "opt", "qwen2", "qwen3")  # those whose rows were held against a meter


@dataclass(frozen=True)
class Widths:
    """Bytes per value in one recipe: of the residual stream, of what the matrix products read and write."""

    residual: int
    compute: int
    autocast: bool

    @classmethod
    def of(cls, setup: TrainSetup) -> Widths:
        autocast = setup.precision_recipe.autocast and setup.precision_recipe.weight_bytes == 4  # else it casts nothing
        compute = 4 if setup.precision == "fp32" else 2
        return cls(residual=setup.precision_recipe.weight_bytes, compute=compute, autocast=autocast)


@unique
class Owner(Enum):
    """The part of a model that keeps a tensor for its backward; the value is its name in a caption."""

    ATTENTION_NORM = "attention norm"
    QK_NORM = "q and k"
    ATTENTION = "attention"
    ATTENTION_OUTPUT_NORM = "attention output norm"
    MLP_NORM = "mlp norm"
    MLP = "mlp"
    MLP_OUTPUT_NORM = "mlp output norm"
    WEIGHTS = "the weights"
    FINAL_NORM = "final norm"
    ROTARY = "rotary"
    LM_HEAD = "lm_head"


@unique
class Role(Enum):
    """Which of its owner's tensors one is; the value is its caption, where {} is the owner."""

    INPUT = "{} input"
    INPUT_FP32 = "{} input, fp32"
    UNNORMED_FP32 = "{} before their norm, fp32"
    MEAN_AND_RSTD = "{} mean and rstd"
    RSTD = "{} rstd"
    NORMALISED = "{} normalised"
    OUTPUT = "{} output"
    QKV = "q, k, v"
    LOG_SUM_EXP = "log-sum-exp"
    PROBABILITIES = "attention probabilities"
    PROBABILITIES_CAST = "attention probabilities, cast"
    CAPPED_SCORES = "attention scores, capped"
    SWIGLU = "gate, its activation, up, their product"
    RELU = "relu output"
    GELU = "gelu input and output"
    GELU_NEW = "gelu_new's five tensors"
    TABLES = "{} tables"
    WEIGHT_COPY = "bf16 copy of {}"
    WEIGHT_COPIES = "bf16 copies of {}"


@dataclass(frozen=True)
class Saved:
    """One storage, or several alike, that the forward keeps: whose, which, and its bytes."""

    owner: Owner
    role: Role
    size_bytes: int

    @property
    def caption(self) -> str:
        return self.role.value.format(self.owner.value)


def require_closed_form(setup: TrainSetup) -> None:
    """Refuse a model whose saved tensors these rows do not describe; a guess would look like a number."""
    model = setup.model
    if model.family not in FAMILIES or not model.is_dense_decoder:
        raise WorkbookError(
            f"the saved tensors of {model.name} (family {model.family!r}) have no closed form here, row by row",
            f"a dense decoder of {', '.join(FAMILIES)}",
            "ask for their sum: budget.bytes_saved_by(setup, layer)",
        )
    require_kernel(setup)
    if setup.precision == "autocast-bf16-on-bf16" and model.family in ("gpt2", "opt"):
        what = f"autocast casts the norms of {model.name} to FP32, which has no rows here"
        raise WorkbookError(what, "precision='bf16'", "ask for their sum: budget.bytes_saved_by(setup, layer)")
    if setup.attention == "eager":
        return
    window = min((layer.attention.window for layer in model.layers if layer.attention.window), default=None)
    if window and setup.sequence >= window:
        raise WorkbookError(
            f"sequence {setup.sequence:,} fills {model.name}'s attention window of {window:,} tokens",
            f"a sequence below {window:,}: from there on Transformers makes a T x T mask, which has no rows here",
            "shorten the sequence, pass attention='eager', or ask for their sum: budget.bytes_saved_by(setup, layer)",
        )


def saved_by_layer(setup: TrainSetup, layer: Layer) -> Breakdown:
    """Bytes that one decoder layer keeps for its backward pass, by tensor.

    Llama-2-7B, micro-batch 1, sequence 2048, BF16, SDPA: 364.3 MiB a layer, of which the four SwiGLU tensors
    are 172 MiB: gate, its activation, up and their product.
    """
    return captioned(layer_tensors(setup, layer))


def saved_outside_layers(setup: TrainSetup) -> Breakdown:
    """Bytes kept by the final norm, the rotary tables and the cast of `lm_head`; the loss is counted as logits."""
    return captioned(outside_tensors(setup))


def captioned(tensors: Iterable[Saved]) -> Breakdown:
    """The tensors as people read them: bytes by caption."""
    return Breakdown({saved.caption: saved.size_bytes for saved in tensors})


def total_bytes(tensors: Iterable[Saved]) -> int:
    return sum(saved.size_bytes for saved in tensors)


def layer_tensors(setup: TrainSetup, layer: Layer) -> tuple[Saved, ...]:
    """What one decoder layer keeps. WorkbookError for a model whose activations have no closed form here."""
    require_closed_form(setup)
    return _present(
        _norm(setup, Owner.ATTENTION_NORM, readers=len(layer.attention.linears) - 1),
        _qk_norm(setup, layer),
        _attention(setup, layer),
        _norm(setup, Owner.MLP_NORM, readers=len(layer.mlp.linears) - 1),
        _mlp(setup, layer),
        _output_norms(setup, layer),
        _weight_copies(setup, layer),
    )


def outside_tensors(setup: TrainSetup) -> tuple[Saved, ...]:
    """What is kept outside the decoder layers, but for the loss."""
    width, model = Widths.of(setup), setup.model
    rotary = 0 if model.learned_positions else 2 * rounded(setup.sequence * model.head_dim * width.residual)
    copy = rounded(2 * model.vocab * model.hidden) if width.autocast else 0
    others = [Saved(Owner.ROTARY, Role.TABLES, rotary), Saved(Owner.LM_HEAD, Role.WEIGHT_COPY, copy)]
    return _present(_norm(setup, Owner.FINAL_NORM, readers=1), others)


def _present(*groups: Iterable[Saved]) -> tuple[Saved, ...]:
    return tuple(saved for group in groups for saved in group if saved.size_bytes)


def _norm(setup: TrainSetup, owner: Owner, readers: int) -> list[Saved]:
    """A norm's input, statistics and output, which `readers` linear layers read; GPT-2's fused c_attn is one.

    Transformers' RMSNorm upcasts its input and keeps that FP32 copy. Gemma-2's multiplies by its weight in FP32 as
    well. An output that only joins the residual stream has no reader. Under autocast every linear layer that reads the
    FP32 output makes, and saves, a BF16 copy of its own.
    """
    width, values = Widths.of(setup), setup.tokens * setup.model.hidden
    output = readers * rounded(2 * values) if width.autocast else min(readers, 1) * rounded(values * width.residual)
    statistic = rounded(4 * setup.tokens)
    if setup.model.norm == "layernorm":
        return [
            Saved(owner, Role.INPUT, rounded(values * width.residual)),
            Saved(owner, Role.MEAN_AND_RSTD, 2 * statistic),
            Saved(owner, Role.OUTPUT, output),
        ]
    normalised = rounded(values * (4 if setup.model.family == "gemma2" else width.residual))
    return [
        Saved(owner, Role.INPUT_FP32, rounded(4 * values)),
        Saved(owner, Role.RSTD, statistic),
        Saved(owner, Role.NORMALISED, normalised),
        Saved(owner, Role.OUTPUT, output),
    ]


def _output_norms(setup: TrainSetup, layer: Layer) -> list[Saved]:
    """Gemma-2 norms the outputs of attention and MLP too, before they join the residual stream."""
    if layer.norms < 4:
        return []
    return [*_norm(setup, Owner.ATTENTION_OUTPUT_NORM, readers=0), *_norm(setup, Owner.MLP_OUTPUT_NORM, readers=0)]


def _qk_norm(setup: TrainSetup, layer: Layer) -> list[Saved]:
    """Qwen3's RMSNorm on q and k: an FP32 copy, its statistic and the normalised value of each head."""
    attention, tokens, e = layer.attention, setup.tokens, Widths.of(setup).compute
    if not attention.qk_norm:
        return []
    heads = (attention.heads, attention.kv_heads)
    return [
        Saved(Owner.QK_NORM, Role.UNNORMED_FP32, sum(rounded(4 * tokens * n * attention.head_dim) for n in heads)),
        Saved(Owner.QK_NORM, Role.RSTD, sum(rounded(4 * tokens * n) for n in heads)),
        Saved(Owner.QK_NORM, Role.NORMALISED, sum(rounded(e * tokens * n * attention.head_dim) for n in heads)),
    ]


def _attention(setup: TrainSetup, layer: Layer) -> list[Saved]:
    """q, k, v, the output, and either SDPA's log-sum-exp (N x heads) or eager's probabilities (heads x T x T)."""
    attention, tokens, e = layer.attention, setup.tokens, Widths.of(setup).compute
    q = rounded(e * tokens * attention.heads * attention.head_dim)
    if setup.attention == "sdpa":
        kv = rounded(e * tokens * attention.kv_heads * attention.head_dim)
        sizes = {Role.QKV: q + 2 * kv, Role.OUTPUT: q, Role.LOG_SUM_EXP: rounded(4 * tokens * attention.heads)}
    else:
        scores, softmax = setup.micro_batch * attention.heads * setup.sequence**2, softmax_bytes(setup)
        capped = setup.model.family == "gemma2" and setup.model.config.get("attn_logit_softcapping", 50.0)
        sizes = {
            Role.QKV: 3 * q,
            Role.PROBABILITIES: rounded(scores * softmax),
            Role.OUTPUT: q,
            Role.CAPPED_SCORES: rounded(scores * e) if capped else 0,
            Role.PROBABILITIES_CAST: rounded(scores * e) if softmax > e else 0,
        }
    return [Saved(Owner.ATTENTION, role, size) for role, size in sizes.items()]


def capped_logits_bytes(setup: TrainSetup) -> int:
    """Gemma-2's tanh of the logits, kept from the loss to its backward; 0 for other models."""
    if setup.model.family != "gemma2" or not setup.model.config.get("final_logit_softcapping", 30.0):
        return 0
    return rounded(setup.tokens * setup.model.vocab * Widths.of(setup).compute)


def softmax_bytes(setup: TrainSetup) -> int:
    """Bytes per value of eager attention's softmax: FP32 in Llama's code and under autocast, else the model's."""
    width = Widths.of(setup)
    return width.compute if setup.model.family == "gpt2" and not width.autocast else 4


def _mlp(setup: TrainSetup, layer: Layer) -> list[Saved]:
    """SwiGLU keeps four tensors of N x f; GPT-2's gelu_new, written out in Python, five; ReLU one."""
    mlp, width = layer.mlp, Widths.of(setup)
    if mlp.gated:
        role, tensors = Role.SWIGLU, 4
    elif mlp.activation == "relu":
        role, tensors = Role.RELU, 1
    elif mlp.activation == "gelu_new":
        # CUDA autocast runs pow in FP32, and what follows is promoted: 4 + 4 + 4 bytes and two BF16 tensors
        role, tensors = Role.GELU_NEW, 8 if width.autocast else 5
    else:
        role, tensors = Role.GELU, 2
    return [Saved(Owner.MLP, role, tensors * rounded(setup.tokens * mlp.ffn * width.compute))]


def _weight_copies(setup: TrainSetup, layer: Layer) -> list[Saved]:
    """Autocast's BF16 copy of each weight matrix, kept by the product that read it."""
    if not Widths.of(setup).autocast:
        return []
    linears = layer.attention.linears + layer.mlp.linears
    return [Saved(Owner.WEIGHTS, Role.WEIGHT_COPIES, sum(rounded(2 * linear.weights) for linear in linears))]
