"""A policy put into a model: the `forward` of its layers runs under `torch.utils.checkpoint`. Names do not change.

with checkpointed(model, "every:2") as applied:
    model(ids, labels=ids, use_cache=False).loss.backward()
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ...catalog.errors import WorkbookError, require_name
from ...catalog.policies import PER_LAYER, PolicySegment, layout
from .offload import Offload

ATTENTION_NAMES = ("self_attn", "attn", "attention", "self_attention")
MLP_NAMES = ("mlp", "feed_forward", "ffn", "block_sparse_moe")


class Applied:
    """What was done to a model: the segments, the `offload` that counts its bytes (or None), and `undo()`."""

    def __init__(self, segments: tuple[PolicySegment, ...], offload: Offload | None) -> None:
        self.segments, self.offload = segments, offload
        self._before: list[tuple[nn.Module, Any]] = []

    def patch(self, module: nn.Module, forward: Callable) -> None:
        """Put `forward` in place of the module's own, until `undo()`."""
        self._before.append((module, vars(module).get("forward")))
        module.forward = forward

    def undo(self) -> None:
        """Put back every `forward` as it was."""
        for module, forward in reversed(self._before):
            del module.forward
            if forward is not None:
                module.forward = forward
        self._before.clear()


def apply(model: nn.Module, policy: str | Sequence[PolicySegment], engine: Callable | None = None) -> Applied:
    """Put `policy`, a name or the segments of a plan, into a decoder or an nn.Sequential; `.undo()` takes it out.

    `engine(run, hidden)` replaces PyTorch's engine in "full" segments, `checkpoint_by_hooks` for example. Layers
    must pass a hidden state on, their first argument, and hold no KV cache (use_cache=False). Raises WorkbookError.

    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    >>> [str(segment) for segment in apply(model, "every:2").segments]
    ['0-1 full', '2 full']
    """
    layers = decoder_layers(model)
    segments = layout(policy, len(layers)) if isinstance(policy, str) else _chain(policy, len(layers))
    moving = any(segment.how.startswith("offload") for segment in segments)
    offload = Offload((*model.parameters(), *model.buffers())) if moving else None
    applied = Applied(segments, offload)
    try:
        for segment in segments:
            _apply(applied, segment, layers, engine)
    except WorkbookError:
        applied.undo()
        raise
    return applied


@contextlib.contextmanager
def checkpointed(
    model: nn.Module, policy: str | Sequence[PolicySegment], engine: Callable | None = None
) -> Iterator[Applied]:
    """`apply` for the length of a `with`; forward and backward both belong inside it."""
    applied = apply(model, policy, engine)
    try:
        yield applied
    finally:
        applied.undo()


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The chain: the children of an nn.Sequential, or the longest nn.ModuleList of a decoder. Raises WorkbookError."""
    if isinstance(model, nn.Sequential):
        return list(model)
    longest = max((list(each) for each in model.modules() if isinstance(each, nn.ModuleList)), key=len, default=[])
    if not longest:
        expected = "an nn.Sequential, or a Transformers decoder"
        raise WorkbookError(f"{type(model).__name__} has no list of layers", expected, "pass the model itself")
    return longest


def _chain(segments: Sequence[PolicySegment], layers: int) -> tuple[PolicySegment, ...]:
    """`segments`, if they are those of a chain of `layers`: one begins where the one before ends."""
    ends = [0, *(segment.stop for segment in segments)]
    if [segment.start for segment in segments] != ends[:-1] or ends[-1] != layers:
        expected = f"layers 0 to {layers - 1}, each once, in order"
        raise WorkbookError(f"segments {', '.join(map(str, segments))}", expected, "solve for the costs of this model")
    return tuple(segments)


def _apply(applied: Applied, segment: PolicySegment, layers: list[nn.Module], engine: Callable | None) -> None:
    how, part = segment.how, segment.how.removeprefix("module:")
    require_name("checkpointing policy", how, PER_LAYER)
    if how == "none":
        return
    if segment.stop - segment.start > 1 or segment.parts:
        if how != "full":
            expected, do = "'full', the only policy of several layers together", "make a segment of each layer"
            raise WorkbookError(f"a segment of {segment.stop - segment.start} layers under {how!r}", expected, do)
        _together(applied, segment, layers, engine or recomputing("full"))
        return
    layer = layers[segment.start]
    target = _part(layer, part) if part != how else layer
    run = offloading(applied.offload, how) if applied.offload and how.startswith("offload") else recomputing(how)
    if how == "full" and engine:
        run = engine
    applied.patch(target, _recomputed(target.forward, run))


def _recomputed(forward: Callable, run: Callable) -> Callable:
    def checkpointed_forward(*inputs: Any, **kwargs: Any) -> Any:
        _require_no_cache(inputs, kwargs)
        others = inputs[1:]  # the closure must not hold the hidden state: the engine does, or moves it
        return run(lambda *hidden: forward(*hidden, *others, **kwargs), *inputs[:1])

    return checkpointed_forward


def _together(applied: Applied, segment: PolicySegment, layers: list[nn.Module], engine: Callable) -> None:
    """One checkpoint over several layers: all but the last note their arguments and pass the hidden state through.

    The last runs them all. Each gets what it was called with itself: layers may differ in their masks.
    """
    _require_ungathered(layers[segment.start : segment.stop])
    forwards = {at: layers[at].forward for at in range(segment.start, segment.stop)}
    noted: dict[int, tuple[tuple, dict]] = {}

    def noting(at: int) -> Callable:
        def note(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            _require_no_cache(args, kwargs)
            noted[at] = (args, kwargs)
            return hidden if at < segment.stop - 1 else run_all(hidden, dict(noted))

        return note

    def run_all(hidden: Tensor, calls: dict[int, tuple[tuple, dict]]) -> Tensor:
        noted.clear()
        return _through(segment, forwards, calls, engine, hidden)

    for at in forwards:
        applied.patch(layers[at], noting(at))


def _through(segment: PolicySegment, forwards: dict, calls: dict, engine: Callable, hidden: Tensor) -> Tensor:
    def run(hidden: Tensor) -> Tensor:
        for part in segment.parts:
            hidden = _through(part, forwards, calls, engine, hidden)
        for at in range(segment.start, segment.stop) if not segment.parts else ():
            hidden = _tensor(forwards[at](hidden, *calls[at][0], **calls[at][1]))
        return hidden

    return engine(run, hidden)


def _part(layer: nn.Module, name: str) -> nn.Module:
    for known in {"attention": ATTENTION_NAMES, "mlp": MLP_NAMES}[name]:
        if isinstance(getattr(layer, known, None), nn.Module):
            return getattr(layer, known)
    children = ", ".join(child for child, _ in layer.named_children()) or "no children"
    what = f"{type(layer).__name__} has no {name}: it has {children}"
    raise WorkbookError(what, "a layer with attention and mlp", "use a policy for whole layers, such as full")


def _require_no_cache(args: tuple, kwargs: dict) -> None:
    if any(hasattr(value, "get_seq_length") for value in (*args, *kwargs.values())):
        what = "a KV cache in a layer that is run twice: its tokens would be appended twice"
        raise WorkbookError(what, "a training step without one", "call the model with use_cache=False")


def _require_ungathered(layers: list[nn.Module]) -> None:
    """FSDP2, which makes a layer one of FSDPModule, gathers its weights where it is called; these run elsewhere."""
    if any(kind.__name__ == "FSDPModule" for layer in layers for kind in type(layer).__mro__):
        what, expected = "a segment of several layers that FSDP2 shards each", "a policy of single layers, such as full"
        do = "put modules around the layers that call them under torch.utils.checkpoint, as trace.train without apply"
        raise WorkbookError(what, expected, do)


def _tensor(output: object) -> Tensor:
    if isinstance(output, Tensor):
        return output
    do = "use a policy of single layers, such as full"
    raise WorkbookError(f"a layer that returns a {type(output).__name__}", "layers that pass one tensor on", do)


# The engines: PyTorch's, selective or not, and offload by saved-tensor hooks.

_aten = torch.ops.aten
MATMULS = frozenset(op.default for op in (_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm))
# The kernel that scaled_dot_product_attention takes depends on device, dtype, mask and dropout. Its plain formula, and
# eager attention, are made of bmm and softmax: there "selective:attention" keeps nothing.
_KERNELS = ("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention")
ATTENTIONS = frozenset(getattr(_aten, f"_scaled_dot_product_{kernel}").default for kernel in _KERNELS)
KEPT = {"selective": MATMULS | ATTENTIONS, "selective:matmuls": MATMULS, "selective:attention": ATTENTIONS}
LINEARS = frozenset((_aten.mm.default, _aten.addmm.default))  # what nn.Linear comes to, without a bias and with one


def recomputing(how: str) -> Callable[..., Any]:
    """A function (run, *inputs) that runs with only `inputs` kept, or under a selective policy some outputs as well."""
    if how == "selective:every-second":
        return partial(checkpoint, use_reentrant=False, context_fn=_every_second)
    if how not in KEPT:
        return partial(checkpoint, use_reentrant=False)
    contexts = partial(create_selective_checkpoint_contexts, partial(keep, KEPT[how]))
    return partial(checkpoint, use_reentrant=False, context_fn=contexts)


def keep(kept: frozenset, context: object, operator: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    """What PyTorch asks for every operator of a selective region: keep its output, or compute it again."""
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE


def _every_second() -> Any:
    """torchtitan's policy, with counters of its own for each call and each time that the call runs."""
    linears: Counter[bool] = Counter()

    def keep_first(context: Any, operator: Any, *args: object, **kwargs: object) -> CheckpointPolicy:
        linears[context.is_recompute] += operator in LINEARS
        second = operator in LINEARS and linears[context.is_recompute] % 2 == 0
        return keep(frozenset() if second else LINEARS | ATTENTIONS, context, operator)

    return create_selective_checkpoint_contexts(keep_first)


def offloading(offload: Offload, how: str) -> Callable[..., Any]:
    """A function (run, *inputs) whose saved tensors go to the host; of "offload:inputs" only the inputs are saved."""
    again = recomputing("full") if how == "offload:inputs" else None

    def run_offloaded(run: Callable, *inputs: Any) -> Any:
        with offload:
            return again(run, *inputs) if again else run(*inputs)

    return run_offloaded
