"""Training from preferences: GRPO, which generates what it learns from, and DPO, on pairs. No torch.

What TRL 1.16 does when nobody says otherwise (trl/trainer/grpo_config.py, dpo_config.py, base_config.py): full
checkpointing, autocast over the weights' own type, logits a tile at a time and of completions alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import WorkbookError, require_number, require_whole, unknown_name
from .losses import TRL
from .setup_fields import MAX_COUNT
from .train_setup import TrainSetup

GENERATORS = ("transformers", "vllm")  # `generate` with the policy itself, or an engine on the same card
SHARE = 0.3  # vllm_gpu_memory_utilization of GRPOConfig
ENGINE_TOKENS = 4096  # max_num_batched_tokens in trl/generation/vllm_generation.py
RECIPES = ("fp32", "bf16", "autocast-bf16", "autocast-bf16-on-bf16")


@dataclass(frozen=True)
class GrpoSetup:
    """Group relative policy optimization of `train.model`, on one card.

    `train` is a step on completions: `micro_batch` of them in a forward, `sequence` tokens each, of which `prompt` are
    the prompt's. Completions are generated for `steps_per_generation` micro-batches at once (None: as many as are
    accumulated), `generations` of them for each prompt, and used `iterations` times. A `beta` above 0 weighs the
    distance to a reference: another copy of the model, or with adapters the model without them. `generator` is one of
    GENERATORS; vLLM takes a `share` of the card, and gives back its weights and its pool between generations if it
    `sleeps`. Raises WorkbookError.

    >>> setup = GrpoSetup(TrainSetup("llama-3-8b", micro_batch=8, sequence=1024), prompt=512)
    >>> setup.completion, setup.at_once, setup.keeps_reference
    (512, 8, False)
    """

    train: TrainSetup
    prompt: int
    generations: int = 8
    steps_per_generation: int | None = None
    iterations: int = 1
    beta: float = 0.0
    generator: str = GENERATORS[0]
    share: float = SHARE
    sleeps: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", scored_alone(self.train, self.prompt))
        require_whole("iterations", self.iterations, most=MAX_COUNT)
        do = "pass generations=8, TRL's default: a completion is judged beside others of its prompt"
        require_whole("generations", self.generations, 2, MAX_COUNT, do=do)
        if self.steps_per_generation is None:
            object.__setattr__(self, "steps_per_generation", self.train.micro_batches)
        require_whole("steps_per_generation", self.steps_per_generation, most=MAX_COUNT)
        if isinstance(self.beta, bool) or not isinstance(self.beta, int | float) or not 0 <= self.beta < float("inf"):
            do = "pass beta=0.0, TRL's default, for no reference, or 0.04 as DeepSeekMath has it"
            raise WorkbookError(f"beta is {self.beta!r}", "a number from 0 on", do)
        if self.generator not in GENERATORS:
            raise unknown_name("generator", self.generator, GENERATORS)
        expected, do = "a share of the whole card, above 0 and at most 1", f"pass share={SHARE}, TRL's default"
        require_number("share", self.share, expected=expected, do=do)
        if self.share > 1:
            raise WorkbookError(f"share is {self.share}", expected, do)
        if self.sleeps and self.generator != "vllm":
            what = "sleep mode without an engine that could sleep"
            raise WorkbookError(what, "generator='vllm'", "pass it (--generator vllm), or sleeps=False")
        self._require_whole_groups()

    def _require_whole_groups(self) -> None:
        if self.at_once % self.generations:
            what = f"{self.generations} generations of a prompt, and {self.at_once} completions generated at once"
            expected = "a number of generations that divides those, which are micro_batch x steps_per_generation"
            do = f"pass micro_batch={self.generations} (--micro-batch {self.generations})"
            raise WorkbookError(what, expected, do)

    @property
    def completion(self) -> int:
        return self.train.sequence - self.prompt

    @property
    def at_once(self) -> int:
        """Completions that are generated together."""
        return self.train.micro_batch * (self.steps_per_generation or 1)

    @property
    def keeps_reference(self) -> bool:
        """Whether a second copy of the weights is held: with adapters the base is the reference."""
        return self.beta > 0 and self.train.adapter is None

    @property
    def generates_between(self) -> bool:
        """Whether completions are generated while gradients wait for other micro-batches."""
        return self._uses % self.train.micro_batches != 0

    @property
    def scores_old(self) -> bool:
        """Whether log-probabilities of the policy that generated are computed first: where it has changed meanwhile.

        And for completions of vLLM, whose own are corrected by them (vllm_importance_sampling_correction).
        """
        return self.generator == "vllm" or self.train.micro_batches % self._uses != 0

    @property
    def _uses(self) -> int:
        """Micro-batches between two generations."""
        return (self.steps_per_generation or 1) * self.iterations


@dataclass(frozen=True)
class DpoSetup:
    """Direct preference optimization on pairs, of which each is two sequences: `train.micro_batch` is even.

    `prompt` of `train.sequence` tokens have no loss. The reference is a second copy of the weights, with adapters the
    model without them, or `precomputed` before the training begins. Raises WorkbookError.

    >>> DpoSetup(TrainSetup("llama-3-8b", micro_batch=4, sequence=1024), prompt=256).keeps_reference
    True
    """

    train: TrainSetup
    prompt: int
    precomputed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "train", scored_alone(self.train, self.prompt))
        if self.train.micro_batch % 2:
            what = f"a micro-batch of {self.train.micro_batch} sequences"
            raise WorkbookError(what, "an even number: DPO's are pairs", f"pass {self.train.micro_batch + 1}")

    @property
    def pairs(self) -> int:
        return self.train.micro_batch // 2

    @property
    def keeps_reference(self) -> bool:
        return not self.precomputed and self.train.adapter is None


def scored_alone(train: TrainSetup, prompt: int) -> TrainSetup:
    """`train` with TRL's loss over what follows the prompt. WorkbookError for what is not counted in it."""
    do = "leave a token of the sequence to the completion at least"
    require_whole("prompt", prompt, most=max(1, train.sequence - 1), do=do)
    if train.precision not in RECIPES:
        what = f"{train.precision} in a trainer of TRL"
        raise WorkbookError(what, ", ".join(RECIPES), "pass precision='autocast-bf16', TRL's default")
    if train.zero or train.ranks > 1 or train.in_backward:
        what, expected = "training from preferences that is sharded, or steps in the backward", "one card, one step"
        raise WorkbookError(what, expected, "leave the split out, and pass in_backward=False: it is not counted")
    return replace(train, loss=TRL, scored=train.sequence - prompt)
