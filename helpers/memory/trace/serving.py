"""Serving ready made: prefill, decoding, and a batch from its prompts to its last token, as `generate` runs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...catalog.by_transformers import transformers_config, with_cache
from ...catalog.devices import Device
from ...catalog.errors import WorkbookError
from ...catalog.gguf import refuse_file
from ...catalog.serve_setup import ServeSetup
from ..breakdown import Part, Phase, Point
from ..meter.timeline import AllocationEvent, PartOf, StorageLifetime, account
from ..serve.loading import tied_head_again
from ..serve.serving import CAPPED
from .continued import continued
from .fake import without_memory
from .loading import load
from .packed import is_packed, kept_buffer, pack_linears
from .quantized import DTYPES, QuantizedBase, in_4_bits
from .record import CUDA, Session, Trace, fake, record

FOUR_BITS = ("nf4", "nf4-dq")  # of bitsandbytes; LLM.int8() was compared where it trains, and not here
REAL_STEPS = 3  # of decoding that are run: the first after prefill, and two that show how their tensors grow


def serve(setup: ServeSetup, gpu: str | Device | None = None, on: str = CUDA) -> Trace:
    """Trace a batch from its prompts to its last token: the peak is that of the prefill or of the decoding.

    All `users` come in one forward of `setup.prompt_tokens` each, or in forwards of `setup.prefill_tokens` in all; then
    a token at a time, with Transformers' DynamicCache, up to `setup.context`. Three or four steps of decoding are run;
    the others are like them but for what grows with the cache, which is continued. Raises WorkbookError, before
    Transformers 5.23 also where a window of grouped heads fills after these steps.

    Qwen2.5-7B on an A100, 2,048 tokens after a prompt of 30,720: 19.96 GiB in the prefill (19.97 measured); after a
    prompt of one token 14.35 GiB in the decoding (14.38).
    """
    # The step that fills a window makes a mask, and those that follow are like it
    real_steps = REAL_STEPS + (setup.prompt_tokens + REAL_STEPS in _windows(setup).values())
    _require_steps_alike(setup, setup.prompt_tokens + real_steps - 1)
    built = _on_meta(setup)  # before fake(), where tensors on meta would count as well
    with fake(on, gpu) as session, torch.no_grad():
        replica = _Replica(setup, *built, session)
        marks: list[int] = []

        def run() -> None:
            replica.prefill(setup.prompt_tokens, setup.prefill_tokens)
            marks.append(len(session.meter.events))
            for _ in range(min(real_steps, setup.context - setup.prompt_tokens)):
                replica.forward(1)
                marks.append(len(session.meter.events))

        found = record(run, replica.model, warmup=0, kv_cache=replica.cached, part_of=_in_forward(setup.model.vocab))
    left = setup.context - setup.prompt_tokens - real_steps
    more = continued(found.events, marks, left, _windows(setup)) if left > 0 else ()
    events = (*found.events[: found.first], *_in_phases((*found.events[found.first :], *more), marks[0] - found.first))
    return Trace(account(events, found.first, setup.model.vocab, 0, on, None), events, found.first)


def _in_phases(events: Sequence[AllocationEvent], begins: int) -> Iterator[AllocationEvent]:
    """The events of a forward by what it was for: from number `begins` on the decoding's."""
    for number, event in enumerate(events):
        yield replace(event, phase=Point.DECODE if number >= begins else Point.PREFILL)


def _windows(setup: ServeSetup) -> dict[str, int]:
    """How many tokens a layer's cache holds at most, by the name of its module."""
    layers = enumerate(setup.model.layers)
    return {f"layers.{at}.": layer.attention.window for at, layer in layers if layer.attention.window}


def _require_steps_alike(setup: ServeSetup, run: int) -> None:
    """A full window needs a mask, for which Transformers before 5.23 repeats K and V of grouped heads in each step.

    `run` is the context of the last step but one that is run.
    """
    from transformers.integrations import sdpa_attention

    if hasattr(sdpa_attention, "pack_gqa") or setup.model.family == CAPPED:
        return
    for one in (layer.attention for layer in setup.model.layers):
        if one.window and one.heads != one.kv_heads and run < one.window <= setup.context:
            what = f"the window of {one.window:,} tokens fills in a step that is continued"
            do = "install a later Transformers, or trace the last step alone: helpers.memory.trace.decode"
            raise WorkbookError(what, "Transformers 5.23 or later, whose steps stay alike", do)


def prefill(setup: ServeSetup, gpu: str | Device | None = None, on: str = CUDA) -> Trace:
    """Trace the forward over `users` prompts of `context` tokens, which fills the KV cache. Raises WorkbookError.

    As `generate` does it: logits of the last token only.
    """
    return _one_forward(setup, gpu, on, cached=0)


def decode(setup: ServeSetup, gpu: str | Device | None = None, on: str = CUDA) -> Trace:
    """Trace one token for each of `users`, the last of `context`; the cache grows as Transformers' DynamicCache does.

    That cache is concatenated layer by layer, so a layer's old and new K and V are alive together for a moment.
    """
    return _one_forward(setup, gpu, on, cached=setup.context - 1)


def _one_forward(setup: ServeSetup, gpu: str | Device | None, on: str, cached: int) -> Trace:
    built = _on_meta(setup)
    with fake(on, gpu) as session, torch.no_grad():
        replica = _Replica(setup, *built, session)
        if cached:
            replica.forward(cached)
        rest = setup.context - cached
        return record(
            lambda: replica.forward(rest),
            replica.model,
            warmup=0,
            kv_cache=replica.cached,
            part_of=_in_forward(setup.model.vocab),
        )


class _Replica:
    """A model without memory and its cache, inside `fake()`."""

    def __init__(self, setup: ServeSetup, model: Any, base: QuantizedBase | None, session: Session) -> None:
        from transformers import DynamicCache

        self.users, self.session = setup.users, session
        self.model = load(model, base, session) if base else without_memory(model, session.mode)
        with session.meter.held(*tied_head_again(setup)):  # until all is loaded
            pass
        self.buffers = kept_buffer(self.model, session.meter)
        self.cache = DynamicCache(config=model.config)

    def forward(self, tokens: int) -> None:
        ids = torch.zeros(self.users, tokens, dtype=torch.long)
        self.model(input_ids=ids, **with_cache(self.cache), use_cache=True, logits_to_keep=1)
        self.session.meter.relabel(self.cached(), Part.KV_CACHE)

    def prefill(self, tokens: int, most: int | None) -> None:
        """All prompts, `most` tokens of them in one forward."""
        step = tokens if most is None else max(1, min(tokens, most // self.users))
        for begin in range(0, tokens, step):
            self.forward(min(step, tokens - begin))

    def cached(self) -> Iterable[torch.Tensor]:
        for layer in self.cache.layers:
            kept = [getattr(layer, name, None) for name in ("keys", "values", "indexer_keys")]
            for states in (getattr(layer, "conv_states", None), getattr(layer, "recurrent_states", None)):
                kept += states.values() if states else ()
            yield from (tensor for tensor in kept if isinstance(tensor, torch.Tensor))


def _on_meta(setup: ServeSetup) -> tuple[Any, QuantizedBase | None]:
    """The model on the meta device, and how it is quantized by bitsandbytes; it computes in the cache's type."""
    if setup.drafts:
        what, do = f"{setup.drafts} drafts are not traced", "leave --drafts out, in Python drafts=0"
        raise WorkbookError(what, "one token at a time, as Transformers makes them", do)
    refuse_file(setup.model, "a trace")
    in_bits = setup.weights in FOUR_BITS and setup.skipped is None
    packed = is_packed(setup.weights)
    plain = setup.weights in DTYPES and setup.kv == setup.weights
    if setup.kv not in DTYPES or not (in_bits or packed or plain):
        names = f"{', '.join(DTYPES)} for both; or weights of GPTQ, AWQ, FP8, {' or '.join(FOUR_BITS)}"
        what = f"weights in {setup.weights} and KV in {setup.kv} are not traced"
        raise WorkbookError(what, f"the same of {names} with KV in one of these", "use helpers.memory.budget.serve")
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        config = transformers_config(setup.model.config)
        attention = "eager" if setup.model.family == CAPPED else None  # before 5.21 SDPA, which leaves the caps out
        model: nn.Module = AutoModelForCausalLM.from_config(
            config, dtype=DTYPES[setup.kv], attn_implementation=attention
        )
    base = QuantizedBase(setup.weights, setup.kv, prepared=False) if in_bits else None
    model = (in_4_bits(model, base) if base else pack_linears(model, setup) if packed else model).eval()
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            module.train()  # in eval mode bitsandbytes packs the weight anew for a CPU's own kernel
    return model, base


def _in_forward(vocab: int) -> PartOf:
    """What a forward makes that nothing saves is an activation; what libraries hold, and logits, are not."""

    def part_of(block: StorageLifetime) -> str | None:
        logits = bool(block.shape) and block.shape[-1] == vocab
        return Part.ACTIVATIONS if block.phase == Phase.FORWARD and not logits else None

    return part_of
