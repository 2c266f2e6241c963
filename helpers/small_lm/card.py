"""A checkpoint's card: what it is, how it was trained, its scores, and another's beside them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from transformers import LlamaForCausalLM

from .examples import Stage
from .loading import CHECKPOINT
from .scores import perplexity, recall

CARD = "card.json"


def score(model: LlamaForCausalLM) -> dict[str, float]:
    """Perplexity, and recall by distance, under the names that a card has."""
    recalled = recall(model)
    return {"perplexity": round(perplexity(model), 4), "recall": round(recalled.total, 4)} | {
        f"recall at {asked.distance}": round(asked.rate, 4) for asked in recalled.by_distance
    }


def card(model: LlamaForCausalLM, stages: Sequence[Stage], trained_by: str) -> dict[str, object]:
    """What card.json says: what the checkpoint is, how it was trained, its scores in FP32."""
    return {
        "about": "a Llama-shaped model of a synthetic language of facts and questions, to teach with",
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "trained_by": trained_by,
        "stages": [f"{stage.task}: {stage.steps} steps of {stage.rows} × {stage.words} words" for stage in stages],
        "torch": torch.__version__.partition("+")[0],
        "scores": score(model),
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
