"""Training from preferences against a card: GRPO or DPO by stages, where it stops, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ...catalog.adapters import ALL_LINEAR
from ...catalog.devices import Device, device
from ...catalog.errors import WorkbookError, require_whole
from ...catalog.hardware import without_bf16, without_cuda
from ...catalog.losses import TRL
from ...catalog.preference import GENERATORS, SHARE, DpoSetup, GrpoSetup
from ...catalog.setup_fields import MAX_TOKENS
from ...catalog.train_setup import TrainSetup
from ...memory.breakdown import format_bytes
from ...memory.preference import PreferenceBudget
from ...questions.parameter import LEFT_OUT, Parameter, decimal, either, whole
from ...questions.parameters import ADAPTED, GPU, MODEL, POWERS, RESERVE, STEP, changed, trained_models
from ...questions.question import Question
from ...questions.setups import Values, setup_of
from ..drawing.bars import stacked_bars
from ..drawing.pictures import Card
from .answers import MemoryAnswer, first_over
from .calculator import Calculator
from .memory import NO_CHANGE
from .preference_changes import Setup, budget_of, changes


@dataclass(frozen=True)
class PreferenceAnswer(MemoryAnswer):
    """The highest stage by part, and all stages."""

    predicted: PreferenceBudget

    @property
    def name(self) -> str:
        return "GRPO" if isinstance(self.predicted.setup, GrpoSetup) else "DPO"

    @property
    def title(self) -> str:
        peak, model = self.predicted.peak, self.predicted.setup.train.model.name
        return f"{self.name} of {model}: {format_bytes(peak.total)} at the peak, {peak.at}"

    @property
    def question(self) -> Question:
        return GRPO if isinstance(self.predicted.setup, GrpoSetup) else DPO

    @property
    def asked(self) -> dict[str, Any]:
        return {**_asked(self.predicted.setup), **self.on_card}

    def lines(self) -> Iterator[str]:
        """A row for each stage, with its parts."""
        for moment in self.predicted.moments:
            parts = ", ".join(f"{part} {format_bytes(size)}" for part, size in moment.parts.items())
            yield f"{moment.at:<36}{format_bytes(moment.total):>11}   {parts}"

    def sentences(self) -> Iterator[str]:
        setup, need = self.predicted.setup, self.predicted.peak_bytes
        yield from _said_of(self.predicted)
        if self.room is None:
            yield f"One card needs {format_bytes(need)}."
            return
        yield from self.decides(self.room, need)
        yield from first_over(self.predicted.moments, self.room)
        if not self.holds(need):
            first, *others = (*islice(changes(setup, self.room), 2), None)
            yield f"The cheapest change that fits: {first}." if first else NO_CHANGE
            yield from (f"The next: {other}." for other in others if other)
        yield from without_cuda(self.gpu)
        yield from without_bf16(self.gpu, setup.train.precision_recipe.activation_format)

    @property
    def cards(self) -> tuple[Card, ...]:
        rows = [(str(moment.at), moment.parts) for moment in self.predicted.moments]
        return (stacked_bars(self.title, rows, self.capacities, str(self.predicted.peak.at)),)

    @property
    def figures(self) -> dict[str, Any]:
        launch = self.predicted.launch
        engine = {"pool_bytes": launch.pool_bytes, "users": launch.users} if launch else None
        stages = {str(moment.at): dict(moment.parts) for moment in self.predicted.moments}
        return {**super().figures, "stage": str(self.predicted.peak.at), "stages": stages, "engine": engine}


def preference_answer(
    setup: Setup, gpu: str | Device | None = None, reserve_bytes: int | None = None
) -> PreferenceAnswer:
    """What `setup` needs on `gpu`, stage by stage. Raises WorkbookError as `grpo` and `dpo` do."""
    card = device(gpu) if gpu else None
    predicted = budget_of(setup, card)
    return PreferenceAnswer(predicted.parts, card, predicted, reserve_bytes=reserve_bytes)


def _said_of(predicted: PreferenceBudget) -> Iterator[str]:
    """What is held and what is not, and what that depends on."""
    setup, train = predicted.setup, predicted.setup.train
    if train.adapter and train.adapter.base:
        yield train.adapter.recipe
    if setup.keeps_reference:
        yield "The reference is a second copy of the weights."
    elif isinstance(setup, DpoSetup) and setup.precomputed:
        yield "The reference's log-probabilities are computed before the training, so that no copy stays."
    elif train.adapter and (isinstance(setup, DpoSetup) or setup.beta):
        yield "The reference is the base itself, its adapters switched off: no second copy."
    if isinstance(setup, GrpoSetup):
        yield from _said_of_generation(setup, predicted)
    yield "Logits are those of TRL 1.16's fused head: a tile at a time, of completions alone."
    if train.masked and train.attention == "sdpa":
        yield "Batches are padded to the longest, so each sequence has a mask; of equal lengths: --no-padding."


def _said_of_generation(setup: GrpoSetup, predicted: PreferenceBudget) -> Iterator[str]:
    together = f"{setup.at_once:,} completions are generated at once"
    if launch := predicted.launch:
        waits = "asleep" if setup.sleeps else "awake"
        yield f"{together}, by {launch.engine.title} in {setup.share:g} of the card: room for {launch.users:,}."
        yield f"While the policy trains the engine is {waits}."
        if launch.tokens < setup.train.model.max_positions:
            least = f"vllm_max_model_length={setup.train.sequence}"
            yield f"Set {least}, as vLLM wants room for the {setup.train.model.max_positions:,} positions of the model."
    else:
        yield f"{together}, by Transformers, with a cache of {predicted.moments[0].parts['kv_cache'] / 2**30:.2f} GiB."


def _asked(setup: Setup) -> dict[str, Any]:
    """By parameter of GRPO and DPO, whose defaults are TRL's."""
    train = setup.train
    said = {
        "setup": train,
        **dict.fromkeys(("sequence", "loss", "masked", "scored"), LEFT_OUT),
        "precision": train.precision,
        "checkpointing": train.checkpointing,
        "prompt": setup.prompt,
        "completion": train.sequence - setup.prompt,
        "padding": train.masked,
    }
    if isinstance(setup, DpoSetup):
        return {**said, "micro_batch": train.micro_batch // 2, "precompute": setup.precomputed}
    per = setup.steps_per_generation
    return {
        **said,
        "micro_batch": train.micro_batch,
        "generations": setup.generations,
        "steps_per_generation": None if per == train.micro_batches else per,
        "iterations": setup.iterations,
        "beta": setup.beta,
        "generator": setup.generator,
        "share": None if setup.share == SHARE else setup.share,
        "sleep": setup.sleeps,
    }


def _train_of(said: Values, rows: int) -> TrainSetup:
    """The step on `rows` sequences, in TRL's recipe where nobody says another."""
    do = "pass --completion 512, TRL's default, or leave it out"
    require_whole("completion", said["completion"], most=MAX_TOKENS, unit="tokens", do=do)
    require_whole("prompt", said["prompt"], most=MAX_TOKENS, unit="tokens", do=do.replace("completion", "prompt"))
    adapted = said["adapter"] or said["lora_rank"]
    own = {"trainer": said["trainer"] or ("trl" if adapted else None), "micro_batch": rows, "loss": TRL}
    own |= {"sequence": said["prompt"] + said["completion"], "masked": said["padding"]}
    setup = setup_of(TrainSetup, {**said, **own})
    if said["precision"] is None and setup.adapter and not setup.adapter.base:
        return setup_of(TrainSetup, {**said, **own, "precision": ON_BASE})
    return setup


def _ask_grpo(gpu: str | None = None, reserve_bytes: int | None = None, **chosen: Any) -> PreferenceAnswer:
    said = {**{one.name: one.default for one in GRPO.parameters}, **chosen}  # controls say less than flags
    if said["share"] is not None and said["generator"] == GENERATORS[0]:
        what = f"--share with {GENERATORS[0]}, which sets no share of the card aside"
        raise WorkbookError(what, "--generator vllm", "add --generator vllm, or leave --share out")
    share = SHARE if said["share"] is None else said["share"]
    how = (said["generations"], said["steps_per_generation"], said["iterations"], said["beta"], said["generator"])
    train = _train_of(said, said["micro_batch"])
    return preference_answer(GrpoSetup(train, said["prompt"], *how, share, said["sleep"]), gpu, reserve_bytes)


def _ask_dpo(gpu: str | None = None, reserve_bytes: int | None = None, **said: Any) -> PreferenceAnswer:
    train = _train_of(said, 2 * said["micro_batch"])
    return preference_answer(DpoSetup(train, said["prompt"], said["precompute"]), gpu, reserve_bytes)


def reinforcement(**start: object) -> Calculator:
    """The live calculator of GRPO. `start` moves its controls: `reinforcement(model="qwen3-8b", generator="vllm")`."""
    return Calculator(GRPO, start)


def _means(said: dict[str, Any]) -> dict[str, Any]:
    """The method is adapters of rank 16 on all linear layers, and the format of their base."""
    method = said.pop("method")
    return {**said, **ADAPTERS.get(method, {})}


ADAPTERS: dict[str, dict[str, Any]] = {"LoRA": {"lora_rank": 16, "lora_targets": ALL_LINEAR}}
ADAPTERS["QLoRA"] = {**ADAPTERS["LoRA"], "lora_base": "nf4-dq"}
LENGTHS = POWERS[7:14]
MICRO_BATCH, TOKENS = 8, 512  # per_device_train_batch_size; max_completion_length of GRPOConfig
ON_BASE = "autocast-bf16-on-bf16"  # bf16=True on a base loaded in BF16


def _parameters(rows: str) -> tuple[Parameter, ...]:
    base = STEP[0].words.replace("and bf16 for adapters", f"and {ON_BASE} for adapters")
    return changed(
        (
            *(MODEL, *STEP, *ADAPTED),
            Parameter("prompt", "tokens of the longest prompt", TOKENS, whole, always=True),
            Parameter("completion", "tokens of the longest completion", TOKENS, whole, always=True),
            Parameter(
                "padding",
                "whether sequences of a batch differ in length, which gives attention a mask (default: they do)",
                True,
                either,
            ),
        ),
        precision={"words": base, "always": True},
        micro_batch={"words": f"{rows} in one forward", "default": MICRO_BATCH, "always": True},
        checkpointing={"default": "full", "always": True},
    )


GRPO = Question(
    "grpo",
    "GRPO as TRL runs it, by stages: generation, log-probabilities, loss, backward; bytes by part, verdict",
    _ask_grpo,
    (
        *changed(
            _parameters("completions"),
            model={"steps": trained_models(), "start": "llama-3.1-8b"},
            micro_batch={"label": "in one forward", "steps": POWERS[3:7]},
            prompt={"label": "prompt", "steps": LENGTHS},
            completion={"label": "completion", "steps": LENGTHS},
            checkpointing={"steps": ("none", "full")},
        ),
        Parameter("generations", "completions of each prompt", 8, whole, metavar="N"),
        Parameter(
            "steps_per_generation",
            "micro-batches that are generated for at once (default: as many as are accumulated)",
            type=whole,
            metavar="N",
        ),
        Parameter("iterations", "times that each completion is used", 1, whole, metavar="N"),
        Parameter("beta", "weight of the distance to a reference; 0: none", 0.0, decimal).with_control(
            "reference", {"none": 0.0, "beta 0.04": 0.04}, "none"
        ),
        Parameter("generator", f"who generates: {', '.join(GENERATORS)} on the same card", GENERATORS[0]).with_control(
            "who generates", GENERATORS
        ),
        Parameter(
            "share", f"of the whole card that vLLM takes (vllm_gpu_memory_utilization); default {SHARE:g}", type=decimal
        ),
        Parameter(
            "sleep",
            "vLLM gives its weights and its pool back between generations (vllm_enable_sleep_mode)",
            False,
            bool,
        ).with_control("vLLM meanwhile", {"awake": False, "asleep": True}, "awake"),
        replace(GPU, start="h100-80gb"),
        RESERVE,
    ),
    title="GRPO on one card",
    asks="What is on the card while it generates, scores and trains?",
    invites="Let vLLM generate. Then let it sleep: which stage is the highest now?",
    controls=(
        *("model", "gpu", "method", "completion", "generator", "sleep", "prompt", "micro_batch", "beta"),
        *("checkpointing", "reserve"),
    ),
    front=("model", "gpu", "method", "completion", "generator", "sleep"),
    shown=(Parameter("method").with_control("method", ("full", *ADAPTERS), "LoRA"),),
    used=lambda values: [name for name in values if name != "sleep" or values["generator"] != GENERATORS[0]],
    means=_means,
)
DPO = Question(
    "dpo",
    "DPO as TRL runs it, by stages: loss, reference, backward; bytes by part, verdict",
    _ask_dpo,
    (
        *_parameters("pairs, of two sequences each,"),
        Parameter("precompute", "score by the reference before the training (precompute_ref_log_probs)", False, bool),
        GPU,
        RESERVE,
    ),
)
