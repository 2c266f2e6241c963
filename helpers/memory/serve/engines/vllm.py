"""An engine's memory on one rank in closed form: weights, what its profile run measures, what is outside, the pool.

vLLM loads the weights, runs the largest forward that it may meet and samples from it, and takes the rest of its share
of the card for keys and values. What is derived, and what is fitted:

- The profile run is `engine_profile`'s, weights `engine_weights`', pages `engine_pages`'.
- *Outside torch* and *CUDA graphs* are means over 40 launches of vLLM 0.19 on H100 cards. Of the graphs the buffer in
  which split attention adds up is derived: 32 splits x heads x 512 tokens x head size in FP32.

    launch(ServeSetup("qwen3-8b"), engine("vllm", "0.19"), "h100", share=0.95).pool_bytes / 2**30     # 57.5: as logged
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, partial

from ....catalog.devices import Device
from ....catalog.devices import device as resolve_device
from ....catalog.engines import EngineVersion, require_card, require_served
from ....catalog.errors import WorkbookError, require_number, require_whole
from ....catalog.hardware import cuda_of
from ....catalog.serve_setup import ServeSetup
from ....catalog.setup_fields import MAX_COUNT, MAX_TOKENS
from ...breakdown import GIB, Breakdown, format_bytes
from .pages import Pages, pages_of
from .profile import ProfileRun
from .weights import FP32, rank_weight_bytes, require_positions, stage_layers

MIB = 2**20
CONTEXT_BYTES = {False: round(0.51 * GIB), True: round(1.52 * GIB)}  # before loading: CUDA's; with NCCL's of a group
OUTSIDE_BYTES = {"alone": round(0.25 * GIB), "tensor": round(2.1 * GIB), "pipeline": round(0.07 * GIB)}
GRAPH_BYTES, GRAPH_LAYER_BYTES = round(0.1 * GIB), 18 * MIB  # of 51 sizes, each captured twice
GRAPH_SPLITS, GRAPH_TOKENS = 32, 512
MOST_RANKS = 2**10
MOST_TRIED_SHARE = 0.95


@dataclass(frozen=True)
class Launch:
    """One replica of `setup` on an engine that sets a pool aside: `tensor` x `pipeline` ranks on cards of one kind.

    `share` of the whole card, `max_seqs` and the setup's `prefill_tokens` are the engine's where they are None. Every
    figure is that of a rank of the first stage, unless it says another. Raises WorkbookError.
    """

    setup: ServeSetup
    engine: EngineVersion
    card: Device
    tensor: int = 1
    pipeline: int = 1
    share: float | None = None
    max_seqs: int | None = None

    def __post_init__(self) -> None:
        if self.engine.share is None:
            what = f"{self.engine.name} sets no share of the card aside"
            raise WorkbookError(what, "vllm", "ask budget.serve for what a forward takes")
        require_served(self.engine.name, self.setup)
        require_positions(self.engine.name, self.setup.model, self.setup.context)
        require_whole("tensor", self.tensor, most=MOST_RANKS, do="pass tensor=1 for one card")
        most = min(MOST_RANKS, len(self.setup.model.layers))
        require_whole("pipeline", self.pipeline, most=most, do="pass pipeline=1: a stage has a layer at least")
        if self.max_seqs is not None:
            require_whole("max_seqs", self.max_seqs, most=MAX_COUNT)
        if self.share is not None:
            expected, do = "a share of the whole card, above 0 and at most 1", f"pass share={self.engine.share}"
            require_number("share", self.share, expected=expected, do=do)
        if cuda_of(self.card) is None:
            what = f"what {self.engine.name} takes of the {self.card.title}"
            expected = "a card of NVIDIA's: its logs are from H100 cards"
            raise WorkbookError(what, expected, "read its log: Available KV cache memory")
        require_card(self.engine.name, self.card, self.setup.weights)
        if self.share_bytes > self.free_bytes:
            raise self._too_large()

    def _too_large(self) -> WorkbookError:
        most = int(100 * self.free_bytes / self.card.capacity_bytes) / 100
        what = (
            f"a share of {self.chosen_share:g} is {format_bytes(self.share_bytes)} of the {self.card.title}, "
            f"of which {format_bytes(self.free_bytes)} are free when {self.engine.name} starts"
        )
        return WorkbookError(
            what, f"a share of at most {most:g}: it is one of the whole card", f"pass {most:g} or less"
        )

    @property
    def chosen_share(self) -> float:
        """Of the whole card: what was asked for, or the engine's default."""
        return self.engine.share or 0.0 if self.share is None else self.share

    @property
    def batch_tokens(self) -> int:
        """max_num_batched_tokens: the most tokens of one forward."""
        return self.setup.prefill_tokens or self.engine.batch(self.card)[0]

    @property
    def sequences(self) -> int:
        """Sequences of the profile run: max_num_seqs, of which each has a token at least."""
        return min(self.max_seqs or self.engine.batch(self.card)[1], self.batch_tokens)

    @property
    def share_bytes(self) -> int:
        """What the engine takes of the card at most, its CUDA graphs aside in versions that do not count them."""
        return int(self.chosen_share * self.card.capacity_bytes)

    @property
    def free_bytes(self) -> int:
        """Of the card when the engine starts: less CUDA's context, and NCCL's buffers where ranks work together."""
        return self.card.capacity_bytes - CONTEXT_BYTES[self.tensor * self.pipeline > 1]

    @property
    def outside_bytes(self) -> int:
        """What appears outside torch from there to the end of the profile run."""
        return _outside_bytes(self.tensor, self.pipeline)

    @cached_property
    def weight_bytes(self) -> int:
        return self._weights(0)

    @cached_property
    def profile_bytes(self) -> int:
        """The rise of torch's peak in the profile run."""
        return self._profile(0)

    @property
    def graph_bytes(self) -> int:
        """CUDA graphs of 51 batch sizes up to 512, and the buffer of split attention; in layers of one stage."""
        layers = stage_layers(self.setup.model, self.pipeline, 0)
        attention = layers[0].attention
        width = attention.mla.kv_lora_rank if attention.mla else attention.head_dim
        splits = GRAPH_SPLITS * attention.heads // self.tensor * GRAPH_TOKENS * width * FP32
        return splits + GRAPH_BYTES + GRAPH_LAYER_BYTES * len(layers)

    @property
    def left_bytes(self) -> int:
        """Of the card beside the share, when graphs are there: below 0 they do not fit."""
        graphs = 0 if self.engine.graphs_in_share else self.graph_bytes
        return self.free_bytes - self.share_bytes - graphs

    @property
    def pool_bytes(self) -> int:
        """What is left for keys and values: "Available KV cache memory". At most 0 where nothing is left."""
        return self._pool(0)

    @cached_property
    def blocks(self) -> int:
        """Of the pool on the stage that has fewest, which all stages take."""
        stages = range(self.pipeline)
        return min(self._pages(stage).blocks(self._pool(stage)) for stage in {*stages[:2], *stages[-2:]})

    @property
    def tokens(self) -> int:
        """What its log calls "GPU KV cache size", launched with the setup's context as its longest (max_model_len)."""
        return logged_tokens(self.engine, self.pages, self.blocks, self.setup.context, self.in_flight_tokens)

    @property
    def in_flight_tokens(self) -> int:
        """That a window keeps beside its own: of the forwards that are on their way, each as long as may be."""
        return self.engine.batches_in_flight(self.pipeline) * self.batch_tokens

    @property
    def users(self) -> int:
        """Sequences of the setup's context that the pool holds at once."""
        return self.blocks // self.user_blocks

    @property
    def user_blocks(self) -> int:
        """Of one sequence of the setup's context."""
        return self.pages.user_blocks(self.setup.context, self.in_flight_tokens, self.engine.states)

    @property
    def user_bytes(self) -> int:
        return self.user_blocks * self.pages.block_bytes

    @property
    def pages(self) -> Pages:
        return self._pages(0)

    @property
    def parts(self) -> Breakdown:
        """What a rank takes of its share."""
        return Breakdown(parameters=self.weight_bytes, activations=self.profile_bytes, kv_cache=max(0, self.pool_bytes))

    def _weights(self, stage: int) -> int:
        return rank_weight_bytes(self.setup, self.tensor, self.pipeline, stage)

    def _pool(self, stage: int) -> int:
        graphs = self.graph_bytes if self.engine.graphs_in_share else 0
        return self.share_bytes - self._weights(stage) - self._profile(stage) - self.outside_bytes - graphs

    def _pages(self, stage: int) -> Pages:
        layers = stage_layers(self.setup.model, self.pipeline, stage)
        block = self.engine.block_tokens
        return pages_of(self.setup.model, self.setup.kv, block, self.tensor, None if self.pipeline == 1 else layers)

    def _profile(self, stage: int) -> int:
        """Of the last stage alone it samples, and stages hand hidden states on."""
        run = ProfileRun(self.setup, self.engine, self.card, self.tensor, self.batch_tokens, self.sequences)
        layers = stage_layers(self.setup.model, self.pipeline, stage)
        return run.peak_bytes(layers, samples=stage == self.pipeline - 1, hands_on=self.pipeline > 1)


def outside_torch_bytes(tensor: int) -> int:
    """What a rank of vLLM holds outside torch in all, of `tensor` that share a layer: before loading, and after.

    >>> [round(outside_torch_bytes(ranks) / GIB, 2) for ranks in (1, 2)]
    [0.76, 3.62]
    """
    return CONTEXT_BYTES[tensor > 1] + _outside_bytes(tensor, 1)


def _outside_bytes(tensor: int, pipeline: int) -> int:
    return OUTSIDE_BYTES["tensor" if tensor > 1 else "pipeline" if pipeline > 1 else "alone"]


def logged_tokens(engine: EngineVersion, pages: Pages, blocks: int, context: int, in_flight_tokens: int) -> int:
    """What `engine` logs of so many blocks: from vLLM 0.21 on users times their context, before an endless sequence."""
    if engine.logs_users:
        return blocks * context // pages.user_blocks(context, in_flight_tokens, engine.states)
    return pages.tokens(blocks)


def pool_tokens(setup: ServeSetup, engine: EngineVersion, pool_bytes: int, card: str | Device) -> tuple[int, int]:
    """Of a pool of a size that a log tells: the tokens that it logs, and the longest sequence that the pool holds.

    WorkbookError for a model whose pages are not known.

    >>> from helpers.catalog.engines import engine
    >>> moe = ServeSetup("qwen3-coder", context=8192)      # vLLM's own estimate for 3.78 GiB: 41,264 tokens
    >>> pool_tokens(moe, engine("vllm"), int(3.78 * 2**30), "h100")
    (41280, 41280)
    """
    pages = pages_of(setup.model, setup.kv, engine.block_tokens)
    blocks, batch = pages.blocks(pool_bytes), setup.prefill_tokens or engine.batch(resolve_device(card))[0]
    in_flight = engine.batches_in_flight() * batch
    need = partial(pages.user_blocks, batch_tokens=in_flight, states=engine.states)
    longest = bisect_right(range(1, (setup.model.max_positions or MAX_TOKENS) + 1), blocks, key=need)
    return logged_tokens(engine, pages, blocks, setup.context, in_flight), longest


def starting_share(card: Device, ranks: int) -> float:
    """A share that an engine starts with: what is free, of which 60 launches of vLLM on H100 took 0.95 at most.

    >>> starting_share(resolve_device("h100"), 8), starting_share(resolve_device("12GiB"), 1)
    (0.95, 0.95)
    """
    free = card.capacity_bytes - CONTEXT_BYTES[ranks > 1]
    return min(MOST_TRIED_SHARE, int(100 * free / card.capacity_bytes) / 100)


def launch(
    setup: ServeSetup,
    engine: EngineVersion,
    card: str | Device,
    tensor: int = 1,
    pipeline: int = 1,
    share: float | None = None,
    max_seqs: int | None = None,
) -> Launch:
    """`setup` on an engine of `card`. Llama-3.1-8B in BF16 on an H100, vLLM 0.19 at 0.95: a pool of 58.11 GiB."""
    return Launch(setup, engine, resolve_device(card), tensor, pipeline, share, max_seqs)
