"""What vLLM calls the formats of weights and of a KV cache, and the line that starts it."""

from __future__ import annotations

import re

from ....catalog.errors import WorkbookError
from ....catalog.serve_setup import ServeSetup

VLLM_WEIGHTS = {
    "bf16": None,
    "fp16": None,
    "fp8-e4m3": "fp8",
    "awq-int4": "awq",
    "gptq-int4": "gptq",
    "gptq-int8": "gptq",
    "nf4": "bitsandbytes",
}
VLLM_KV = {"bf16": "auto", "fp16": "auto", "fp8-e4m3": "fp8_e4m3", "fp8-e5m2": "fp8_e5m2"}
_REPOSITORY = re.compile(r"hub, ([\w.-]+/[\w.-]+)")  # as the catalogue names its sources


def formats_named(weights: str, kv: str, shipped: str = "") -> tuple[str | None, str]:
    """Its --quantization and --kv-cache-dtype; what a checkpoint is `shipped` in it reads there, and needs no name.

    WorkbookError for a format that it has no name for.

    >>> formats_named("fp8-e4m3", "bf16")
    ('fp8', 'auto')
    """
    known = {**VLLM_WEIGHTS, shipped: None}
    for kind, name, names in (("weights", weights, known), ("a KV cache", kv, VLLM_KV)):
        if name not in names:
            raise WorkbookError(
                f"{kind} in {name} for vLLM", ", ".join(filter(None, names)), "choose a format of these"
            )
    return known[weights], VLLM_KV[kv]


def command(setup: ServeSetup, tensor: int = 1) -> str:
    """The line that starts it with `setup`'s lengths and formats. WorkbookError for a format without a name.

    It quantizes to FP8 while it loads; four bits are made before, so their checkpoint is the reader's own to name.

    >>> command(ServeSetup("llama-3.1-70b", kv="fp8-e4m3"), tensor=2)
    'vllm serve meta-llama/Llama-3.1-70B --tensor-parallel-size 2 --max-model-len 4096 --kv-cache-dtype fp8_e4m3'
    """
    method, cache = formats_named(setup.weights, setup.kv, setup.weights if setup.as_shipped else "")
    named = _REPOSITORY.search(setup.model.source)
    checkpoint = named[1] if named else "YOUR/MODEL"
    flags = [f"--tensor-parallel-size {tensor}"] if tensor > 1 else []
    flags.append(f"--max-model-len {setup.context}")
    if method == "fp8":
        flags.append("--quantization fp8")
    elif method:
        checkpoint = f"YOUR/MODEL-{method.upper()}"
    if cache != "auto":
        flags.append(f"--kv-cache-dtype {cache}")
    return " ".join(["vllm serve", checkpoint, *flags])
