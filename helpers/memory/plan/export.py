"""A plan as the files that engines read: DeepSpeed's JSON, accelerate's YAML, `TrainingArguments`, Megatron's flags,
torchtitan's TOML, vLLM's YAML.

    write(plan_training(goal, fleet), Path("run"))     # ['run/deepspeed.json', 'run/accelerate.yaml', ...]

Only what the plan decided is in them: no data, no learning rate. TOML and YAML begin with a comment that says how they
are used. An FSDP2 that reduces gradients in BF16 is accelerate's, and one that reduces them in FP32 is torchtitan's:
neither's file can say the other. For a Megatron plan torchtitan's file divides the model alike, with other bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ...catalog.engines import engine
from ...catalog.errors import WorkbookError
from ...catalog.serve_setup import ServeSetup
from ..serve.engines.vllm import launch, starting_share
from ..serve.engines.vllm_flags import formats_named
from ..step.ranks import megatron
from .goal import ServeGoal, TrainGoal
from .search import TrainAnswer, TrainPlan
from .serve_search import ServeAnswer, ServePlan
from .training import TORCHTITAN, Layout, StepEngine, adapter_of

OPTIMS = {"adamw-fused": "adamw_torch_fused", "adamw-8bit": "adamw_bnb_8bit"}


def write(answer: TrainAnswer | ServeAnswer, folder: Path) -> list[Path]:
    """Write the first plan's files into `folder`, made if it is not there; their paths, in the order of names."""
    if not answer.plans:
        raise WorkbookError("no plan to write", "an answer with a plan", "loosen the goal, or add cards")
    texts = training_files(answer) if isinstance(answer, TrainAnswer) else serving_files(answer)
    if folder.exists() and not folder.is_dir():
        raise WorkbookError(f"{folder} is a file", "a folder", "pass --write with another name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as problem:
        raise WorkbookError(f"{folder} cannot be written: {problem}", "a folder of yours", "pass another") from None
    return [folder / name for name in sorted(texts)]


def training_files(answer: TrainAnswer, at: int = 0) -> dict[str, str]:
    """The texts of one plan's files, by name."""
    plan, goal = answer.plans[at], answer.goal
    layout = plan.layout
    if layout.engine is StepEngine.MEGATRON:
        files = {"megatron.args": megatron_args(plan, goal)}
    elif layout.engine is StepEngine.FSDP2 and layout.reduced == "fp32":
        files = {}
    else:
        files = {"accelerate.yaml": accelerate_yaml(plan), "training_arguments.json": _json(training_arguments(plan))}
        if layout.method != "full":
            files["lora_config.json"] = _json(lora_config(plan, goal))
        if uses_deepspeed(plan):
            files["deepspeed.json"] = _json(deepspeed(plan))
    if layout.reduced == "fp32" and layout.engine is not StepEngine.ZERO and goal.model.name in TORCHTITAN:
        files["torchtitan.toml"] = torchtitan_toml(plan, goal)
    return files


def serving_files(answer: ServeAnswer, at: int = 0) -> dict[str, str]:
    return {"vllm.yaml": vllm_yaml(answer.plans[at], answer.goal)}


def uses_deepspeed(plan: TrainPlan) -> bool:
    """Shards and an FP32 copy beside BF16 weights are DeepSpeed's; DDP with autocast is PyTorch's own."""
    layout = plan.layout
    if layout.engine is StepEngine.FSDP2:
        return False
    return layout.method == "full" and (layout.zero > 0 or layout.precision == "megatron-bf16")


def deepspeed(plan: TrainPlan) -> Mapping[str, object]:
    """DeepSpeed's configuration: batch, stage, precision, where the optimizer lives."""
    layout = plan.layout
    zero: dict[str, object] = {"stage": layout.zero}
    if layout.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    mixed: dict[str, object] = {"bf16": {"enabled": layout.precision != "autocast-bf16"}}
    if layout.precision == "megatron-bf16":
        mixed["data_types"] = {"grad_accum_dtype": "fp32"}
    if layout.precision == "autocast-bf16":
        mixed["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    return {
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.micro_batches,
        "train_batch_size": layout.sequences,
        "zero_optimization": zero,
        **mixed,
    }


def training_arguments(plan: TrainPlan) -> Mapping[str, object]:
    """Keyword arguments of `transformers.TrainingArguments`."""
    layout, sharded = plan.layout, plan.layout.engine is StepEngine.FSDP2
    found = {
        "output_dir": "run",
        "per_device_train_batch_size": layout.micro_batch,
        "gradient_accumulation_steps": layout.micro_batches,
        "gradient_checkpointing": layout.checkpointing == "full" and not sharded,  # FSDP2's own is in accelerate.yaml
        "optim": OPTIMS[layout.optimizer],
        "bf16": True,
        "max_steps": plan.steps,
    }
    if sharded:  # else gradients stay whole on every rank until the last micro-batch
        found["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return found


def lora_config(plan: TrainPlan, goal: TrainGoal) -> Mapping[str, object]:
    """Keyword arguments of `peft.LoraConfig`; of QLoRA the base is loaded in NF4 with double quantization besides."""
    adapter = adapter_of(plan.layout.method, goal.model)
    assert adapter
    targets = list(adapter.targets)
    return {"r": adapter.rank, "target_modules": targets if len(targets) > 1 else targets[0], "task_type": "CAUSAL_LM"}


def accelerate_yaml(plan: TrainPlan) -> str:
    """What `accelerate launch --config_file` reads. DeepSpeed's own file then says precision and stage."""
    machines = -(-plan.ranks // plan.cards.node)
    found: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "machine_rank": 0,
        "main_training_function": "main",
        "num_machines": machines,
        "num_processes": plan.ranks,
    }
    if uses_deepspeed(plan):
        found["distributed_type"] = "DEEPSPEED"
        found["deepspeed_config"] = {
            "deepspeed_config_file": "deepspeed.json",
            "zero3_init_flag": plan.layout.zero == 3,
        }
    elif plan.layout.engine is StepEngine.FSDP2:
        found["distributed_type"] = "FSDP"
        found["mixed_precision"] = "bf16"
        found["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_reshard_after_forward": True,
            "fsdp_activation_checkpointing": plan.layout.checkpointing == "full",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    else:
        found["distributed_type"] = "MULTI_GPU" if plan.ranks > 1 else "NO"
        found["mixed_precision"] = "bf16"
    how = "accelerate launch --config_file accelerate.yaml train.py"
    more = "; on other machines set machine_rank" if machines > 1 else ""
    return f"# {how}{more}\n" + "".join(f"{key}: {json.dumps(value)}\n" for key, value in sorted(found.items()))


def megatron_args(plan: TrainPlan, goal: TrainGoal) -> str:
    """Megatron-LM's flags, one a line: what divides the model, the batch and the recomputation."""
    layout = plan.layout
    flags: dict[str, object] = {
        "tensor-model-parallel-size": layout.tensor,
        "pipeline-model-parallel-size": layout.pipeline,
        "context-parallel-size": layout.context,
        "micro-batch-size": layout.micro_batch,
        "global-batch-size": layout.sequences,
        "seq-length": goal.sequence,
        "train-iters": plan.steps,
    }
    flags |= _uneven_stages(goal, layout)
    flags |= _experts(goal, layout)
    switches = ["bf16", "use-distributed-optimizer", "use-flash-attn"]
    switches += ["sequence-parallel"] if layout.tensor > 1 else []
    if layout.checkpointing == "full":
        flags |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    switches += ["moe-grouped-gemm"] if megatron.most_experts(goal.model) else []
    lines = [f"--{name} {value}" for name, value in flags.items()] + [f"--{name}" for name in switches]
    return "\n".join(lines) + "\n"


def _uneven_stages(goal: TrainGoal, layout: Layout) -> Mapping[str, int]:
    """Layers of the first and the last stage, where they have fewer than the others."""
    sizes = megatron.stage_layers(len(goal.model.layers), layout.pipeline)
    if len(set(sizes)) == 1:
        return {}
    return {"decoder-first-pipeline-num-layers": sizes[0], "decoder-last-pipeline-num-layers": sizes[-1]}


def _experts(goal: TrainGoal, layout: Layout) -> Mapping[str, object]:
    """A mixture's ranks, and the balance that the closed form counts with: each rank gets as much as it sends."""
    if not megatron.most_experts(goal.model):
        return {}
    return {
        "expert-model-parallel-size": layout.expert,
        "expert-tensor-parallel-size": layout.tensor,
        "moe-token-dispatcher-type": "alltoall",
    }


def torchtitan_toml(plan: TrainPlan, goal: TrainGoal) -> str:
    """What torchtitan's `--job.config_file` reads: model, batch, degrees, checkpointing."""
    layout = plan.layout
    sections: dict[str, dict[str, object]] = {
        "model": {"name": "llama3", "flavor": TORCHTITAN[goal.model.name]},
        "training": {
            "local_batch_size": layout.micro_batch * (layout.micro_batches if layout.pipeline > 1 else 1),
            "global_batch_size": layout.sequences,
            "seq_len": goal.sequence,
            "steps": plan.steps,
            "mixed_precision_param": "bfloat16",
            "mixed_precision_reduce": "float32",
        },
        "parallelism": {
            "data_parallel_shard_degree": layout.data,
            "tensor_parallel_degree": layout.tensor,
            "pipeline_parallel_degree": layout.pipeline,
            "context_parallel_degree": layout.context,
        },
        "activation_checkpoint": {"mode": layout.checkpointing},
    }
    if layout.pipeline > 1:
        sections["parallelism"]["pipeline_parallel_schedule"] = "1F1B"
        sections["parallelism"]["pipeline_parallel_microbatch_size"] = layout.micro_batch
    return "# CONFIG_FILE=torchtitan.toml ./run_train.sh\n" + "\n".join(_toml(sections))


def vllm_yaml(plan: ServePlan, goal: ServeGoal) -> str:
    """What `vllm serve MODEL --config vllm.yaml` reads. Refuses formats that vLLM has no name for."""
    layout = plan.layout
    method, cache = formats_named(layout.weights, layout.kv, layout.shipped)
    share = starting_share(plan.cards.device, layout.ranks)
    flags: dict[str, object] = {
        "tensor-parallel-size": layout.tensor,
        "pipeline-parallel-size": layout.pipeline,
        "max-model-len": goal.context,
        "max-num-seqs": plan.users,
        "max-num-batched-tokens": goal.prefill_tokens,
        "gpu-memory-utilization": share,
        "kv-cache-dtype": cache,
    }
    if method:
        flags["quantization"] = method
    copies = f"; {plan.replicas} servers like this, with a router before them" if plan.replicas > 1 else ""
    return f"# vllm serve MODEL --config vllm.yaml{copies}{_pool(plan, goal, share)}\n" + "".join(
        f"{k}: {json.dumps(v)}\n" for k, v in flags.items()
    )


def _pool(plan: ServePlan, goal: ServeGoal, share: float) -> str:
    """How many of the goal's users the pool of this launch holds; nothing where its pages are not known."""
    layout = plan.layout
    with suppress(WorkbookError):
        setup = ServeSetup(goal.model, weights=layout.served, kv=layout.kv, context=goal.context)
        setup = replace(setup, prefill_tokens=goal.prefill_tokens)
        ranks = (layout.tensor, layout.pipeline)
        users = launch(setup, engine("vllm"), plan.cards.device, *ranks, share, plan.users).users
        fewer = f", fewer than the plan's {plan.users:,}" if users < plan.users else ""
        return f"; its pool holds {users:,} users of {goal.context:,} tokens{fewer}"
    return ""


def _json(found: Mapping[str, object]) -> str:
    return json.dumps(found, indent=2) + "\n"


def _toml(sections: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    for name, values in sections.items():
        yield f"[{name}]"
        yield from (f"{key} = {json.dumps(value)}" for key, value in values.items())
        yield ""
