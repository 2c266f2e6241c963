"""vLLM's pool: what is left of the GPU for keys and values, and how many blocks that makes. Integers, no torch.

At its start vLLM loads the weights, runs one forward of the largest batch that it may meet, and takes the rest of its
share of the GPU as blocks. The names are its options'. Figures below are from its logs, each with its source.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog import ModelShape
from ...catalog.errors import WorkbookError, require_whole
from ...memory.serve.rank_weights import rank_shape

GIB = 2**30
UNKNOWN = "the log does not say what its profile run measured"


@dataclass(frozen=True)
class VllmPool:
    """One GPU's memory as vLLM divides it, in bytes; with tensor parallelism every figure is that of one rank.

    `non_torch_bytes` (CUDA context, NCCL) and `peak_activation_bytes` are what its profile run measured: no formula
    knows them. `gpu_memory_utilization` is a share of `total_bytes`, not of what the weights leave.

    >>> gib = lambda number: round(number * 2**30)
    >>> pool = VllmPool(gib(79.22), gib(14.96), gib(1.79), gib(1.26))  # Llama-3-8B, H100; the log says 53.29
    >>> round(pool.kv_cache_bytes / 2**30, 2)
    53.29
    """

    total_bytes: int
    weight_bytes: int
    non_torch_bytes: int
    peak_activation_bytes: int
    gpu_memory_utilization: float = 0.9
    block_size: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.gpu_memory_utilization <= 1:
            what = f"gpu_memory_utilization is {self.gpu_memory_utilization!r}"
            raise WorkbookError(what, "a share above 0, at most 1", "pass gpu_memory_utilization=0.9")
        require_whole("total_bytes", self.total_bytes)
        require_whole("block_size", self.block_size)
        for name in ("weight_bytes", "non_torch_bytes", "peak_activation_bytes"):
            require_whole(name, getattr(self, name), least=0)

    @property
    def kv_cache_bytes(self) -> int:
        """Utilization x total - weights - non-torch - peak activations. Raises WorkbookError if nothing is left."""
        taken = self.weight_bytes + self.non_torch_bytes + self.peak_activation_bytes
        share, total = self.gpu_memory_utilization, self.total_bytes
        left = int(total * share) - taken
        if left <= 0:
            expected = f"under {total * share / GIB:.2f} GiB, {share:g} of {total / GIB:.2f}"
            do = "raise gpu_memory_utilization, quantize the weights, or use more GPUs"
            raise WorkbookError(f"no memory for the KV cache: {taken / GIB:.2f} GiB are taken", expected, do)
        return left

    def blocks(self, model: ModelShape, ranks: int = 1, value_bytes: int = 2) -> int:
        """Whole blocks in the pool (`num_gpu_blocks`)."""
        return self.kv_cache_bytes // block_bytes(model, self.block_size, ranks, value_bytes)

    def users(self, model: ModelShape, context: int, ranks: int = 1, value_bytes: int = 2) -> int:
        """Sequences of `context` tokens that fit at once, nothing shared (vLLM's "maximum concurrency", whole)."""
        blocks_each = -(-require_whole("context", context) // self.block_size)
        return self.blocks(model, ranks, value_bytes) // blocks_each


def block_bytes(model: ModelShape, block_size: int = 16, ranks: int = 1, value_bytes: int = 2) -> int:
    """Keys and values of one block on one rank, over all layers. Llama-2-7B, 16 tokens of FP16: 8 MiB.

    Grouped heads divide by the ranks until each has one; from there on they are repeated.
    """
    tokens, width = require_whole("block_size", block_size), require_whole("value_bytes", value_bytes)
    if any(one.mla or one.state or one.window is not None for one in (layer.attention for layer in model.layers)):
        what = f"blocks of {model.name}, with a latent or a window"
        raise WorkbookError(what, "full attention in every layer", "ask model.kv_values(context) for its bytes")
    return rank_shape(model, ranks).kv_values(tokens) * width


@dataclass(frozen=True)
class Published:
    """A figure that an engine logged, what the arithmetic gives for it, and what it leaves unexplained."""

    name: str
    published: float
    computed: float | None
    unit: str
    source: str
    remark: str = ""

    @property
    def error(self) -> float | None:
        """Relative; None where the log lacks an input."""
        return None if self.computed is None else self.computed / self.published - 1


def published() -> tuple[Published, ...]:
    """Logged pools beside the arithmetic.

    Where a log has the blocks but not what its profile run measured, nothing is computed: the weights only bound the
    pool from above, and the remark says how much is between.
    """
    from ...catalog import ServeSetup, device, model
    from ...memory import budget

    llama = VllmPool(*(round(gib * GIB) for gib in (79.22, 14.96, 1.79, 1.26)))
    log = "vLLM pull request #10511, memory profiling log of 2024-12-14"
    room = round(llama.kv_cache_bytes / GIB, 2)
    rows = [Published("Llama-3-8B, room for KV on an H100", 53.29, room, "GiB", log)]
    capacity = device("a100-80gb").capacity_bytes
    for name, ranks, blocks in (("llama-2-7b", 1, 7351), ("llama-2-70b", 4, 20865)):
        shape = model(name)
        bound = int(0.9 * capacity) - budget.weight_bytes(ServeSetup(shape)) // ranks
        between = (bound - blocks * block_bytes(shape, ranks=ranks)) / GIB
        remark = f"{between:.2f} GiB a GPU less than 0.9 of the card minus weights: {UNKNOWN}"
        name = f"{shape.name}, GPU blocks on {ranks} A100-80GB"
        rows.append(Published(name, blocks, None, "blocks", "vLLM pull request #2031", remark))
    coder = block_bytes(model("qwen3-30b-a3b")) // 16 * 262_144 / GIB
    rows.append(Published("Qwen3-Coder-30B-A3B, KV of 262,144 tokens", 24.0, coder, "GiB", "vLLM issue #34076"))
    keys = round(367_404 * 94 * (4 // 4) * 128 * 2 / GIB, 2)  # tokens x layers x heads of a rank x head dim x BF16
    name, log = "Qwen3-235B-A22B, K cache of 367,404 tokens on one of 4 H100", "SGLang log in vLLM issue #21348"
    return (*rows, Published(name, 8.23, keys, "GiB", log))
