"""Can I run it? A model on a card: served, fine-tuned, trained; verdicts, the most that fits, what to change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlencode

from ...catalog.devices import Device, device
from ...catalog.hardware import without_bf16, without_cuda
from ...catalog.models import model as resolve_model
from ...catalog.serve_setup import ServeSetup
from ...catalog.shape import ModelShape
from ...catalog.train_setup import TrainSetup
from ...memory.breakdown import format_bytes
from ...memory.fit import Room, Verdict
from ...memory.serve.engines.llamacpp_layers import MARGIN_BYTES
from ...memory.serve.engines.weights import longest_context
from ...questions.parameters import ANY_CONFIG, CONTEXT, GPU, MODEL, POWERS, RESERVE, SEQUENCE, SERVED, changed
from ...questions.question import Question
from ...questions.setups import within_positions
from ..drawing.bars import stacked_bars
from ..drawing.pictures import Card
from .answers import CalculatorAnswer, plural, said_of_card, without_kernel
from .calculator import Calculator
from .uses import Use, uses

SEVERAL = "not on one card"
COLUMNS = ("to", "GiB", "verdict", "the most that fits, or what to change")


@dataclass(frozen=True)
class UsesAnswer(CalculatorAnswer):
    """What can be done with `model` on `gpu`, one row each, from serving to training every weight."""

    model: ModelShape
    gpu: Device
    users: int
    context: int
    sequence: int
    uses: tuple[Use, ...]
    reserve_bytes: int | None = None

    @property
    def title(self) -> str:
        fits = [use.name for use in self.uses if use.fits]
        tight = [use.name for use in self.uses if use.verdict is Verdict.TIGHT]
        named = f"{', '.join(fits) or 'none of these'} {'fit' if len(fits) > 1 else 'fits'}"
        named = f"{', '.join(tight)} {'are' if len(tight) > 1 else 'is'} tight" if tight and not fits else named
        served = [use for use in self.uses if isinstance(use.setup, ServeSetup)]
        several = [use.fewer or use.cards for use in served if use.cards > 1]
        if several and not any(use.verdict in (Verdict.FITS, Verdict.TIGHT) for use in served):
            named += f"; serving {plural(self.users, 'user')} takes {min(several)} cards or more"
        return f"{self.model.name} on the {self.gpu.title}: {named}"

    @property
    def question(self) -> Question:
        return CAN_I_RUN

    @property
    def asked(self) -> dict[str, Any]:
        sizes = {"users": self.users, "context": self.context, "sequence": self.sequence}
        return {"model": self.model, **said_of_card(self.gpu, self.reserve_bytes), **sizes}

    def lines(self) -> Iterator[str]:
        names = max(len(use.name) for use in self.uses)
        yield f"{'':<{names}}  {'needs':>12}"
        for use in self.uses:
            need = format_bytes(use.parts.total) if use.setup else "?"
            said = f"{_verdict(use)}: {_rest(use)}"
            yield f"{use.name:<{names}}  {need:>12}   {said}"

    def sentences(self) -> Iterator[str]:
        if size := re.fullmatch(r"([\d.]+)GB", self.gpu.name):
            read = f"{self.gpu.name} is read as {format_bytes(self.gpu.capacity_bytes)}"
            yield f"{read}. Most cards sold as {size[1]} GB have more: name yours, or write {size[1]}GiB."
        if self.gpu.compute_capability and self.gpu.compute_capability.kind == "convention" and not self.model.stored:
            yield "Whether it serves FP8 depends on the card: name it."
        yield f"Served: {plural(self.users, 'user')} × {self.context:,} tokens, KV cache in 16 bits."
        yield from self._trained()
        kept = Room(self.gpu, self.reserve_bytes)
        if kept.reserve_bytes:
            yield f"Of the card {kept.kept_told} are kept for {kept.reserve.told}."
        if any(use.verdict is Verdict.TIGHT for use in self.uses):
            margin = f"the {format_bytes(MARGIN_BYTES)} that llama.cpp's --fit keeps"
            yield f"What is tight has the bytes, and not {margin if self.model.stored else 'that reserve'}."
        yield from (f"{without_kernel(use.stored, self.gpu)}." for use in self.uses if use.stored)
        most = longest_context(self.model)
        if most and self.context > most:
            yield f"{self.model.name} was made for {most:,} tokens: an engine does not start with more."
        yield from without_cuda(self.gpu)
        yield from without_bf16(self.gpu, "bf16")

    def _trained(self) -> Iterator[str]:
        trained = {use.name: use for use in self.uses if isinstance(use.setup, TrainSetup)}
        if not trained:
            return
        yield f"Trained: one sequence of {self.sequence:,} tokens, layers checkpointed, AdamW, adapters of rank 16."
        if any(use.on_attention for use in trained.values()):
            yield "Its experts take no adapters: attention alone has them."
        totals = [trained[name].parts.total for name in ("QLoRA", "LoRA") if name in trained]
        if self.model.has_experts and len(totals) == 2 and totals[0] > totals[1]:
            yield "QLoRA leaves stacked experts out of the four bits, and casts them to FP32."
        if self.gpu.capability:
            yield "Trained rows need PYTORCH_ALLOC_CONF=expandable_segments:True: without it holes take room, too."

    @property
    def cards(self) -> tuple[Card, ...]:
        bars = {use.name: use.parts for use in self.uses if use.setup}
        return (stacked_bars(self.title, bars, {self.gpu.title: self.gpu.capacity_bytes}),)

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "model": self.model.name,
            "device": self.gpu.name,
            "capacity_bytes": self.gpu.capacity_bytes,
            "reserve_bytes": Room(self.gpu, self.reserve_bytes).reserve_bytes,
            "uses": {use.name: use.figures for use in self.uses},
        }

    def as_html(self) -> str:
        """A table in place of the lines. A page that knows where others lie makes links of `data-to`."""
        head = "".join(f'<th role="columnheader">{name}</th>' for name in COLUMNS)
        rows = "".join(_row(use) for use in self.uses)
        style = "border-collapse:collapse;width:100%;font-size:14px"
        head = f'<thead><tr role="row">{head}</tr></thead>'
        table = f'<table role="table" class="uses" style="{style}">{head}<tbody>{rows}</tbody></table>'
        return f'<div tabindex="0" style="overflow-x:auto">{table}</div>{self._picture_as_html()}{self._said_as_html()}'


def _row(use: Use) -> str:
    need = f"{use.parts.total / 2**30:,.1f}" if use.setup else "?"
    page, settings = use.page
    chapter, heading = use.why
    more = _link(f"calculators/{page}.html#{urlencode(settings)}", "in full") if page else ""
    more += _link(f"book/{chapter}.html#{heading.replace(' ', '-')}", "why")
    if use.plan:
        more += _link(f"calculators/service_planner.html#{urlencode(use.plan)}", "plan it")
    rest = escape(_rest(use)) + _to_copy("start it", use.start)
    rest += _to_copy(f"start it on {use.fewer}", use.start_with_fp8) + _to_copy("count it in a terminal", use.command)
    kind = {SEVERAL: "several"}.get(_verdict(use), str(use.verdict or "unknown").replace(" ", "-"))
    cells = (escape(use.name) + more, need, _verdict(use), rest)
    said = "".join(
        f'<td role="cell" style="text-align:left;vertical-align:top;padding:4px 8px">{cell}</td>' for cell in cells
    )
    return f'<tr role="row" class="{kind}">{said}</tr>'


def _link(to: str, words: str) -> str:
    return f' <a data-to="{escape(to)}">{words}</a>'


def _to_copy(words: str, command: str | None) -> str:
    style = "user-select:all;cursor:copy;overflow-wrap:anywhere;font-size:11.5px"
    if not command:
        return ""
    return f'<details><summary>{words}</summary><code style="{style}">{escape(command)}</code></details>'


def _verdict(use: Use) -> str:
    return SEVERAL if use.cards > 1 and use.verdict is Verdict.DOES_NOT_FIT else str(use.verdict or "no answer")


def _rest(use: Use) -> str:
    """The most that fits, what to change, or why there is no answer."""
    fewer = f"; vLLM's pool holds {use.in_vllms_pool:,}" if use.in_vllms_pool else ""
    return use.refused or (f"up to {use.most_told}{fewer}" if use.fits else use.change)


def can_i_run_answer(
    model: ModelShape | str,
    gpu: str | Device,
    users: int = 1,
    context: int = 8192,
    sequence: int = 2048,
    reserve_bytes: int | None = None,
) -> UsesAnswer:
    """`model` on one `gpu`: served to `users` of `context` tokens, and fine-tuned and trained on one sequence.

    Each row is the answer of the question that it belongs to: serving by Transformers' forward, prompts in pieces (of a
    GGUF file by llama.cpp), QLoRA, LoRA and full training with AdamW and full checkpointing. WorkbookError for an
    unknown model or card; a row that has no answer says why. A table of positions limits both lengths.

    >>> answer = can_i_run_answer("llama-3.1-8b", "rtx-4090")
    >>> [(use.name, round(use.parts.total / 2**30, 1)) for use in answer.uses if use.fits][-2:]
    [('QLoRA', 12.7), ('LoRA', 18.9)]
    """
    shape, card = resolve_model(model), device(gpu)
    context, sequence = within_positions(shape, context), within_positions(shape, sequence)
    found = tuple(uses(shape, card, users, context, sequence, reserve_bytes))
    return UsesAnswer(shape, card, users, context, sequence, found, reserve_bytes)


def can_i_run(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `can_i_run(model="qwen3-32b", gpu="h100")`."""
    return Calculator(CAN_I_RUN, start)


[_USERS] = (one for one in SERVED if one.name == "users")
_ALONE = {"users": 1, "context": 8192, "sequence": 2048}  # a preset leaves nothing of the one before
CAN_I_RUN = Question(
    "can-i-run",
    "a model on your card: served, fine-tuned, trained; verdicts, the most that fits, what to change",
    can_i_run_answer,
    changed(
        (MODEL, GPU, _USERS, CONTEXT, SEQUENCE, RESERVE, ANY_CONFIG),
        model={"by_position": True, "required": False, "start": "llama-3.1-8b"},
        gpu={"required": True, "start": "rtx-4090-24gb"},
        users={"steps": (*POWERS[:6], 50, *POWERS[6:11])},
        context={"default": 8192, "steps": tuple(1024 * 2**power for power in range(8))},
        sequence={"label": "training sequence, tokens"},
    ),
    family=(),
    title="Can I run it?",
    asks="Which model, on which card, to do what?",
    invites="Name your model and your card. Then ask for more users, or a longer context.",
    controls=("model", "config", "gpu", "users", "context", "sequence", "reserve"),
    front=("model", "config", "gpu", "users", "context", "sequence"),
    typed=("model", "gpu"),
    presets={
        "8B on 12 GB": {**_ALONE, "model": "llama-3.1-8b", "gpu": "rtx-3060-12gb"},
        "8B on my 24 GB": {**_ALONE, "model": "llama-3.1-8b", "gpu": "rtx-4090-24gb"},
        "70B for 50 people, H100": {**_ALONE, "model": "llama-3.1-70b", "gpu": "h100-80gb", "users": 50},
    },
)
