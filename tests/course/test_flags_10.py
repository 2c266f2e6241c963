"""What chapter 10 tells to write is there in the installed libraries; its plans run in test_prose_causes_10.py."""

from __future__ import annotations

import inspect
import re
from types import SimpleNamespace

import pytest
from transformers import Trainer

from helpers.course import notebook as nb
from helpers.lesson import job
from helpers.memory.plan import export
from tests.course import cases_10
from tests.course.prose_numbers_10 import layout
from tests.house.tree import ROOT


@pytest.fixture(scope="module")
def told() -> str:
    (path,) = (ROOT / "notebooks").glob("10_*.ipynb")
    return "\n".join(one.source for one in nb.read(path).cells if one.id in ("10-do-this", "10-do-table"))


def test_the_lines_for_two_dimensions_run_and_are_the_same_model(told, ranks4):
    """Two by two here. A rank holds a quarter of each matrix, and the norms by halves."""
    lines = _lines(told)
    for found in ranks4.run(cases_10.by_lines, lines):
        assert found["loss"] == pytest.approx(found["alone"], rel=0.01)  # in BF16
        assert found["held"] == found["matrices"] / 4 + found["norms"] / 2
        assert "must have the same mesh" in found["clipping"]
        assert found["norm"] == pytest.approx(found["norm alone"], rel=0.02)


def test_layers_have_a_sum_for_each_input_and_one_again_where_they_are_checkpointed(told, ranks4):
    """Backward: two in each of two layers and the head's; without attention's line two more in each of them."""
    lines = _lines(told)
    shared = next(line for line in lines.splitlines() if line.startswith('plan["self_attn"]'))
    unchecked = lines.replace("model.gradient_checkpointing_enable()\n", "")
    for text, sums in ((lines, [5, 7]), (unchecked, [5, 5]), (unchecked.replace(shared, ""), [5, 9])):
        assert ranks4.run(cases_10.by_lines, text)[0]["sums"] == sums


def _lines(told: str) -> str:
    (lines,) = re.findall(r"(?s)```python\n(.*?)```", told)
    return lines.replace('"cuda", (4, 2)', '"cpu", (2, 2)')


def test_transformers_cuts_a_model_as_it_loads_it(told, ranks4, tmp_path):
    (call,) = re.findall(r"`(from_pretrained\(…, .*?\))`", told)
    call = call.replace("…", "folder").replace("fsdp_size=4", "fsdp_size=2")
    for found in ranks4.run(cases_10.loaded, str(tmp_path), call):
        assert found["loss"] == pytest.approx(found["alone"], rel=0.01)
        assert found["held"] == pytest.approx(found["whole"] / 4, rel=0.01)
        assert not found["not cut"]
    assert "with `tp_size=8` alone" in told


def test_parallelism_config_leaves_a_whole_model_whole(told, ranks2):
    assert "`ParallelismConfig(tp_size=2)` alone leaves the model whole" in told
    assert ranks2.run(cases_10.prepared) == [0, 0]


def test_trainer_leaves_a_loaded_models_placement_alone_and_clips_mesh_by_mesh():
    assert "is_distributed_loading_by_transformers" in inspect.getsource(Trainer.__init__)
    assert "_mixed_mesh_grad_norm" in inspect.getsource(Trainer._clip_grad_norm)


def test_megatrons_flags_are_those_that_the_planner_writes(told):
    plan = SimpleNamespace(layout=layout(4, 2, "full"), steps=1)
    written = export.megatron_args(plan, SimpleNamespace(model=job.SETUP.model, sequence=2_048))
    (row,) = re.findall(r"\| Megatron-LM \| `(.*?)`", told)
    for flag in re.findall(r"--[a-z-]+(?: \w+)?", row):
        assert flag in written


def test_pytorch_has_both_schedules(told):
    from torch.distributed import pipelining

    for name in ("ScheduleGPipe", "Schedule1F1B"):
        assert name in told
        assert {"n_microbatches", "loss_fn"} <= {*inspect.signature(getattr(pipelining, name)).parameters}
    assert list(inspect.signature(pipelining.PipelineStage).parameters)[:4] == [
        *("submodule", "stage_index", "num_stages", "device")
    ]
