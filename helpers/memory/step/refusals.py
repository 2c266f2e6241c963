"""What the closed form of a training step refuses, each with what to do instead. No torch."""

from __future__ import annotations

from ...catalog.adapters import ALL_LINEAR, KINDS, TRACED_KINDS
from ...catalog.errors import WorkbookError
from ...catalog.shape import ModelShape
from ...catalog.train_setup import TrainSetup
from .decoders.families import PAGES

FLOAT8_MULTIPLE = 16  # all three sizes of a product: torch._scaled_mm asks for it on CUDA
# Families for which Transformers has no other kernel
EAGER_ALONE = {"gemma2": ("caps its attention scores", "capped scores"), "gpt_oss": ("has attention sinks", "sinks")}


def require_closed_form(setup: TrainSetup) -> None:
    """Refuse a setup whose peak the tape does not know: by model, by kernel, by policy, by what is adapted."""
    _require_recomputing(setup)
    require_kernel(setup)
    _require_named_targets(setup)
    require_rows_of_adapters(setup)
    _require_lora_s_dropout(setup)
    _require_4_bits(setup)
    require_page(setup)


def require_page(setup: TrainSetup) -> None:
    """Refuse a model of whose family there is no page."""
    if setup.model.family not in PAGES or setup.model.counted:
        raise WorkbookError(
            f"the activations of {setup.model.name} (family {setup.model.family!r}) have no closed form here",
            f"a decoder of one of the families {', '.join(sorted(PAGES))}",
            f"trace it: `workbook trace train --model {setup.model.name}`, helpers.memory.trace.train(setup); "
            "`workbook estimate serve` knows weights and KV cache",
        )


def require_kernel(setup: TrainSetup) -> None:
    """Refuse Gemma-2 and gpt-oss but with eager attention. Some versions of Transformers build Gemma-2, and leave the
    caps out."""
    if setup.precision_recipe.linear_format:
        _require_float8(setup)
    if setup.model.family in EAGER_ALONE and setup.attention != "eager":
        has, kind = EAGER_ALONE[setup.model.family]
        what = f"attention is {setup.attention!r} and {setup.model.name} {has}"
        do = "pass attention='eager' (--attention eager)"
        raise WorkbookError(what, f"eager: Transformers has no other kernel for {kind}", do)


def _require_float8(setup: TrainSetup) -> None:
    """Refuse what torchao leaves in BF16, GPT-2's Conv1D, and sizes that no FP8 kernel of CUDA takes."""
    model, recipe = setup.model, setup.precision
    if model.family == "llama4_text":
        what = f"{recipe} with {model.name}, which adds to what its shared expert has returned in place"
        do = "choose precision='bf16'"
        raise WorkbookError(what, "a model whose outputs of FP8 layers are left alone: PyTorch refuses such a step", do)
    if model.family == "gpt2":
        what = f"{recipe} with {model.name}, whose layers are Transformers' Conv1D"
        raise WorkbookError(what, "a model of torch.nn.Linear: torchao converts no others", "choose precision='bf16'")
    sizes = {f"the tokens of a micro-batch of {model.name}": setup.tokens}
    for group in model.linears():
        if group.part in ("attention", "mlp"):
            sizes |= {f"{group.linear.name} of {model.name}, one way": group.linear.inputs}
            sizes |= {f"{group.linear.name} of {model.name}": group.linear.outputs}
    for name, size in sizes.items():
        if size % FLOAT8_MULTIPLE:
            do = "pad the sequence" if size == setup.tokens else "choose precision='bf16'"
            raise WorkbookError(f"{name} are {size:,} in {recipe}", f"a multiple of {FLOAT8_MULTIPLE}", do)


def attention_of(model: ModelShape) -> str:
    """The attention that Transformers runs a model with: "sdpa", or "eager" where it has no other.

    >>> from helpers.catalog import model
    >>> attention_of(model("llama-3-8b")), attention_of(model("gpt-oss-20b"))
    ('sdpa', 'eager')
    """
    return "eager" if model.family in EAGER_ALONE else "sdpa"


def _require_recomputing(setup: TrainSetup) -> None:
    """Refuse the policy whose peak has no closed form here: what an offload brings back depends on who asks when."""
    if setup.checkpointing == "offload":
        expected = "a policy that recomputes, or offload:inputs"
        do = "`workbook trace train --checkpointing offload` runs it, in seconds and without a GPU"
        raise WorkbookError("checkpointing is 'offload', whose peak has no closed form", expected, do)


def _require_named_targets(setup: TrainSetup) -> None:
    """Refuse "all-linear" where peft takes stacked experts for linear layers too, and adapts each of them."""
    if setup.adapter and ALL_LINEAR in setup.adapter.targets and setup.model.has_experts:
        what = f"adapters on {ALL_LINEAR} of {setup.model.name}, whose experts are stacked in one parameter"
        do = "pass targets=('q_proj', 'v_proj'), or trace it: `workbook trace train`"
        raise WorkbookError(what, "targets by name: peft adapts such experts too, which is not counted here", do)


def require_rows_of_adapters(setup: TrainSetup) -> None:
    """Refuse adapters that are traced alone."""
    if setup.adapter and setup.adapter.kind in TRACED_KINDS:
        what = f"peft's {setup.adapter.kind}, whose adapters have no closed form"
        do = f"trace it: `workbook trace train --adapter {setup.adapter.kind}`, trace.train(setup)"
        raise WorkbookError(what, ", ".join(KINDS), do)


def _require_lora_s_dropout(setup: TrainSetup) -> None:
    """Refuse DoRA with dropout, which multiplies by the base once more: peft's code for it has no rows here."""
    if setup.adapter and setup.adapter.dropout and setup.adapter.kind == "dora":
        do = "pass dropout=0, or trace it: `workbook trace train`"
        raise WorkbookError(
            f"DoRA with a dropout of {setup.adapter.dropout:g}", "LoRA with dropout, or DoRA without", do
        )


def _require_4_bits(setup: TrainSetup) -> None:
    """Refuse LLM.int8(), whose node holds what it was given until the graph is gone, in a checkpoint too."""
    if setup.adapter and setup.adapter.base == "int8":
        what, expected = "a frozen base in int8 has no closed form", "nf4, nf4-dq, or no base format"
        raise WorkbookError(what, expected, "trace it: `workbook trace train --lora-base int8`, trace.train(setup)")
