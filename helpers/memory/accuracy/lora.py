"""A LoRA or QLoRA step, as fitcheck-llm's scripts/measure.py runs it: FP32 adapters, checkpointing, AdamW."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...catalog.by_transformers import transformers_config
from ...catalog.errors import require_package
from ...catalog.logs import quiet
from .. import trace
from ..breakdown import Phase
from ..trace.fake import without_memory
from ..trace.loading import linears_made_on_host, load
from ..trace.quantized import DTYPES, QuantizedBase, in_4_bits
from ..trace.read_ahead import ReservedRange, reserved_range
from ..trace.record import Trace
from .cases import Case, model_config


def predict(case: Case) -> dict[str, int]:
    """Bytes that the script would report: after loading, and in the step after the first. Raises without peft.

    A base in 4 bits needs bitsandbytes too.
    """
    return peaks(*traced(case))


def reserved(case: Case, found: Trace) -> ReservedRange | None:
    """The range of a step whose release of Transformers the case names; None where it names none."""
    version = case.setup.get("transformers")
    return reserved_range(found, version) if version else None


def traced(case: Case) -> tuple[Trace, int]:
    """The script's second step, and how many events loading had."""
    with quiet(FutureWarning):  # before fake(): what peft imports makes tensors that are no part of the step
        require_package("peft", "a LoRA step", "pip install --no-deps peft==0.21.2, or leave them out: --only op")
    quantized = _quantized(case)
    base = _base(case)  # outside: fake() would count what its construction throws away
    if quantized:
        base = in_4_bits(base, quantized)
    with quiet(FutureWarning), trace.fake(gpu=case.device) as session, _as_the_script_attends():
        model = load(base, quantized, session) if quantized else without_memory(base, session.mode)
        with linears_made_on_host(session.meter):
            model = _adapted(case, model)
        loaded = len(session.meter.events)
        step, optimizer = _step(case, model)
        return trace.record(step, model, optimizer), loaded


def peaks(found: Trace, loaded: int) -> dict[str, int]:
    """What the script reports of a traced step, by quantity."""
    played = found.on_gpu
    phases = [event.phase for event in found.events]

    def peak(phase: str) -> int:
        return max(played.allocated[at] for at in range(found.first, len(phases)) if phases[at] == phase)

    return {
        "after load": played.allocated[loaded - 1],
        "peak allocated": max(played.allocated[found.first - 1 :]),
        "peak reserved": max(played.reserved[found.first - 1 :]),
        "peak of forward": peak(Phase.FORWARD),
        "peak of backward": peak(Phase.BACKWARD),
        "peak of optimizer step": peak(Phase.OPTIMIZER),
    }


def _base(case: Case) -> nn.Module:
    from transformers import AutoModelForCausalLM

    config = transformers_config(model_config(case.setup["model"]), use_cache=False)
    attention, dtype = case.setup["attention"], DTYPES[_dtype(case)]
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype)


def _dtype(case: Case) -> str:
    return case.setup.get("dtype", "fp16")


def _quantized(case: Case) -> QuantizedBase | None:
    base = case.setup.get("base")
    return QuantizedBase(base, _dtype(case)) if base else None


def _adapted(case: Case, base: nn.Module) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    rank, targets = case.setup["rank"], case.setup["targets"]
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", target_modules=targets
    )
    _angles_by_product(base)
    model = get_peft_model(base, config)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    return model.train()


def _angles_by_product(base: nn.Module) -> None:
    """Until Transformers 5.19 rotary angles were a product of matrices, and these steps ran on 5.0 and 5.17.

    So cuBLAS had its workspace before the first layer had anything, and everything else lay elsewhere: for one step
    that is 0.7 % of its reserved memory, and nothing of what is allocated.
    """

    def multiply(rotary: Any, args: tuple, kwargs: dict) -> None:
        positions = kwargs["position_ids"] if "position_ids" in kwargs else args[1]
        rotary.inv_freq[None, :, None].expand(len(positions), -1, 1) @ positions[:, None, :].float()

    for module in base.modules():
        if hasattr(module, "inv_freq"):
            module.register_forward_pre_hook(multiply, with_kwargs=True)


def _step(case: Case, model: nn.Module) -> tuple[Callable[[], None], torch.optim.Optimizer]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, foreach=True)  # CUDA's default
    ids = torch.zeros(case.setup["micro_batch"], case.setup["sequence"], dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        found = model(input_ids=ids, labels=ids)
        found.loss.backward()
        optimizer.step()

    return step, optimizer


@contextlib.contextmanager
def _as_the_script_attends() -> Iterator[None]:
    """With the memory-efficient kernel on every GPU; that takes equal heads only, so K and V are repeated before."""
    attention = functional.scaled_dot_product_attention

    def repeated(query, key, value, *args, **kwargs):
        groups = query.size(-3) // key.size(-3)
        if groups > 1:
            key, value = (heads.repeat_interleave(groups, dim=-3) for heads in (key, value))
            kwargs.pop("enable_gqa", None)
        return attention(query, key, value, *args, **kwargs)

    with (
        mock.patch.object(functional, "scaled_dot_product_attention", repeated),
        sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION),
    ):
        yield
