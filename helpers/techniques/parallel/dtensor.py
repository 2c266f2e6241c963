"""PyTorch's own way, on the same model: DTensor's `parallelize_module`, and a plan of one line for each layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.functional import cross_entropy, pad

from ...catalog.by_transformers import saved_config
from ...catalog.errors import WorkbookError
from .vocabulary import IGNORED

Plan = dict[str, Any]


class DTensorModel(nn.Module):
    """A Llama of Transformers, its weights DTensors on `mesh`. Calling it gives the loss, as a `SplitModel` does.

    `sequence` divides tokens as well. `shared_entries` adds gradients once for q, k and v, and once for gate and up;
    PyTorch's usual plan lets each of the five add its own: 21 all-reduces in the small model's backward instead of 9.
    `loss="gathered"` makes all logits on every rank; "parallel" leaves them divided, and then this call and its
    backward must both run within one `loss_parallel()`. Heads and the MLP's width must divide by the ranks.

    Two gradients are not what one expects: the embedding's is whole on every rank, and with `sequence` those of norms
    are `Partial`, which means that they are added when somebody reads them.
    """

    def __init__(
        self, model: Any, mesh: DeviceMesh, sequence: bool = False, shared_entries: bool = False, loss: str = "gathered"
    ) -> None:
        super().__init__()
        if loss not in ("gathered", "parallel"):
            raise WorkbookError(f"loss is {loss!r}", "'gathered' or 'parallel'", "leave it out")
        require_divisible(model.config, mesh.size())
        self.parallel_loss, self.sequence = loss == "parallel", sequence
        self.model: Any = parallelize_module(model, mesh, ends(self.parallel_loss, sequence))
        if model.config.tie_word_embeddings:  # each plan line makes a parameter of its own
            model.lm_head.weight = model.model.embed_tokens.weight
        for layer in model.model.layers:
            parallelize_module(layer, mesh, layer_plan(sequence, shared_entries))

    def forward(self, ids: Tensor) -> Tensor:
        labels = pad(ids[:, 1:], (0, 1), value=IGNORED).flatten()
        hidden = self.model.model.embed_tokens(ids)
        positions = self.model.model.rotary_emb(hidden, torch.arange(ids.shape[1], device=ids.device)[None])
        for layer in self.model.model.layers:
            hidden = layer(hidden, position_embeddings=positions)
        logits = self.model.lm_head(self.model.model.norm(hidden)).flatten(0, 1)
        return cross_entropy(logits, labels)

    def holds(self) -> dict[str, list[Tensor]]:
        """This rank's tensors by category, for `helpers.memory.measure.held`."""
        gradients = [local(p.grad) for p in self.parameters() if p.grad is not None]
        return {"parameters": [local(p) for p in self.parameters()], "gradients": gradients}


def require_divisible(config: Any, ranks: int) -> None:
    """Between two layers the plan hands on plain tensors, which do not remember an uneven size, nor know of heads."""
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        if (size := getattr(config, name)) % ranks:
            do = "use parallel.split, which has uneven parts and copies of KV heads"
            raise WorkbookError(f"{name} is {size} on {ranks} ranks", "a multiple of the ranks for DTensor", do)


def load_by_transformers(folder: str | Path, ranks: int) -> nn.Module:
    """A checkpoint loaded by Transformers with its own plan: each rank reads its part of every weight.

    It is the plan of `DTensorModel` with nothing shared and logits gathered, and Transformers' own forward around it.
    A rank's parameters may be views of larger storages on a CPU. Raises WorkbookError where sizes do not divide.
    """
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    require_divisible(saved_config(folder, local=True), ranks)
    how: dict[str, Any] = {"dtype": torch.float32, "trust_remote_code": False}
    return AutoModelForCausalLM.from_pretrained(folder, **how, distributed_config=DistributedConfig(tp_size=ranks))


def ends(parallel_loss: bool, sequence: bool) -> Plan:
    """The plan for embedding, last norm and head."""
    whole, tokens = Replicate(), Shard(1)
    plan: Plan = {
        "model.embed_tokens": RowwiseParallel(input_layouts=whole, output_layouts=tokens if sequence else whole),
        "lm_head": ColwiseParallel(
            input_layouts=tokens if sequence else whole,
            output_layouts=Shard(-1) if parallel_loss else whole,
            use_local_output=not parallel_loss,
        ),
    }
    return {**plan, **({"model.norm": SequenceParallel()} if sequence else {})}


def layer_plan(sequence: bool, shared_entries: bool) -> Plan:
    """The plan for one decoder layer."""
    plan: Plan = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    plan |= {f"mlp.{name}_proj": ColwiseParallel() for name in ("gate", "up")}
    exit: Plan = {"output_layouts": Shard(1) if sequence else Replicate()}
    plan |= {name: RowwiseParallel(**exit) for name in ("self_attn.o_proj", "mlp.down_proj")}
    if sequence:
        plan |= {name: SequenceParallel() for name in ("input_layernorm", "post_attention_layernorm")}
    if sequence or shared_entries:
        given: Placement = Shard(1) if sequence else Replicate()
        plan["self_attn"] = PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": given}, desired_input_kwarg_layouts={"hidden_states": Replicate()}
        )
        plan["mlp"] = PrepareModuleInput(input_layouts=(given,), desired_input_layouts=(Replicate(),))
    return plan


def local(tensor: Tensor) -> Tensor:
    """What this rank has of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of it, on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
