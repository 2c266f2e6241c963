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


def refuse(refused: object, what: str, expected: str, do: str) -> None:
    if refused:
        raise WorkbookError(what, expected, do)


def require_closed_form(setup: TrainSetup) -> None:
    """Refuse a setup whose peak the tape does not know: by model, by kernel, by policy, by what is adapted."""
    do = "`workbook trace train --checkpointing offload` runs it, in seconds and without a GPU"
    expected = "a policy that recomputes, or offload:inputs"  # what an offload brings back depends on who asks when
    refuse(setup.checkpointing == "offload", "checkpointing is 'offload', whose peak has no closed form", expected, do)
    require_kernel(setup)
    _require_counted_adapters(setup)
    require_page(setup)


def _require_counted_adapters(setup: TrainSetup) -> None:
    """Refuse stacked experts, which peft's "all-linear" adapts each; DoRA with dropout, which multiplies by the base
    once more; and LLM.int8(), whose node holds what it was given until the graph is gone, in a checkpoint too."""
    if not (adapter := setup.adapter):
        return
    what = f"adapters on {ALL_LINEAR} of {setup.model.name}, whose experts are stacked in one parameter"
    do = "pass targets=('q_proj', 'v_proj'), or trace it: `workbook trace train`"
    expected = "targets by name: peft adapts such experts too, which is not counted here"
    refuse(ALL_LINEAR in adapter.targets and setup.model.has_experts, what, expected, do)
    require_rows_of_adapters(setup)
    what, expected = f"DoRA with a dropout of {adapter.dropout:g}", "LoRA with dropout, or DoRA without"
    do = "pass dropout=0, or trace it: `workbook trace train`"
    refuse(adapter.dropout and adapter.kind == "dora", what, expected, do)
    what, expected = "a frozen base in int8 has no closed form", "nf4, nf4-dq, or no base format"
    do = "trace it: `workbook trace train --lora-base int8`, trace.train(setup)"
    refuse(adapter.base == "int8", what, expected, do)


def require_rows_of_adapters(setup: TrainSetup) -> None:
    """Refuse adapters that are traced alone."""
    kind = setup.adapter.kind if setup.adapter else ""
    do = f"trace it: `workbook trace train --adapter {kind}`, trace.train(setup)"
    refuse(kind in TRACED_KINDS, f"peft's {kind}, whose adapters have no closed form", ", ".join(KINDS), do)


def require_page(setup: TrainSetup) -> None:
    """Refuse a model of whose family there is no page."""
    name, family = setup.model.name, setup.model.family
    what = f"the activations of {name} (family {family!r}) have no closed form here"
    do = f"trace it: `workbook trace train --model {name}`, helpers.memory.trace.train(setup); "
    do += "`workbook estimate serve` knows weights and KV cache"
    known = f"a decoder of one of the families {', '.join(sorted(PAGES))}"
    refuse(family not in PAGES or setup.model.counted, what, known, do)


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
    model, what, do = setup.model, f"{setup.precision} with {setup.model.name}", "choose precision='bf16'"
    expected = "a model whose outputs of FP8 layers are left alone: PyTorch refuses such a step"
    adds = f"{what}, which adds to what its shared expert has returned in place"
    refuse(model.family == "llama4_text", adds, expected, do)
    expected = "a model of torch.nn.Linear: torchao converts no others"
    refuse(model.family == "gpt2", f"{what}, whose layers are Transformers' Conv1D", expected, do)
    sizes = {f"the tokens of a micro-batch of {model.name}": setup.tokens}
    for group in model.linears():
        if group.part in ("attention", "mlp"):
            sizes |= {f"{group.linear.name} of {model.name}, one way": group.linear.inputs}
            sizes |= {f"{group.linear.name} of {model.name}": group.linear.outputs}
    for name, size in sizes.items():
        odd, padded = f"{name} are {size:,} in {setup.precision}", "pad the sequence"
        refuse(size % FLOAT8_MULTIPLE, odd, f"a multiple of {FLOAT8_MULTIPLE}", padded if size == setup.tokens else do)


def attention_of(model: ModelShape) -> str:
    """The attention that Transformers runs a model with: "sdpa", or "eager" where it has no other.

    >>> from helpers.catalog import model
    >>> attention_of(model("llama-3-8b")), attention_of(model("gpt-oss-20b"))
    ('sdpa', 'eager')
    """
    return "eager" if model.family in EAGER_ALONE else "sdpa"
