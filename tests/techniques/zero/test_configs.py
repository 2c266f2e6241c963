"""The configuration files: read by the packages that they are for, and what these cannot do refused in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import yaml

from helpers.catalog import TrainSetup, WorkbookError
from helpers.catalog.split import Split
from helpers.lesson import job
from helpers.memory.step.ranks.zero import units
from helpers.techniques.zero.configs import accelerate_config, deepspeed_config
from tests.house import tree
from tests.techniques.zero import cases, engine_cases

needs_deepspeed = pytest.mark.needs("deepspeed", "pip install -r requirements-deepspeed.txt")
PLAN = TrainSetup("llama-2-7b", "megatron-bf16", "adamw-fused", micro_batch=2, split=Split(2, zero=3))
PLANS = [
    *(replace(PLAN, split=Split(2, zero=stage)) for stage in range(4)),
    *(replace(PLAN, split=Split(2, zero=stage), offload_optimizer="cpu") for stage in (1, 2, 3)),
    replace(PLAN, offload_optimizer="cpu", offload_parameters="cpu"),
    replace(PLAN, offload_optimizer="nvme", offload_parameters="nvme"),
    replace(PLAN, offload_optimizer="none", offload_parameters="nvme"),
    *(replace(PLAN, precision=name) for name in ("fp32", "bf16", "autocast-bf16")),
    *(replace(PLAN, optimizer=name) for name in ("sgd", "sgd-momentum", "adamw-foreach")),
    replace(PLAN, model="gpt2", sequence=1024),
]


@needs_deepspeed
def test_deepspeed_reads_what_was_meant(ranks2):
    configs = [deepspeed_config(plan, clip=0.5, accumulation=3) for plan in PLANS]
    for plan, (stage, batch, micro, clip, optimizer, parameters) in zip(
        PLANS, ranks2.run(engine_cases.deepspeed_reads, configs)[0], strict=True
    ):
        assert (stage, batch, micro, clip) == (plan.zero, 2 * 2 * 3, 2, 0.5)
        assert (optimizer, parameters) == (plan.offload_optimizer, plan.offload_parameters)


@needs_deepspeed
def test_deepspeed_reads_the_job_of_chapter_09(monkeypatch):
    from deepspeed.runtime import config

    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)  # eight ranks are meant, and none is there
    plan = replace(job.SETUP, checkpointing="full", precision="megatron-bf16", split=Split(8, zero=3))
    eight = SimpleNamespace(get_data_parallel_world_size=lambda: 8)
    read = config.DeepSpeedConfig(json.loads(json.dumps(deepspeed_config(plan))), mpu=eight)
    assert (read.zero_config.stage, read.train_batch_size) == (3, 8)
    assert read.bfloat16_config.enabled


def keys(config):
    for name, value in config.items():
        yield name
        if isinstance(value, dict) and name not in ("zero_optimization", "bf16", "params"):  # DeepSpeed checks those
            yield from keys(value)


@needs_deepspeed
def test_every_key_is_one_of_deepspeed_s(ranks2):
    """It refuses unknown keys within zero_optimization and bf16, and overlooks them elsewhere."""
    known = set(ranks2.run(engine_cases.known_keys)[0])
    for plan in PLANS:
        assert set(keys(deepspeed_config(plan))) <= known
    assert "aio_block" not in known
    broken = deepspeed_config(PLAN)
    broken["zero_optimization"]["stage4"] = True
    assert "stage4" in ranks2.run(engine_cases.deepspeed_refuses, broken)[0]
    assert (
        "train_batch_size"
        in ranks2.run(engine_cases.deepspeed_refuses, deepspeed_config(replace(PLAN, split=Split(8, zero=3))))[0]
    )
    assert not ranks2.run(engine_cases.deepspeed_refuses, deepspeed_config(PLAN))[0]


def test_sizes_come_from_the_model():
    root, layer, *_ = units(PLAN.model)
    section = deepspeed_config(PLAN)["zero_optimization"]
    assert section["stage3_prefetch_bucket_size"] == layer
    assert section["stage3_max_live_parameters"] == root + 2 * layer
    assert section["reduce_bucket_size"] * 4 == 25 * 2**20  # FP32 gradients
    assert (
        deepspeed_config(replace(PLAN, precision="bf16"))["zero_optimization"]["reduce_bucket_size"] * 2 == 25 * 2**20
    )
    infinity = deepspeed_config(replace(PLAN, offload_parameters="nvme"), nvme_path="/scratch")["zero_optimization"]
    assert infinity["offload_param"]["buffer_size"] == 32000 * 4096 // 2  # a rank's half of the embedding
    assert infinity["offload_param"]["nvme_path"] == "/scratch"
    assert infinity["offload_param"]["max_in_cpu"] == infinity["stage3_prefetch_bucket_size"] == 0


FSDP_PLANS = [
    replace(PLAN, precision="autocast-bf16"),
    replace(PLAN, precision="autocast-bf16", split=Split(2, zero=2)),
    replace(PLAN, precision="bf16", offload_optimizer="cpu", offload_parameters="cpu"),
    replace(PLAN, precision="fp32", checkpointing="full"),
]


@pytest.mark.parametrize("plan", FSDP_PLANS)
def test_accelerate_reads_what_was_meant(plan, tmp_path):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.launch import prepare_multi_gpu_env
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

    path = tmp_path / "fsdp.yaml"
    path.write_text(accelerate_config(plan, machines=2))
    read = load_config_from_file(str(path))
    known = {action.dest for action in launch_command_parser()._actions}
    assert set(read.fsdp_config) <= known  # accelerate passes an unknown one on, to nobody
    words = ["--config_file", str(path), "--machine_rank", "1", "train.py"]
    arguments, *_ = _validate_launch_command(launch_command_parser().parse_args(words))
    assert arguments.use_fsdp
    assert (arguments.num_processes, arguments.num_machines) == (plan.ranks, 2)
    before = dict(os.environ)
    try:
        os.environ.update({key: value for key, value in prepare_multi_gpu_env(arguments).items() if value})
        plugin = FullyShardedDataParallelPlugin()
    finally:
        os.environ.clear()
        os.environ.update(before)
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is (plan.zero == 3)
    assert type(plugin.cpu_offload) is (CPUOffloadPolicy if plan.offload_parameters == "cpu" else OffloadPolicy)
    assert plugin.activation_checkpointing is (plan.checkpointing == "full")
    assert plugin.transformer_cls_names_to_wrap == ["LlamaDecoderLayer"]


def test_stage_0_is_ddp_and_one_rank_is_nothing():
    ddp = yaml.safe_load(accelerate_config(replace(PLAN, precision="fp32", split=Split(2))))
    assert ddp["distributed_type"] == "MULTI_GPU"
    assert "fsdp_config" not in ddp
    assert yaml.safe_load(accelerate_config(TrainSetup("llama-2-7b", "fp32")))["distributed_type"] == "NO"


ON_HOST = {"offload_optimizer": "cpu"}
CANNOT = [
    (deepspeed_config, {"optimizer": "adafactor"}, "adafactor", "adamw-fused"),
    (deepspeed_config, {"optimizer": "adamw-8bit"}, "adamw-8bit", "adamw-fused"),
    (deepspeed_config, {"precision": "bf16", "split": Split(2)}, "stage 0", "zero=1"),
    (deepspeed_config, {"offload_optimizer": "nvme", "split": Split(2, zero=2)}, "stage 2", "zero=3"),
    (accelerate_config, {"split": Split(2, zero=1)}, "zero is 1", "deepspeed_config"),
    (accelerate_config, {"offload_optimizer": "nvme", "offload_parameters": "nvme"}, "NVMe", "ZeRO-Infinity"),
    (accelerate_config, ON_HOST, "offload_optimizer is 'cpu'", "both 'cpu'"),
    (
        accelerate_config,
        {"offload_optimizer": "cpu", "split": Split(2, zero=2)},
        "offload_optimizer is 'cpu'",
        "both 'cpu'",
    ),
    (accelerate_config, {"precision": "megatron-bf16"}, "megatron-bf16", "autocast-bf16"),
    (accelerate_config, {"precision": "torchao-fp8"}, "would train in BF16", "precision='bf16'"),
    (deepspeed_config, {"precision": "torchao-fp8"}, "would train in BF16", "precision='bf16'"),
    (accelerate_config, {"checkpointing": "every:4"}, "every:4", "full"),
]


@pytest.mark.parametrize(("config", "changes", "what", "do"), CANNOT)
def test_what_a_tool_cannot_do_is_refused(config, changes, what, do):
    with pytest.raises(WorkbookError) as error:
        config(replace(PLAN, **{"precision": "fp32", **changes}))
    assert what in error.value.what
    assert do in error.value.do


@pytest.mark.parametrize(
    "call",
    [
        lambda: accelerate_config(replace(PLAN, precision="fp32"), machines=3),
        lambda: accelerate_config(replace(PLAN, precision="fp32"), machines=0),
        lambda: deepspeed_config(PLAN, clip=0.0),
        lambda: deepspeed_config(PLAN, accumulation=0),
    ],
)
def test_bad_numbers(call):
    with pytest.raises(WorkbookError):
        call()


def small(**changes):
    plan = {"precision": "fp32", "optimizer": "adamw-foreach", "micro_batch": 2, "sequence": 12}
    plan |= {"split": Split(2, zero=3)}
    return TrainSetup(cases.build("llama").config, **plan | changes)


LAUNCHED = [
    {"precision": "bf16"},
    {"precision": "megatron-bf16", "split": Split(2, zero=1)},
    {"optimizer": "sgd-momentum", "offload_optimizer": "cpu", "offload_parameters": "cpu"},
]
REST = [
    *({"split": Split(2, zero=stage)} for stage in range(4)),
    {"precision": "bf16", "split": Split(2, zero=2)},
    {"precision": "megatron-bf16"},
    {"precision": "megatron-bf16", "split": Split(2, zero=2)},
    {"precision": "autocast-bf16"},
    {"optimizer": "sgd-momentum"},
]


@needs_deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("changes", LAUNCHED + [pytest.param(changes, marks=pytest.mark.all) for changes in REST])
def test_deepspeed_trains_from_the_file(ranks2, tmp_path, changes):
    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps(deepspeed_config(small(**changes), learning_rate=1e-2)))
    for losses in ranks2.run(engine_cases.trains_from, str(path)):
        assert losses[-1] < losses[0]


SCRIPT = """
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from tests.techniques.zero import cases

plugin = FullyShardedDataParallelPlugin()  # from what the launcher put into the environment
accelerator = Accelerator()
model = accelerator.prepare(cases.build("llama"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
ids = next(cases.batches())
for _ in range(3):
    loss = model(input_ids=ids, labels=ids).loss
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
told = f"{accelerator.num_processes} {plugin.fsdp_version} {plugin.reshard_after_forward}"
Path(sys.argv[1], f"rank{accelerator.process_index}").write_text(told)  # two ranks tear each other's printed lines
accelerator.wait_for_everyone()
os._exit(0)  # Gloo's threads are there still, and may abort a process whose interpreter ends
"""


@pytest.mark.slow
def test_accelerate_launches_from_the_file(tmp_path):
    """Two ranks, which read the plan. On CPUs accelerate then trains with DDP: its FSDP wants accelerators."""
    plan, script = tmp_path / "fsdp.yaml", tmp_path / "train.py"
    plan.write_text(accelerate_config(small()))
    script.write_text(SCRIPT)
    words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(plan)]
    words += [str(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(tree.ROOT), "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(words, cwd=tree.ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [(tmp_path / f"rank{rank}").read_text() for rank in range(2)] == ["2 2 True"] * 2
