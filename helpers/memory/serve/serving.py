"""A serving replica in closed form: what it holds, and what a forward of prefill or of decoding takes besides.

What is held is exact for every family. What a forward takes was read off the trace of the running models, with no
gradient: few tensors are alive at once, and of a decoder layer the widest point is inside its MLP, or, where attention
writes its scores out, inside the softmax. Shape letters: N = tokens of a forward, h = hidden, f = ffn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...catalog.devices import Device
from ...catalog.devices import device as resolve_device
from ...catalog.formats import Decoding, number_format
from ...catalog.hardware import AttentionCall, AttentionKernel, cuda_of
from ...catalog.layers import Delta, Layer
from ...catalog.serve_setup import ServeSetup
from ..breakdown import Breakdown, Moment, Moments, Part, Point, rounded
from .delta import JOINED, DeltaForward, widest_bytes
from .loading import ends_bytes, loading_bytes
from .weights import KEPT, is_quantized, weight_bytes

SHARED_POSITIONS = "gpt2"
# Tensors of N x h alive at the widest point: the embedding's output, the layer's input, the residual stream and its
# norm; of GPT-2 attention's output as well, and the positions, which all sequences share. Held against the trace.
HIDDEN_STATES = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "opt"), 4)
HIDDEN_STATES |= {"mllama_text_model": 4}  # of text alone, for which layers that attend to an image are passed over
HIDDEN_STATES |= {"mixtral": 4, "smollm3": 4, "qwen3_moe": 4, SHARED_POSITIONS: 5}
HYBRIDS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")  # whose widest layers are those with a delta rule
HIDDEN_STATES |= dict.fromkeys(HYBRIDS, 4)
ROTATED = 0.25  # of a head in hybrids
WRITTEN_OUT = "gelu_new"  # in Python: four tensors of N x f, where a kernel needs two
CAPPED = "gemma2"  # caps its attention scores, for which no fused kernel is taken
FP32 = 4
SEGMENT_BYTES = 2 * 2**20  # an allocation of 10 MiB or more gets whole multiples of this
LEAST_OWN_SEGMENT_BYTES = 10 * 2**20
LEAST_SPLIT_BYTES = 2**20  # of which no more than this is left in one piece: then it counts as allocated


@dataclass(frozen=True)
class ServeBudget(Moments):
    """A predicted serving replica: what it holds at its fullest, and its two moments, of which one is the peak.

    `held` is weights and a full KV cache. `moments` are the largest forward of prefill and the last decode step, each
    with the activations that it makes; where those have no closed form, `why` says so, and they are left out.
    `dropped_bytes` of prefill's activations are K and V of its forward that windows drop at the next one.
    """

    setup: ServeSetup
    held: Breakdown
    moments: tuple[Moment, ...]
    kv_bytes_per_token: int
    library_bytes: int = 0
    why: str = ""
    dropped_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        return self.peak.total

    @property
    def peak_allocated_bytes(self) -> int:
        """What torch.cuda.max_memory_allocated() would say since the model was loaded, with the ends of its blocks."""
        ends = ends_bytes(self.setup) + unsplit(_kept_buffer(self.setup))
        return max(self.peak_bytes + ends, loading_bytes(self.setup))


def serve(setup: ServeSetup, gpu: str | Device | None = None) -> ServeBudget:
    """Predict a serving replica: weights in their format, K and V for `users` sequences, and the forward's transients.

    A format with scales covers linear layers only (`ServeSetup.skipped`); `weights.weight_parts` tells them apart.
    Prefill takes one prompt at a time, in pieces of 8,192 tokens at most, beside the full caches of the other users, or
    what `setup.prefill_tokens` says. A layer with a window holds the window and the piece meanwhile. A prompt in pieces
    is an engine's, whose kernels read a cache without a mask (Transformers needs one, and so more bytes). Decoding
    takes a token for each user, with Transformers' cache, which copies one layer's keys as it grows. `gpu` adds
    cuBLAS' workspaces on that card, and says whether it has a fused kernel.

    Llama-3-8B in BF16: 14.96 GiB of weights. Qwen3-30B-A3B, one user, 262,144 tokens: 24.0 GiB of KV. Qwen2.5-7B
    after a prompt of 30,720 tokens taken whole (`prefill_tokens=30720`, as Transformers does), of which 4.10 GiB are
    the prefill's: 19.93 GiB, 19.97 measured on an A100. Gemma-3-27B, 131,072 tokens: 10.41 GiB of KV, and 3.25 GiB of
    a piece in its 52 layers with a window.
    """
    model, card = setup.model, None if gpu is None else resolve_device(gpu)
    held = Breakdown(parameters=weight_bytes(setup), kv_cache=full_cache(setup))
    library = _library_bytes(setup, card)
    why = _why_not(setup, card)
    dropped = 0 if why else _dropped(setup)
    if why:
        moments = tuple(_held_alone(at, setup, held, library) for at in (Point.PREFILL, Point.DECODE))
    else:
        moments = (_prefill(setup, held, library, dropped), _decode(setup, held, library))
    per_token = setup.cache_bytes() - model.cache_bytes(setup.kv_format, setup.context - 1, drafts=setup.drafts)
    return ServeBudget(setup, held, moments, per_token, library, why, dropped)


def full_cache(setup: ServeSetup) -> int:
    return setup.users * setup.cache_bytes()


def _dropped(setup: ServeSetup) -> int:
    """K and V of the largest forward of prefill that layers with a window hold until the next one, and then drop."""
    (sequences, rows), tokens = setup.forward, setup.prompt_tokens
    return sequences * (setup.cache_bytes(tokens, -(-rows // sequences)) - setup.cache_bytes(tokens))


def _prefill(setup: ServeSetup, held: Breakdown, library: int, dropped: int) -> Moment:
    """The largest forward over a prompt, at its end."""
    sequences, rows = setup.forward
    prompt = setup.cache_bytes(setup.prompt_tokens)
    others = held[Part.KV_CACHE] // setup.users * (setup.users - sequences)
    forward = _Forward(setup, sequences, rows, setup.prompt_tokens)
    there = others + sequences * prompt - forward.not_there_yet()
    return _moment(Point.PREFILL, forward, held, there, library, dropped)


def _decode(setup: ServeSetup, held: Breakdown, library: int) -> Moment:
    """One token for each user; the keys of one layer are there twice while the new ones are put behind the old."""
    forward = _Forward(setup, setup.users, setup.users, setup.context)
    return _moment(Point.DECODE, forward, held, held[Part.KV_CACHE], library)


def _moment(at: Point, forward: _Forward, held: Breakdown, cache: int, library: int, dropped: int = 0) -> Moment:
    activations, logits, decoded = forward.widest()
    sizes = {
        Part.PARAMETERS: held[Part.PARAMETERS],
        Part.ACTIVATIONS: activations + dropped,
        Part.LOGITS: logits,
        Part.WORKSPACE: decoded + _kept_buffer(forward.setup) + library,
        Part.KV_CACHE: cache,
    }
    return Moment(at, Breakdown({part: size for part, size in sizes.items() if size or part in held}))


def _held_alone(at: Point, setup: ServeSetup, held: Breakdown, library: int) -> Moment:
    """Of a model whose forward is not known: what it holds, and what its kernels and libraries keep."""
    kept = _kept_buffer(setup) + library
    return Moment(at, Breakdown({**held, Part.WORKSPACE: kept} if kept else held))


class _Forward:
    """One forward without gradients over `rows` tokens of so many `sequences`, which look back on `keys`."""

    def __init__(self, setup: ServeSetup, sequences: int, rows: int, keys: int) -> None:
        self.setup, self.model = setup, setup.model
        self.sequences, self.rows, self.keys = sequences, rows, keys
        self.tokens = -(-rows // sequences)
        self.width = FP32 if setup.weights == "fp32" else 2
        self.hidden = rounded(self.rows * self.model.hidden * self.width)

    def widest(self) -> tuple[int, int, int]:
        """(activations, logits, decoded weights) where they are most together."""
        layers = {(layer.mlp, layer.attention): layer for layer in self.model.layers}.values()
        return max((point for layer in layers for point in self._points(layer)), key=sum)

    def _points(self, layer: Layer) -> Iterator[tuple[int, int, int]]:
        outside = self._hidden_states() + self._rotary_tables() + self._masks()
        if layer.attention.delta:
            yield outside - self.hidden + self._in_delta_rule(layer.attention.delta), 0, 0
        yield outside + self._in_mlp(layer), 0, 0
        yield outside + (2 if layer.mlp.gated else 1) * self._wide(layer), 0, self._decoded(layer)
        if self._writes_scores():
            yield outside + self._in_attention(layer), 0, 0
        if self.tokens < self.keys:  # a cache that is there already: its keys once more, behind them the new ones
            yield outside + self._old_cache(layer), 0, 0
        yield 2 * self.hidden, rounded(self.sequences * self.model.vocab * self.width), 0
        yield 0, self._sampled(), 0

    def _hidden_states(self) -> int:
        count = HIDDEN_STATES[self.model.family] - (len(self.model.layers) == 1)
        shared = self.model.family == SHARED_POSITIONS
        positions = rounded(self.tokens * self.model.hidden * self.width) if shared else 0
        return count * self.hidden + positions

    def _wide(self, layer: Layer) -> int:
        """N x f, where each token goes to as many experts as it chooses."""
        return rounded(self.rows * max(1, layer.mlp.experts_per_token) * layer.mlp.ffn * self.width)

    def _in_mlp(self, layer: Layer) -> int:
        """Tensors of N x f: the activation, what it is multiplied by, the product; gate and up where they are one.

        Experts have gate and up in one, and their input sorted by expert; where they are narrow, four tensors of the
        width of that input are more: it, what comes out, that weighted, and sorted back.
        """
        wide = self._wide(layer)
        if layer.mlp.experts:
            sorted_input = self.hidden * layer.mlp.experts_per_token
            return max(sorted_input + 4 * wide, 4 * sorted_input)
        if layer.mlp.gated:
            return (4 if any("gate_up" in linear.name for linear in layer.mlp.linears) else 3) * wide
        return (4 if layer.mlp.activation == WRITTEN_OUT else 2) * wide

    def _decoded(self, layer: Layer) -> int:
        """What the kernel of a product in the MLP holds: its weight in 16 bits, or for few tokens partial sums."""
        rule = number_format(self.setup.weights)
        if rule.partial_sums and self.rows <= rule.fused_tokens:
            return rule.partial_sums * self._wide(layer)
        if rule.decoding is not Decoding.WHOLE or self.rows <= rule.fused_tokens:
            return 0
        return max(rounded(2 * linear.weights) for linear in layer.mlp.linears or layer.mlp.expert_linears)

    def _in_delta_rule(self, delta: Delta) -> int:
        goes_on, joined = self.tokens < self.keys, self.model.family == JOINED
        return widest_bytes(DeltaForward(delta, self.sequences, self.tokens, self.width, goes_on, joined))

    def not_there_yet(self) -> int:
        """Caches of the layers behind the last delta rule, and its own state, while that makes its most."""
        rules = [at for at, layer in enumerate(self.model.layers) if layer.attention.delta]
        if not rules:
            return 0
        behind = self.model.layers[rules[-1] + 1 :]
        kept = self.setup.cache_bytes(self.tokens, model=replace(self.model, layers=behind)) if behind else 0
        state = 0
        if self.tokens == self.keys:
            last = replace(self.model, layers=self.model.layers[rules[-1] :][:1])
            state = self.setup.cache_bytes(1, model=last)
        return self.sequences * (kept + state)

    def _rotary_tables(self) -> int:
        if self.model.learned_positions:
            return 0
        if self.model.family in HYBRIDS:
            share = float(str(self.model.config.get("partial_rotary_factor") or ROTATED))
            width = round(self.model.head_dim * share)
            return 2 * rounded((self.tokens if self.model.family == JOINED else self.rows) * width * self.width)
        kinds = 2 if self.model.family == "gemma3_text" else 1  # its layers with a window turn at another speed
        return kinds * 2 * rounded(self.tokens * self.model.head_dim * self.width)

    def _windows(self) -> set[int | None]:
        return {layer.attention.window for layer in self.model.layers}

    def _masks(self) -> int:
        """One of bools for each window that is full, of a whole prompt; where scores are written out, of numbers."""
        square = self.tokens * self.keys
        if self._writes_scores():
            return len(self._windows()) * rounded(self.sequences * square * self.width)
        full = [window for window in self._windows() if window and self.keys >= window]
        return len(full) * rounded(square) if 1 < self.tokens == self.keys else 0

    def _writes_scores(self) -> bool:
        return self.model.family == CAPPED

    def _in_attention(self, layer: Layer) -> int:
        """Scores, their FP32 copy and the softmax's result; q, and K and V repeated for the heads that share them."""
        one = layer.attention
        scores = self.sequences * self.tokens * self.keys * one.heads
        q = rounded(self.rows * one.heads * one.head_dim * self.width)
        repeated = 2 * rounded(self.sequences * self.keys * one.heads * one.head_dim * self.width)
        return rounded(scores * self.width) + 2 * rounded(scores * FP32) + q + repeated - self.hidden

    def _old_cache(self, layer: Layer) -> int:
        """The keys of one layer, which go before its values grow; with a window both are made before both go."""
        one, kv = layer.attention, self.setup.kv_format
        held = min(self.keys, one.window or self.keys)
        keys = rounded(self.sequences * kv.storage_bytes(held * one.kv_heads * one.head_dim))
        return 2 * keys if one.window else keys

    def _sampled(self) -> int:
        """The last token's logits, and the FP32 copy that generate() samples from."""
        values = self.sequences * self.model.vocab
        return rounded(values * self.width) + rounded(values * FP32)


def _kept_buffer(setup: ServeSetup) -> int:
    """The buffer of kernels that decode into one, as large as the largest weight in the format."""
    if number_format(setup.weights).decoding is not Decoding.KEPT:
        return 0
    sizes = [2 * group.linear.weights for group in setup.model.linears() if is_quantized(setup, group)]
    return rounded(max(sizes, default=0))


def _library_bytes(setup: ServeSetup, card: Device | None) -> int:
    """One thread multiplies, through cuBLAS, and through cuBLASLt where a product adds a bias."""
    cuda = cuda_of(card) if card else None
    if cuda is None or setup.model.stored:  # llama.cpp has workspaces of its own
        return 0
    biased = any(group.linear.bias for group in setup.model.linears())
    return cuda.cublas_workspace_bytes + (cuda.cublaslt_workspace_bytes if biased else 0)


def _why_not(setup: ServeSetup, card: Device | None) -> str:
    """Why a forward of this model has no closed form here; "" where it has one."""
    model = setup.model
    if model.stored:
        start = f"these are the tensors of {model.name} and its cache: what llama.cpp computes in comes on top"
        return f"{start}, and `--engine llama.cpp` says which layers go onto a card"
    if model.family not in HIDDEN_STATES or model.counted or any(layer.attention.mla for layer in model.layers):
        how = "" if setup.weights in ("bf16", "fp16", "fp32") else " --weights bf16"
        run = f"`workbook trace serve{how}` runs it"
        return f"what a forward of {model.name} takes besides has no closed form here: {run}"
    cuda = cuda_of(card) if card else None
    if cuda is None or model.family == CAPPED:
        return ""
    number = "fp32" if setup.weights == "fp32" else "fp16" if setup.weights == "fp16" else KEPT
    shapes = {(one.head_dim, one.heads, one.kv_heads) for one in (layer.attention for layer in model.layers)}
    calls = (AttentionCall(number, width, None, heads, kv, trains=False) for width, heads, kv in shapes)
    if any(cuda.attention_kernel(call) is AttentionKernel.FORMULA for call in calls):
        title = card.title if card else ""
        return f"attention in {number.upper()} falls back to the plain formula on the {title}: `workbook trace serve`"
    return ""


def unsplit(size_bytes: int) -> int:
    """What a tensor's own segment has beyond it, if that is too little to be split off."""
    if size_bytes < LEAST_OWN_SEGMENT_BYTES:
        return 0
    rest = -size_bytes % SEGMENT_BYTES
    return rest if rest <= LEAST_SPLIT_BYTES else 0
