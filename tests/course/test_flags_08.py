"""What chapter 08 tells to write is there in the installed libraries, and does what its line is priced as."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from accelerate import infer_auto_device_map
from torch.distributed.fsdp import CPUOffloadPolicy
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from transformers import PreTrainedModel, TrainingArguments

from helpers.course import notebook as nb
from tests.house.tree import ROOT

TRAINED = """
import json, sys
import deepspeed, torch
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # which would be compiled first
from transformers import Trainer, TrainingArguments
from helpers.small_lm import load
config = json.loads(sys.argv[1]) | {"zero_force_ds_cpu_optimizer": False}  # nor its own AdamW
net, rows = load().model, torch.randint(0, 100, (4, 32))
where = {"output_dir": sys.argv[2], "use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
arguments = TrainingArguments(deepspeed=config, bf16=True, max_steps=2, gradient_accumulation_steps=2,
                              max_grad_norm=0.5, per_device_train_batch_size=1, **where)
trainer = Trainer(net, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in rows])
trainer.train()
zero = trainer.model_wrapped.optimizer
kept = [zero.single_partition_of_fp32_groups[0], *(one for state in zero.optimizer.state.values()
        for name, one in state.items() if name != "step")]
sums = sum(one.nbytes for one in zero.accumulated_grads_in_cpu.values())
host = [*kept, kept[0].grad, *zero.param_buffer_of_bit16_for_cpu_offload_groups]
found = {"clip": zero.clip_grad, "overlap": zero.overlap_comm, "weights": str(next(net.parameters()).dtype)}
found["kept"] = [*{f"{one.dtype} {one.device}" for one in kept}]
found["bytes"] = [round(size / kept[0].numel(), 1) for size in (sum(one.nbytes for one in host), sums)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def told() -> str:
    (path,) = (ROOT / "notebooks").glob("08_*.ipynb")
    (source,) = [one.source for one in nb.read(path).cells if one.id == "08-lines"]
    return source


def source_of(package: str, file: str) -> str:
    """Read, and not imported, which takes seconds."""
    spec = find_spec(package)
    if not spec or not spec.origin:
        pytest.skip(f"{package} is not installed")
    return (Path(spec.origin).parent / file).read_text(encoding="utf-8")


def test_fsdp2_sends_its_shard_up_in_fp32_and_casts_it_there(told):
    assert "`CPUOffloadPolicy()`, which sends FP32" in told
    assert CPUOffloadPolicy().pin_memory
    source = inspect.getsource(FSDPParam.all_gather_inputs.fget)
    assert re.search(
        r"(?s)offload_to_cpu:\s+sharded_param_data = sharded_param_data\.to\(.*_to_dtype_if_needed", source
    )


def test_torchao_s_optimizer_keeps_the_weights_type_and_refuses_accumulation(told):
    source = source_of("torchao", "optim/cpu_offload.py")
    assert 'torch.empty_like(p_device, device="cpu", pin_memory=True)' in source
    assert 'optimizer_class(\n                    [{"params": p_host' in source
    assert (
        "offload_gradients: free GPU gradients once they are moved to CPU. Not compatible with gradient acc" in source
    )
    assert "no accumulation" in told


def test_transformers_sends_checkpoints_away_on_the_stream_that_computes(told):
    assert "Transformers copies on the stream that computes" in told
    enabled = inspect.getsource(PreTrainedModel._activation_checkpointing_enable)
    assert "with save_on_cpu(pin_memory=True" in enabled
    hooks = inspect.getsource(torch.autograd.graph.save_on_cpu.__init__)
    assert "packed.copy_(tensor, non_blocking=" in hooks
    assert "tream" not in enabled + hooks


def test_transformers_takes_the_line_without_a_word_of_warning(told, tmp_path):
    (line,) = re.findall(r"`(activation_checkpointing=.*?)` \(5\.23\)", told)
    given = eval(f"dict({line})")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        read = TrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **given)
    assert read.activation_checkpointing
    assert read.activation_checkpointing_kwargs == {"offload": True}
    assert "offload" in inspect.signature(PreTrainedModel.activation_checkpointing_enable).parameters


def test_torchao_s_optimizer_leaves_no_gradient_to_clip(told):
    source = source_of("torchao", "optim/cpu_offload.py")
    assert re.search(r"(?s)if offload_gradients:\s+p_device\.grad\.record_stream.*?p_device\.grad = None", source)
    assert "register_post_accumulate_grad_hook" in source
    assert "no accumulation or clipping" in told


def test_accelerate_takes_room_by_device():
    assert "max_memory" in inspect.signature(infer_auto_device_map).parameters


@pytest.mark.slow
def test_deepspeed_takes_the_chapter_s_json_and_keeps_fp32_on_the_host(told, tmp_path):
    if not find_spec("deepspeed"):
        pytest.skip("deepspeed is not installed")
    config = json.dumps(json.loads(re.search(r"(?s)```json\n(.*?)```", told)[1]))
    port = str(29_500 + os.getpid() % 400)
    one_rank = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    where = {**os.environ, **one_rank, "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", TRAINED, config, str(tmp_path)]
    done = subprocess.run(words, env=where, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["kept"], found["weights"]) == ([f"{torch.float32} cpu"], str(torch.bfloat16))
    assert found["bytes"] == [18, 2]  # of a weight, and the sums of micro-batches
    assert (found["clip"], found["overlap"]) == (0.5, True)
