"""Linear layers divided by columns or by rows, and attention divided by heads."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear

from .formula import heads_of
from .groups import part
from .operators import Crossing, Group, sum_gradient, sum_over_ranks


class ColumnParallel(nn.Module):
    """Each rank computes some of the outputs, from the whole input: rows `mine` of the weight as PyTorch stores it.

    The input has passed an entry, `copy_to_ranks` or `gather_tokens`, which layers with one input share.
    """

    def __init__(self, whole: nn.Linear, group: Group, mine: slice | None = None) -> None:
        super().__init__()
        mine = mine or part(whole.out_features, group)
        self.weight = cut(whole.weight[mine])
        self.bias = None if whole.bias is None else cut(whole.bias[mine])

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class RowParallel(nn.Module):
    """Each rank has some of the inputs, as a `ColumnParallel` left them, and the ranks' products are added.

    The bias is whole on every rank and added once, after the sum. `exit` is `scatter_tokens` with sequence parallelism.
    """

    def __init__(
        self, whole: nn.Linear, group: Group, mine: slice | None = None, exit: Crossing = sum_over_ranks
    ) -> None:
        super().__init__()
        self.group, self.exit = group, exit
        self.weight = cut(whole.weight[:, mine or part(whole.in_features, group)])
        self.bias = whole.bias

    def forward(self, x: Tensor) -> Tensor:
        out = self.exit(linear(x, self.weight), self.group)
        return out if self.bias is None else out + self.bias


def cut(view: Tensor) -> nn.Parameter:
    """A parameter with memory of its own, so that the whole weight is freed with the layer it came from."""
    return nn.Parameter(view.detach().clone(), view.requires_grad)


def split_attention(attention: Any, group: Group, exit: Crossing = sum_over_ranks) -> None:
    """Divide a Llama attention by heads: each rank has some KV heads, and the query heads that read them.

    Where ranks do not divide the KV heads, the first ranks have one more. Where ranks outnumber them, several ranks
    hold the same one, and the gradients of its copies are added.
    """
    config, width = attention.config, attention.head_dim
    queries, keys = heads_of(config.num_attention_heads, config.num_key_value_heads, group.size(), group.rank())
    for name, heads in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        rows = slice(heads.start * width, heads.stop * width)
        setattr(attention, name, ColumnParallel(getattr(attention, name), group, rows))
    columns = slice(queries.start * width, queries.stop * width)
    attention.o_proj = RowParallel(attention.o_proj, group, columns, exit)
    attention.num_key_value_groups = (queries.stop - queries.start) // (keys.stop - keys.start)
    if (copies := kv_copies(config.num_key_value_heads, group)) is not None:
        for layer in (attention.k_proj, attention.v_proj):
            for parameter in layer.parameters():
                sum_gradient(parameter, copies)


def kv_copies(kv_heads: int, group: Group) -> Group | None:
    """The ranks that hold the same KV head as this one, or None where each head is on one rank.

    Six ranks, two KV heads: ranks 0, 1, 2 and ranks 3, 4, 5.
    """
    copies = group.size() // kv_heads
    if copies < 2:
        return None
    first = group.rank() // copies * copies
    ranks = dist.get_process_group_ranks(group)[first : first + copies]
    return dist.new_group(ranks, use_local_synchronization=True)
