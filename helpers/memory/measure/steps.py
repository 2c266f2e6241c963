"""Training steps ready to measure: a Transformers model with random weights, built from a Setup."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ...catalog.by_transformers import transformers_config
from ...catalog.errors import WorkbookError, require_package
from ...catalog.losses import FULL
from ...catalog.optimizers import EMBEDDING, HEAD
from ...catalog.policies import PolicySegment, whole_layers
from ...catalog.registered import registered
from ...catalog.train_setup import TrainSetup
from .. import budget
from ..breakdown import format_bytes
from ..step.refusals import FLOAT8_MULTIPLE, require_kernel
from .clock import default_device
from .losses import fused_loss, mask_of
from .optimizers import Role, make_optimizers

NO_DROPOUT = ("attention_dropout", "attn_pdrop", "dropout", "embd_pdrop", "layerdrop", "resid_pdrop")


@dataclass
class TrainingRun:
    """A model, its optimizers, and `step()`, which trains on one fixed random batch and frees the gradients.

    Where `setup` accumulates, that batch is the micro-batch, again and again. There are two optimizers where one is not
    made for every weight, and one for each weight where they step in the backward.
    """

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    step: Callable[[], None]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The only one, or the first."""
        return self.optimizers[0]


Make = Callable[[str, list[tuple[nn.Parameter, Role]]], list[torch.optim.Optimizer]]


def training_run(setup: TrainSetup, device: str | None = None) -> TrainingRun:
    """Build what `setup` describes on `device` ("cuda" where there is a GPU, else "cpu"), on one rank.

    Weights are random and dropout is off: memory does not care about either value. Raises WorkbookError when the
    setup shards over ranks, or when its predicted peak is more than this machine has free.
    """
    device = device or default_device()
    _require_runnable(setup, device)
    torch.manual_seed(0)
    return run_of(setup, build_model(setup, device), device)


def run_of(
    setup: TrainSetup, model: nn.Module, device: str, make: Make | None = None, lengths: Sequence[int] = ()
) -> TrainingRun:
    """The step that `setup` describes, on a model that is built already.

    `make(name, weights)` builds the optimizers of weights, each with its role: `make_optimizers`, unless a trace has
    stand-ins. With `lengths` its step is several, one on a batch of each so many tokens.
    """
    make = make or make_optimizers
    if setup.checkpoint_every != 0:
        _checkpoint(model, setup)
    words, several = setup.model.vocab, lengths or (setup.sequence,)
    batches = [torch.randint(0, words, (setup.micro_batch, tokens), device=device) for tokens in several]
    ids = batches[0]
    if setup.precision == "megatron-bf16":
        return _megatron_run(model, setup, ids, device, make)
    if setup.in_backward:
        return _run_in_backward(model, setup, ids, device, make)
    optimizers = make(setup.optimizer, trained_weights(model))

    def step() -> None:
        for ids in batches:
            for _ in range(setup.micro_batches):
                loss = micro_batch(setup, model, ids, device)  # noqa: F841 - alive until the next, as in a loop that prints it
            for optimizer in optimizers:
                optimizer.step()
            model.zero_grad(set_to_none=True)

    return TrainingRun(model, optimizers, step)


def trained_weights(model: Any) -> list[tuple[nn.Parameter, Role]]:
    """What `model` trains, in its order, and the role of each: EMBEDDING, HEAD, or ""; a tied head's is EMBEDDING."""
    roles = {id(module.weight): EMBEDDING for module in model.modules() if isinstance(module, nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not None:
        roles.setdefault(id(head.weight), HEAD)
    return [(weight, roles.get(id(weight), "")) for weight in model.parameters() if weight.requires_grad]


def _run_in_backward(model: nn.Module, setup: TrainSetup, ids: torch.Tensor, device: str, make: Make) -> TrainingRun:
    """Each weight has its optimizer, which steps when the gradient is whole: of a tied weight, when both parts are."""
    optimizers: dict[torch.Tensor, list[torch.optim.Optimizer]] = {
        weight: make(setup.optimizer, [(weight, role)]) for weight, role in trained_weights(model)
    }

    def update(weight: torch.Tensor) -> None:
        for optimizer in optimizers[weight]:
            optimizer.step()
        weight.grad = None

    for weight in optimizers:
        weight.register_post_accumulate_grad_hook(update)

    def step() -> None:
        micro_batch(setup, model, ids, device)

    return TrainingRun(model, [optimizer for several in optimizers.values() for optimizer in several], step)


def micro_batch(setup: TrainSetup, model: nn.Module, ids: torch.Tensor, device: str) -> torch.Tensor:
    """Forward and backward over one micro-batch. Its gradients are this share of the step's, and add to what is there.

    Returns the loss, of which nothing but the number is left.
    """
    with precision_context(setup, device):
        if setup.loss == FULL:
            loss = model(input_ids=ids, labels=ids, use_cache=False, **mask_of(setup, ids)).loss
        else:
            loss = fused_loss(setup, model, ids)
    if setup.micro_batches > 1:
        loss = loss / setup.micro_batches
    loss.backward()
    return loss


def build_model(setup: TrainSetup, device: str) -> nn.Module:
    """The Transformers model of `setup`, in training mode, in the dtype that its recipe keeps weights in."""
    from transformers import AutoModelForCausalLM

    require_kernel(setup)
    config = transformers_config(setup.model.config)
    for name in NO_DROPOUT:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    dtype = torch.bfloat16 if setup.precision_recipe.weight_bytes == 2 else torch.float32
    try:
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=setup.attention, dtype=dtype)
    except ValueError as problem:
        what = f"Transformers does not build {setup.model.name} with {setup.attention} attention"
        do = f"pass attention='eager', if that was not it: {str(problem).splitlines()[0][:200]}"
        raise WorkbookError(what, "a model and an attention that it knows", do) from None
    model.loss_type = "ForCausalLM"  # Transformers finds none for GPT-2, warns, and then uses this one
    if setup.precision_recipe.linear_format:
        in_float8(model)
    return model.to(device).train()


def in_float8(model: Any, recipe: str = "tensorwise", emulate: bool = False) -> nn.Module:
    """`model`, in place, with torchao's linear layers, which multiply in FP8; their weights stay what they are.

    The head stays BF16, as is usual, and so do layers with a side that is no multiple of 16. A tensor has one scale,
    found anew at every cast, where torchao's `recipe` does not say otherwise. With `emulate` what was cast to FP8 is
    multiplied in its own type, on any device. Raises WorkbookError where torchao is missing.
    """
    do = "pip install --no-deps torchao and restart the kernel, or choose precision='bf16'"
    float8: Any = require_package("torchao.float8", "training in FP8", do)
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    object.__setattr__(config, "emulate", emulate)  # it is frozen, and the recipe's name takes no more arguments
    head = getattr(model, "get_output_embeddings", lambda: None)()

    def converted(linear: nn.Linear, name: str) -> bool:
        fits = not any(side % FLOAT8_MULTIPLE for side in (linear.in_features, linear.out_features))
        return linear is not head and fits

    return float8.convert_to_float8_training(model, config=config, module_filter_fn=converted)


def precision_context(setup: TrainSetup, device: str) -> contextlib.AbstractContextManager:
    """Autocast for the recipes that have it, nothing for the others."""
    return torch.autocast(device, torch.bfloat16, enabled=setup.precision_recipe.autocast)


class CheckpointedSegment(nn.Module):
    """Consecutive layers under one checkpoint: only the segment's input is kept for the backward pass."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, hidden: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        return checkpoint(self._run, hidden, *args, use_reentrant=False, **kwargs)

    def _run(self, hidden: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        for layer in self.layers:
            hidden = layer(hidden, *args, **kwargs)
        return hidden


def _checkpoint(model: nn.Module, setup: TrainSetup) -> None:
    """Segments of whole layers are modules around them; other policies are a technique's."""
    if not whole_layers(setup.segments):
        registered("checkpointing")(model, setup.checkpointing)
        return
    owner, name = layer_list(model, len(setup.model.layers))
    layers = list(getattr(owner, name))
    setattr(owner, name, nn.ModuleList(_together(one, layers) for one in setup.segments))


def _together(segment: PolicySegment, layers: list[nn.Module]) -> nn.Module:
    """A segment's layers under one checkpoint, with its parts in it under their own; a layer that is kept as it is."""
    if segment.how == "none":
        return layers[segment.start]
    parts = [_together(part, layers) for part in segment.parts]
    return CheckpointedSegment(parts or layers[segment.start : segment.stop])


def layer_list(model: nn.Module, layers: int) -> tuple[nn.Module, str]:
    """The module that holds the decoder layers, and the attribute they are under."""
    for owner in model.modules():
        for name, child in owner.named_children():
            if isinstance(child, nn.ModuleList) and len(child) == layers:
                return owner, name
    expected = "a decoder with one ModuleList of its layers"
    do = "measure it without checkpointing, or checkpoint it in a step of your own"
    raise WorkbookError(f"{type(model).__name__} has no list of {layers} layers", expected, do)


def _megatron_run(model: nn.Module, setup: TrainSetup, ids: torch.Tensor, device: str, make: Make) -> TrainingRun:
    """BF16 weights, FP32 master copies that the optimizer updates, FP32 main gradients that are never freed."""
    weights = trained_weights(model)
    parameters = [parameter for parameter, _ in weights]
    masters = [nn.Parameter(p.detach().float()) for p in parameters]
    main_gradients = [torch.zeros_like(master) for master in masters]
    for parameter, master, main in zip(parameters, masters, main_gradients, strict=True):
        master.grad = main
        parameter.register_post_accumulate_grad_hook(partial(_into_main_gradient, main))
    optimizers = make(setup.optimizer, [(master, role) for master, (_, role) in zip(masters, weights, strict=True)])

    def step() -> None:
        for _ in range(setup.micro_batches):
            loss = micro_batch(setup, model, ids, device)  # noqa: F841 - alive until the next, as in a loop that prints it
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            for parameter, master, main in zip(parameters, masters, main_gradients, strict=True):
                parameter.copy_(master)
                main.zero_()

    return TrainingRun(model, optimizers, step)


def _into_main_gradient(main: torch.Tensor, parameter: torch.Tensor) -> None:
    if parameter.grad is not None:
        main.add_(parameter.grad)
    parameter.grad = None


def require_one_rank(setup: TrainSetup) -> None:
    """WorkbookError for a setup that shards: nothing here runs on several ranks."""
    if setup.ranks > 1 or setup.zero:
        expected = "a run on one rank without ZeRO"
        do = "run replace(setup, split=Split()), and predict the sharded run with helpers.memory.budget"
        raise WorkbookError(f"the setup has {setup.ranks} ranks and ZeRO stage {setup.zero}", expected, do)


def _require_runnable(setup: TrainSetup, device: str) -> None:
    require_one_rank(setup)
    if setup.adapter:
        do = "trace it: helpers.memory.trace.lora(setup); or give measure.step a model that has its adapters"
        raise WorkbookError(f"the setup trains {setup.adapter}", "a step that trains all of the model", do)
    needed, free = _needed_bytes(setup), _free_bytes(device)
    if needed > free:
        expected = f"at most the {format_bytes(free)} that {device} has free"
        do = "lower micro_batch or sequence, or predict it with helpers.memory.budget"
        raise WorkbookError(f"this run needs about {format_bytes(needed)}", expected, do)


def _needed_bytes(setup: TrainSetup) -> int:
    """The predicted peak, or, for a model without a closed form, what its parameters alone will take."""
    try:
        return budget.train(setup).peak_bytes
    except WorkbookError:
        recipe, rule = setup.precision_recipe, setup.optimizer_rule
        states = sum(rule.state_bytes(shape, recipe.optimized_bytes, role) for shape, role in setup.model.trained())
        return setup.model.parameters * (recipe.weight_bytes + recipe.grad_bytes + recipe.master_bytes) + states


def _free_bytes(device: str) -> int:
    if device.startswith("cuda"):
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available
