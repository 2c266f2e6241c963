"""Steps ready made: training and LoRA of any model that the catalogue or a config.json describes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ...catalog.adapters import ALL_LINEAR, TRACED_KINDS, Adapter
from ...catalog.devices import Device, device
from ...catalog.errors import WorkbookError, require_package, require_whole
from ...catalog.hardware import reference_of, require_float8_kernels
from ...catalog.setup_fields import MAX_TOKENS
from ...catalog.train_setup import TrainSetup
from ..measure.steps import build_model, require_one_rank, run_of
from .fake import convert, without_memory
from .loading import linears_made_on_host, load
from .optimizers import optimizers_without_values
from .quantized import DTYPES, QuantizedBase, base_on_meta, decoded_for_dora, in_16_bits, without_outliers
from .record import CUDA, Trace, fake, record, require_steps


def train(
    setup: TrainSetup,
    gpu: str | Device | None = None,
    on: str = CUDA,
    steps: int = 2,
    rank: int = 0,
    lengths: Sequence[int] = (),
) -> Trace:
    """Trace training steps of `setup` and account for the last; the optimizer's states are made in the first.

    `gpu` is a card of the catalogue, where it is None an A100, or an H100 in FP8; `on` is "cuda", or "cpu" for what
    `measure.training_step` would measure here. bitsandbytes' optimizers have stand-ins, which make the same states.
    With an adapter in the setup, only that is trained (`lora`). Where `setup.split` shares the run, `rank` is traced.
    With `lengths`, the tokens that batches of a run are padded to, what is accounted for is a step on each, after the
    same once before: what is reserved grows with every length that the cached blocks do not suit. Raises WorkbookError.
    Llama-2-7B in BF16, one sequence of 2,048, fused AdamW: 50.2 GiB, in about three seconds and no memory.
    """
    setup = _of_lengths(setup, lengths)
    setup.split.stage_of(rank)  # which there must be
    if setup.split.by_parts:
        from .split import train_split  # here, for torch.distributed takes half a second

        return train_split(setup, rank, gpu, on, steps)
    if setup.adapter:
        return lora(setup, gpu=gpu, on=on, steps=steps, lengths=lengths)
    require_one_rank(setup)
    require_steps(steps)
    card = device(gpu or reference_of(setup))
    require_float8_kernels(setup, card)
    model = build_model(setup, "meta")
    with fake(on, card) as session:
        without_memory(model, session.mode)
        run = run_of(setup, model, "cpu", optimizers_without_values, lengths)
        return record(run.step, run.model, run.optimizers, warmup=steps - 1)


def lora(
    setup: TrainSetup,
    rank: int | None = None,
    targets: Sequence[str] = ("q_proj", "v_proj"),
    gpu: str | Device | None = None,
    on: str = CUDA,
    steps: int = 2,
    base: str | QuantizedBase | None = None,
    lengths: Sequence[int] = (),
) -> Trace:
    """Trace training of the adapters of `setup.adapter`, its base frozen, as in peft.

    Where the setup names none, they are LoRA's, of `rank` on the linear layers called `targets`; `base` then quantizes
    what is frozen, which makes this QLoRA: "nf4", "nf4-dq", or a QuantizedBase that says more. None leaves it as
    `setup.precision` keeps weights. The adapters are FP32, peft's default, unless the setup's say otherwise.
    `lengths` are as in `train`. Needs the package peft, and bitsandbytes for a quantized base. Raises
    WorkbookError.
    """
    setup = _of_lengths(setup, lengths)
    require_one_rank(setup)
    require_steps(steps)
    adapter, quantized = _adapter_of(setup, rank, targets, base)
    require_package("peft", "a LoRA step")  # before fake(): what it imports makes tensors that are no part of the step
    model = base_on_meta(setup, quantized) if quantized else in_16_bits(build_model(setup, "meta"), adapter.dtype)
    with fake(on, gpu) as session, _read_without_values(adapter, quantized, on):
        model = load(model, quantized, session) if quantized else without_memory(model, session.mode)
        with linears_made_on_host(session.meter) if on == CUDA else contextlib.nullcontext():
            adapted: Any = convert(_with_adapters(model, adapter), partial(_in_type, adapter))
        if setup.checkpointing != "none":
            adapted.enable_input_require_grads()  # nothing is recomputed for an input that needs no gradient
        run = run_of(setup, adapted, "cpu", optimizers_without_values, lengths)
        return record(run.step, run.model, run.optimizers, warmup=steps - 1)


def _of_lengths(setup: TrainSetup, lengths: Sequence[int]) -> TrainSetup:
    """The setup of the longest batch. WorkbookError where a run of several is not built."""
    if not lengths:
        return setup
    for tokens in lengths:
        require_whole("a length", tokens, most=MAX_TOKENS)
    if setup.split.by_parts or setup.in_backward or setup.precision == "megatron-bf16":
        what, do = "batches of several lengths over ranks, by Megatron's recipe or in the backward", "pass one length"
        raise WorkbookError(what, "a plain step on one GPU", do)
    return replace(setup, sequence=max(lengths))


@contextlib.contextmanager
def _read_without_values(adapter: Adapter, base: QuantizedBase | None, on: str) -> Iterator[None]:
    """What of bitsandbytes and peft looks at classes or values."""
    with contextlib.ExitStack() as stack:
        if base and adapter.kind == "dora":
            stack.enter_context(decoded_for_dora())
        if base and base.weights == "int8":
            stack.enter_context(without_outliers(on == CUDA))
        yield


def _adapter_of(
    setup: TrainSetup, rank: int | None, targets: Sequence[str], base: str | QuantizedBase | None
) -> tuple[Adapter, QuantizedBase | None]:
    """The adapters, and how the base is quantized: as the setup says, or as the arguments do."""
    if setup.adapter is None:
        if rank is None:
            what, do = "no adapters", "TrainSetup(..., adapter=Adapter('lora', rank=16)), or trace.lora(setup, rank=16)"
            raise WorkbookError(what, "adapters in the setup, or a rank", do)
        return Adapter("lora", rank, targets), QuantizedBase(base) if isinstance(base, str) else base
    if rank is not None or base is not None:
        what = f"adapters in the setup ({setup.adapter}) and beside it"
        raise WorkbookError(what, "adapters in one place", "leave rank and base out")
    adapter = setup.adapter
    return adapter, QuantizedBase(adapter.base, adapter.dtype, adapter.prepared) if adapter.base else None


def _in_type(adapter: Adapter, tensor: torch.Tensor) -> torch.Tensor:
    """What is trained, in the type of adapters: TRL casts them when peft has made them."""
    return tensor.to(DTYPES[adapter.adapter_dtype]) if tensor.requires_grad else tensor


def _config_of(adapter: Adapter, targets: Any) -> Any:
    """peft's config of a kind, with what of rank and targets it knows, and peft's defaults for the rest."""
    from peft import PeftType
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    kind: Any = PEFT_TYPE_TO_CONFIG_MAPPING[getattr(PeftType, adapter.kind.upper())]
    given = {"r": adapter.rank, "target_modules": targets, "feedforward_modules": []}
    return kind(
        task_type="CAUSAL_LM", **{name: value for name, value in given.items() if name in kind.__dataclass_fields__}
    )


def _with_adapters(model: nn.Module, adapter: Adapter) -> Any:
    from peft import LoraConfig, get_peft_model

    targets: Any = ALL_LINEAR if ALL_LINEAR in adapter.targets else list(adapter.targets)
    if adapter.kind in TRACED_KINDS:
        return get_peft_model(model, _config_of(adapter, targets))
    rank, how = adapter.rank, {"use_dora": adapter.kind == "dora", "lora_dropout": adapter.dropout}
    try:
        config = LoraConfig(r=rank, lora_alpha=2 * rank, task_type="CAUSAL_LM", target_modules=targets, **how)  # type: ignore[arg-type] # of a dict's mixed values
        with warnings.catch_warnings():  # Transformers' new name for a property that peft asks for
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            return get_peft_model(model, config)
    except ValueError as problem:
        names = sorted({name.rsplit(".", 1)[-1] for name, m in model.named_modules() if isinstance(m, nn.Linear)})
        what = f"no adapters for {', '.join(adapter.targets)}: {str(problem)[:120]}"
        raise WorkbookError(what, ", ".join(names), "name linear layers of this model") from None
