"""What is written is read back by the engine's own loader, where it is installed, and says what the plan says."""

import itertools
import json
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from helpers.catalog import ServeSetup
from helpers.catalog.engines import engine
from helpers.catalog.errors import WorkbookError
from helpers.memory.plan import Cards, ServeGoal, TrainGoal, plan_serving, plan_training
from helpers.memory.plan.export import serving_files, training_files, write
from helpers.memory.plan.search import TrainAnswer
from helpers.memory.plan.training import Layout, StepEngine
from helpers.memory.serve.engines.vllm import launch
from helpers.memory.step.ranks.fsdp2 import widths

GOAL = TrainGoal("llama-3.1-8b", tokens=10**9)


@pytest.fixture(scope="module")
def found() -> TrainAnswer:
    return plan_training(GOAL, [Cards("h100", 8, 2.0)])


def with_layout(found: TrainAnswer, layout: Layout) -> TrainAnswer:
    return replace(found, plans=(replace(found.plans[0], layout=layout),))


ZERO_3 = Layout(StepEngine.ZERO, data=8, zero=3, micro_batch=2, micro_batches=64, checkpointing="full")
DDP = Layout(StepEngine.ZERO, data=8, precision="autocast-bf16", micro_batches=8)
FSDP2 = Layout(
    StepEngine.FSDP2,
    8,
    precision="autocast-bf16",
    reduced="bf16",
    micro_batch=2,
    micro_batches=64,
    checkpointing="full",
)
SPLIT = Layout(StepEngine.MEGATRON, 2, 2, 2, 1, micro_batches=512)


def test_accelerate_reads_its_file(found, tmp_path):
    config_args = pytest.importorskip("accelerate.commands.config.config_args")
    for layout, kind in ((ZERO_3, "DEEPSPEED"), (DDP, "MULTI_GPU"), (FSDP2, "FSDP")):
        write(with_layout(found, layout), tmp_path)
        read = config_args.load_config_from_file(str(tmp_path / "accelerate.yaml"))
        assert (str(read.distributed_type.value), read.num_processes, read.num_machines) == (kind, 8, 1)


def test_accelerate_makes_the_fsdp2_that_the_closed_form_counts(found, tmp_path, monkeypatch):
    """Its own launcher turns the file into the environment of a rank, and its plugin is what shards the model."""
    launch, utils = pytest.importorskip("accelerate.commands.launch"), pytest.importorskip("accelerate.utils")
    write(with_layout(found, FSDP2), tmp_path)
    given = launch.launch_command_parser().parse_args(["--config_file", str(tmp_path / "accelerate.yaml"), "train.py"])
    read, *_ = launch._validate_launch_command(given)
    for name, value in utils.launch.prepare_multi_gpu_env(read).items():
        if name.startswith(("FSDP", "ACCELERATE")):
            monkeypatch.setenv(name, value)
    plugin = utils.FullyShardedDataParallelPlugin()
    plugin.set_mixed_precision(read.mixed_precision)
    policy = plugin.mixed_precision_policy
    assert (plugin.fsdp_version, plugin.reshard_after_forward, plugin.activation_checkpointing) == (2, True, True)
    assert (policy.param_dtype.itemsize, policy.reduce_dtype.itemsize) == widths(FSDP2.precision, FSDP2.reduced)[1:]


def test_an_accumulated_step_of_fsdp2_keeps_shards_of_gradients_alone(found, tmp_path):
    transformers = pytest.importorskip("transformers")
    given = json.loads(training_files(with_layout(found, FSDP2))["training_arguments.json"])
    read = transformers.TrainingArguments(**{**given, "output_dir": str(tmp_path), "bf16": False})
    assert read.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}
    assert not read.gradient_checkpointing  # once is enough: accelerate's file has it


def test_what_reduces_in_fp32_is_torchtitans_and_what_reduces_in_bf16_accelerates(found):
    titan = training_files(with_layout(found, replace(FSDP2, reduced="fp32")))
    assert set(titan) == {"torchtitan.toml"}
    assert set(training_files(with_layout(found, FSDP2))) == {"accelerate.yaml", "training_arguments.json"}
    read = tomllib.loads(titan["torchtitan.toml"])
    assert read["training"]["mixed_precision_reduce"] == "float32"
    assert read["parallelism"]["data_parallel_shard_degree"] == 8
    assert read["activation_checkpoint"]["mode"] == "full"


def test_transformers_reads_its_arguments(found, tmp_path):
    transformers = pytest.importorskip("transformers")
    given = json.loads(training_files(with_layout(found, ZERO_3))["training_arguments.json"])
    read = transformers.TrainingArguments(
        **{**given, "output_dir": str(tmp_path), "bf16": False}
    )  # a CPU has no BF16 run
    assert (read.per_device_train_batch_size, read.gradient_accumulation_steps) == (2, 64)
    assert read.gradient_checkpointing
    assert read.optim == "adamw_torch_fused"


def test_deepspeed_reads_its_file(found, tmp_path, monkeypatch):
    config = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setattr(config.dist, "get_rank", lambda: 0)  # there is no process group, and eight ranks are meant
    write(with_layout(found, ZERO_3), tmp_path)
    eight = SimpleNamespace(get_data_parallel_world_size=lambda: 8)
    read = config.DeepSpeedConfig(str(tmp_path / "deepspeed.json"), mpu=eight)
    assert read.zero_optimization_stage == 3


def test_deepspeeds_batch_is_the_product_that_it_checks(found):
    given = json.loads(training_files(with_layout(found, ZERO_3))["deepspeed.json"])
    parts = given["train_micro_batch_size_per_gpu"] * given["gradient_accumulation_steps"] * 8
    assert given["train_batch_size"] == parts
    assert given["zero_optimization"] == {"stage": 3}
    assert given["bf16"] == {"enabled": True}


def test_an_offloaded_optimizer_is_on_the_cpu(found):
    given = json.loads(training_files(with_layout(found, replace(ZERO_3, offload=True)))["deepspeed.json"])
    assert given["zero_optimization"]["offload_optimizer"]["device"] == "cpu"


def test_torchtitans_file_is_toml_with_the_degrees(found):
    read = tomllib.loads(training_files(with_layout(found, SPLIT))["torchtitan.toml"])
    degrees = read["parallelism"]
    assert degrees["data_parallel_shard_degree"] * degrees["tensor_parallel_degree"] == 4
    assert degrees["pipeline_parallel_degree"] == 2
    assert read["training"]["global_batch_size"] == SPLIT.sequences


def test_torchtitan_reads_its_file(found, tmp_path):
    manager = pytest.importorskip("torchtitan.config")
    write(with_layout(found, SPLIT), tmp_path)
    read = manager.ConfigManager().parse_args([f"--job.config_file={tmp_path / 'torchtitan.toml'}"])
    assert read.parallelism.tensor_parallel_degree == 2


def test_megatrons_flags_are_those_of_the_layout(found):
    words = training_files(with_layout(found, SPLIT))["megatron.args"].split()
    assert words[words.index("--tensor-model-parallel-size") + 1] == "2"
    assert words[words.index("--global-batch-size") + 1] == str(SPLIT.sequences)
    assert {"--use-distributed-optimizer", "--sequence-parallel", "--bf16"} <= set(words)


def test_megatrons_flags_divide_experts_and_uneven_stages():
    goal = TrainGoal("deepseek-v3", tokens=10**9)
    answer = plan_training(goal, [Cards("h100", 512, 2.0)])
    layout = Layout(StepEngine.MEGATRON, 8, 4, 16, expert=8, micro_batches=128)
    words = training_files(with_layout(answer, layout))["megatron.args"].split()
    given = dict(itertools.pairwise(words))
    assert given["--expert-model-parallel-size"] == "8"
    first, last = (int(given[f"--decoder-{end}-pipeline-num-layers"]) for end in ("first", "last"))
    assert (first, last, first + last + 14 * 4) == (3, 2, 61)
    assert "--moe-grouped-gemm" in words


def test_vllms_file_is_yaml_with_the_plans_figures():
    yaml = pytest.importorskip("yaml")
    goal = ServeGoal("llama-3.1-70b", users=100, weights=("fp8-e4m3",), kv=("fp8-e4m3",))
    found = plan_serving(goal, [Cards("h100", 8, 2.0)])
    read = yaml.safe_load(serving_files(found)["vllm.yaml"])
    assert (read["quantization"], read["kv-cache-dtype"]) == ("fp8", "fp8_e4m3")
    assert read["tensor-parallel-size"] * read["pipeline-parallel-size"] == found.plans[0].layout.ranks
    assert read["max-num-seqs"] == found.plans[0].users
    assert read["gpu-memory-utilization"] == 0.95  # what launches on H100 took at most, and all of them started
    launch(ServeSetup("llama-3.1-70b"), engine("vllm", "0.19"), "h100", 8, share=0.95)


def test_vllms_file_says_what_its_pool_holds():
    """The plan counts on a reserve by card; the engine's own pool is smaller."""
    goal = ServeGoal("qwen3-8b", users=380, context=1152, weights=("bf16",), kv=("bf16",))
    found = plan_serving(goal, [Cards("h100", 1)])
    first = serving_files(found)["vllm.yaml"].splitlines()[0]
    setup = ServeSetup("qwen3-8b", context=1152)
    held = launch(setup, engine("vllm"), "h100", share=0.95, max_seqs=380).users
    assert held < 380
    assert f"its pool holds {held} users of 1,152 tokens, fewer than the plan's" in first


def test_vllm_knows_the_flags():
    utils = pytest.importorskip("vllm.engine.arg_utils")
    names = set(utils.EngineArgs.__dataclass_fields__)
    found = plan_serving(ServeGoal("llama-3.1-8b"), [Cards("h100", 1)])
    flags = [line.partition(":")[0] for line in serving_files(found)["vllm.yaml"].splitlines()[1:]]
    assert {flag.replace("-", "_") for flag in flags} <= names


def test_nothing_is_written_without_a_plan_or_over_a_file(found, tmp_path):
    with pytest.raises(WorkbookError, match="no plan"):
        write(replace(found, plans=()), tmp_path)
    taken = tmp_path / "taken"
    taken.write_text("")
    with pytest.raises(WorkbookError, match="is a file"):
        write(found, taken)


def test_a_format_that_vllm_has_no_name_for_is_refused():
    found = plan_serving(ServeGoal("llama-3.1-8b", weights=("mxfp4",)), [Cards("h100", 1)])
    with pytest.raises(WorkbookError, match="mxfp4"):
        serving_files(found)
