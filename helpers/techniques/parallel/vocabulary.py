"""The vocabulary divided: an embedding of which each rank has some rows, and a loss that never gathers logits."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.functional import embedding

from .groups import part
from .operators import Crossing, Group, sum_over_ranks, summed
from .tensor import cut

IGNORED = -100  # as in PyTorch's cross_entropy


class VocabularyParallelEmbedding(nn.Module):
    """Each rank looks up the words that it has, leaves zeros for the others, and the ranks' results are added."""

    def __init__(self, whole: nn.Embedding, group: Group, exit: Crossing = sum_over_ranks) -> None:
        super().__init__()
        self.group, self.exit, self.mine = group, exit, part(whole.num_embeddings, group)
        self.weight = cut(whole.weight[self.mine])

    def forward(self, ids: Tensor) -> Tensor:
        rows, missing = own_rows(ids, self.mine)
        found = embedding(rows, self.weight).masked_fill(missing.unsqueeze(-1), 0)
        return self.exit(found, self.group)


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, mine: slice, group: Group) -> Tensor:
        top = summed(logits.amax(-1), group, dist.ReduceOp.MAX)  # subtracted, so that exp() cannot overflow
        shifted = logits - top.unsqueeze(-1)
        rows, missing = own_rows(labels, mine)
        target = summed(shifted.gather(-1, rows.unsqueeze(-1)).squeeze(-1).masked_fill(missing, 0), group)
        exponents = shifted.exp_()
        total = summed(exponents.sum(-1), group)
        ctx.save_for_backward(exponents.div_(total.unsqueeze(-1)), rows, missing, labels == IGNORED)
        return (total.log() - target).masked_fill(labels == IGNORED, 0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """Each rank has all that it needs: its probabilities, less one at the target if that is among them."""
        probabilities, rows, missing, ignored = ctx.saved_tensors
        gradient = gradient.masked_fill(ignored, 0).unsqueeze(-1)
        mine = -gradient.masked_fill(missing.unsqueeze(-1), 0)
        return (probabilities * gradient).scatter_add_(-1, rows.unsqueeze(-1), mine), None, None, None


def cross_entropy(logits: Tensor, labels: Tensor, mine: slice, group: Group) -> Tensor:
    """The loss of each token, (tokens,), from the logits of the words `mine`, (tokens, words on this rank).

    Three numbers for each token are all-reduced: the largest logit, the target's, and the sum of the exponentials.
    With 128,256 words in FP32 the gathered logits of a token would be 513,024 bytes; these are 12. A label of -100 is
    left out, with a loss of 0.
    """
    return _CrossEntropy.apply(logits, labels, mine, group)


def mean_over_labels(losses: Tensor, labels: Tensor) -> Tensor:
    return losses.sum() / (labels != IGNORED).sum()


def own_rows(ids: Tensor, mine: slice) -> tuple[Tensor, Tensor]:
    """(each id's row in this rank's table, whether it is on another rank); row 0 stands in for what is elsewhere."""
    missing = (ids < mine.start) | (ids >= mine.stop)
    return (ids - mine.start).masked_fill(missing, 0), missing
