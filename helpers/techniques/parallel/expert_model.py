"""A whole Mixtral whose experts are divided: expert parallelism in every layer, and data parallelism around it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ...catalog.errors import WorkbookError
from .experts import ExpertParallel, average_expert_gradients
from .groups import copy_weights, require_same_model, whole_world
from .operators import Group


class ExpertParallelModel(nn.Module):
    """This rank's experts of a Mixtral of Transformers, and the whole of everything else.

    Each rank passes ids of its own, (batch, tokens), of one size. Calling it gives the mean loss of this rank's next
    tokens; after its backward `average_gradients()` makes gradients those of the mean loss of all ranks.
    """

    def __init__(self, model: Any, group: Group, capacity_factor: float) -> None:
        super().__init__()
        self.group, self.model = group, model
        for layer in model.model.layers:
            layer.mlp = ExpertParallel(layer.mlp, group, capacity_factor)

    def forward(self, ids: Tensor) -> Tensor:
        """In the model's own precision: Transformers computes its loss in FP32."""
        logits = self.model(input_ids=ids, use_cache=False).logits[:, :-1]
        return cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def average_gradients(self) -> None:
        average_expert_gradients(self, self.group)

    @property
    def dropped(self) -> list[int]:
        """By layer, how many of this rank's assignments the last forward has dropped."""
        return [layer.mlp.dropped for layer in self.model.model.layers]

    def holds(self) -> dict[str, list[Tensor]]:
        """This rank's tensors by category, for `helpers.memory.measure.held`."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        return {"parameters": list(self.parameters()), "gradients": gradients}


def split_experts(model: Any, group: Group | None = None, capacity_factor: float = 1.25) -> ExpertParallelModel:
    """Divide the experts of a Mixtral over the ranks of `group`, all of them where it is left out; every rank calls it.

    The weights are those of the group's first rank. A `capacity_factor` of experts / experts per token drops nothing.
    Raises WorkbookError, on every rank, where models differ, ranks do not divide the experts, or there are none.
    """
    group = whole_world(group)
    require_same_model(model, {}, group)
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) != "mixtral":
        what, do = f"a {type(model).__name__}'s experts are not divided here", "wrap its blocks in ExpertParallel"
        raise WorkbookError(what, "a MixtralForCausalLM", do)
    copy_weights(model, group)
    return ExpertParallelModel(model, group, capacity_factor)
