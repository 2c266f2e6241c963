"""The configuration files for a plan: DeepSpeed's JSON, and the YAML of `accelerate launch` for FSDP2."""

from __future__ import annotations

import json
from math import prod

from ...catalog.by_transformers import transformers_config
from ...catalog.errors import WorkbookError
from ...catalog.train_setup import TrainSetup
from ...memory.step.ranks.zero import BUCKET_BYTES, units

Section = dict[str, object]

# In DeepSpeed a BF16 model has an FP32 copy of its shard, unless both switches say otherwise.
_PRECISION: dict[str, Section] = {
    "fp32": {},
    "autocast-bf16": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
    "bf16": {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}},
    "megatron-bf16": {
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
    },
}


def deepspeed_config(
    setup: TrainSetup,
    learning_rate: float = 1e-4,
    clip: float = 1.0,
    accumulation: int | None = None,
    nvme_path: str = "/local_nvme",
) -> Section:
    """What `deepspeed.initialize(config=...)` takes for `setup`, stages 0 to 3, offload, and Infinity on `nvme_path`.

    Sizes that DeepSpeed counts in values are set from the model: its defaults are for models of tens of billions, and
    keep a smaller one whole. Checkpointing is the model's own, `model.gradient_checkpointing_enable()`. `accumulation`
    is the setup's where it is None. Raises WorkbookError for what DeepSpeed would refuse, or do differently without a
    word.

    >>> from helpers.catalog.split import Split
    >>> config = deepspeed_config(TrainSetup("llama-2-7b", "bf16", split=Split(8, zero=3)))
    >>> config["train_batch_size"], config["zero_optimization"]["stage3_prefetch_bucket_size"]
    (8, 202383360)
    """
    accumulation = setup.micro_batches if accumulation is None else accumulation
    _require_plain_loop(setup)
    _require_deepspeed(setup, clip, accumulation)
    root, *layers = units(setup.model)
    bucket = BUCKET_BYTES // setup.precision_recipe.grad_bytes
    config: Section = {
        "train_batch_size": setup.micro_batch * accumulation * setup.ranks,  # refused on another number of ranks
        "train_micro_batch_size_per_gpu": setup.micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip,
        **_PRECISION[setup.precision],
        "optimizer": _optimizer(setup, learning_rate),
        "zero_allow_untested_optimizer": True,  # SGD; Adam is on DeepSpeed's list
        "zero_optimization": {
            **zero_section(setup.zero, bucket, root, max(layers), persistent=10 * setup.model.hidden),
            **_offload(setup, nvme_path),
        },
    }
    if "nvme" in (setup.offload_optimizer, setup.offload_parameters):
        queue = {"block_size": 2**20, "queue_depth": 32, "intra_op_parallelism": 1}
        config["aio"] = queue | {"single_submit": False, "overlap_events": True}
    return config


def zero_section(stage: int, bucket: int, root: int, layer: int, persistent: int = 0) -> Section:
    """The sizes that make DeepSpeed behave as our engines do, all in values.

    `bucket` of gradients travel at once; at stage 3 the next `layer` is fetched while one computes, beside the `root`.
    By default 500 million values make a bucket, and what is used again within a billion values stays whole: every
    parameter of a smaller model. Parameters under `persistent` values (norms) are never sharded.
    """
    section: Section = {"stage": stage, "reduce_bucket_size": bucket, "overlap_comm": stage > 1}
    if stage < 3:
        return {**section, "allgather_bucket_size": bucket - bucket % 2}
    return {
        **section,
        "stage3_prefetch_bucket_size": layer,
        "stage3_max_live_parameters": root + 2 * layer,
        "stage3_max_reuse_distance": 0,
        "stage3_param_persistence_threshold": persistent,
    }


def accelerate_config(setup: TrainSetup, machines: int = 1) -> str:
    """The YAML for `accelerate launch --config_file`: FSDP2 at stages 2 and 3, DDP at stage 0.

    FSDP2 gathers FP32 shards as BF16 under "autocast-bf16"; "fp32" and "bf16" leave the model's dtype alone. With
    several `machines`, set machine_rank on each and the address of the first. Raises WorkbookError for what FSDP2 does
    not do: stage 1, NVMe, an optimizer offloaded alone, a master copy, recomputing less than every layer.

    >>> from helpers.catalog.split import Split
    >>> print(accelerate_config(TrainSetup("llama-2-7b", "bf16", split=Split(8, zero=3))).splitlines()[1])
    distributed_type: "FSDP"
    """
    _require_plain_loop(setup)
    _require_accelerate(setup, machines)
    lines: Section = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if setup.zero else "MULTI_GPU" if setup.ranks > 1 else "NO",
        "mixed_precision": "bf16" if setup.precision == "autocast-bf16" else "no",
        "num_processes": setup.ranks,
        "num_machines": machines,
        "machine_rank": 0,
        "main_training_function": "main",
        "debug": False,
        "use_cpu": False,
    }
    if machines > 1:
        lines |= {"main_process_ip": "first-machine", "main_process_port": 29500}
        lines |= {"rdzv_backend": "c10d", "same_network": True}
    return _yaml(lines) + (_yaml({"fsdp_config": None}) + _yaml(_fsdp(setup), "  ") if setup.zero else "")


def _fsdp(setup: TrainSetup) -> Section:
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": setup.zero == 3,
        "fsdp_offload_params": setup.offload_parameters == "cpu",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_transformer_layer_cls_to_wrap": ",".join(_layer_classes(setup)),
        "fsdp_activation_checkpointing": setup.checkpointing != "none",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
    }


def _yaml(lines: Section, indent: str = "") -> str:
    """Scalars in JSON are scalars in YAML; None begins a block."""
    text = (f"{indent}{name}:{'' if value is None else ' ' + json.dumps(value)}" for name, value in lines.items())
    return "\n".join(text) + "\n"


def _optimizer(setup: TrainSetup, learning_rate: float) -> Section:
    """By name. DeepSpeed compiles its own Adam when it is first used; `torch_adam` asks for PyTorch's."""
    if setup.optimizer.startswith("sgd"):
        momentum = {"momentum": 0.9} if setup.optimizer == "sgd-momentum" else {}
        return {"type": "SGD", "params": {"lr": learning_rate, **momentum}}
    torchs = setup.optimizer == "adamw-foreach" and setup.offload_optimizer == "none"
    foreach = {"torch_adam": True, "foreach": True} if torchs else {}
    return {"type": "AdamW", "params": {"lr": learning_rate, **foreach}}


def _offload(setup: TrainSetup, nvme_path: str) -> Section:
    """The blocks `offload_optimizer` and `offload_param`, with buffers for a shard of the largest parameter."""
    largest = max(prod(shape) for shape in setup.model.tensors())
    on_nvme: dict[str, Section] = {
        "offload_optimizer": {"buffer_count": 4},
        "offload_param": {"buffer_count": 5, "buffer_size": -(-largest // setup.ranks), "max_in_cpu": 0},
    }
    found: Section = {}
    for name, tier in (("offload_optimizer", setup.offload_optimizer), ("offload_param", setup.offload_parameters)):
        if tier != "none":
            nvme = {"nvme_path": nvme_path, **on_nvme[name]} if tier == "nvme" else {}
            found[name] = {"device": tier, "pin_memory": True, **nvme}
    if setup.offload_optimizer == "nvme":
        found["sub_group_size"] = 100_000_000  # what is on its way between disk and host at once
    if setup.offload_parameters == "nvme":  # DeepSpeed 0.19's update loses the buffers of what is being fetched ahead
        found["stage3_prefetch_bucket_size"] = 0
    return found


def _layer_classes(setup: TrainSetup) -> list[str]:
    """The decoder layer's class, as Transformers names it for the model; its import brings torch."""
    from transformers import AutoModelForCausalLM

    model_class = AutoModelForCausalLM._model_mapping[type(transformers_config(setup.model.config))]
    return sorted(getattr(model_class, "_no_split_modules"))  # noqa: B009 - no attribute that a type checker knows


def _require_plain_loop(setup: TrainSetup) -> None:
    if setup.in_backward:
        what = "the optimizer steps in the backward, and these files would train with one step behind it"
        raise WorkbookError(what, "in_backward=False", "register the hooks in your script, on one rank")
    if setup.precision not in _PRECISION and not setup.precision_recipe.linear_format:
        what = f"precision is {setup.precision!r}, which is Transformers' Trainer on one GPU"
        raise WorkbookError(what, ", ".join(_PRECISION), "choose precision='bf16', which keeps the same bytes")
    if setup.precision_recipe.linear_format:
        what = f"precision is {setup.precision!r}, and these files would train in BF16"
        do = "choose precision='bf16', and convert the model in your script"
        raise WorkbookError(what, "a recipe that the tool puts into a model", do)


def _require_deepspeed(setup: TrainSetup, clip: float, accumulation: int) -> None:
    if setup.optimizer not in ("adamw-foreach", "adamw-fused", "sgd", "sgd-momentum"):
        what = f"optimizer is {setup.optimizer!r}, which a DeepSpeed file cannot name"
        raise WorkbookError(what, "adamw-foreach, adamw-fused, sgd or sgd-momentum", "choose optimizer='adamw-fused'")
    if setup.precision == "bf16" and not setup.zero:
        what = "precision is 'bf16' at stage 0, where DeepSpeed keeps an FP32 copy"
        raise WorkbookError(what, "a stage from 1 on, or 'megatron-bf16'", "choose zero=1")
    if "nvme" in (setup.offload_optimizer, setup.offload_parameters) and setup.zero < 3:
        what = f"NVMe at stage {setup.zero}, where DeepSpeed would use the host's memory"
        raise WorkbookError(what, "zero=3: ZeRO-Infinity is a stage 3", "choose zero=3, or offload_optimizer='cpu'")
    if clip <= 0 or accumulation < 1:
        what = f"clip is {clip} and accumulation {accumulation}"
        raise WorkbookError(what, "both above 0", "pass clip=1.0, accumulation=1")


def _require_accelerate(setup: TrainSetup, machines: int) -> None:
    optimizer, parameters = setup.offload_optimizer, setup.offload_parameters
    if setup.zero == 1:
        do = "choose zero=2, or use deepspeed_config"
        raise WorkbookError("zero is 1, which FSDP2 does not do", "0 (DDP), 2 or 3 (FSDP2)", do)
    if "nvme" in (optimizer, parameters):
        do = "use deepspeed_config: ZeRO-Infinity"
        raise WorkbookError("a shard is on NVMe, which FSDP2 does not do", "none or cpu", do)
    if optimizer != parameters or (setup.zero == 2 and optimizer == "cpu"):
        what = f"offload_optimizer is {optimizer!r}, offload_parameters {parameters!r}"
        expected = "both the same, at stage 3: FSDP2 moves parameters, gradients and states together"
        raise WorkbookError(what, expected, "choose both 'cpu', or use deepspeed_config")
    if setup.precision == "megatron-bf16":
        expected = "autocast-bf16: FSDP2's FP32 shards are the master copy, and are gathered as BF16"
        raise WorkbookError("precision is 'megatron-bf16'", expected, "choose precision='autocast-bf16'")
    if setup.checkpointing not in ("none", "full", "every:1"):
        do = "choose checkpointing='full', or put the policy into the model yourself"
        raise WorkbookError(f"checkpointing is {setup.checkpointing!r}", "none, or full: every layer", do)
    if machines < 1 or setup.ranks % machines:
        do = f"pass machines=1, or another divisor of {setup.ranks}"
        raise WorkbookError(f"{setup.ranks} ranks on {machines} machines", "equally many on each", do)
