"""What an optimizer makes while it steps. No torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...catalog.optimizers import Optimizer
from ..breakdown import rounded


def update_bytes(rule: Optimizer, trained: Iterable[tuple[tuple[int, ...], str]], width: int) -> int:
    """The most that `step()` makes while it updates these tensors (shape and role), one optimizer after another.

    Either all temporaries exist together, or a tensor's with what the loop still holds of the one before it.
    """
    trained, sizes = list(trained), {}
    for shape, role in set(trained):  # layers repeat: each kind of tensor is asked for once
        own = rule.rule_of(shape, role)
        made = sum(map(rounded, own.temporaries(shape, width)))
        sizes[shape, role] = own.name, own.foreach, made, rounded(own.carried_bytes(shape, width))
    highest: Counter[str] = Counter()
    carried: Counter[str] = Counter()
    for tensor in trained:
        name, together, made, left = sizes[tensor]
        highest[name] = highest[name] + made if together else max(highest[name], carried[name] + made)
        carried[name] = left
    return max(highest.values(), default=0)
