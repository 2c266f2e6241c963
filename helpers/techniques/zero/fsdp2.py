"""FSDP2, PyTorch's own stage 3, on the same model and behind the interface of our engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from ...catalog.errors import WorkbookError
from .ddp import Make, optimizer_states
from .flat import broadcast_model, trainable, world
from .stage3 import decoder_layers


class FSDP2:
    """`fully_shard` on every layer and then on the model: the interface of `Zero3`, PyTorch's engine inside.

    Each parameter becomes a DTensor, cut along its first dimension: rank r keeps the r-th part of its rows, padded to
    equal parts. What is in no layer is the root's: gathered once a step. `reshard_after_forward=False` keeps gathered
    layers until their backward: the memory of stage 2, and a third less traffic. `policy` is FSDP2's own mixed
    precision, `MixedPrecisionPolicy(torch.bfloat16)`: FP32 shards, gathered and computed with in BF16.

    `host=True` is `CPUOffloadPolicy`: shards, their gradients and the optimizer's states live in host memory, 16 bytes
    for each parameter of a shard with FP32 AdamW, and the update runs there. A layer's shard comes up each time that
    the layer is gathered, its gradient goes down once it is reduced.
    """

    def __init__(
        self,
        model: nn.Module,
        make: Make,
        clip: float = float("inf"),
        layers: Iterable[nn.Module] | None = None,
        reshard_after_forward: bool = True,
        policy: MixedPrecisionPolicy | None = None,
        host: bool = False,
    ) -> None:
        broadcast_model(model)
        self.model, self.clip, self.host = model, clip, host
        layers = list(decoder_layers(model) if layers is None else layers)
        _require_owned(layers)
        device = trainable(model)[0].device.type
        mesh = init_device_mesh(device, (world()[0],))
        place = CPUOffloadPolicy(pin_memory=device == "cuda") if host else OffloadPolicy()
        rules: dict[str, Any] = {"mesh": mesh, "mp_policy": policy or MixedPrecisionPolicy(), "offload_policy": place}
        for layer in layers:
            fully_shard(layer, reshard_after_forward=reshard_after_forward, **rules)
        fully_shard(model, **rules)
        self.shards = trainable(model)  # kept while gathered parameters replace them in the model
        self.optimizer = make(self.shards)

    def step(self) -> Tensor:
        norm = nn.utils.clip_grad_norm_(self.shards, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return whole(norm)

    def holds(self) -> dict[str, list[Tensor]]:
        """As those of our engines; with `host` the shards, their gradients and states are "host"."""
        shards = [local(shard) for shard in self.shards]
        gathered = [local(tensor) for tensor in (*self.model.parameters(), *self.model.buffers())]
        gradients = [local(p.grad) for p in self.shards if p.grad is not None]
        states = [local(tensor) for tensor in optimizer_states(self.optimizer)]
        if self.host:
            ours = {shard.untyped_storage()._cdata for shard in shards}
            whole = [tensor for tensor in gathered if tensor.untyped_storage()._cdata not in ours]
            return {"parameters": whole, "host": shards + gradients + states}
        return {"parameters": shards + gathered, "gradients": gradients, "optimizer": states}


def local(tensor: Tensor) -> Tensor:
    """What this rank has of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of it, on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _require_owned(layers: Sequence[nn.Module]) -> None:
    """Embedding and head may be tied, for both are the root's; between layers FSDP2 shares nothing."""
    owners = Counter(p for layer in layers for p in trainable(layer))
    if shared := [tuple(p.shape) for p, count in owners.items() if count > 1]:
        do = "use Zero3, which gives it to the root, or untie it"
        raise WorkbookError(f"a weight of shape {list(shared[0])} is in two layers", "layers that share no weight", do)
