"""One runner for every table of steps whose instruments agree, and one for every table of what is refused."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest

from helpers.catalog import TrainSetup, WorkbookError
from helpers.memory import budget, measure, trace
from helpers.memory.breakdown import Phase
from helpers.techniques.zero import rank_trace

PEFT_WARNS = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # Transformers, of peft
CONV1D_WARNS = pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")  # peft, of GPT-2
FULL, EAGER, AUTOCAST = {"checkpointing": "full"}, {"attention": "eager"}, {"precision": "autocast-bf16"}
Near = float | dict[str, float]  # of the larger, or as `approx` takes it


def llama(hidden: int, ffn: int, layers: int, heads: int, words: int, kv_heads: int = 0, **more: object) -> dict:
    """A config that is small."""
    sizes = {"hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers, "vocab_size": words}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads or heads}
    return {"model_type": "llama", **sizes, "tie_word_embeddings": False, **more}


def by_night(cases: Iterable, quick: Container) -> list:
    """All of them, of which those that are not `quick` run at night."""
    cases = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*one, marks=[] if one in quick or one[0] in quick else pytest.mark.all) for one in cases]


def agree(
    setup: TrainSetup,
    gpu: str | None = None,
    *,
    peak: Near = 0.001,
    saved: Near | None = None,
    of: str = "peak_bytes",
    rank: int = 0,
    real: bool = False,
) -> tuple[budget.TrainBudget, Any]:
    """The step as it is predicted for `gpu`, and as it is traced there, or on a CPU; or run for `real`.

    `of` is which peak of both is compared: with the libraries or without them, or of the tensors that are there then.
    """
    predicted = budget.train(setup, gpu, rank)
    traced = rank_trace.traced if setup.zero else trace.train
    seen = measure.training_step(setup, "cpu") if real else traced(setup, gpu, "cuda" if gpu else "cpu", rank=rank)
    seen = seen.trace if isinstance(seen, rank_trace.RankTrace) else seen
    found = tensors_at_peak(seen) if of == "tensors" else getattr(seen, of)
    pairs = [(getattr(predicted, "tensor_bytes" if of == "tensors" else of), found, peak)]
    if saved is not None:
        pairs.append((predicted.saved_bytes, (seen if real else seen.measured).saved_bytes, saved))
    for ours, theirs, allowed in pairs:
        assert ours == pytest.approx(theirs, **(allowed if isinstance(allowed, dict) else {"rel": allowed}))
    return predicted, seen


def tensors_at_peak(traced: trace.Trace) -> int:
    return sum(block.size_bytes for block in traced.at_peak if not block.owner.startswith("cuBLAS"))


def agree_by_phase(predicted: budget.TrainBudget, traced: trace.Trace, allowed: float) -> None:
    forward, *backward, optimizer = (moment.total for moment in predicted.moments)
    found = dict(zip(Phase, (forward, max(backward), optimizer), strict=True))
    assert found == {phase: pytest.approx(traced.measured.at(phase).total, rel=allowed) for phase in Phase}


def refused(*table: tuple[Callable[[], object], str]) -> Callable[..., None]:
    """A test that each call raises a WorkbookError with these words."""

    @pytest.mark.parametrize(("call", "words"), table, ids=lambda value: value if isinstance(value, str) else "")
    def test(call: Callable[[], object], words: str) -> None:
        with pytest.raises(WorkbookError) as told:
            call()
        assert words in str(told.value)

    return test
