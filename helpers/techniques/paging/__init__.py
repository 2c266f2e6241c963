"""Paged KV from scratch: block manager, prefix cache, attention over block tables, an engine. No torch until used.

    from helpers.techniques import paging
    paging.waste_of(paging.chat(), "paged").waste               # a trace through a policy, no model
    engine = paging.Engine(model, blocks=64, block_size=16)
    engine.run([(prompt_ids, 40), (other_ids, 12)])             # the tokens of `model.generate`, greedy

`blocks` is the idea (`contiguous` what came before), `prefix` shares blocks, `replay` and `block_map` step through
`traces`; `attention`, `kv_pool` and `engine` decode; `continuous` is Transformers' engine, `vllm_pool` vLLM's sums.
"""

from importlib import import_module

_HOMES = {
    "attention": ("BlockTables", "block_by_block", "gathered"),
    "block_map": ("Cell", "Frame", "frame_of", "frames"),
    "blocks": ("BlockManager", "Copy"),
    "contiguous": ("ContiguousManager",),
    "continuous": ("transformers_batch",),
    "engine": ("Answer", "Engine"),
    "errors": ("OutOfBlocksError",),
    "kv_pool": ("KVPool", "Step", "paged_attention", "paged_model"),
    "prefix": ("Hits", "PrefixCache", "chain_hash"),
    "replay": ("POLICIES", "Replay", "Usage", "waste_of"),
    "traces": ("TRACES", "Request", "Trace", "chat", "code", "documents", "trace"),
    "vllm_pool": ("Published", "VllmPool", "block_bytes", "published"),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
