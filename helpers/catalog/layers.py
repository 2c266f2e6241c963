"""One decoder layer, tensor by tensor: its projections, its norms and what it keeps per token; no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

TensorShape = tuple[int, ...]
LINEAR_PARTS = ("attention", "mlp", "experts", "projections", "lm_head")


@dataclass(frozen=True)
class Linear:
    """A weight of (outputs, inputs), with a bias of (outputs,) or none.

    Of a quantized checkpoint those that it leaves in 16 bits are `kept`.
    """

    name: str
    inputs: int
    outputs: int
    bias: bool = False
    kept: bool = False

    @property
    def weights(self) -> int:
        """Elements of the weight matrix, without the bias."""
        return self.inputs * self.outputs

    @property
    def parameters(self) -> int:
        """Elements of weight and bias."""
        return self.weights + (self.outputs if self.bias else 0)

    def tensors(self) -> Iterator[TensorShape]:
        yield (self.outputs, self.inputs)
        if self.bias:
            yield (self.outputs,)


@dataclass(frozen=True)
class LinearGroup:
    """`count` equal linear layers in one part of a model.

    `part` is one of LINEAR_PARTS: shared experts are in mlp, experts are the routed ones, and projections those of
    OPT-350m's narrow embedding.
    """

    part: str
    linear: Linear
    count: int

    @property
    def weights(self) -> int:
        """Elements of all their weight matrices."""
        return self.count * self.linear.weights


@dataclass(frozen=True)
class Mla:
    """Multi-head latent attention: a token's K and V are one latent of kv_lora_rank + qk_rope_head_dim."""

    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None


@dataclass(frozen=True)
class StateRule:
    """How an engine keeps the states of recurrent layers: bits of a state's values and of a convolution's inputs.

    Of the inputs it keeps `kernel + columns` for each channel, of which a step needs kernel - 1.
    """

    state_bits: int
    input_bits: int
    columns: int


# Transformers 5.23, models/qwen3_next and mamba2 (the update of `cache_params`): a kernel's inputs in the model's type
TRANSFORMERS = StateRule(32, 16, 0)
# llama.cpp, src/llama-memory-recurrent.cpp: both in FP32
LLAMA_CPP = StateRule(32, 32, -1)
# vLLM, model_executor/layers/mamba/mamba_utils.py, with mamba_ssm_cache_dtype float32, as these models' configs have it
VLLM = StateRule(32, 16, -1)


@dataclass(frozen=True)
class RecurrentState:
    """What a recurrent layer keeps of a sequence of any length: `values` of a state, and inputs of its convolution."""

    values: int
    channels: int = 0
    kernel: int = 1

    def size_bytes(self, rule: StateRule = TRANSFORMERS) -> int:
        """Of one sequence, without drafts.

        Qwen3.5-27B in llama.cpp, one of its 48 layers: 48 heads x 128 x 128 x 4 B and 3 x 10,240 channels x 4 B.

        >>> 48 * RecurrentState(48 * 128 * 128, 10240, 4).size_bytes(LLAMA_CPP) / 2**20
        149.625
        """
        inputs = self.channels * (self.kernel + rule.columns)
        return (self.values * rule.state_bits + inputs * rule.input_bits) // 8


@dataclass(frozen=True)
class Delta:
    """A gated delta rule in attention's place: heads with a state of key_dim x value_dim, behind a short convolution.

    Yang, Kautz and Hatamizadeh 2024, arXiv:2412.06464. K, and Q, have `key_heads`; V and the states have `value_heads`.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def channels(self) -> int:
        """Of the convolution: Q, K and V side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def state(self) -> RecurrentState:
        return RecurrentState(self.value_heads * self.key_dim * self.value_dim, self.channels, self.kernel)

    def tensors(self) -> Iterator[TensorShape]:
        """What is trained beside the linear layers and the norm: decays and time steps, and the convolution."""
        yield from ((self.value_heads,), (self.value_heads,), (self.channels, 1, self.kernel))


@dataclass(frozen=True)
class Attention:
    """One layer's attention. `window` is the number of tokens it looks back on, None for all of them.

    `norm_vectors` are the lengths of the norms inside attention: Qwen3's on q and k, MLA's on its latents.
    `sinks` is GPT-OSS's one learned score per head, which takes part in the softmax and stands for no token. Where it
    is not `rotary`, q and k are left as they are, in a model that rotates them elsewhere. A layer with a `delta` has no
    attention, whose heads are here those of the model's other layers. `mamba` is the state of another recurrent layer,
    which may have attention beside it. An `indexer` caches a key of so many values for each token, by which a sparse
    attention chooses. A layer without KV heads keeps no K and V: it has none, or reads those of another layer. One that
    is `crossed` attends to an image's patches, whose K and V it keeps, and keeps nothing of a token.
    """

    heads: int
    kv_heads: int
    head_dim: int
    linears: tuple[Linear, ...]
    norm_vectors: tuple[int, ...] = ()
    qk_norm: bool = False
    window: int | None = None
    mla: Mla | None = None
    sinks: bool = False
    rotary: bool = True
    delta: Delta | None = None
    mamba: RecurrentState | None = None
    indexer: int = 0
    crossed: bool = False

    @property
    def state(self) -> RecurrentState | None:
        """What the layer keeps of a sequence whatever its length; None where it is not recurrent."""
        return self.delta.state if self.delta else self.mamba

    @property
    def kind(self) -> str:
        """mha, gqa, mqa, mla or delta."""
        if self.mla or self.delta:
            return "mla" if self.mla else "delta"
        if self.kv_heads == self.heads:
            return "mha"
        return "mqa" if self.kv_heads == 1 else "gqa"

    @property
    def value_width(self) -> int:
        """Values of V for each head and token: `head_dim` but for latent attention."""
        return self.mla.v_head_dim if self.mla else self.head_dim

    @property
    def parameters(self) -> int:
        """Projections, their biases, the norms inside attention, the sinks, and what a delta rule has besides."""
        projections = sum(linear.parameters for linear in self.linears)
        besides = sum(map(prod, self.delta.tensors())) if self.delta else 0
        return projections + sum(self.norm_vectors) + (self.heads if self.sinks else 0) + besides

    @property
    def kv_values_per_token(self) -> int:
        """K and V values that one token adds in this layer; for MLA its one latent.

        Llama-3-8B: 2 x 8 KV heads x 128 = 2048. DeepSeek-V3: 512 + 64 = 576, not twice (an engine that caches
        the expanded heads, as Transformers did before it kept the latent, holds 40,960).
        """
        if self.delta or self.crossed:
            return 0
        if self.mla:
            return self.mla.kv_lora_rank + self.mla.qk_rope_head_dim + self.indexer
        return 2 * self.kv_heads * self.head_dim + self.indexer

    def kv_values(self, context: int, piece: int = 1) -> int:
        """K and V values held for one sequence of `context` tokens, of which the last forward took `piece`.

        A window of w tokens holds the w - 1 before the piece, and the piece: so w while it decodes. Engines free blocks
        of tokens, and vLLM reserves that many. Transformers slices its cache to w - 1, but the slice is a view, which
        keeps the piece alive until the next forward: after a prompt taken whole, all of it.
        """
        held = context if self.window is None else min(context, self.window - 1 + piece)
        return held * self.kv_values_per_token

    @property
    def sparse_fp8_bytes(self) -> int:
        """Bytes of a token in vLLM's FP8 layout of sparse latent attention; 0 in other layers.

        The latent in FP8 with an FP32 scale for each 128 values, the rotary part in BF16, the indexer's key in FP8 with
        one scale. DeepSeek-V3.2: 512 + 16 + 128 and 128 + 4, so 788 B (vLLM, v1/attention/backends/mla,
        flashmla_sparse.py and indexer.py).
        """
        if not (self.mla and self.indexer):
            return 0
        latent = self.mla.kv_lora_rank + 4 * (self.mla.kv_lora_rank // 128) + 2 * self.mla.qk_rope_head_dim
        return latent + self.indexer + 4


@dataclass(frozen=True)
class Mlp:
    """One layer's feed-forward part, dense (`experts` = 0) or mixture of experts.

    `ffn` is the width a token passes: of the dense MLP, or of one expert. `linears` are used by every token (the dense
    MLP, or the shared experts); `expert_linears` are one routed expert's, and there are `experts` of those.
    """

    ffn: int
    gated: bool
    activation: str
    linears: tuple[Linear, ...]
    experts: int = 0
    experts_per_token: int = 0
    expert_linears: tuple[Linear, ...] = ()
    router_parameters: int = 0
    router_bias: bool = False

    @property
    def parameters(self) -> int:
        """Everything held: all experts, shared ones, and the router."""
        return self._parameters_with(self.experts)

    @property
    def active_parameters(self) -> int:
        """What one token uses: its experts, the shared ones, and the router."""
        return self._parameters_with(self.experts_per_token)

    def _parameters_with(self, experts: int) -> int:
        always = sum(linear.parameters for linear in self.linears) + self.router_parameters
        return always + experts * sum(linear.parameters for linear in self.expert_linears)


@dataclass(frozen=True)
class Layer:
    """One decoder layer. `norms` counts its norm modules, `norm_vectors` the lengths of their parameters."""

    attention: Attention
    mlp: Mlp
    norms: int
    norm_vectors: tuple[int, ...]

    def __hash__(self) -> int:
        """Of a few numbers, not of every nested field: the closed form looks eighty equal layers up many times."""
        attention = self.attention
        return hash((attention.heads, attention.window, attention.delta is None, self.mlp.ffn, self.norms))

    @property
    def norm_parameters(self) -> int:
        return sum(self.norm_vectors)

    @property
    def parameters(self) -> int:
        return self.attention.parameters + self.mlp.parameters + self.norm_parameters

    def linears(self) -> Iterator[LinearGroup]:
        """The layer's linear layers: what quantization shrinks; neither router nor norms."""
        yield from (LinearGroup("attention", linear, 1) for linear in self.attention.linears)
        yield from (LinearGroup("mlp", linear, 1) for linear in self.mlp.linears)
        yield from (LinearGroup("experts", linear, self.mlp.experts) for linear in self.mlp.expert_linears)

    def tensors(self, hidden: int) -> Iterator[TensorShape]:
        """Shapes of the trainable tensors as Transformers holds them: routed experts stacked in one."""
        for linear in self.attention.linears + self.mlp.linears:
            yield from linear.tensors()
        for linear in self.mlp.expert_linears:
            yield from ((self.mlp.experts, *tensor) for tensor in linear.tensors())
        if self.mlp.router_parameters:
            yield (self.mlp.experts, hidden)
        if self.mlp.router_bias:
            yield (self.mlp.experts,)
        if self.attention.sinks:
            yield (self.attention.heads,)
        if self.attention.delta:
            yield from self.attention.delta.tensors()
        for length in self.attention.norm_vectors + self.norm_vectors:
            yield (length,)
