"""Snapshots as `torch.cuda.memory._snapshot()` builds them, made by the simulator in place of a GPU."""

from __future__ import annotations

from helpers.memory.allocator import AllocatorReplay, replay

STATE = {"allocated": "active_allocated", "free": "inactive"}


def snapshot_of(steps, conf="", **limits) -> dict:
    """The dict that a device would give after `steps`, its history in the device's own order of entries."""
    ran = replay(steps, conf, **limits)
    return {
        "segments": [_segment(segment) for segment in ran.segments],
        "device_traces": [list(_trace(ran))],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": conf},
    }


def _segment(segment) -> dict:
    blocks = [
        {
            "address": b.address,
            "size": b.size_bytes,
            "requested_size": b.requested_bytes or b.size_bytes,
            "state": STATE[b.state],
            "frames": [],
        }
        for b in segment.blocks
    ]
    return {
        "device": 0,
        "address": segment.address,
        "total_size": segment.size_bytes,
        "stream": segment.stream,
        "allocated_size": segment.allocated_bytes,
        "active_size": segment.allocated_bytes,
        "segment_type": segment.pool,
        "segment_pool_id": (0, 0),
        "is_expandable": segment.expandable,
        "frames": [],
        "blocks": blocks,
    }


def _trace(ran: AllocatorReplay):
    for step, outcome in zip(ran.requests, ran.outcomes, strict=True):
        for event in outcome.events:
            yield _entry(str(event.action), event.address, event.size_bytes, event.stream)
        if outcome.kind == "out of memory":
            yield {"action": "oom", "device_free": 0, "size": outcome.size_bytes, "stream": step.stream}
        elif step.action == "alloc" and outcome.size_bytes:
            yield _entry("alloc", outcome.address, step.size_bytes, step.stream)
        elif step.action == "free" and outcome.size_bytes:
            for action in ("free_requested", "free_completed"):
                yield _entry(action, outcome.address, outcome.requested_bytes, step.stream)


def _entry(action, address, size, stream) -> dict:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": stream,
        "time_us": 0,
        "frames": [
            {"filename": "??", "line": 0, "name": "CUDACachingAllocator"},
            {"filename": "/env/site-packages/torch/nn/modules/linear.py", "line": 134, "name": "forward"},
            {"filename": "/src/train.py", "line": 12, "name": "step"},
        ],
    }
