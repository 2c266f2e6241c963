"""Completions from the policy itself, by Transformers' `generate`: the prompts in one forward, then token by token.

Read in Transformers 5.23 (generation/utils.py, `_sample`; cache_utils.py). Keys and values are in the type that the
policy's attention is given: FP32 under autocast over FP32 weights. The loop's names hold the logits and the
probabilities of a token until the next one has been drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ...catalog.errors import WorkbookError
from ...catalog.preference import GrpoSetup
from ...catalog.train_setup import TrainSetup
from ..breakdown import Breakdown, Part, rounded
from ..step.decoders.linears import FP32, HALF
from .scoring import QuietForward, QuietForwards


def generated(setup: GrpoSetup, forwards: QuietForwards) -> Breakdown:
    """What generation takes beside the weights, at its highest: of the prompts' forward, or of the last token's."""
    model = setup.train.model
    if any(layer.attention.mla or layer.attention.delta for layer in model.layers):
        what, do = f"what Transformers keeps while {model.name} generates", "pass generator='vllm' (--generator vllm)"
        raise WorkbookError(what, "attention that caches its keys and values", do)
    prompts = replace(setup.train, micro_batch=setup.at_once, sequence=setup.prompt, scored=None)
    tokens = replace(prompts, sequence=1)
    read = setup.train.sequence - 1  # the last token is not read again
    moments = [*_prefill(forwards(prompts)), *_decode(forwards(tokens), read)]
    return max(moments, key=lambda one: one.total)


def _prefill(forward: QuietForward) -> Iterator[Breakdown]:
    """The caches fill layer by layer. Logits are those of each prompt's last token."""
    *spots, (_, copies) = forward.layers()
    cache = _cache_bytes(forward, forward.setup.sequence)
    highest, _ = max(spots, key=lambda spot: spot[0].total)
    yield _parts(min(cache, highest.total), highest.total)
    yield from _sampling(forward, cache, copies, before=0)


def _decode(forward: QuietForward, context: int) -> Iterator[Breakdown]:
    """One token of each, behind a full cache, of which one layer's keys are there twice while the new one is put there.

    So are its values then; and under autocast a layer's cache is read through a copy of 16 bits, which is as large.
    """
    *spots, (_, copies) = forward.layers()
    cache, before = _cache_bytes(forward, context), 2 * _logits(forward, FP32)
    kinds = {layer.attention for layer in forward.setup.model.layers}
    twice = max(one.kv_values(context) // (1 if one.window else 2) for one in kinds)
    again = forward.setup.micro_batch * twice * forward.cache_width
    highest = max(live.total for live, _ in spots)
    yield _parts(cache, cache + highest + again + before, before)
    yield from _sampling(forward, cache, copies, before)


def _sampling(forward: QuietForward, cache: int, copies: int, before: int) -> Iterator[Breakdown]:
    """In the head, beside autocast's copies; then the token is drawn: logits, in FP32 too, and two of probabilities."""
    setup, page = forward.setup, forward.page
    low = _logits(forward, HALF if page.width.autocast else page.width.residual)
    head = rounded(setup.model.vocab * setup.model.hidden * HALF) if page.width.casts_weights else 0
    yield _parts(cache, cache + before + low + copies + head, before + low)
    returned = _logits(forward, FP32 if page.width.autocast else page.width.residual)  # accelerate makes them FP32
    drawn = returned + 3 * _logits(forward, FP32)
    yield _parts(cache, cache + drawn, drawn)


def _logits(forward: QuietForward, width: int) -> int:
    """Of one token of each sequence."""
    return rounded(forward.setup.micro_batch * forward.setup.model.vocab * width)


def _cache_bytes(forward: QuietForward, context: int) -> int:
    setup: TrainSetup = forward.setup
    return setup.micro_batch * setup.model.kv_values(context) * forward.cache_width


def _parts(cache: int, total: int, logits: int = 0) -> Breakdown:
    sizes = {Part.KV_CACHE: cache, Part.LOGITS: logits, Part.WORKSPACE: total - cache - logits}
    return Breakdown({part: size for part, size in sizes.items() if size})
