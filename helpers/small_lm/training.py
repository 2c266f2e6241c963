"""How the small model is trained (copying, then facts, in documents of 128 to 1,152 words), and its card of scores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import AdamW, Muon
from tqdm.auto import tqdm
from transformers import LlamaForCausalLM

from ..catalog.errors import WorkbookError
from .examples import STAGES, ExampleBatch, TrainingStage, batch
from .model import CHECKPOINT, tokenizer, untrained, without_progress_bar
from .scores import perplexity, recall

MUON_RATE, ADAMW_RATE = 0.02, 4e-3
WARMUP_STEPS, COOLDOWN = 50, 0.35  # the rate rises over so many steps, and falls over that share of all of them
SAVE_EVERY = 100
INTERRUPTED = 130
STATE = "state.pt"
CARD = "card.json"


def optimizers(model: LlamaForCausalLM) -> tuple[Muon, AdamW]:
    """Muon for the matrices of the layers, AdamW for embedding, norms and lm_head."""
    hidden = [weight for weight in model.model.layers.parameters() if weight.dim() == 2]
    known = {id(weight) for weight in hidden}
    rest = [weight for weight in model.parameters() if id(weight) not in known]
    return Muon(hidden, lr=MUON_RATE, weight_decay=0.01), AdamW(rest, lr=ADAMW_RATE, betas=(0.9, 0.95), weight_decay=0)


def rate_factor(step: int, steps: int) -> float:
    """What both learning rates are multiplied by: up, level, down to zero."""
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / (COOLDOWN * steps))


@dataclass
class Run:
    """A training run: everything that a resumed one needs."""

    seed: int
    stages: tuple[TrainingStage, ...]
    step: int = 0

    def __post_init__(self) -> None:
        self.model = untrained(self.seed)
        self.optimizers = optimizers(self.model)

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def stage(self) -> TrainingStage:
        ahead = self.step
        for stage in self.stages:
            if ahead < stage.steps:
                return stage
            ahead -= stage.steps
        raise IndexError(f"step {self.step} of {self.steps}")

    def advance(self) -> tuple[float, float]:
        """One step; the loss, and the share of repeats or answers that were predicted."""
        drawn = batch(self.stage(), self.step, self.seed)
        loss, right = loss_and_right(self.model, drawn)
        if not loss.isfinite():
            raise WorkbookError(f"the loss is {loss.item()} at step {self.step}", "a number", "train with another seed")
        loss.backward()
        for optimizer, rate in zip(self.optimizers, (MUON_RATE, ADAMW_RATE), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * rate_factor(self.step, self.steps)
            optimizer.step()
            optimizer.zero_grad()
        self.step += 1
        return loss.item(), right

    def save(self, folder: Path) -> None:
        """A checkpoint that `load(folder)` loads, and beside it what `resume` needs."""
        with without_progress_bar():
            self.model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        kept = {
            "run": self._identity(),
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }
        torch.save(kept, folder / STATE)

    def resume(self, folder: Path) -> None:
        """Continue what `save` left in the folder, if anything; WorkbookError if that was another run."""
        if not (folder / STATE).exists():
            return
        kept = torch.load(folder / STATE, weights_only=True)
        if kept["run"] != self._identity():
            what = f"{folder} holds another run, unfinished: {kept['run']}"
            raise WorkbookError(what, self._identity(), "name another folder, or delete this one")
        self.step = kept["step"]
        self.model.load_state_dict(kept["model"])
        for optimizer, state in zip(self.optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(state)

    def _identity(self) -> str:
        return f"seed {self.seed}, steps {[stage.steps for stage in self.stages]}"


def loss_and_right(model: LlamaForCausalLM, drawn: ExampleBatch) -> tuple[Tensor, float]:
    """Weighted mean loss of the next word, and the share of graded words that were the most likely ones."""
    logits = model(input_ids=drawn.ids, use_cache=False).logits[:, :-1].flatten(0, 1)
    following, weights = drawn.ids[:, 1:].flatten(), drawn.weights[:, 1:].flatten()
    each = F.cross_entropy(logits, following, reduction="none")
    right = (logits.argmax(-1) == following)[drawn.graded[:, 1:].flatten()]
    return (each * weights).sum() / weights.sum(), right.float().mean().item()


def train(out: Path, seed: int = 0, steps_scale: float = 1.0) -> LlamaForCausalLM:
    """Train into folder `out`, with a progress bar, or continue what was interrupted there; the trained model.

    Steps are fixed, not minutes: the same seed and scale give the same scores to within what threads and instruction
    set change in the last digits. `steps_scale` below 1 makes every stage that much shorter.
    """
    run = Run(seed, _scaled(steps_scale))
    out.mkdir(parents=True, exist_ok=True)
    run.resume(out)
    try:
        with tqdm(total=run.steps, initial=run.step, unit="step") as bar:
            while run.step < run.steps:
                stage = run.stage()
                loss, right = run.advance()
                bar.set_description(f"{stage.task}, {stage.words} words", refresh=False)
                bar.set_postfix_str(f"loss {loss:.2f}, recall {right:.0%}", refresh=False)
                bar.update()
                if run.step % SAVE_EVERY == 0:
                    run.save(out)
    finally:
        run.save(out)
    (out / STATE).unlink()
    return run.model.eval()


def score(model: LlamaForCausalLM) -> dict[str, float]:
    """Perplexity, and recall by distance, under the names that a card has."""
    recalled = recall(model)
    by_distance = {f"recall at {asked.distance}": asked.rate for asked in recalled.by_distance}
    scores = {"perplexity": perplexity(model), "recall": recalled.total} | by_distance
    return {name: round(value, 4) for name, value in scores.items()}


def card(
    model: LlamaForCausalLM, stages: Sequence[TrainingStage], trained_by: str, scores: dict[str, float]
) -> dict[str, object]:
    """card.json: what a checkpoint is, how it was trained, its scores in FP32."""
    return {
        "about": "a Llama-shaped model of a synthetic language of facts and questions, to teach with",
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "trained_by": trained_by,
        "stages": [f"{stage.task}: {stage.steps} steps of {stage.rows} × {stage.words} words" for stage in stages],
        "torch": torch.__version__.partition("+")[0],
        "scores": scores,
    }


def shipped_scores() -> dict[str, float]:
    return json.loads((CHECKPOINT / CARD).read_text(encoding="utf-8"))["scores"]


def compared(scores: dict[str, float], shipped: dict[str, float]) -> str:
    """One line per score: its name, this model's, the shipped checkpoint's.

    >>> print(compared({"perplexity": 2.51}, {"perplexity": 2.5}))
                      this run    shipped
    perplexity          2.5100     2.5000
    """
    rows = [f"{name:<16} {value:>9.4f}  {shipped[name]:>9.4f}" for name, value in scores.items()]
    return "\n".join([f"{'':<16} {'this run':>9}  {'shipped':>9}", *rows])


def main(out: Path, seed: int = 0, steps_scale: float = 1.0) -> int:
    """`workbook train-lm`: train, score, and print the scores beside the shipped checkpoint's; the exit code."""
    try:
        model = train(out, seed, steps_scale)
    except KeyboardInterrupt:
        print(f"stopped; {out} keeps the checkpoint, and the same command continues from it")
        return INTERRUPTED
    scores, command = score(model), f"workbook train-lm --seed {seed} --steps-scale {steps_scale:g}"
    written = card(model, _scaled(steps_scale), command, scores)
    (out / CARD).write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(compared(scores, shipped_scores()))
    return 0


def _scaled(steps_scale: float) -> tuple[TrainingStage, ...]:
    if isinstance(steps_scale, bool) or not isinstance(steps_scale, (int, float)) or not 0 < steps_scale <= 100:
        raise WorkbookError(f"steps_scale is {steps_scale!r}", "a number above 0, up to 100", "pass steps_scale=1")
    return tuple(replace(stage, steps=max(1, round(steps_scale * stage.steps))) for stage in STAGES)
