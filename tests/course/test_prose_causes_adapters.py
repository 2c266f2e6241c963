"""What chapters 06 and 07 say of adapters and of a script that gets them, each beside its control."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, Trainer, TrainingArguments

from helpers.memory import measure
from helpers.techniques import checkpointing as ck
from tests.course.test_prose_causes import enable

peft = pytest.importorskip("peft")

TOKENS, WIDTH, LAYERS = 128, 192, 2
IDS = torch.zeros(1, TOKENS, dtype=torch.long)
SIZES = {"hidden_size": WIDTH, "intermediate_size": 512, "num_hidden_layers": LAYERS, "vocab_size": 64}


def plain(dtype=torch.float32):
    """From a config of its own, into which `from_config` writes the type."""
    config = LlamaConfig(**SIZES, num_attention_heads=6, num_key_value_heads=6, use_cache=False)
    return AutoModelForCausalLM.from_config(config, dtype=dtype)


def adapted(targets, dtype=torch.float32, **how):
    return peft.get_peft_model(plain(dtype), peft.LoraConfig(r=4, target_modules=targets), **how).train()


def step_of(net, autocast: bool = False):
    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = net(input_ids=IDS, labels=IDS).loss
        loss.backward()

    return step


def adapter_first(linear):
    """peft's layer with the two summands the other way round."""
    narrow, wide = linear.lora_A["default"], linear.lora_B["default"]
    return lambda x: wide(narrow(x)) * linear.scaling["default"] + linear.base_layer(x)


def recomputed(targets, swapped: bool = False) -> float:
    """What checkpointing runs again, as a share of the layers' forward pass."""
    net = adapted(targets)
    net.enable_input_require_grads()
    if swapped:
        for linear in net.modules():
            if isinstance(linear, peft.tuners.lora.Linear):
                linear.forward = adapter_first(linear)
    step = step_of(net)
    with torch.no_grad():
        forward = ck.flops_of(lambda: net.get_base_model().model(input_ids=IDS))
    plain = ck.flops_of(step)
    enable(net.get_base_model(), {"use_reentrant": False})
    return (ck.flops_of(step) - plain) / forward


def test_nothing_stops_early_because_down_runs_before_its_adapter():
    assert recomputed("all-linear") > 0.99
    assert recomputed("all-linear", swapped=True) < 0.85
    assert recomputed(["q_proj", "v_proj"]) < 0.85


def copies(dtype, autocast: bool, **how) -> float:
    """Bytes that adapters on key and value keep beside one on the query, for each number of their common input."""
    kept = [
        measure.step(step_of(net, autocast), net, warmup=0).saved_bytes
        for net in (adapted(["q_proj"], dtype, **how), adapted(["q_proj", "k_proj", "v_proj"], dtype, **how))
    ]
    return (kept[1] - kept[0]) / (LAYERS * TOKENS * WIDTH)


@pytest.mark.parametrize(
    ("dtype", "autocast", "adapters_as_base", "more"),
    [
        (torch.bfloat16, False, False, 8),  # two more copies in FP32
        (torch.bfloat16, True, False, 4),  # peft casts to FP32, autocast back: two more copies in BF16
        (torch.float32, True, False, 4),
        (torch.float32, False, False, 0),  # no cast, no copy
        (torch.bfloat16, False, True, 0),
        (torch.bfloat16, True, True, 0),
    ],
)
def test_adapters_share_an_input_where_no_cast_is_needed(dtype, autocast, adapters_as_base, more):
    assert copies(dtype, autocast, autocast_adapter_dtype=not adapters_as_base) == pytest.approx(more, abs=0.3)


@pytest.fixture(scope="module")
def fp32_checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fp32")
    plain().save_pretrained(folder)
    return folder


def in_four_bits(folder: Path, **how):
    pytest.importorskip("bitsandbytes")
    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=four_bits, device_map="cpu", **how)


def test_what_is_not_quantized_has_the_files_type_unless_told(fp32_checkpoint):
    assert in_four_bits(fp32_checkpoint).lm_head.weight.dtype == torch.float32
    told = in_four_bits(fp32_checkpoint, dtype=torch.bfloat16)
    assert {told.lm_head.weight.dtype, told.model.norm.weight.dtype} == {torch.bfloat16}


@pytest.mark.parametrize("prepared", [True, False])
def test_peft_switches_on_the_old_engine_and_trainers_false_leaves_it_on(fp32_checkpoint, tmp_path, prepared):
    net = in_four_bits(fp32_checkpoint)
    net = peft.prepare_model_for_kbit_training(net) if prepared else net
    net = peft.get_peft_model(net, peft.LoraConfig(r=4, target_modules="all-linear"))
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    arguments = TrainingArguments(str(tmp_path), max_steps=1, gradient_checkpointing=False, **quiet)
    trainer = Trainer(net, arguments, train_dataset=[{"input_ids": IDS[0], "labels": IDS[0]}])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        trainer.train()
    assert any(getattr(part, "gradient_checkpointing", False) for part in net.modules()) == prepared
    assert any("use_reentrant parameter" in str(one.message) for one in heard) == prepared
