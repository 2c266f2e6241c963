"""The dense families beside Llama: a page of `decoder` for each, by what its code in Transformers does otherwise.

A new family, with its modeling code beside it:

1. Its tensors, in `catalog.families`: a function of its config, so that TrainSetup can count its parameters.
2. Here a subclass of Decoder that overrides what its code does otherwise (`block` where a layer has another order;
   `attention`, `mlp`, `routed`, `norm`, `scaled`), call for call: each kernel is one operator, `a + b + c` are two
   `add`. Keep the variables of the original, for a name holds its tensor, and the order, for the backward goes the
   other way round.
   `how` names what a policy does inside of a layer ("module:attention", "module:mlp"): see `_plus`.
3. Its name in PAGES, and a small config in tests/memory/step/test_families.py: there the tape's weights are held
   against the catalogue's, and its peaks against the trace, in three precisions and under policies.

What has experts is in `experts`. No torch.
"""

from __future__ import annotations

from ....catalog.hardware import Cuda
from ....catalog.layers import Attention, Layer, Mlp
from ....catalog.train_setup import TrainSetup
from ...breakdown import rounded
from ..operators import Operators
from ..tape import Tensor
from .attending import FUSED
from .decoder import CenteredNorm, Decoder, PartlyRotated
from .delta import Hybrid, Qwen3Next
from .experts import DeepSeek, Experts, Glm4Moe, GptOss, Llama4, Qwen3Moe
from .linears import FP32


class Gemma2(CenteredNorm):
    """Caps on scores and logits."""

    logit_cap = 30.0

    def _capped(self, weights: Tensor) -> Tensor:
        if not self.model.config.get("attn_logit_softcapping", 50.0):
            return weights
        return self.tape.elementwise(self.tape.keeps_result(self.tape.elementwise(weights)))


class Gemma3(CenteredNorm):
    """Gemma-2's norms, on q and k too, without its caps."""

    tables_by_kind = True


class Phi3(PartlyRotated):
    """q, k and v are slices of one product, gate and up halves of another; a part of a head may stay unrotated."""

    def projected(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor, Tensor]:
        tape, rows = self.tape, self.tokens * attention.head_dim
        joined = self.linear(hidden, attention.linears[0])
        query = tape.part(joined, rows * attention.heads)
        key, value = tape.part(joined, rows * attention.kv_heads), tape.part(joined, rows * attention.kv_heads)
        return self.rotated(query), self.rotated(key), value

    def mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        gate_up, down = mlp.linears
        both = self.linear(x, gate_up)
        return self.linear(self.gated(both), down)


class Gpt2(Decoder):
    """LayerNorm, biases everywhere, q, k and v in one product, and no rotation: positions are learned."""

    table_bytes = ()
    names_attention = True

    def ids(self, held: bool) -> int:
        """Of the positions, which their lookup keeps, and of the words, of which it makes a view."""
        return rounded(8 * self.setup.sequence) + rounded(8 * self.tokens)

    def named_embeddings(self, held: bool, is_leaf: bool) -> int:
        """Those of the words, and of the positions, the same for all sequences: a layer holds their sum."""
        hidden = self.model.hidden * self.width.residual
        return rounded(self.setup.sequence * hidden) + (0 if is_leaf else rounded(self.tokens * hidden))

    def norm(self, x: Tensor, rows: int) -> Tensor:
        """CUDA's autocast brings all of it to FP32."""
        tape, size = self.tape, x.values // rows
        given = x, self.weight(size), self.weight(size)
        if self.width.autocast and self.cuda:
            given = tuple(tape.cast(one, FP32) if one.values else one for one in given)  # type: ignore[assignment]
        x, *trained = given
        return tape.layer_norm(x, rows, *trained)

    def projected(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor, Tensor]:
        joined = self.linear(hidden, attention.linears[0])
        query, key, value = self.tape.split(joined, *[joined.values // 3] * 3)
        return query, key, value

    def _softmax(self, weights: Tensor) -> Tensor:
        """In the type of the scores; CUDA's autocast has it in FP32."""
        weights = self.tape.cast(weights, FP32) if self.width.autocast and self.cuda else weights
        return self.tape.softmax(weights, weights.width, bool(self.cuda))

    def mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        up, down = mlp.linears
        return self.linear(self.activated(self.linear(x, up)), down)

    def activated(self, x: Tensor) -> Tensor:
        kind = self.model.layers[0].mlp.activation
        return {"gelu_new": self._gelu_new, "relu": self.tape.keeps_result}.get(kind, super().activated)(x)

    def _gelu_new(self, x: Tensor) -> Tensor:
        """0.5 * x * (1.0 + tanh(sqrt(2 / pi) * (x + 0.044715 * pow(x, 3.0)))), a tensor for each call.

        CUDA's autocast runs pow in FP32, and what follows is promoted.
        """
        tape = self.tape
        half = tape.elementwise(x)
        base = tape.cast(x, FP32) if self.width.autocast and self.cuda else x
        inner = tape.elementwise(base, kept=(base,), scratch=2)
        del base
        inner = tape.elementwise(inner)
        inner = tape.add(x, inner)
        inner = tape.elementwise(inner)
        inner = tape.keeps_result(inner)
        inner = tape.elementwise(inner)
        return tape.mul(half, inner)


class Opt(Gpt2):
    """Four projections, the query scaled before attention; ReLU keeps its result alone."""

    names_attention = False

    def ids(self, held: bool) -> int:
        """Of the positions one for each token, and another that is two more, by which the table is asked."""
        return (2 + held) * rounded(8 * self.tokens)

    def named_embeddings(self, held: bool, is_leaf: bool) -> int:
        return (1 if is_leaf else 2) * rounded(self.tokens * self.model.hidden * self.width.residual)

    def projected(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, _ = attention.linears
        return self.tape.elementwise(self.linear(hidden, q)), self.linear(hidden, k), self.linear(hidden, v)

    def _with_mlp(self, hidden: Tensor, layer: Layer, how: str) -> Tensor:
        """No module of its own, whose argument would live as long as its call; and sequences end to end."""
        if how == "module:mlp":
            return super()._with_mlp(hidden, layer, how)
        tape, residual, (up, down) = self.tape, hidden, layer.mlp.linears
        tape.flat = True
        hidden = self.norm(hidden, self.tokens)
        hidden = self.linear(hidden, up)
        hidden = self.activated(hidden)
        hidden = self.linear(hidden, down)
        tape.flat = False
        return tape.add(residual, hidden)

    def _softmax(self, weights: Tensor) -> Tensor:
        return Decoder._softmax(self, weights)


PAGES: dict[str, type[Decoder]] = {
    "llama": Decoder,
    "mistral": Decoder,
    "qwen2": Decoder,
    "qwen3": Decoder,
    "smollm3": Decoder,
    "gemma2": Gemma2,
    "gemma3_text": Gemma3,
    "phi3": Phi3,
    "mixtral": Experts,
    "qwen3_moe": Qwen3Moe,
    "gpt_oss": GptOss,
    "deepseek_v3": DeepSeek,
    "glm4_moe": Glm4Moe,
    "llama4_text": Llama4,
    "qwen3_next": Qwen3Next,
    "qwen3_5_text": Hybrid,
    "qwen3_5_moe_text": Hybrid,
    "gpt2": Gpt2,
    "opt": Opt,
}


def decoder(
    setup: TrainSetup, tape: Operators, kernel: str = FUSED, cuda: Cuda | None = None, **told: object
) -> Decoder:
    """The page of the model's family, on `tape`, with what is `told` of it: its parts, its copies, what it names."""
    page = PAGES[setup.model.family](setup, tape, kernel, cuda)
    vars(page).update(told)
    return page
