"""What the forward pass saves for the backward pass, tensor by tensor, in closed form.

A row here is one storage that today's PyTorch and Transformers kernels keep alive, counted once. The rows were
read off a meter on the running models (chapter 02 shows how) and hold for dense decoders with dropout off.
Shape letters: N = micro-batch x sequence, h = hidden, f = ffn, q = heads x head_dim, k = kv_heads x head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.errors import WorkbookError
from ...catalog.layers import Layer
from ...catalog.setup import TrainSetup
from .breakdown import Breakdown, rounded

FAMILIES = ("gemma2", "gpt2", "llama", "mistral", "opt", "qwen2", "qwen3")  # those whose rows were held against a meter


@dataclass(frozen=True)
class Widths:
    """Bytes per value in one recipe: of the residual stream, of what the matrix products read and write."""

    residual: int
    compute: int
    autocast: bool

    @classmethod
    def of(cls, setup: TrainSetup) -> Widths:
        autocast = setup.precision == "autocast-bf16"
        compute = 4 if setup.precision == "fp32" else 2
        return cls(residual=4 if autocast else compute, compute=compute, autocast=autocast)


def require_closed_form(setup: TrainSetup) -> None:
    """Refuse a model whose activations these rows do not describe; a guess would look like a number."""
    model = setup.model
    if model.family not in FAMILIES or not model.is_dense_decoder:
        raise WorkbookError(
            f"the activations of {model.name} (family {model.family!r}) have no closed form here",
            f"a dense decoder of one of the families {', '.join(FAMILIES)}",
            "run its training step under helpers.memory.measure; weights and KV cache need no activations: "
            "`workbook estimate serve` knows them",
        )
    require_kernel(setup)
    if setup.attention == "eager":
        return
    window = min((layer.attention.window for layer in model.layers if layer.attention.window), default=None)
    if window and setup.sequence >= window:
        raise WorkbookError(
            f"sequence {setup.sequence:,} fills {model.name}'s attention window of {window:,} tokens",
            f"a sequence below {window:,}: from there on Transformers makes a T x T mask, which has no rows here",
            "shorten the sequence, pass attention='eager', or measure the step with helpers.memory.measure",
        )


def require_kernel(setup: TrainSetup) -> None:
    """Refuse Gemma-2 but with eager attention. Some versions of Transformers build it, and leave the caps out."""
    if setup.model.family == "gemma2" and setup.attention != "eager":
        raise WorkbookError(
            f"attention is {setup.attention!r} and {setup.model.name} caps its attention scores",
            "eager: Transformers has no other kernel for capped scores",
            "pass attention='eager' (--attention eager)",
        )


def saved_by_layer(setup: TrainSetup, layer: Layer) -> Breakdown:
    """Bytes that one decoder layer keeps for its backward pass, by tensor.

    Llama-2-7B, micro-batch 1, sequence 2048, BF16, SDPA: 364.3 MiB a layer, of which the four SwiGLU tensors
    are 172 MiB: gate, its activation, up and their product.
    """
    require_closed_form(setup)
    attention, mlp = layer.attention, layer.mlp
    rows = {
        **_norm(setup, "attention norm", readers=_readers(attention.linears[:-1])),
        **_qk_norm(setup, layer),
        **_attention(setup, layer),
        **_norm(setup, "mlp norm", readers=_readers(mlp.linears[:-1])),
        **_mlp(setup, layer),
        **_output_norms(setup, layer),
        **_weight_copies(setup, layer),
    }
    return Breakdown({name: size for name, size in rows.items() if size})


def saved_outside_layers(setup: TrainSetup) -> Breakdown:
    """Bytes kept by the final norm, the rotary tables and the cast of `lm_head`; the loss is counted as logits."""
    width, model = Widths.of(setup), setup.model
    rotary = 0 if model.learned_positions else 2 * rounded(setup.sequence * model.head_dim * width.residual)
    copy = rounded(2 * model.vocab * model.hidden) if width.autocast else 0
    rows = {**_norm(setup, "final norm", readers=1), "rotary tables": rotary, "bf16 copy of lm_head": copy}
    return Breakdown({name: size for name, size in rows.items() if size})


def products_by_layer(setup: TrainSetup, layer: Layer) -> dict[str, Breakdown]:
    """Bytes that one layer's matrix products and its attention kernel write, by the kind that a selective policy names.

    "matmuls" are what each linear layer writes, in eager attention its scores and its output too; "attention" is what
    the fused kernel writes. Llama-2-7B, 2048 tokens in BF16: 166.00 MiB of matmuls, 16.25 MiB of attention.
    """
    tokens, e, attention = _tokens(setup), Widths.of(setup).compute, layer.attention
    linears = attention.linears + layer.mlp.linears
    matmuls = {linear.name: rounded(e * tokens * linear.outputs) for linear in linears[:-1]}
    matmuls[last_product(layer)] = rounded(e * tokens * linears[-1].outputs)
    output = rounded(e * tokens * attention.heads * attention.head_dim)
    if setup.attention == "sdpa":
        kernel = {"attention output": output, "log-sum-exp": rounded(4 * tokens * attention.heads)}
        return {"matmuls": Breakdown(matmuls), "attention": Breakdown(kernel)}
    scores = rounded(e * tokens * setup.sequence * attention.heads)
    matmuls.update({"attention scores": scores, "attention output": output})
    return {"matmuls": Breakdown(matmuls), "attention": Breakdown()}


def last_product(layer: Layer) -> str:
    """The name, among a layer's products, of the one that writes to the residual stream last."""
    return f"mlp {layer.mlp.linears[-1].name}"


def attention_internals(setup: TrainSetup, layer: Layer) -> Breakdown:
    """Of `saved_by_layer`, what is made inside the attention module: all that a checkpoint around it does not keep."""
    inside = _qk_norm(setup, layer) | _attention(setup, layer)
    return Breakdown({name: size for name, size in inside.items() if size})


def mlp_internals(setup: TrainSetup, layer: Layer) -> Breakdown:
    """Of `saved_by_layer`, what is made inside the MLP."""
    return Breakdown(_mlp(setup, layer))


def boundary_bytes(setup: TrainSetup) -> int:
    """The input of one layer, which checkpointing keeps: N x h values of the residual stream."""
    return rounded(_tokens(setup) * setup.model.hidden * Widths.of(setup).residual)


def shares_boundary(setup: TrainSetup) -> bool:
    """True when the norm saves the layer's input itself; a BF16 residual is saved as an FP32 copy beside it."""
    return setup.model.norm == "layernorm" or Widths.of(setup).residual == 4


def _tokens(setup: TrainSetup) -> int:
    return setup.micro_batch * setup.sequence


def _readers(linears: tuple) -> int:
    """Linear layers that read one norm's output; GPT-2's fused c_attn is one."""
    return len(linears)


def _norm(setup: TrainSetup, name: str, readers: int) -> dict[str, int]:
    """A norm's input, statistics and output. Transformers' RMSNorm upcasts its input and keeps that FP32 copy.

    Gemma-2's multiplies by its weight in FP32 as well. An output that only joins the residual stream has no reader.
    Under autocast every linear layer that reads the FP32 output makes, and saves, a BF16 copy of its own.
    """
    width, values = Widths.of(setup), _tokens(setup) * setup.model.hidden
    output = readers * rounded(2 * values) if width.autocast else min(readers, 1) * rounded(values * width.residual)
    statistic = rounded(4 * _tokens(setup))
    if setup.model.norm == "layernorm":
        return {
            f"{name} input": rounded(values * width.residual),
            f"{name} mean and rstd": 2 * statistic,
            f"{name} output": output,
        }
    return {
        f"{name} input, fp32": rounded(4 * values),
        f"{name} rstd": statistic,
        f"{name} normalised": rounded(values * (4 if setup.model.family == "gemma2" else width.residual)),
        f"{name} output": output,
    }


def _output_norms(setup: TrainSetup, layer: Layer) -> dict[str, int]:
    """Gemma-2 norms the outputs of attention and MLP too, before they join the residual stream."""
    if layer.norms < 4:
        return {}
    return {**_norm(setup, "attention output norm", readers=0), **_norm(setup, "mlp output norm", readers=0)}


def _qk_norm(setup: TrainSetup, layer: Layer) -> dict[str, int]:
    """Qwen3's RMSNorm on q and k: an FP32 copy, its statistic and the normalised value of each head."""
    attention, tokens, e = layer.attention, _tokens(setup), Widths.of(setup).compute
    if not attention.qk_norm:
        return {}
    heads = (attention.heads, attention.kv_heads)
    return {
        "q and k before their norm, fp32": sum(rounded(4 * tokens * n * attention.head_dim) for n in heads),
        "q and k rstd": sum(rounded(4 * tokens * n) for n in heads),
        "q and k normalised": sum(rounded(e * tokens * n * attention.head_dim) for n in heads),
    }


def _attention(setup: TrainSetup, layer: Layer) -> dict[str, int]:
    """q, k, v, the output, and either SDPA's log-sum-exp (N x heads) or eager's probabilities (heads x T x T)."""
    attention, tokens, e = layer.attention, _tokens(setup), Widths.of(setup).compute
    q = rounded(e * tokens * attention.heads * attention.head_dim)
    if setup.attention == "sdpa":
        kv = rounded(e * tokens * attention.kv_heads * attention.head_dim)
        return {"q, k, v": q + 2 * kv, "attention output": q, "log-sum-exp": rounded(4 * tokens * attention.heads)}
    scores = setup.micro_batch * attention.heads * setup.sequence**2
    rows = {
        "q, k, v": 3 * q,
        "attention probabilities": rounded(scores * softmax_bytes(setup)),
        "attention output": q,
    }
    if setup.model.family == "gemma2" and setup.model.config.get("attn_logit_softcapping", 50.0):
        rows["attention scores, capped"] = rounded(scores * e)
    if softmax_bytes(setup) > e:
        rows["attention probabilities, cast"] = rounded(scores * e)
    return rows


def capped_logits_bytes(setup: TrainSetup) -> int:
    """Gemma-2's tanh of the logits, kept from the loss to its backward; 0 for other models."""
    if setup.model.family != "gemma2" or not setup.model.config.get("final_logit_softcapping", 30.0):
        return 0
    return rounded(_tokens(setup) * setup.model.vocab * Widths.of(setup).compute)


def softmax_bytes(setup: TrainSetup) -> int:
    """Bytes per value of eager attention's softmax: FP32 in Llama's code and under autocast, else the model's."""
    width = Widths.of(setup)
    return width.compute if setup.model.family == "gpt2" and not width.autocast else 4


def _mlp(setup: TrainSetup, layer: Layer) -> dict[str, int]:
    """SwiGLU keeps four tensors of N x f; GPT-2's gelu_new, written out in Python, five; ReLU one."""
    mlp, width = layer.mlp, Widths.of(setup)
    value = rounded(_tokens(setup) * mlp.ffn * width.compute)
    if mlp.gated:
        return {"gate, its activation, up, their product": 4 * value}
    if mlp.activation == "relu":
        return {"relu output": value}
    if mlp.activation == "gelu_new":
        # CUDA autocast runs pow in FP32, and what follows is promoted: 4 + 4 + 4 bytes and two BF16 tensors
        return {"gelu_new's five tensors": 8 * value if width.autocast else 5 * value}
    return {"gelu input and output": 2 * value}


def _weight_copies(setup: TrainSetup, layer: Layer) -> dict[str, int]:
    """Autocast's BF16 copy of each weight matrix, kept by the product that read it."""
    if not Widths.of(setup).autocast:
        return {}
    linears = layer.attention.linears + layer.mlp.linears
    return {"bf16 copies of the weights": sum(rounded(2 * linear.weights) for linear in linears)}
