"""Peaks that torchtitan logged on 8 to 512 H100, answered by a trace of one rank of them.

A rank's step as train.py at 9dec370 takes it, in eager mode: FSDP2 with FP32 shards, BF16 where it computes, FP32 where
it reduces; gradients live until the next step begins; clipping and AdamW by foreach. What torchtitan logs is reserved
memory, and run_llama_train.sh asks for expandable segments. Where a row's technique changes more, `why` says what.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional

from ...catalog.models import model
from .. import trace
from . import torchtitan_stages
from .cases import Case
from .llama_as_torchtitan import Llama, checkpointed

SETTINGS = "expandable_segments:True"
STEPS_BEFORE = 2  # the states are made in the first, and what is reserved grows in the second
CHANGES = {
    "compile": "eager is traced: compiled layers have fewer temporaries in FP32",
    "float8": "products in BF16",
    "context": "its share of each sequence alone: no blocks of K and V that travel",
    "async": "no symmetric buffers",
    "synchronous": "the peak is in the loss, not compiled and the same with asynchronous TP; blocks need 20 GiB less. "
    "What is reserved follows from the holes that their 2 GiB buffers leave for logits of 7.8: 64.3 GiB without any, "
    "66.8 and 75.7 with one and two freed late. Which of these compiled blocks do is open",
}
FULLEST = {  # rank of the pipeline by schedule, and GiB of ranks 0, 1, 6 and 7
    "1F1B": 0,  # 78.6, 73.9, not traced, 69.7
    "Interleaved1F1B": 7,  # 64.3, 62.9, 60.2, 65.4: it has the logits, and 9 of 16 micro-batches in flight
}
IN_STAGES = (
    "the fullest rank of the pipeline that was traced, in as many micro-batches as it has ranks, which is torchtitan's "
    "default: the page names no number. Gathered weights are BF16, not FP8"
)
INTERLEAVED = "7.3 GiB are open"
LONG = (
    "the run with four sequences of 8,192 in a micro-batch has as many tokens as that with one of 32,768 and the same "
    "traced bytes, and is 7.2 GiB higher in the log: open"
)


def predict(case: Case) -> dict[str, int]:
    """Bytes by quantity; of a pipeline those of its fullest rank."""
    setup = case.setup
    tokens = setup["sequence"] // setup["context_parallel"]
    shards = setup["fsdp"] * setup["context_parallel"]  # torchtitan shards parameters over both
    traced = (setup["model"], shards, setup["tensor_parallel"], setup["batch"], tokens, setup["checkpointing"])
    if setup["pipeline"] == 1:
        return {"peak reserved": _peak_reserved_bytes(case.device, *traced)}
    schedule = "Interleaved1F1B" if "interleaved" in setup["technique"] else "1F1B"
    return {"peak reserved": _peak_reserved_bytes_of_stages(case.device, *traced, setup["pipeline"], schedule)}


def why(case: Case) -> str:
    """What the traced step leaves out of this one."""
    setup = case.setup
    named = [what for word, what in CHANGES.items() if word in setup["technique"]]
    named += [CHANGES["context"]] if setup["context_parallel"] > 1 else []
    if setup["pipeline"] > 1:
        named += [IN_STAGES, INTERLEAVED if "interleaved" in setup["technique"] else LONG]
    named += [CHANGES["synchronous"]] if setup["tensor_parallel"] > 1 and "async" not in setup["technique"] else []
    return "; ".join(named)


@cache
def _peak_reserved_bytes(
    device: str, name: str, shards: int, parts: int, batch: int, tokens: int, checkpointing: str
) -> int:
    """Of a rank that holds one of `shards` of one of `parts` of the model, over all of its steps."""
    with trace.fake(gpu=device, ranks=shards * parts):
        mesh = init_device_mesh("cuda", (shards, parts), mesh_dim_names=("shard", "part"))
        with torch.device("meta"):
            llama = Llama(model(name).config, tokens)
        if parts > 1:
            mesh._flatten()  # one all-reduce for the norm over both dimensions, and no warning of two
            in_parts(llama, mesh["part"])
        sharded(llama, mesh["shard"], checkpointing)
        llama.to_empty(device="cpu")
        optimizer = adamw(llama)
        step = step_of(llama, optimizer, batch, tokens)
        found = trace.record(step, llama, optimizer, warmup=STEPS_BEFORE)
    return found.replayed(SETTINGS).peak_reserved_bytes


@cache
def _peak_reserved_bytes_of_stages(
    device: str,
    name: str,
    shards: int,
    parts: int,
    batch: int,
    tokens: int,
    checkpointing: str,
    pipeline: int,
    schedule: str,
    rank: int | None = None,
) -> int:
    """Of rank `rank` of a pipeline, the fullest if None, which also holds one of `shards` of one of `parts` of its
    stages."""
    config, rank = model(name).config, FULLEST[schedule] if rank is None else rank
    with trace.fake(gpu=device, ranks=pipeline * shards * parts, rank=rank * shards * parts):
        mesh = init_device_mesh("cuda", (pipeline, shards, parts), mesh_dim_names=("stage", "shard", "part"))
        with torch.device("meta"):
            stages = torchtitan_stages.stages_of(config, tokens, rank, pipeline, schedule)
        mesh["shard", "part"]._flatten()
        for stage in stages.values():
            in_parts(stage, mesh["part"])
            sharded(stage, mesh["shard"], checkpointing, reshard=False)
            stage.to_empty(device="cpu")
        optimizers = [adamw(stage) for stage in stages.values()]
        between = (batch // pipeline, tokens // parts, cast("int", config["hidden_size"]))
        run = torchtitan_stages.schedule_of(stages, mesh["stage"], schedule, tokens, between)
        step = torchtitan_stages.step_of(run, stages, optimizers, batch, tokens)
        found = trace.record(step, nn.ModuleList(stages.values()), optimizers, warmup=STEPS_BEFORE)
    return found.replayed(SETTINGS).peak_reserved_bytes


def adamw(llama: Llama) -> torch.optim.Optimizer:
    return torch.optim.AdamW(llama.parameters(), betas=(0.9, 0.95), weight_decay=0.1, foreach=True)


def in_parts(llama: Llama, mesh: DeviceMesh) -> None:
    """Tensor and sequence parallelism: between layers each rank has some of the tokens, in them some of the heads."""
    by_tokens = Shard(1)
    ends: dict[str, ParallelStyle] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=by_tokens),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=by_tokens, output_layouts=Shard(-1), use_local_output=False),
    }
    here = {name: style for name, style in ends.items() if getattr(llama, name) is not None}
    parallelize_module(llama, mesh, here)
    for layer in llama.layers:
        inside: dict[str, ParallelStyle] = {
            "attention_norm": SequenceParallel(),
            "ffn_norm": SequenceParallel(),
            "attention": PrepareModuleInput(input_layouts=(by_tokens, None), desired_input_layouts=(Replicate(), None)),
            "feed_forward": PrepareModuleInput(input_layouts=(by_tokens,), desired_input_layouts=(Replicate(),)),
            **dict.fromkeys(("attention.wq", "attention.wk", "attention.wv"), ColwiseParallel()),
            **dict.fromkeys(("feed_forward.w1", "feed_forward.w3"), ColwiseParallel()),
            **dict.fromkeys(("attention.wo", "feed_forward.w2"), RowwiseParallel(output_layouts=by_tokens)),
        }
        parallelize_module(layer, mesh, inside)


def sharded(llama: Llama, mesh: DeviceMesh, checkpointing: str, reshard: bool = True) -> None:
    """FSDP2 on each checkpointed layer, then on the rest; the last layer stays whole between forward and backward.

    With `reshard` False all of them do, as in a pipeline, where every micro-batch would gather them again.
    """
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    last = len(llama.layers) - 1
    for at, layer in enumerate(llama.layers):
        llama.layers[at] = checkpointed(layer, checkpointing)
        fully_shard(llama.layers[at], mesh=mesh, mp_policy=policy, reshard_after_forward=reshard and at < last)
    fully_shard(llama, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)


def step_of(llama: nn.Module, optimizer: Any, batch: int, tokens: int) -> Callable[[], None]:
    """One step of the loop in train.py."""

    def step() -> None:
        ids, labels = (torch.zeros(batch, tokens, dtype=torch.long) for _ in range(2))
        optimizer.zero_grad()
        with loss_parallel():
            logits = llama(ids)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
            del logits
            loss.backward()
        nn.utils.clip_grad_norm_(llama.parameters(), 1.0, foreach=True)
        optimizer.step()

    return step
