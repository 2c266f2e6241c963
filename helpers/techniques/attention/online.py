"""Softmax in one pass: what is known of the scores so far, and how two such states become one.

A state is `Partial`: over the keys seen so far the largest score, the sum of exp(score - largest), and the same sum
over the values. `merge` scales both to the larger of two maxima; it is associative, so keys may come in any pieces,
from any place: tiles of one kernel, blocks of a paged cache, ranks of a ring, the splits of a decode kernel.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Partial:
    """Attention over some of the keys. `maximum` and `total` have a last dimension of 1."""

    output: Tensor  # (…, queries, head_dim): the sum of exp(score - maximum) * value
    maximum: Tensor  # (…, queries, 1): the largest score, -inf where no key was seen
    total: Tensor  # (…, queries, 1): the sum of exp(score - maximum)

    @classmethod
    def nothing(cls, queries: Tensor, head_dim: int) -> Partial:
        """Before the first piece, for `queries` (…, queries, any): merged with a state it changes nothing."""
        empty = torch.full_like(queries[..., :1], -torch.inf)
        return cls(queries.new_zeros(*queries.shape[:-1], head_dim), empty, torch.zeros_like(empty))

    @classmethod
    def of(cls, scores: Tensor, v: Tensor) -> Partial:
        """One piece: `scores` (…, queries, keys) with -inf where a key is not seen, `v` (…, keys, head_dim)."""
        maximum = scores.amax(-1, keepdim=True)
        weights = (scores - finite(maximum)).exp_()
        return cls(weights @ v, maximum, weights.sum(-1, keepdim=True))

    @classmethod
    def finished(cls, output: Tensor, log_sum_exp: Tensor) -> Partial:
        """A kernel's result, `output` (…, queries, head_dim) and `log_sum_exp` (…, queries), as a state to merge.

        The scores of its keys act together as one score, their log-sum-exp, whose value is the output.
        """
        return cls(output, log_sum_exp[..., None], torch.ones_like(log_sum_exp)[..., None])

    def result(self) -> tuple[Tensor, Tensor]:
        """Output and log-sum-exp, (…, queries, head_dim) and (…, queries); 0 and -inf where no key was seen."""
        total = self.total.masked_fill(self.total == 0, 1)
        return self.output / total, (self.maximum + self.total.log()).squeeze(-1)


def merge(one: Partial, other: Partial) -> Partial:
    """Attention over the keys of both.

    >>> import torch
    >>> scores, v = torch.tensor([[3.0, 1000.0, -2.0]]), torch.tensor([[1.0], [2.0], [3.0]])
    >>> both = merge(Partial.of(scores[:, :1], v[:1]), Partial.of(scores[:, 1:], v[1:]))
    >>> [round(x.item(), 3) for x in both.result()]
    [2.0, 1000.0]
    """
    maximum = torch.maximum(one.maximum, other.maximum)
    shrink, shrink_other = (state.maximum.sub(finite(maximum)).exp_() for state in (one, other))
    output = one.output * shrink + other.output * shrink_other
    return Partial(output, maximum, one.total * shrink + other.total * shrink_other)


def online_softmax(pieces: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """(maximum, total) of scores (…, keys) that come in pieces, each read once.

    The softmax of any piece is then exp(piece - maximum) / total; it is written in a second pass, or never.

    >>> import torch
    >>> scores = torch.tensor([0.0, 1.0, 2.0])
    >>> maximum, total = online_softmax(scores.split(2))
    >>> torch.allclose((scores - maximum).exp() / total, scores.softmax(-1))
    True
    """
    maximum, total = torch.tensor(-torch.inf), torch.tensor(0.0)
    for scores in filter(Tensor.numel, pieces):  # an empty piece has no largest score
        largest = torch.maximum(maximum.to(scores), scores.amax(-1, keepdim=True))
        kept = total * (maximum - finite(largest)).exp()
        maximum, total = largest, kept + (scores - finite(largest)).exp().sum(-1, keepdim=True)
    return maximum, total


def finite(maximum: Tensor) -> Tensor:
    """What is subtracted in the exponent: -inf minus -inf would be NaN, and the smallest number serves as well."""
    return maximum.clamp(min=torch.finfo(maximum.dtype).min)
