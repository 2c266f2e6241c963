"""Transformers' own paged engine, to stand beside ours: what `generate_batch` runs, on the same requests."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from transformers import ContinuousBatchingConfig, GenerationConfig, PreTrainedModel

from ...catalog.errors import WorkbookError, require_whole


def transformers_batch(
    model: PreTrainedModel,
    requests: Iterable[tuple[Sequence[int], int]],
    blocks: int,
    block_size: int = 16,
    batch_tokens: int = 512,
    prefix: bool = True,
) -> list[list[int]]:
    """Greedy tokens of each (prompt ids, new tokens), by Transformers' continuous batching.

    `blocks` and `block_size` as for `Engine` (Transformers calls a block a page); `batch_tokens` is the most that one
    forward computes, prompts in chunks among them; `prefix` shares full blocks. It runs on the CPU with "sdpa"
    attention, in a thread of its own, and returns no logits. Raises WorkbookError for a request that it gave up.
    """
    page = "page_size" if hasattr(ContinuousBatchingConfig, "page_size") else "block_size"  # 5.17 calls it a block
    sizes: dict[str, Any] = {
        page: require_whole("block_size", block_size),
        "num_blocks": require_whole("blocks", blocks),
        "max_batch_tokens": require_whole("batch_tokens", batch_tokens),
    }
    config = ContinuousBatchingConfig(**sizes, allow_block_sharing=prefix)
    greedy = cast(GenerationConfig, copy.deepcopy(model.generation_config))
    greedy.do_sample = False
    end = -1 if greedy.eos_token_id is None else greedy.eos_token_id
    running = cast(Callable[..., Any], model.continuous_batching_context_manager)
    with running(
        generation_config=greedy, continuous_batching_config=config, block=True, timeout=5, warmup=False
    ) as manager:
        names = [manager.add_request(list(prompt), max_new_tokens=new, eos_token_id=end) for prompt, new in requests]
        results: dict[str, Any] = {}
        while len(results) < len(names):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                results[result.request_id] = result
            elif result is None and not manager.is_running():
                expected = f"{len(names)} answers, not {len(results)}"
                raise WorkbookError("Transformers' engine stopped", expected, "read its log; give it more blocks")
    return [_tokens(results[name]) for name in names]


def _tokens(result: Any) -> list[int]:
    if result.error is not None:
        what = f"Transformers' engine gave up {result.request_id}: {result.error}"
        raise WorkbookError(what, "a request that its pool holds", "pass more blocks")
    return list(result.generated_tokens)
