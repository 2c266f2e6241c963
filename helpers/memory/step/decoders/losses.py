"""The head and the loss in one function, which never holds all logits: Liger's, cut cross-entropy, TRL's. No torch.

Read in linkedin/Liger-Kernel v0.8.2 (src/liger_kernel/ops/fused_linear_cross_entropy.py), in apple/ml-cross-entropy
(cut_cross_entropy/cce.py, cce_backward.py) and in huggingface/trl 1.16 (trl/kernels/chunked_logprob.py).
"""

from __future__ import annotations

from collections.abc import Callable

from ....catalog.losses import CUT, LIGER, TRL, TRL_ROWS, TRL_WORDS, liger_chunk
from ....catalog.optimizers import HEAD
from ..tape import FROZEN, Tensor
from .linears import FP32, HALF, Linears


def fused_loss(page: Linears, hidden: Tensor) -> Tensor:
    """The loss of what the final norm has returned, as `page.setup.loss` says."""
    ways: dict[str, Callable[[Linears, Tensor, Tensor], Tensor]] = {LIGER: _liger, CUT: _cut, TRL: _trl}
    shape = page.model.vocab, page.model.hidden
    width, waits = page.width.weights, page.model.tied
    weight = FROZEN if page.adapter else page.tape.weight(shape, width, waits, HEAD)
    return ways[page.setup.loss](page, hidden, weight)


def _liger(page: Linears, hidden: Tensor, weight: Tensor) -> Tensor:
    """Both gradients are made in the forward, chunk by chunk, and kept for a backward that only hands them on."""
    tape, model, tokens = page.tape, page.model, page.tokens
    targets = tape.new(tokens, 8)
    of_input = tape.new(hidden.values, hidden.width)
    of_weight = tape.new(weight.values, weight.width) if weight.node else None
    losses, _ = tape.new(tokens, FP32), tape.new(tokens, 1)  # noqa: F841 - losses are summed at the end
    rows = min(tokens, liger_chunk(tokens, model.hidden, model.vocab))
    sizes = [min(rows, tokens - start) for start in range(0, tokens, rows)]
    named: list[Tensor] = []
    for chunk in sizes[:2] + sizes[2:][-1:]:  # all between are like the second
        named = _chunk_of_liger(page, chunk, hidden.width, of_weight, named)
    del named
    tape.computes(2 * tokens * model.hidden * model.vocab * (3 if of_weight else 2))
    made = [of_input, of_weight]
    del of_input, of_weight, targets
    out = tape.new(1, FP32)
    return tape.record(out, (hidden, weight), [one for one in made if one], lambda _: list(made))


def _chunk_of_liger(
    page: Linears, rows: int, width: int, of_weight: Tensor | None, before: list[Tensor]
) -> list[Tensor]:
    """Logits, which their own gradient overwrites; under autocast copies of the FP32 weight. Returns what is named on.

    One copy is of the transpose, anew for each chunk. The other, of a trained weight, autocast caches at the first. The
    names of the loop hold what was made for the chunk `before` until its gradients are overwritten.
    """
    tape, model, cast, first = page.tape, page.model, page.width.casts_weights, not before
    low = HALF if page.width.autocast else width
    copies = [tape.new(model.vocab * model.hidden, HALF), tape.new(rows * model.hidden, HALF)] if cast else []
    named = [tape.new(rows * model.vocab, low, is_logits=True)]
    copies.clear()
    if of_weight is None:
        before.clear()
    if cast and (first or of_weight is None):
        copies = [tape.new(model.vocab * model.hidden, HALF)]
        tape.cached.extend(copies if of_weight else [])
    tape.new(rows * model.hidden, low)
    copies.clear()
    if of_weight is None:
        return named
    del before[:1]
    if of_weight.width == FP32 and low == HALF and page.cuda and page.cuda.capability[0] >= 8:
        return [*named, tape.new(rows * model.hidden, HALF)]  # addmm adds to the FP32 gradient itself
    read = tape.new(rows * model.hidden, low) if low != width else None
    product = tape.new(of_weight.values, low)
    del read
    tape.cast(product, FP32)  # a copy of this size too, before it is added
    return named


def _cut(page: Linears, hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits live in registers. Kept are the input, a sum and an index for each row, and a mean for each word."""
    tape, model, tokens = page.tape, page.model, page.tokens
    targets, valid = tape.new(tokens, 8), tape.new(tokens, 4)
    sums, means = tape.new(tokens, FP32), tape.new(model.vocab, FP32)
    tape.computes(2 * tokens * model.hidden * model.vocab)
    kept = (hidden, targets, valid, sums, means, FROZEN)
    rule = tape.anew(hidden, weight, flops=6 * tokens * model.hidden * model.vocab)
    return tape.record(tape.new(1, FP32), (hidden, weight), kept, rule)


def _trl(page: Linears, hidden: Tensor, weight: Tensor) -> Tensor:
    """A tile of logits at a time, made in the forward and again in the backward, whose sums are in FP32.

    The hidden states are those that have a target: not the last of a sequence, nor a prompt's where it is not scored.
    """
    tape, model, tokens = page.tape, page.model, page.setup.scored_tokens
    shape, whole = (tokens * model.hidden, hidden.width), (hidden.values, hidden.width)
    sliced = Tensor(*shape, hidden.block)
    sliced = tape.record(sliced, (hidden,), (), lambda _: [tape.new(*whole)])
    places = [tape.new(tokens, 8) for _ in range(2)]
    seen = tape.record(tape.new(*shape), (sliced,), places, lambda _: [tape.new(*shape)])
    targets, sums = tape.new(tokens, 8), [tape.new(tokens, FP32) for _ in range(7)]
    tape.computes(2 * tokens * model.hidden * model.vocab)
    _tile(page, seen, [])
    kept = (seen, targets, *sums[:2], FROZEN)
    del sums, places, targets, sliced

    def rule(gradient: Tensor) -> list[Tensor | None]:
        tape.computes((6 if weight.node else 4) * tokens * model.hidden * model.vocab)
        found = [tape.new(one.values, FP32) if one.node else None for one in (seen, weight)]
        held = _tile(page, seen, found)  # noqa: F841 - the tile and its words, to the end
        return [tape.cast(one, of.width) if one else None for one, of in zip(found, (seen, weight), strict=True)]

    return tape.record(tape.new(1, FP32), (seen, weight), kept, rule)


def _tile(page: Linears, seen: Tensor, sums: list[Tensor | None]) -> list[Tensor]:
    """A tile of logits, and 16-bit copies of what makes it; added to `sums` as FP32 where no product does that."""
    tape, model, low = page.tape, page.model, HALF if page.width.autocast else seen.width
    rows, words = min(seen.values // model.hidden, TRL_ROWS), min(model.vocab, TRL_WORDS)
    held = [tape.new(rows * TRL_WORDS, low, is_logits=True)]
    held += [tape.new(rows * model.hidden, low)] if low != seen.width else []
    copied = [words, min(model.vocab - words, words) if sums else 0]  # in the backward a name holds those before
    held += [tape.new(count * model.hidden, HALF) for count in copied if count and page.width.casts_weights]
    if low != FP32 and not (page.cuda and page.cuda.capability[0] >= 8):
        for _ in filter(None, sums):  # the tile in FP32, and what it is multiplied by
            tape.new(rows * words, FP32), tape.new(max(words, rows) * model.hidden, FP32)
    return held
