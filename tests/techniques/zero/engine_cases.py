"""The field's engines on the cases of ours: what a rank does in these tests."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from helpers.memory.measure import rank_step
from helpers.techniques.offload.engines_training import bytes_by_place
from helpers.techniques.zero.async_io import require_async_io
from helpers.techniques.zero.deepspeed import DeepSpeed, loaded
from helpers.techniques.zero.fsdp2 import FSDP2, whole
from tests.techniques.zero import cases

MAKERS = {
    "fsdp2": FSDP2,
    "fsdp2 kept": lambda *args: FSDP2(*args, reshard_after_forward=False),
    "fsdp2 host": lambda *args: FSDP2(*args, host=True),
    "deepspeed-1 reduce": lambda *args: DeepSpeed(
        *args, stage=1, bucket_bytes=4000, use_multi_rank_bucket_allreduce=False
    ),
    **{
        f"deepspeed-{stage}": lambda *args, stage=stage: DeepSpeed(*args, stage=stage, bucket_bytes=4000)
        for stage in range(4)
    },
    **{
        f"deepspeed-{stage} host": lambda *args, stage=stage: DeepSpeed(
            *args, stage=stage, bucket_bytes=4000, host=True
        )
        for stage in (1, 2, 3)
    },
    "deepspeed-3 disk": lambda *args, **options: DeepSpeed(*args, bucket_bytes=4000, disk=on_disk(), **options),
}


def on_disk() -> Path:
    """A folder for all ranks, which the first of them makes."""
    made = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(made)
    return Path(made[0])


def compiled() -> None:
    require_async_io(loaded(torch.device("cpu")))


def engine_of(name: str, kind: str, optimizer: str, clip: float = cases.CLIP, **options):
    """On every rank but the first the model begins as zeros: the engine must make it equal."""
    model = cases.build(kind)
    if dist.get_rank():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    return MAKERS[name](model, cases.OPTIMIZERS[optimizer], clip, **options)


def together(name: str, kind: str, optimizer: str, steps: int = 10, clip: float = cases.CLIP):
    """Losses over all ranks, norms before clipping, and the parameters at the end."""
    engine, losses, norms = engine_of(name, kind, optimizer, clip), [], []
    for ids in islice(cases.batches(), steps):
        loss = cases.loss_of(engine.model, ids.chunk(dist.get_world_size())[dist.get_rank()])
        loss.backward()
        norms.append(float(engine.step()))
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses, norms, ends(engine)


def ends(engine) -> list[torch.Tensor]:
    if isinstance(engine, DeepSpeed) and engine.stage == 3:
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(engine.model.parameters())):
            return [p.detach().clone() for p in engine.model.parameters()]
    return [whole(p).detach().clone() for p in engine.model.parameters()]


def third_step(name: str, kind: str, optimizer: str = "adamw"):
    engine = engine_of(name, kind, optimizer)
    rows = cases.ROWS // dist.get_world_size()
    for ids in islice(cases.batches(), 3):
        step = rank_step(lambda ids=ids: cases.loss_of(engine.model, ids[:rows]).backward(), engine.step, engine.holds)
    return step


def by_place(name: str, kind: str = "wide", **options):
    """Three steps without clipping: losses and final parameters, bytes by place before and after the last step."""
    engine, losses, made = engine_of(name, kind, "adamw", float("inf"), **options), [], {}
    for ids in islice(cases.batches(), 3):
        loss = cases.loss_of(engine.model, ids.chunk(dist.get_world_size())[dist.get_rank()])
        loss.backward()
        made = bytes_by_place(engine)
        engine.step()
        losses.append(loss.item())
    found = losses, ends(engine), made, bytes_by_place(engine)
    discard(engine)
    return found


def discard(engine) -> None:
    """Close an engine that has a disk, with the folder that `on_disk` made for it."""
    if getattr(engine, "disk", None):
        engine.close()
        assert not engine.files()
        dist.barrier()
        shutil.rmtree(engine.disk, ignore_errors=True)


def rows(parameter, rank, ranks=2):
    """Bytes of a rank's own rows."""
    first = -(-len(parameter) // ranks)
    return parameter.nbytes // len(parameter) * max(0, min(first, len(parameter) - rank * first))


def with_a_file(harm: str) -> None:
    """A second step, after a file of the first is gone or has been cut short."""
    engine = engine_of("deepspeed-3 disk", "large", "adamw")
    try:
        for _ in range(2):
            cases.loss_of(engine.model, next(cases.batches())).backward()
            engine.step()
            path = next(path for path in engine.files() if "exp_avg" in path.name)
            path.unlink() if harm == "gone" else os.truncate(path, 1024)
    finally:
        discard(engine)


def with_options(options: Mapping[str, object]) -> None:
    DeepSpeed(cases.build("mix"), cases.OPTIMIZERS["adamw"], **options)


def on_the_host(name: str) -> set[bool]:
    """Whether FSDP2 keeps each shard on the host. On a CPU no byte shows it: host and device are one memory."""
    model = engine_of(name, "tied", "adamw").model
    groups = [
        module._get_fsdp_state()._fsdp_param_group for module in model.modules() if isinstance(module, FSDPModule)
    ]
    return {parameter.offload_to_cpu for group in groups for parameter in group.fsdp_params}


def in_turn(names: list[str], steps: int = 5) -> list[list[float]]:
    """Several engines alive in one process, a step of each in turn: the losses of each."""
    engines = [engine_of(name, "tied", "adamw") for name in names]
    losses = [[] for _ in engines]
    for ids in islice(cases.batches(), steps):
        for found, engine in zip(losses, engines, strict=True):
            loss = cases.loss_of(engine.model, ids.chunk(dist.get_world_size())[dist.get_rank()])
            loss.backward()
            engine.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            found.append(mean.item() / dist.get_world_size())
    return losses


def unnamed_bytes(name: str, kind: str = "wide") -> int:
    """Bytes of the tensors that DeepSpeed's objects reach by any attribute, and that `holds()` does not name.

    Without single numbers: norms and flags.
    """
    engine = engine_of(name, kind, "adamw")
    cases.loss_of(engine.model, next(cases.batches())[: cases.ROWS // dist.get_world_size()]).backward()
    named = {t.untyped_storage()._cdata for tensors in engine.holds().values() for t in tensors}
    roots = [engine.engine.optimizer, *(getattr(p, "nvme_swapper", None) for p in engine.model.parameters())]
    found = {t.untyped_storage()._cdata: t for t in reachable(roots, set()) if t.numel() > 1}
    unnamed = sum(tensor.untyped_storage().nbytes() for key, tensor in found.items() if key not in named)
    discard(engine)
    return unnamed


def reachable(thing: object, seen: set[int]) -> Iterator[torch.Tensor]:
    """Every tensor in lists, dicts and DeepSpeed's own objects, however deep, but not in modules."""
    if id(thing) in seen or isinstance(thing, torch.nn.Module):
        return
    seen.add(id(thing))
    if isinstance(thing, torch.Tensor):
        yield from () if thing.is_meta else (thing,)
        return
    inside = thing if isinstance(thing, (list, tuple, set, frozenset)) else ()
    if isinstance(thing, Mapping):
        inside = thing.values()
    elif type(thing).__module__.startswith("deepspeed.runtime"):
        inside = vars(thing).values()
    for part in tuple(inside):
        yield from reachable(part, seen)


def knowing_the_ranks() -> None:
    """Else a configuration is read as if for one rank."""
    loaded(torch.device("cpu")).init_distributed("gloo", dist_init_required=False)


def deepspeed_reads(configs: list[dict]) -> list[list]:
    """What DeepSpeed understood of each configuration: stage, batch, micro-batch, clip, offload devices."""
    knowing_the_ranks()
    from deepspeed.runtime.config import DeepSpeedConfig

    found = []
    for config in configs:
        read = DeepSpeedConfig(json.loads(json.dumps(config)))
        zero = read.zero_config
        offloads = [block.device if block else "none" for block in (zero.offload_optimizer, zero.offload_param)]
        found.append(
            [
                zero.stage,
                read.train_batch_size,
                read.train_micro_batch_size_per_gpu,
                read.gradient_clipping,
                *map(str, offloads),
            ]
        )
    return found


def deepspeed_refuses(config: dict) -> str:
    knowing_the_ranks()
    from deepspeed.runtime.config import DeepSpeedConfig

    try:
        DeepSpeedConfig(config)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def known_keys() -> list[str]:
    """Every string constant of DeepSpeed's own list of keys."""
    loaded(torch.device("cpu"))
    from deepspeed.runtime import constants, precision_config
    from deepspeed.runtime.swap_tensor import aio_config
    from deepspeed.runtime.zero import config as zero

    names = [value for module in (constants, precision_config, zero) for value in vars(module).values()]
    return [name for name in (*names, "aio", *aio_config.AIO_DEFAULT_DICT) if isinstance(name, str)]


def trains_from(path: str, steps: int = 3) -> list[float]:
    """Losses of DeepSpeed under a configuration file as a user would start it: `initialize(config=path)`."""
    package = loaded(torch.device("cpu"))
    model = cases.build("llama")
    engine, *_ = package.initialize(
        model=model, model_parameters=model.parameters(), config=path, dist_init_required=False
    )
    rows, losses = json.loads(Path(path).read_text())["train_micro_batch_size_per_gpu"], []
    ids = next(cases.batches()).chunk(dist.get_world_size())[dist.get_rank()][:rows]
    for _ in range(steps):
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        assert math.isfinite(losses[-1])
    return losses


def states_of_a_bf16_model() -> list[str]:
    """Under FSDP2 and under DeepSpeed: the dtypes of what each optimizer keeps."""
    found = []
    for maker in (MAKERS["fsdp2"], MAKERS["deepspeed-2"]):
        engine = maker(cases.build("wide").bfloat16(), cases.OPTIMIZERS["adamw"], 1.0)
        ids = next(cases.batches())[:1]
        engine.model(input_ids=ids, labels=ids).loss.backward()
        engine.step()
        found.append(" ".join(sorted({str(t.dtype) for t in engine.holds()["optimizer"]})))
    return found
