"""DeepSpeed, where ZeRO comes from, on the same model: its stages 0 to 3 behind the interface of our engines."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...catalog.errors import WorkbookError, require_name, require_package, require_whole
from ...memory.meter.places import Place
from ...memory.step.ranks.zero import BUCKET_BYTES
from ..offload.engines import require_room
from ..offload.engines_training import PARAMETER_BUFFERS, STATE_BUFFERS, infinity_bytes, require_aligned
from .async_io import require_async_io, stderr_of_the_process
from .configs import zero_section
from .ddp import Make, optimizer_states
from .flat import broadcast_model, trainable, world
from .stage3 import decoder_layers, units

# What DeepSpeed's own optimizers call them.
MASTERS = ("single_partition_of_fp32_groups", "fp32_partitioned_groups_flat")
GRADIENTS = ("averaged_gradients", "grad_partitions_flat_buffer")
ON_HOST = ("param_buffer_of_bit16_for_cpu_offload_groups", "temp_grad_buffer_for_cpu_offload")  # of stages 1 and 2
BUFFERS = ("temp_grad_buffer_for_gpu_offload",)
INSTALL = "pip install deepspeed, on Linux, then restart the kernel"


class DeepSpeed:
    """`deepspeed.initialize` on `model`, with the optimizer that `make` builds. Call `self.model`, not `model`.

    `host=True`, ZeRO-Offload, keeps the FP32 copy, gradients and states of a shard in host memory and updates them
    there. `disk`, ZeRO-Infinity, is a folder in which stage 3 keeps all of a shard in files, and updates
    `sub_group_size` values at a time through buffers on the host. What has less than 1 MiB stays on the host. For bytes
    see `offload.engines_training`. `options` are settings of the section `zero_optimization`, over those of
    `configs.zero_section`.

    Losses are those of the same stage without `host` and `disk`, bit for bit, unless gradients are clipped: DeepSpeed
    then adds up the squares of their norm in another order, and its last bit may differ.

    Not as in our engines: an FP32 model has an FP32 copy of its shard as well; stages 1 and 2 all-reduce a bucket of
    which each rank keeps its part, unless `use_multi_rank_bucket_allreduce=False`; stage 3 keeps room for its gradients
    all the time.
    """

    def __init__(
        self,
        model: nn.Module,
        make: Make,
        clip: float = float("inf"),
        stage: int = 3,
        bucket_bytes: int = BUCKET_BYTES,
        host: bool = False,
        disk: str | Path | None = None,
        **options: Any,
    ) -> None:
        broadcast_model(model)
        parameters = trainable(model)
        package = loaded(parameters[0].device)
        _require_known(package, stage, options)
        self.stage, self.clip, self.host = stage, clip, host or disk is not None
        self.disk = None if disk is None else Path(disk)
        if self.disk is not None:
            self._require_ready(package, self.disk, parameters, options.get("sub_group_size", 10**9))
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 0.0 if clip == float("inf") else clip,
            "bf16": {"enabled": parameters[0].dtype == torch.bfloat16},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,  # PyTorch's optimizer on the host: DeepSpeed's would be compiled
            "zero_optimization": zero_options(model, stage, bucket_bytes, host, self.disk) | options,
        }
        optimizer = make(parameters)
        with stderr_of_the_process() if self.disk else contextlib.nullcontext():
            self.engine, *_ = package.initialize(
                model=model, optimizer=optimizer, config=config, dist_init_required=False
            )
        self.model, self.optimizer = self.engine if stage else model, self.engine.basic_optimizer
        self._sizes = sizes_of(self.files())

    def step(self) -> Tensor:
        self._require_files()
        if self.stage:
            self.engine.step()
            self._sizes = sizes_of(self.files())
            return torch.as_tensor(self.engine.get_global_grad_norm())
        self.engine.allreduce_gradients()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.engine.step()
        return norm

    def holds(self) -> dict[str, list[Tensor]]:
        """As those of our engines; only DeepSpeed has "buckets"."""
        model = list(self.model.parameters())
        shards = [p.ds_tensor for p in model if hasattr(p, "ds_tensor")]
        outer = self.engine.optimizer
        masters, gradients, buffers = (tensors_of(outer, names) for names in (MASTERS, GRADIENTS, BUFFERS))
        gradients += [p.grad for p in (*model, *masters) if p.grad is not None]
        for bucket in getattr(outer, "ipg_buckets", {}).values():
            buffers += tensors_of(bucket, ["buffer"])
        found = {"parameters": [*model, *self.model.buffers()]}
        states = [*optimizer_states(self.optimizer), *masters]
        if self.disk:  # a shard that is in its file has one value here, which all of them share
            states += [s for s in shards if s.numel() == s.ds_numel] + swap_buffers(outer, model)
        else:
            found["parameters"] += shards
        if self.host:
            return {**found, "host": states + gradients + tensors_of(outer, ON_HOST), "buckets": buffers}
        return {**found, "gradients": gradients, "optimizer": states, "buckets": buffers}

    def files(self) -> list[Path]:
        """What this rank keeps on the disk: a file for each shard, for each gradient, and for each state of a group."""
        return sorted(self.disk.rglob(f"rank{world()[1]}/*.swp")) if self.disk else []

    def close(self) -> None:
        """Delete the files, and take DeepSpeed's hooks off the model, which is of no use then: it stays sharded."""
        self.engine.destroy()
        for path in self.files():
            path.unlink()

    def _require_ready(self, package: ModuleType, disk: Path, parameters: Iterable[Tensor], group: int) -> None:
        """All that DeepSpeed needs for a disk is there. A full disk ends its process, so room is looked for now."""
        if self.stage < 3:
            what = f"a disk at stage {self.stage}, where DeepSpeed would use the host's memory without a word"
            raise WorkbookError(what, "stage=3: ZeRO-Infinity is a stage 3", "pass stage=3, or host=True")
        sizes, ranks = [p.numel() for p in parameters], world()[0]
        require_aligned(sizes, ranks, group)
        require_room(disk, ranks * infinity_bytes(sizes, ranks, group)[Place.DISK])
        if self.files():
            what = f"{disk} has the files of another engine, which would be written over"
            raise WorkbookError(what, "a new folder, or an empty one", "close() that engine, or name another folder")
        require_async_io(package)

    def _require_files(self) -> None:
        """A file that has been cut short would end DeepSpeed's process, and of one that is gone it says nothing."""
        for path, found in sizes_of(self._sizes).items():
            if found != self._sizes[path]:
                what = f"{path} has {found:,} bytes, and {self._sizes[path]:,} were written"
                raise WorkbookError(what, "files that nobody else touches", "train anew, in another folder")


def sizes_of(files: Iterable[Path]) -> dict[Path, int]:
    return {path: path.stat().st_size if path.exists() else 0 for path in files}


def tensors_of(owner: object, names: Iterable[str]) -> list[Tensor]:
    """The tensors in those attributes that `owner` has, also within lists and dicts."""
    leaves = tree_leaves([getattr(owner, name, ()) for name in names])
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_meta]


def swap_buffers(outer: Any, model: Iterable[nn.Parameter]) -> list[Tensor]:
    """The host's buffers through which states, and the shards of parameters, pass between disk and device."""
    swappers = {id(found): found for p in model if (found := getattr(p, "nvme_swapper", None))}
    return tensors_of(outer.optimizer_swapper.swap_buffer_manager, ["all_buffers"]) + [
        buffer
        for swapper in swappers.values()
        for buffer in tensors_of(swapper, ["buffers", "partitioned_swap_buffer"])
    ]


def zero_options(
    model: nn.Module, stage: int, bucket_bytes: int, host: bool, disk: Path | None = None
) -> dict[str, Any]:
    """The section `zero_optimization` for this model."""
    root, *layers = (sum(p.numel() for p in group) for group in units(model, list(decoder_layers(model))))
    first = trainable(model)[0]
    section = zero_section(stage, bucket_bytes // first.element_size(), root, max(layers))
    if disk is not None:
        nvme = {"device": "nvme", "nvme_path": str(disk), "pin_memory": first.is_cuda}
        largest = -(-max(p.numel() for p in model.parameters()) // world()[0])
        parameters = {"buffer_count": PARAMETER_BUFFERS, "buffer_size": largest, "max_in_cpu": 0}
        return section | {
            "stage3_prefetch_bucket_size": 0,  # else shards that are being fetched in the update lose their buffers
            "offload_optimizer": {**nvme, "buffer_count": STATE_BUFFERS},
            "offload_param": nvme | parameters,
        }
    return section | ({"offload_optimizer": {"device": "cpu", "pin_memory": first.is_cuda}} if host else {})


def _require_known(package: ModuleType, stage: object, options: Mapping[str, Any]) -> None:
    """In one sentence; DeepSpeed's own message is pages of pydantic."""
    require_whole("stage", stage, 0, 3, do="pass stage=3")
    fields = package.runtime.zero.config.DeepSpeedZeroConfig.model_fields
    allowed = sorted({field.alias or name for name, field in fields.items()} - {"stage"})
    for name in options:
        require_name("setting of zero_optimization", name, allowed)


def loaded(device: torch.device) -> ModuleType:
    """The package for `device`, quiet, and on this process's present group; WorkbookError if it is not installed."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    package = require_package("deepspeed", "this engine", INSTALL)
    accelerator = package.get_accelerator().device_name().partition(":")[0]
    if accelerator != device.type:
        what = f"the model is on {device.type}, and DeepSpeed was imported for {accelerator}"
        raise WorkbookError(what, "one of them in a process", f"set DS_ACCELERATOR={device.type}, and restart")
    os.environ.setdefault("LOCAL_RANK", str(torch.cuda.current_device() if device.type == "cuda" else world()[1]))
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    # Its collectives in shared memory would be compiled here, for a minute; nothing of a training step needs them.
    package.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    _join(package)
    return package


def _join(package: ModuleType) -> None:
    """DeepSpeed remembers groups, and is not told when `torch.distributed.destroy_process_group()` ends them."""
    groups = importlib.import_module("deepspeed.utils.groups")
    if getattr(package, "_workbook_group", dist.group.WORLD) is not dist.group.WORLD:
        groups._release_process_group_references()
    setattr(package, "_workbook_group", dist.group.WORLD)  # noqa: B010 - no attribute that a type checker knows
