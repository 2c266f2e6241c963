"""Paged KV from scratch: block manager, prefix cache, attention over block tables, an engine. No torch until used.

    from helpers.techniques import paging
    paging.waste_of(paging.chat(), "paged").waste               # a trace through a policy, no model
    engine = paging.Engine(model, blocks=64, block_size=16)
    engine.run([(prompt_ids, 40), (other_ids, 12)])             # the tokens of `model.generate`, greedy

`blocks` is the idea (`contiguous` what came before), `prefix` shares blocks, `replay` and `block_map` step through
`traces`; `attention`, `kv_pool` and `engine` decode; `continuous` is Transformers' engine, `vllm_pool` vLLM's sums.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .attention import BlockTables, block_by_block, gathered
    from .block_map import Cell, Frame, frame_of, frames
    from .blocks import BlockManager, Copy
    from .contiguous import ContiguousManager
    from .continuous import transformers_batch
    from .engine import Answer, Engine
    from .errors import OutOfBlocksError
    from .kv_pool import KVPool, Step, paged_attention, paged_model
    from .prefix import Hits, PrefixCache, chain_hash
    from .replay import POLICIES, Replay, Usage, waste_of
    from .traces import TRACES, Request, Trace, chat, code, documents, trace
    from .vllm_pool import Published, VllmPool, block_bytes, published

__all__ = [
    "POLICIES",
    "TRACES",
    "Answer",
    "BlockManager",
    "BlockTables",
    "Cell",
    "ContiguousManager",
    "Copy",
    "Engine",
    "Frame",
    "Hits",
    "KVPool",
    "OutOfBlocksError",
    "PrefixCache",
    "Published",
    "Replay",
    "Request",
    "Step",
    "Trace",
    "Usage",
    "VllmPool",
    "block_by_block",
    "block_bytes",
    "chain_hash",
    "chat",
    "code",
    "documents",
    "frame_of",
    "frames",
    "gathered",
    "paged_attention",
    "paged_model",
    "published",
    "trace",
    "transformers_batch",
    "waste_of",
]

__getattr__ = lazy(__name__)
