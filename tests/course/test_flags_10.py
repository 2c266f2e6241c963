"""What chapter 10 tells to write is there in the installed libraries; its plans run in test_prose_causes_10.py."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields

import pytest
from transformers import TrainingArguments

from helpers.course import notebook as nb
from tests.course import cases_10
from tests.house.tree import ROOT


@pytest.fixture(scope="module")
def told() -> str:
    (path,) = (ROOT / "notebooks").glob("10_*.ipynb")
    return "\n".join(one.source for one in nb.read(path).cells if one.id in ("10-do-this", "10-do-table"))


def test_the_lines_for_two_dimensions_run_and_are_the_same_model(told, ranks4):
    """Two by two here. A rank holds a quarter of each matrix, and the norms by halves."""
    (lines,) = re.findall(r"(?s)```python\n(.*?)```", told)
    lines = lines.replace('"cuda", (4, 2)', '"cpu", (2, 2)')
    for alone, loss, held, matrices, norms in ranks4.run(cases_10.by_lines, lines):
        assert loss == pytest.approx(alone, rel=0.01)  # in BF16
        assert held == matrices / 4 + norms / 2


def test_trainer_takes_a_parallelism_config_of_accelerate(told):
    from accelerate import ParallelismConfig

    assert "`ParallelismConfig(tp_size=2, dp_shard_size=4)` as `parallelism_config`" in told
    assert ParallelismConfig(tp_size=2, dp_shard_size=4).total_size == 8
    assert "parallelism_config" in {field.name for field in fields(TrainingArguments)}


def test_transformers_takes_a_size(told):
    from transformers.distributed import DistributedConfig

    assert "distributed_config=DistributedConfig(tp_size=8)" in told
    assert DistributedConfig(tp_size=8).tp_size == 8


def test_pytorch_has_both_schedules(told):
    from torch.distributed import pipelining

    for name in ("ScheduleGPipe", "Schedule1F1B"):
        assert name in told
        assert {"n_microbatches", "loss_fn"} <= {*inspect.signature(getattr(pipelining, name)).parameters}
    assert list(inspect.signature(pipelining.PipelineStage).parameters)[:4] == [
        *("submodule", "stage_index", "num_stages", "device")
    ]
