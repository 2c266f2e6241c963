"""Adapters by peft's own name, which have no closed form: the trace against a real step of each on a CPU."""

import pytest

from helpers.catalog import Adapter, TrainSetup, WorkbookError, model
from helpers.catalog.adapters import TRACED_KINDS
from helpers.cli import main
from helpers.memory import budget, measure, rounded, trace
from helpers.memory.measure.steps import build_model, run_of

pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # Transformers, of peft


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in ("vera", "ia3") else pytest.mark.all) for kind in TRACED_KINDS]
)
def test_a_step_is_traced_to_the_byte(kind):
    from peft import PeftType, get_peft_model
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    setup = TrainSetup("tiny-llama", "bf16", "adamw-fused", 2, 64, adapter=Adapter(kind, 8, ("q_proj", "v_proj")))
    config = PEFT_TYPE_TO_CONFIG_MAPPING[PeftType(kind.upper())]
    chosen = {"task_type": "CAUSAL_LM", "target_modules": ["q_proj", "v_proj"], "feedforward_modules": [], "r": 8}
    known = {name: value for name, value in chosen.items() if name in config.__dataclass_fields__}
    adapted = get_peft_model(build_model(setup, "cpu"), config(**known))
    run = run_of(setup, adapted, "cpu")
    real = measure.step(run.step, run.model, run.optimizers)
    found = trace.train(setup, on="cpu")
    assert found.peak_bytes - real.peak_bytes in (0, rounded(8 * 2 * 64))  # the batch is made before the step


def test_without_a_closed_form_nothing_is_counted():
    setup = TrainSetup("tiny-llama", "bf16", adapter=Adapter("vera"))
    with pytest.raises(WorkbookError, match="workbook trace train --adapter vera"):
        budget.train(setup)
    with pytest.raises(WorkbookError, match="the tensors of peft's vera"):
        setup.adapter.parameters(model("tiny-llama"))


def test_the_command(capsys):
    tiny = ["trace", "train", "--model", "tiny-llama", "--precision", "bf16", "--sequence", "64"]
    assert main([*tiny, "--adapter", "vera", "--lora-rank", "4"]) == 0
    assert "peft's vera of rank 4 on q_proj, v_proj" in capsys.readouterr().out
