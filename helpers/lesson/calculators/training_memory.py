"""The training memory calculator: what one step needs, part by part, against one device."""

from __future__ import annotations

from collections.abc import Iterator

from ...catalog.devices import DEVICES, Device, device
from ...catalog.models import MODELS, model
from ...catalog.recipes import PRECISIONS
from ...catalog.setup import TrainSetup
from ...memory.closed_form import activations, budget
from ...memory.closed_form.breakdown import format_bytes
from ...memory.fit import ladder
from .shell import Calculator, MemoryAnswer


def training_answer(setup: TrainSetup, gpu: str | Device | None = None) -> MemoryAnswer:
    """What `setup` needs on `gpu`: the peak by part, the formula filled in, and whether it fits.

    Raises WorkbookError for a model whose activations have no closed form.
    """
    predicted = budget.train(setup, cuda=True)
    where = device(gpu) if gpu else None
    title = (
        f"Training {setup.model.name}: {format_bytes(predicted.peak_bytes)} at the peak, in the {predicted.peak.name}"
    )
    return MemoryAnswer(
        title,
        tuple(_formula(predicted)),
        _sentence(predicted, where),
        predicted.parts,
        where.capacity_bytes if where else None,
        where.title if where else "",
    )


def _formula(predicted: budget.TrainBudget) -> Iterator[str]:
    """One line per part of the peak, numbers substituted."""
    setup, parts = predicted.setup, predicted.parts
    n, recipe = setup.model.parameters, setup.precision_recipe
    shard = {
        part: f" / {setup.ranks} ranks" if setup.zero >= stage and setup.ranks > 1 else ""
        for part, stage in (("optimizer", 1), ("gradients", 2), ("parameters", 3))
    }
    tokens = f"{setup.micro_batch} × {setup.sequence:,} tokens"
    explained = {
        "parameters": f"{n:,} × {recipe.weight_bytes} B{shard['parameters']}",
        "gradients": f"up to {n:,} × {recipe.grad_bytes} B{shard['gradients']}",
        "optimizer": f"({_states(setup)}){shard['optimizer']}" if shard["optimizer"] else _states(setup),
        "activations": f"{tokens}, {_per_layer(predicted)}",
        "logits": f"{tokens} × {setup.model.vocab:,} vocabulary",
        "workspace": "temporaries of the moment, and cuBLAS",
    }
    for part, size in parts.items():
        yield f"{part:<12}{format_bytes(size):>12}   {explained[part]}"
    yield f"{'peak':<12}{format_bytes(predicted.peak_bytes):>12}   {predicted.peak.name}"


def _states(setup: TrainSetup) -> str:
    """The optimizer's states in words and numbers, the master copy with them."""
    rule, recipe, n = setup.optimizer_rule, setup.precision_recipe, setup.model.parameters
    master = f"{n:,} × {recipe.master_bytes} B of master copy, " if recipe.master_bytes else ""
    if rule.block_values:
        return f"{master}{rule.states} states × {n:,} × 1 B, a scale per {rule.block_values}"
    if rule.factored:
        return f"{master}a row and a column for each matrix"
    return f"{master}{rule.states} states × {n:,} × {recipe.optimized_bytes} B"


def _per_layer(predicted: budget.TrainBudget) -> str:
    setup = predicted.setup
    saved = format_bytes(activations.saved_by_layer(setup, setup.model.layers[0]).total)
    layers, every = len(setup.model.layers), setup.checkpoint_every
    if every is None:
        kept = format_bytes(predicted.kept_bytes)
        return f"{layers} layers under {setup.checkpointing} keep {kept}; {saved} saved by one"
    if not every:
        return f"{saved} saved by each of {layers} layers"
    return f"{layers} layers checkpointed by {every}; {saved} a layer while its segment is recomputed"


def _sentence(predicted: budget.TrainBudget, where: Device | None) -> str:
    need = predicted.peak_bytes
    if where is None:
        return f"One step needs {format_bytes(need)} on each rank."
    spare = where.capacity_bytes - need
    if spare >= 0:
        return (
            f"Fits the {where.title} with {format_bytes(spare)} to spare, from which the CUDA context and "
            f"fragmentation still take their part."
        )
    change = next(changes_that_fit(predicted.setup, where.capacity_bytes), None)
    cure = "No choice of optimizer, checkpointing and recipe fits: shard it, offload it, or take a larger GPU."
    if change:
        cure = f"The cheapest change that fits: {change}."
    return f"Does not fit the {where.title}: {format_bytes(-spare)} too much. {cure}"


def changes_that_fit(setup: TrainSetup, capacity_bytes: int) -> Iterator[str]:
    """Changes that bring the peak under `capacity_bytes`, the cheapest in time and quality first.

    Only what `setup` does not do already is offered, on one rank. Each is told with the peak it leads to; with costs
    and with more GPUs they are in `helpers.memory.fit`.
    """
    for fit in ladder(setup, capacity_bytes):
        yield f"{fit.change} ({format_bytes(fit.peak_bytes)})"


def training_memory(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `training_memory(model="gpt2", gpu="rtx-4090")`."""
    names = [name for name in MODELS if model(name).family in activations.FAMILIES and model(name).is_dense_decoder]
    options = {
        "model": ("model", names),
        "gpu": ("GPU", list(DEVICES)),
        "precision": ("precision", list(PRECISIONS)),
        "optimizer": (
            "optimizer",
            ["adamw-foreach", "adamw-fused", "adamw-8bit", "adafactor", "sgd-momentum", "sgd"],
        ),
        "micro_batch": ("micro-batch", [1, 2, 4, 8, 16, 32, 64]),
        "sequence": ("sequence", [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]),
        "checkpointing": ("checkpointing", ["none", "full", "every:2", "every:4", "every:8", "selective"]),
        "attention": ("attention", ["sdpa", "eager"]),
    }
    first = {
        "model": "llama-2-7b",
        "gpu": "h100-80gb",
        "precision": "autocast-bf16",
        "optimizer": "adamw-fused",
        "micro_batch": 1,
        "sequence": 2048,
        "checkpointing": "none",
        "attention": "sdpa",
    }
    return Calculator(_compute, options, {**first, **start})


def _compute(gpu: str, **choices: object) -> MemoryAnswer:
    return training_answer(TrainSetup(**choices), gpu)
