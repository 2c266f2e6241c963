"""The mesh planner: tensor, pipeline, context, expert and data parallelism over cards and links, and its schedule.

Bytes are Megatron-LM's in closed form, seconds the planner's roofline at usual rates. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any

from ...catalog.devices import DEVICES
from ...catalog.errors import WorkbookError, require_name
from ...catalog.models import MODELS, model
from ...memory.breakdown import format_bytes
from ...memory.plan import Cards, Efficiency, Layout
from ...memory.plan.step import StepSeconds, expert_sent_bytes, sent_bytes, step_time, tensor_sent_bytes
from ...memory.plan.training import Job, StepEngine
from ...memory.step.ranks.megatron import BF16, RECOMPUTED, MegatronBudget, MegatronSetup, is_known, most_experts, train
from ...questions.parameter import Parameter, whole
from ...questions.parameters import GPU, MICRO_BATCHES, MODEL, POWERS, RESERVE, SEQUENCES
from ...questions.question import Question
from ...questions.setups import names_of
from ...techniques.parallel.pipeline import Schedule, Times, gpipe, in_flight, interleaved, lay_out, one_f_one_b
from ...techniques.parallel.pipeline import zero_bubble as zb_h1
from ..drawing.bars import stacked_bars
from ..drawing.pictures import Card
from ..drawing.pipelines import schedules
from ..units import percent, si
from .answers import MemoryAnswer, plural, row
from .calculator import Calculator

SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "GPipe": gpipe,
    "1F1B": one_f_one_b,
    "interleaved": partial(interleaved, virtual=2),
    "ZB-H1": zb_h1,
}
# The bubble beside 1F1B's: two stages on a rank halve it, and ZB-H1 fills two of three units with weights' work
SHORTER = {"GPipe": Fraction(1), "1F1B": Fraction(1), "interleaved": Fraction(1, 2), "ZB-H1": Fraction(1, 3)}
MOST_DRAWN = 8  # stages, and twice as many micro-batches: more boxes would have no room for their numbers
NETWORKS = {"400 Gb/s": 400, "200 Gb/s": 200, "100 Gb/s": 100, "25 Gb/s": 25}  # for each card
DEGREES = (1, 2, 4, 8, 16)
DEFAULT_GPU = "h100"


@dataclass(frozen=True)
class MeshAnswer(MemoryAnswer):
    """One mesh: the rank that needs most, what each rank sends, and the seconds of a step at usual rates."""

    setup: MegatronSetup
    budget: MegatronBudget = field(repr=False)
    fleet: Cards
    schedule: str
    job: Job = field(repr=False)
    layout: Layout
    time: StepSeconds

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    @property
    def waits(self) -> Fraction:
        """The pipeline's idle time, in units of what its rank computes."""
        return SHORTER[self.schedule] * Fraction(self.setup.pipeline - 1, self.setup.micro_batches)

    @property
    def bubble(self) -> Fraction:
        """The idle share of a pipeline's time."""
        return self.waits / (1 + self.waits)

    @property
    def seconds(self) -> dict[str, float]:
        """A step's, by what they go to, the bubble being this schedule's."""
        found = {name: part.middle for name, part in self.time.parts.items() if part.middle}
        if self.waits:
            found["the pipeline's bubble"] = self.time.bubble.middle * float(SHORTER[self.schedule])
        return found

    @property
    def sent(self) -> dict[str, float]:
        """Bytes that a rank sends in a step: for tensors, between stages (of an inner one), for gradients and weights.

        What passes between stages is divided by the tensor-parallel ranks, which share the tokens.
        """
        setup, layout = self.setup, self.layout
        tokens = setup.micro_batch * setup.sequence // setup.context_parallel
        boundary = BF16 * tokens * setup.model.hidden // setup.tensor_parallel
        virtual = 2 if self.schedule == "interleaved" else 1
        ways = 2 * virtual - (setup.pipeline == 2) if setup.pipeline > 1 else 0  # of two, each has one end of the model
        pairs = {
            "TP": tensor_sent_bytes(self.job, layout) if setup.tensor_parallel > 1 else 0,
            "PP": ways * boundary * setup.micro_batches,
            "EP": expert_sent_bytes(self.job, layout),
            "DP": sum(sent_bytes(self.job, layout)) if layout.data * layout.context > 1 else 0,
        }
        return {name: size for name, size in pairs.items() if size}

    @property
    def title(self) -> str:
        cards = plural(self.layout.ranks, "card")
        return f"{self.setup.model.name}, {self.layout} on {cards}: {format_bytes(self.parts.total)} on a rank"

    @property
    def question(self) -> Question:
        return MESH

    @property
    def asked(self) -> dict[str, Any]:
        own = {name: getattr(self.setup, name) for name in names_of(MegatronSetup)}
        network = f"{self.fleet.network_bytes_per_s * 8 / 1e9:g}"
        fleet = {"schedule": self.schedule, "node": self.fleet.node, "network": network}
        return {**own, **fleet, **self.on_card}

    def lines(self) -> Iterator[str]:
        return chain(_bytes(self), _sent(self), _seconds(self))

    def sentences(self) -> Iterator[str]:
        return chain(_room(self), _links(self), _bubble(self))

    @property
    def cards(self) -> tuple[Card, ...]:
        bars = stacked_bars(self.title, {"": self.parts}, self.capacities)
        return bars, *([self._drawn()] if self.setup.pipeline > 1 else [])

    def _drawn(self) -> Card:
        ranks = min(self.setup.pipeline, MOST_DRAWN)
        count = min(self.setup.micro_batches, 2 * ranks)
        schedule = schedule_of(self.schedule, ranks, count)
        half = Fraction(1, 2)
        laid = lay_out(schedule, Times(half, half, half) if self.schedule == "interleaved" else None)
        size = f"{plural(ranks, 'stage')} and {count} of {self.setup.micro_batches:,} micro-batches"
        return schedules(f"The schedule, drawn with {size}", {self.schedule: laid})

    @property
    def figures(self) -> dict[str, Any]:
        times = {"seconds": self.seconds, "step_s": sum(self.seconds.values()), "bubble": float(self.bubble)}
        where = {"stage": self.budget.stage, "stage_peaks_bytes": list(self.budget.stage_peaks_bytes)}
        return {**super().figures, **where, "cards": self.layout.ranks, "sent_bytes": self.sent, **times}


def schedule_of(name: str, ranks: int, micro_batches: int) -> Schedule:
    """A schedule by the calculator's name; "interleaved" has two stages on a rank."""
    require_name("schedule", name, SCHEDULES)
    return SCHEDULES[name](ranks, micro_batches)


def mesh_answer(
    setup: MegatronSetup,
    gpu: str = "h100",
    node: int = 8,
    network_gbit: float = 400,
    schedule: str = "1F1B",
    reserve_bytes: int | None = None,
) -> MeshAnswer:
    """`setup` on cards of which `node` are in a machine; between machines each has `network_gbit` gigabits a second.

    WorkbookError for what cannot be divided, and for a schedule that cannot have these micro-batches.

    >>> setup = MegatronSetup("llama-3.1-70b", tensor_parallel=4, pipeline=8, data_parallel=2, micro_batches=128)
    >>> answer = mesh_answer(setup)
    >>> answer.layout.ranks, answer.bubble
    (64, Fraction(7, 135))
    """
    require_name("schedule", schedule, SCHEDULES)
    ranks = setup.tensor_parallel * setup.pipeline * setup.data_parallel * setup.context_parallel
    fleet = Cards(gpu, ranks, node=node, network_bytes_per_s=network_gbit * 1e9 / 8, reserve_bytes=reserve_bytes)
    if setup.pipeline > 1:
        schedule_of(schedule, setup.pipeline, setup.micro_batches)
        _require_filled(schedule, setup)
    found, job, layout = train(setup, fleet.device), Job(setup.model, setup.sequence), layout_of(setup)
    time = step_time(job, layout, fleet, Efficiency())
    whose = fleet.device, setup, found, fleet, schedule, job, layout, time
    return MeshAnswer(found.parts, *whose, reserve_bytes=reserve_bytes)


def layout_of(setup: MegatronSetup) -> Layout:
    """The planner's word for it."""
    return Layout(
        StepEngine.MEGATRON,
        data=setup.data_parallel,
        tensor=setup.tensor_parallel,
        pipeline=setup.pipeline,
        context=setup.context_parallel,
        expert=setup.expert_parallel,
        checkpointing=setup.recompute,
        micro_batch=setup.micro_batch,
        micro_batches=setup.micro_batches,
    )


def _require_filled(schedule: str, setup: MegatronSetup) -> None:
    """ZB-H1's bubble is known where there are as many micro-batches as stages."""
    if schedule == "ZB-H1" and setup.micro_batches < setup.pipeline:
        what = f"{setup.micro_batches} micro-batches in {setup.pipeline} stages of ZB-H1"
        raise WorkbookError(what, "as many micro-batches as stages", f"pass {setup.pipeline} or more, or take 1F1B")


def _bytes(answer: MeshAnswer) -> Iterator[str]:
    stage, stages = answer.budget.stage, answer.setup.pipeline
    where = f"on stage {stage + 1} of {stages}, {answer.budget.peak.when}"
    yield row("a rank", format_bytes(answer.parts.total), where)
    for part, size in answer.parts.items():
        yield row(f"  {part}", format_bytes(size), "")
    if stages > 1:
        flight = in_flight(schedule_of(answer.schedule, stages, answer.setup.micro_batches))
        known = "" if answer.schedule == "1F1B" else ": bytes are those of 1F1B, the schedule with a closed form"
        yield row("in flight", f"{flight[0]:,}", f"on the first rank, {answer.schedule}{known}")


def _sent(answer: MeshAnswer) -> Iterator[str]:
    words = {
        "TP": "gathers and sums in every layer",
        "PP": "hidden values and their gradients, a rank between two others",
        "EP": "tokens to their experts and back, evenly routed",
        "DP": "gradients and weights",
    }
    for name, size in answer.sent.items():
        yield row(f"{name} sends", format_bytes(round(size)), f"a rank and step: {words[name]}")


def _seconds(answer: MeshAnswer) -> Iterator[str]:
    total = sum(answer.seconds.values())
    yield row("a step", si(total, "s"), "at usual rates: 45 % of the peak in products, 65 % of a link")
    for name, part in answer.seconds.items():
        yield row("", si(part, "s"), name)


def _room(answer: MeshAnswer) -> Iterator[str]:
    if answer.room:
        yield answer.room.sentence(answer.parts.total)


def _links(answer: MeshAnswer) -> Iterator[str]:
    """Whether tensor parallelism stays inside a machine, and what it costs."""
    tensor, node = answer.setup.tensor_parallel, answer.fleet.node
    if tensor == 1:
        return
    share = percent(answer.seconds["tensor-parallel links"] / sum(answer.seconds.values()))
    rate = si(answer.fleet.link_bytes_per_s(tensor), "B/s")
    if tensor > node:
        yield f"TP {tensor} leaves the machine of {plural(node, 'card')}: its sums travel at {rate} and take {share}."
    else:
        yield f"Tensor parallelism takes {share} of a step, at {rate} inside a machine."


def _bubble(answer: MeshAnswer) -> Iterator[str]:
    stages, count = answer.setup.pipeline, answer.setup.micro_batches
    if stages == 1:
        return
    few = f", for these are few for {stages} stages" if count < 4 * stages else ""
    of = "one micro-batch" if count == 1 else f"{count:,} micro-batches"
    yield f"With {of} the pipeline is idle for {percent(float(answer.bubble))} of its time{few}."


def mesh(**start: object) -> Calculator:
    """The live planner. `start` moves its controls: `mesh(model="llama-3.1-405b", pipeline=14)`."""
    return Calculator(MESH, start)


def _ask(setup: MegatronSetup, gpu: str | None = None, **how: Any) -> MeshAnswer:
    how = {"network_gbit" if name == "network" else name: value for name, value in how.items()}
    return mesh_answer(setup, gpu or DEFAULT_GPU, **how)


def _means(said: dict[str, Any]) -> dict[str, Any]:
    """The control of experts stands where a mixture left it."""
    if isinstance(said["network"], str):
        require_name("network", said["network"], NETWORKS)
    return said if most_experts(model(said["model"])) else said | {"expert_parallel": 1}


_MESHED = tuple(name for name, card in DEVICES.items() if card.links and "bf16" in card.peak_flops)
OVER_RANKS = (  # Megatron's own
    Parameter("tensor_parallel", "ranks that share each matrix", 1, whole).with_control("tensor", DEGREES, 8),
    Parameter(
        "pipeline", "stages of layers; where they do not divide, the first and the last have fewer", 1, whole
    ).with_control("pipeline", DEGREES),
    Parameter("data_parallel", "replicas, which share the optimizer's states", 1, whole).with_control(
        "data", POWERS[:11], 8
    ),
    Parameter("expert_parallel", "of these, ranks that share a layer's experts", 1, whole).with_control(
        "experts", DEGREES
    ),
    Parameter(
        "micro_batches", "micro-batches of a step, one after the other (1F1B)", 8, whole, flag="--micro-batches"
    ).with_control("micro-batches", POWERS[:9], 32),
    Parameter("micro_batch", "sequences in one of them", 1, whole).with_control("sequences in one", MICRO_BATCHES),
    Parameter("sequence", "tokens in a sequence", 4096, whole).with_control("sequence, tokens", SEQUENCES, 8192),
)
MESH = Question(
    "mesh",
    "a mesh of cards: bytes on a rank, traffic, the pipeline's bubble and seconds a step",
    _ask,
    (
        replace(MODEL, steps=tuple(name for name in MODELS if is_known(model(name))), start="llama-3.1-70b"),
        *OVER_RANKS,
        Parameter("context_parallel", "ranks that share each sequence", 1, whole).with_control("context", DEGREES),
        Parameter("recompute", f"checkpointing: {', '.join(RECOMPUTED)}", "none").with_control(
            "recompute", tuple(RECOMPUTED)
        ),
        Parameter("schedule", f"one of {', '.join(SCHEDULES)}", "1F1B", always=True).with_control(
            "schedule", tuple(SCHEDULES)
        ),
        Parameter("node", "cards in a machine", 8, whole, always=True).with_control(
            "cards a machine", (1, 2, 4, 8, 16)
        ),
        Parameter("network", "Gb/s between machines, a card", 400.0, float, always=True).with_control(
            "network", NETWORKS, "400 Gb/s"
        ),
        replace(GPU, steps=_MESHED, start="h100-80gb"),
        RESERVE,
    ),
    setup=MegatronSetup,
    units="bytes and seconds",
    title="A mesh of GPUs",
    asks="How is a model split over many cards, and how long does a step take?",
    invites="It does not fit. Take 4 pipeline stages and 2 replicas; then 4 cards a machine: what is waited for?",
    controls=(
        *("model", "gpu", "tensor_parallel", "pipeline", "data_parallel", "context_parallel", "expert_parallel"),
        *("micro_batches", "micro_batch", "sequence", "recompute", "schedule", "node", "network", "reserve"),
    ),
    front=("model", "gpu", "tensor_parallel", "pipeline", "data_parallel"),
    means=_means,
)
