"""A training run split over GPUs, as one rank of them: FSDP2, DTensor's tensor parallelism, PyTorch's pipelines.

The model is Transformers', and every split is the library's own. FSDP2 shards each decoder layer, then the rest; its
mixed precision takes the place of autocast: FP32 shards, BF16 gathered, gradients reduced as the split says. Tensor
parallelism follows the plan in the model's own config, which keeps hidden states whole on every rank. A pipeline's
stages have equal numbers of layers, the embedding with the first of them, the head with the last.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from ...catalog.devices import Device, device
from ...catalog.errors import WorkbookError
from ...catalog.hardware import reference_of
from ...catalog.losses import FULL
from ...catalog.split import ONE_GPU, Split
from ...catalog.train_setup import TrainSetup
from ..measure.optimizers import make_optimizers
from ..measure.steps import Make, TrainingRun, build_model, layer_list, run_of, trained_weights
from .optimizers import optimizers_without_values
from .record import CUDA, Trace, fake, record, require_steps
from .stages import Stages, require_pipeline

PRECISIONS = ("fp32", "bf16", "autocast-bf16")
REDUCED = {"fp32": torch.float32, "bf16": torch.bfloat16}


def train_split(
    setup: TrainSetup, rank: int = 0, gpu: str | Device | None = None, on: str = CUDA, steps: int = 2
) -> Trace:
    """Trace training steps of `setup` on one rank of its split, and account for the last.

    A pipeline runs `setup.micro_batches` through its stages; without one they are accumulated. Raises WorkbookError.
    Llama-3-8B, autocast-bf16, fused AdamW, one sequence of 8,192 with full checkpointing: on 8 ranks of FSDP 27.6 GiB
    are allocated.
    """
    require_steps(steps)
    _require_possible(setup)
    card = device(gpu or reference_of(setup))
    with fake(on, card, ranks=setup.ranks, rank=rank) as session:
        with mock.patch.object(session.mode, "allow_non_fake_inputs", True):  # Gemma makes a scale by torch.tensor
            run = run_on_rank(setup, optimizers_without_values)
        with warnings.catch_warnings():  # a head split over ranks returns a view, which nobody writes into
            warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
            return record(run.step, run.model, run.optimizers, warmup=steps - 1)


def run_on_rank(setup: TrainSetup, make: Make = make_optimizers) -> TrainingRun:
    """This process's part of the model, with weights of no particular value, and its step.

    Its process group, a fake one or that of real ranks, has `setup.ranks`, and gives the rank.
    """
    split, setup = setup.split, replace(setup, split=ONE_GPU)
    shape, names = (split.pipeline, split.fsdp, split.tensor), ("pipeline", "fsdp", "tensor")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    policy = split.fsdp > 1 and setup.precision == "autocast-bf16"  # FSDP2's, in place of autocast
    computing = replace(setup, precision="fp32") if policy else setup
    model = build_model(setup, "meta")
    if split.tensor > 1:
        in_parts(model, mesh["tensor"], setup)
    if split.pipeline == 1:
        owner, name = layer_list(model, len(setup.model.layers))
        _sharded(model, getattr(owner, name), mesh["fsdp"], setup, split)
        return run_of(computing, model.to_empty(device="cpu"), "cpu", make)
    stages = Stages(model, setup, mesh["pipeline"].get_local_rank(), split.pipeline, split.schedule)
    for stage in stages:
        _sharded(stage, stage.decoder.layers, mesh["fsdp"], setup, split)
    made = make(setup.optimizer, trained_weights(stages.to_empty(device="cpu")))
    hidden = torch.bfloat16 if policy or setup.precision == "bf16" else torch.float32
    return TrainingRun(stages, made, stages.step_of(computing, made, mesh["pipeline"], hidden))


def _require_possible(setup: TrainSetup) -> None:
    split = setup.split
    if setup.loss != FULL:
        what, do = f"loss {setup.loss!r} over several GPUs", "pass loss='full'"
        raise WorkbookError(what, "a trace of one GPU: nobody compared a fused loss on several", do)
    if setup.precision not in PRECISIONS:
        do = "pass precision='autocast-bf16' for FP32 shards, or 'bf16'"
        raise WorkbookError(f"{setup.precision} over several GPUs", ", ".join(PRECISIONS), do)
    if split.reduced == "bf16" and setup.precision == "fp32":
        do = "pass precision='autocast-bf16', or leave reduced out"
        raise WorkbookError("gradients reduced in bf16 from fp32", "a mixed precision", do)
    if setup.adapter or setup.in_backward:
        what = "adapters" if setup.adapter else "an optimizer in the backward"
        raise WorkbookError(f"{what} over several GPUs", "a step that trains all of the model", "trace it on one")
    if split.data > 1:
        what, do = f"{split.data:,} replicas in a run on {split}", "pass data=1: what a rank holds is the same"
        raise WorkbookError(what, "FSDP, tensor parallelism and a pipeline", do)
    if split.pipeline > 1:
        require_pipeline(setup, split.pipeline, split.schedule)


def _sharded(model: nn.Module, layers: Any, mesh: DeviceMesh, setup: TrainSetup, split: Split) -> None:
    """FSDP2 on each decoder layer, then on the rest, as accelerate wraps a Transformers model."""
    if split.fsdp == 1:
        return
    options: dict[str, Any] = {"mesh": mesh, "mp_policy": _policy(setup, split)}
    options["reshard_after_forward"] = split.reshard
    for layer in layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)


def _policy(setup: TrainSetup, split: Split) -> MixedPrecisionPolicy:
    if setup.precision != "autocast-bf16":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(torch.bfloat16, REDUCED[split.reduced])


def in_parts(model: Any, mesh: DeviceMesh, setup: TrainSetup) -> None:
    """Tensor parallelism by the plan that Transformers' config of the model names, with DTensor's styles."""
    plan = getattr(model, "tp_plan", None)
    if not plan:
        what, do = f"Transformers has no plan of tensor parallelism for {setup.model.name}", "split it by fsdp"
        raise WorkbookError(what, "a model whose config names one", do)
    _require_divisible(setup, mesh.size())
    styles = {}
    for name, module in model.named_modules():
        word = plan.get(re.sub(r"\.\d+\.", ".*.", name))
        if word or next(module.parameters(recurse=False), None) is not None:
            styles[name] = _style(word or "whole", name)
    parallelize_module(model, mesh, styles)
    if model.config.tie_word_embeddings:
        model.tie_weights()


class Whole(ParallelStyle):
    """A module that every rank has whole, as DTensors, so that one optimizer can step them with the others."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def enter(_: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
            return tuple(DTensor.from_local(one, mesh, [Replicate()], run_check=False) for one in inputs)

        def leave(_: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
            return output.to_local()

        return distribute_module(module, device_mesh, None, enter, leave)


STYLES: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather_output": partial(ColwiseParallel, output_layouts=Replicate()),
    "colwise_rep": partial(ColwiseParallel, output_layouts=Replicate()),
    "embedding_rowwise": partial(RowwiseParallel, input_layouts=Replicate()),
    "replicated_with_grad_allreduce": Whole,
    "whole": Whole,
}


def _style(word: str, name: str) -> ParallelStyle:
    if word not in STYLES:
        do = "write the step with parallelize_module inside trace.fake(ranks=...), or split it by fsdp"
        raise WorkbookError(f"{name} is split as {word!r}", " or ".join(STYLES), do)
    return STYLES[word]()


def _require_divisible(setup: TrainSetup, parts: int) -> None:
    layer = setup.model.layers[0]
    heads = {"query heads": layer.attention.heads, "KV heads": layer.attention.kv_heads}
    sizes = {**heads, "tokens of the vocabulary": setup.model.vocab}
    for what, size in sizes.items():
        if size % parts:
            do = f"choose tensor_parallel among the divisors of {size}"
            raise WorkbookError(f"{size:,} {what} over {parts} ranks", "as many for each rank", do)
