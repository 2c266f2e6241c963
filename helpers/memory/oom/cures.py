"""What to change, the cheapest first, for a reason, a place and an engine. The words are in messages.toml."""

from __future__ import annotations

import re

from ..allocator.outcome import Reason
from .frames import RequestPlace
from .message import Oom, strangers
from .refused import is_windows, is_wsl
from .words import Change, KnownServer, MessageKind, cures, cures_at, kinds

_VARIABLE = re.compile(r"PYTORCH_(?:[A-Z]+_)?ALLOC_CONF")


def _expandable(oom: Oom) -> Change:
    """In the variable that the message names, which is its version's own; without one, both names.

    PYTORCH_ALLOC_CONF leaves CUDA's expandable segments off in torch 2.9.1 (pytorch/pytorch#183387); 2.13 reads both.
    """
    if oom.backend == "NPU":
        return cures()["npu-segments"]
    named = _VARIABLE.search(oom.text)
    name, before = (named[0], "") if named else ("PYTORCH_ALLOC_CONF", " (before torch 2.11 PYTORCH_CUDA_ALLOC_CONF)")
    return Change(
        f"{name}=expandable_segments:True{before}, set before the first CUDA call",
        "nothing to try; no effect on Windows, and old versions cannot share such tensors",
    )


Named = str | Change  # a cure of messages.toml, or one with this message's own words
DEVICE = {
    MessageKind.ALLOCATOR,
    MessageKind.DRIVER,
    "cublas",
    "cudnn",
    "hipblas",
    "async allocator",
    "level zero",
    "sglang capture",
}
DEVICE |= {"mps buffer", "tpu loading", "tpu"}
ONLY_EVALUATING = {"no-grad", "last-logits"}


def changes_for(
    oom: Oom,
    reason: Reason,
    place: RequestPlace,
    training: bool = False,
    server: KnownServer | None = None,
    siblings: bool = False,
) -> tuple[Change, ...]:
    """What to do, cheapest first; at most five.

    What helps evaluation only is left out where `training` is known; a `server` gets its own knobs; ranks that share a
    card (`siblings`) get one each.
    """
    known = cures()
    chosen = dict.fromkeys(_chosen(oom, reason, place, training, server, siblings))
    looks = {"smi": {"HIP": "rocm-smi", "XPU": "xpu-smi"}.get(oom.backend, "smi")}
    return tuple(known[looks.get(one, one)] if isinstance(one, str) else one for one in chosen)[:5]


def _chosen(
    oom: Oom, reason: Reason, place: RequestPlace, training: bool, server: KnownServer | None, siblings: bool
) -> tuple[Named, ...]:
    here = tuple(name for name in cures_at()[place.name.lower()] if not (training and name in ONLY_EVALUATING))
    if siblings:
        return ("one-gpu-a-rank", "smi")
    if server and oom.kind in DEVICE and reason is not Reason.HOST:
        return (*(_first(oom, reason) if reason is Reason.OUTSIDE else ()), *server.cures)
    if oom.kind == MessageKind.VLLM and oom.capacity_bytes:
        return ("smi", "lower-utilization", "other-card")
    if oom.kind == MessageKind.VLLM and (oom.requested_bytes or oom.requested_tokens):  # one sequence is too long
        return ("model-len", "kv-fp8", "utilization", "more-gpus")
    if oom.kind == MessageKind.DRIVER and reason is Reason.HOST:
        return ("no-pinning", "wsl-memory", "host-limit")
    if oom.kind == MessageKind.DRIVER and reason is Reason.OUTSIDE:
        return ("smi", "other-card")
    if own := kinds()[oom.kind].cures:
        return (*own, *(here if oom.kind == MessageKind.CAP else ()))
    if reason is Reason.HOST:
        loading = place in (RequestPlace.UNKNOWN, RequestPlace.LOADING)
        return (*(("host-load",) if loading else ()), "workers", "host-limit")
    if oom.capacity_bytes and oom.requested_bytes and oom.requested_bytes > oom.capacity_bytes:
        return ("shapes", *here[:3])
    if reason is Reason.UNCLEAR:
        return (*_of_the_unclear(oom), *(here if place is not RequestPlace.UNKNOWN else ()))
    if reason is Reason.FRAGMENTED:
        if place is RequestPlace.PREDICTIONS:  # they grow until they are cured, whatever the allocator does
            return (*here[:2], _expandable(oom), "reuse", "split")
        return (_expandable(oom), *(here[:1] if place is RequestPlace.LOGITS else ()), "reuse", "split", here[0])
    return (*_first(oom, reason), *here)


def _first(oom: Oom, reason: Reason) -> tuple[Named, ...]:
    """What goes before asking for less, which helps in all of these cases."""
    match reason:
        case Reason.CAPPED:
            return ("relaxed" if oom.backend == "XPU" and oom.allowed_bytes is None else "limit",)
        case Reason.OUTSIDE:
            return (_evict(oom), "other-card")
        case Reason.FULL if oom.sizes and oom.sizes.asked <= oom.sizes.unused:
            return (_expandable(oom),)
    return ()


def _of_the_unclear(oom: Oom) -> tuple[Named, ...]:
    if is_wsl(oom):
        return ("smaller-share", "no-pinning", "wsl-memory")
    if is_windows(oom) and oom.sizes:
        return ("close", "page-file", "smaller-share")
    if oom.backend == "HIP" and oom.sizes:
        return ("apu-pages", "blocking")
    return ("smi",) if oom.backend == "XPU" else ("smi", "blocking")


def _evict(oom: Oom) -> Named:
    pids = [str(held.pid) for held in strangers(oom)]
    if not pids:
        return "smi"
    whose = f"{'process' if len(pids) == 1 else 'processes'} {', '.join(pids)} if it is yours"
    do = f"nvidia-smi, then end or move {whose}: often a notebook or a run that did not stop"
    return Change(do, "whatever it was doing")
