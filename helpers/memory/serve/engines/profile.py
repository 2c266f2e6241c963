"""What an engine's profile run takes at its peak: the largest forward that it may meet, and sampling from it.

What is derived, and what is fitted:

- *Sampling* is derived from vLLM 0.19 (v1/sample/sampler.py, ops/topk_topp_sampler.py, ops/topk_topp_triton.py): for
  each of max_num_seqs x vocabulary logits their 16 bits, an FP32 copy, its softmax and the noise are alive; beside them
  a row of FP32 logits for each multiprocessor, the hidden states of all tokens, and of those sampled two copies.
- *The forward* by max_num_batched_tokens: at an MLP's widest point attention's output, the residual stream, the layer's
  sum, gate and up, and their product. EXTRA_BYTES is fitted on three launches, all with a hidden size of 4,096.
- *Experts'* workspaces are derived (layers/fused_moe/fused_moe.py), and stay through the sampling.

Attention takes none: the profile run has no keys to attend to, a soft cap or not. Encoders of images are not counted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ....catalog.devices import Device
from ....catalog.engines import EngineVersion
from ....catalog.formats import number_format
from ....catalog.hardware import cuda_of
from ....catalog.layers import Layer
from ....catalog.serve_setup import ServeSetup
from .weights import FP32, padded_vocabulary, value_bytes

EXTRA_BYTES = 48 * 2**20  # of a forward, beside the tensors that are named
QUANTIZED_INPUTS = ("fp8-e4m3", "fp8-e5m2", "int8", "w8a8")  # whose products quantize what they multiply


@dataclass(frozen=True)
class ProfileRun:
    """One forward over `tokens`, and logits of the last token of each of `sequences`, on one of `tensor` ranks."""

    setup: ServeSetup
    engine: EngineVersion
    card: Device
    tensor: int
    tokens: int
    sequences: int

    def peak_bytes(self, layers: Collection[Layer], samples: bool, hands_on: bool) -> int:
        """The rise of torch's peak, in the forward over `layers` or in the sampling; Qwen3-8B on an H100: 2.21 GiB."""
        kinds = set(layers)
        handed_over = 2 * self._hidden(self.tokens) if hands_on else 0
        experts = max(map(self._expert_workspace, kinds))
        forward = max(map(self._forward, kinds)) + EXTRA_BYTES
        return handed_over + self._library + experts + max(forward, self._sampling() if samples else 0)

    @property
    def _library(self) -> int:
        cuda = cuda_of(self.card)
        return cuda.cublas_workspace_bytes if cuda else 0

    def _hidden(self, tokens: int) -> int:
        return tokens * self.setup.model.hidden * value_bytes(self.setup)

    def _forward(self, layer: Layer) -> int:
        """Inside an MLP: attention's output, the residual stream and the sum, gate and up, and what comes of them."""
        mlp, width = layer.mlp, value_bytes(self.setup)
        unknown = mlp.ffn if self.setup.model.counted else 0  # then gate and up are assumed
        dense = max((one.inputs for one in mlp.linears if one.outputs == self.setup.model.hidden), default=unknown)
        wide = self.tokens * dense // self.tensor
        quantized = wide if self.setup.weights in QUANTIZED_INPUTS else 0
        return 3 * self._hidden(self.tokens) + (3 if mlp.gated or unknown else 2) * wide * width + quantized

    def _expert_workspace(self, layer: Layer) -> int:
        """Two buffers over tokens x experts of each: of the wider of f and h, and of the wider of 2 f and h."""
        mlp, hidden = layer.mlp, self.setup.model.hidden
        if not mlp.experts:
            return 0
        ffn, rows = -(-mlp.ffn // self.tensor), self.tokens * mlp.experts_per_token * value_bytes(self.setup)
        if number_format(self.setup.weights).experts_only:
            return rows * ffn  # OpenAI's Triton kernels make the rest themselves
        return rows * (max(ffn, hidden) + max(2 * ffn, hidden))

    def _sampling(self) -> int:
        """Logits as they are computed, in FP32, their softmax, its noise; hidden states, those sampled, and a copy."""
        model, rows = self.setup.model, self.sequences
        computed = rows * padded_vocabulary(model) * value_bytes(self.setup)
        copies = rows * model.vocab * (self.engine.sampler_bytes - 2)
        units = self.card.units.number if self.card.units else 0
        buffer = min(units, 1 << (rows - 1).bit_length()) * model.vocab * FP32 if self.engine.sampler_rows else 0
        return computed + copies + buffer + self._hidden(self.tokens) + 2 * self._hidden(rows)
