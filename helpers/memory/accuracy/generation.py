"""What `generate` allocates at most, from its prompt to its last token: the closed form and the trace beside it."""

from __future__ import annotations

from dataclasses import replace

from ...catalog.serve_setup import ServeSetup
from .. import budget
from .cases import Case

CLOSED_FORM, TRACE = "peak allocated, closed form", "peak allocated, trace"


def predict(case: Case) -> dict[str, int]:
    """Bytes that torch.cuda.max_memory_allocated() would say, by instrument; nobody resets it after loading."""
    from .. import trace  # brings torch

    setup = ServeSetup(**case.setup)
    whole = replace(setup, prefill_tokens=setup.prefill_tokens or setup.prompt_tokens)  # as Transformers takes it
    closed_form, traced = budget.serve(whole, case.device), trace.serve(setup, case.device)
    return {CLOSED_FORM: closed_form.peak_allocated_bytes, TRACE: traced.on_gpu.peak_allocated_bytes}
