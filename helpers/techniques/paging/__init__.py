"""Paged KV from scratch: block manager, prefix cache, attention over block tables, an engine. No torch until used.

    from helpers.techniques import paging
    paging.waste_of(paging.chat(), "paged").waste               # a trace through a policy, no model
    engine = paging.Engine(model, blocks=64, block_size=16)
    engine.run([(prompt_ids, 40), (other_ids, 12)])             # the tokens of `model.generate`, greedy

The algorithms are `blocks` (and what came before it), `prefix`, which shares blocks, `attention` and `engine`, whose
`completions` say what became of a request; `tiers` keeps on the host what a prefix cache evicts. `replay` steps through
`traces` without a model; `continuous` is Transformers' engine, `vllm_pool` vLLM's sums.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .attention import BlockTables, KVPool, PagedInputs, block_by_block, gathered, paged_attention, paged_model
    from .blocks import BlockManager, ContiguousManager, Copy, OutOfBlocksError
    from .completions import Completion, Shortage
    from .continuous import transformers_batch
    from .engine import Engine
    from .prefix import Hits, PrefixCache, chain_hash
    from .replay import (
        POLICIES,
        BlockCell,
        BlockMapFrame,
        Replay,
        ReplayEvent,
        ReplayEventKind,
        Usage,
        frame_of,
        frames,
        waste_of,
    )
    from .tiers import HostTier, break_even_bytes_per_s
    from .traces import TRACES, Request, RequestTrace, chat, code, documents, trace
    from .vllm_pool import Published, VllmPool, block_bytes, published


__getattr__ = lazy(__name__)
