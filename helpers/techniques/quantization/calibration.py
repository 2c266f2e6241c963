"""What each linear layer sees when a model reads real text: the input to every method that rounds with care.

for step in layer_by_layer(model, batches):     # one decoder layer at a time
    seen = step.observe()                       # {"mlp.down_proj": InputStatistics, ...}
    ...                                         # change step.layer; the next one is fed by what you leave
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...catalog.errors import WorkbookError
from .linears import dense_linears


class InputStatistics:
    """The inputs x of one linear layer, summed up as they pass: [inputs, inputs] in FP32 instead of every token.

    `keep_tokens` of them are kept as well, in `inputs` [tokens, inputs]. Channel j is column j of the weight.
    `max_abs` has the largest |x_j| of each channel: what SmoothQuant brings down.
    """

    def __init__(self, columns: int, keep_tokens: int = 0, device: torch.device | str = "cpu") -> None:
        self.tokens = 0
        self.inputs = torch.empty(0, columns, device=device)
        self._keep_tokens = keep_tokens
        self._products = torch.zeros(columns, columns, device=device)
        self._abs_sum, self.max_abs = torch.zeros(2, columns, device=device)

    def add(self, x: Tensor) -> None:
        """Count x [..., inputs]."""
        x = x.detach().reshape(-1, x.shape[-1]).float()
        if not x.isfinite().all():
            do = "load the model in BF16 or FP32: FP16 overflows at 65,504"
            raise WorkbookError("activations that are not finite", "finite inputs to every linear layer", do)
        self.tokens += len(x)
        self._products += x.T @ x
        self._abs_sum += x.abs().sum(0)
        self.max_abs = self.max_abs.maximum(x.abs().amax(0))
        self.inputs = torch.cat([self.inputs, x[: self._keep_tokens - len(self.inputs)]])

    @property
    def hessian(self) -> Tensor:
        """E[x xᵀ], half the Hessian of the squared output error; constant factors change nothing in GPTQ."""
        return self._products / self._counted()

    @property
    def mean_abs(self) -> Tensor:
        """Mean |x_j| of each channel: AWQ's salience."""
        return self._abs_sum / self._counted()

    def _counted(self) -> int:
        if not self.tokens:
            do = "call add(x), or take what CalibrationStep.observe() returns"
            raise WorkbookError("no calibration tokens", "inputs added before a mean is asked for", do)
        return self.tokens


def require_hessian(hessian: Tensor, columns: int) -> Tensor:
    """`hessian` itself; WorkbookError unless it could be E[x xᵀ] of a layer of that many inputs."""
    if hessian.shape != (columns, columns):
        what = f"a Hessian of shape {list(hessian.shape)} for rows of {columns} values"
        raise WorkbookError(what, f"[{columns}, {columns}]", "collect it from this layer's own inputs")
    if not hessian.isfinite().all() or (hessian.diagonal() < 0).any():
        do = "collect it with CalibrationStep.observe()"
        raise WorkbookError("a Hessian that is no sum of squares", "finite, with no negative diagonal", do)
    return hessian


def output_error(delta: Tensor, hessian: Tensor) -> float:
    """E‖ΔW x‖², the mean over tokens of a layer's squared output error, as tr(ΔW H ΔWᵀ); no inputs needed.

    ΔW is [rows, columns], H = E[x xᵀ]. With ΔW = [[1, -1]] and channels that are always equal it is 0:

    >>> output_error(torch.tensor([[1.0, -1.0]]), torch.ones(2, 2))
    0.0
    """
    return float(((delta @ hessian) * delta).sum())


@dataclass
class CalibrationStep:
    """One decoder layer and the calls that it gets: hidden states [sequences, tokens, hidden] and keywords."""

    name: str
    layer: nn.Module
    hidden: list[Tensor]
    keywords: list[dict[str, Any]]

    def observe(self, keep_tokens: int = 0) -> dict[str, InputStatistics]:
        """Run the layer on its calls and sum up what each of its linear layers is fed."""
        seen = {}
        with ExitStack() as hooks:
            for name, linear in dense_linears(self.layer).items():
                to = seen[name] = InputStatistics(linear.in_features, keep_tokens, linear.weight.device)
                hooks.enter_context(linear.register_forward_pre_hook(lambda _, args, to=to: to.add(args[0])))
            self.outputs()
        return seen

    @torch.no_grad()
    def outputs(self) -> list[Tensor]:
        """What the layer, as it is now, makes of its calls: the next layer's hidden states."""
        results = [self.layer(hidden, **words) for hidden, words in zip(self.hidden, self.keywords, strict=True)]
        return [result[0] if isinstance(result, tuple) else result for result in results]


def layer_by_layer(model: nn.Module, batches: Sequence[Tensor], follow: bool = True) -> Iterator[CalibrationStep]:
    """Every decoder layer in turn. `batches` are token ids [sequences, tokens].

    With `follow`, outputs are computed after you are done with a layer: the next one is calibrated on the errors of
    all before it, as GPTQ's reference does. Without, before: every layer sees what the given model makes.
    Held are the hidden states of the calibration tokens (twice without `follow`), and the sums of one layer.
    """
    hidden, keywords = _first_calls(model, batches)
    layers = decoder_layers(model)
    for index, (name, layer) in enumerate(layers.items()):
        step = CalibrationStep(name, layer, hidden, keywords[index])
        hidden = [] if follow else step.outputs()
        yield step
        if index + 1 < len(layers):
            hidden = step.outputs() if follow else hidden


def decoder_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The repeated layers of a Transformers decoder by full name: {"model.layers.0": ..., ...}."""
    count = getattr(getattr(model, "config", None), "num_hidden_layers", None)
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return {f"{name}.{index}": layer for index, layer in enumerate(module)}
    what = f"{type(model).__name__} has no list of decoder layers"
    raise WorkbookError(what, "a Transformers decoder such as Llama", "pass the model itself, with its config")


@torch.no_grad()
def _first_calls(model: nn.Module, batches: Sequence[Tensor]) -> tuple[list[Tensor], list[list[dict[str, Any]]]]:
    """The first layer's hidden states, one for each batch, and for every layer its keywords with each batch."""
    _require_batches(model, batches)
    layers = list(decoder_layers(model).values())
    hidden: list[Tensor] = []
    keywords: dict[nn.Module, list[dict[str, Any]]] = {layer: [] for layer in layers}

    def remember(layer: nn.Module, args: tuple[Any, ...], words: dict[str, Any]) -> None:
        if layer is layers[0]:
            hidden.append(args[0])
        keywords[layer].append(words)  # each layer's own: a sliding-window layer has another mask

    with ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(remember, with_kwargs=True))
        for batch in batches:
            cast(nn.Module, model.base_model)(batch, use_cache=False)  # without the head: logits would dwarf the rest
    return hidden, list(keywords.values())


def _require_batches(model: nn.Module, batches: Sequence[Tensor]) -> None:
    def good(batch: object) -> bool:
        return isinstance(batch, Tensor) and batch.dim() == 2 and batch.numel() > 0 and not batch.is_floating_point()

    if not batches or not all(map(good, batches)):
        expected = "tensors of ids [sequences, tokens]"
        raise WorkbookError("calibration batches that are not token ids", expected, "pass batches=[ids[:8], ids[8:16]]")
    if model.training:
        raise WorkbookError("a model in training mode", "no dropout while calibrating", "call model.eval() first")
