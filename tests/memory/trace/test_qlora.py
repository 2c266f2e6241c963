"""LoRA on a base in 4 bits: the trace against real steps through bitsandbytes and peft on a CPU, to the byte."""

import logging
import sys
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from helpers.catalog import Adapter, ServeSetup, TrainSetup, WorkbookError
from helpers.memory import budget, measure, rounded, trace
from helpers.memory.measure.steps import NO_DROPOUT, run_of
from helpers.memory.meter.watch import weights_of
from helpers.memory.trace import QuantizedBase
from helpers.memory.trace.quantized import base_on_meta, without_outliers
from tests.memory.configs import GPT2, QWEN2

pytest.importorskip("bitsandbytes")
pytest.importorskip("peft")

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # Transformers, of peft
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
# 132 is divided by neither 64 nor 512: tails of blocks, and sizes that round.
LLAMA = {
    "model_type": "llama",
    "hidden_size": 264,
    "intermediate_size": 660,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 301,
}
QV = ("q_proj", "v_proj")
ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PLAIN = QuantizedBase("nf4-dq", prepared=False)
CASES = [
    (LLAMA, ALL, QuantizedBase("nf4-dq"), {}),
    (QWEN2, QV, QuantizedBase("nf4-dq"), {"checkpointing": "every:2"}),
    (GPT2, ("c_attn",), QuantizedBase("nf4", "fp32"), {}),
]
REST = [
    (LLAMA, QV, QuantizedBase("nf4"), {}),
    (LLAMA, ALL, PLAIN, {"checkpointing": "full"}),
    (LLAMA, QV, QuantizedBase("nf4-dq", "fp16", prepared=False), {"checkpointing": "full", "attention": "eager"}),
    (LLAMA, QV, QuantizedBase("nf4-dq"), {"precision": "autocast-bf16", "optimizer": "adamw-fused"}),
    (QWEN2, QV, PLAIN, {}),
]


def setup_of(config, how):
    return TrainSetup(config, **{"precision": "bf16", "micro_batch": 2, "sequence": 64, **how})


def real_step(setup, targets, base, folder, adapter_dtype="fp32", dropout=0.0):
    """What a user writes: a saved model loaded in 4 bits, prepared or not, given adapters."""
    from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig

    dtype, config = DTYPES[base.dtype], AutoConfig.for_model(**setup.model.config)
    for name in NO_DROPOUT:
        if hasattr(config, name):
            setattr(config, name, 0.0)
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    how = BitsAndBytesConfig(
        load_in_8bit=base.weights == "int8",
        load_in_4bit=base.weights != "int8",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=base.weights == "nf4-dq",
    )
    model = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=how, dtype=dtype, attn_implementation=setup.attention
    )
    model.loss_type = "ForCausalLM"
    if base.prepared:
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    adapters = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=dropout, bias="none", task_type="CAUSAL_LM", target_modules=list(targets)
    )
    model = get_peft_model(model, adapters).train()
    for weight in filter(lambda weight: weight.requires_grad, model.parameters()):
        weight.data = weight.data.to(DTYPES[adapter_dtype])  # as TRL does
    if setup.checkpoint_every:
        model.enable_input_require_grads()
    run = run_of(setup, model, "cpu")
    return measure.step(run.step, run.model, run.optimizer)


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("config", "targets", "base", "how"),
    CASES + [pytest.param(*case, marks=pytest.mark.all) for case in REST],
    ids=lambda value: str(value)[:60],
)
def test_a_step_is_traced_to_the_byte(config, targets, base, how, tmp_path):
    setup = setup_of(config, how)
    found, real = trace.lora(setup, 4, targets, base=base, on="cpu"), real_step(setup, targets, base, tmp_path)
    batch = rounded(8 * setup.micro_batch * setup.sequence)  # made before the step: the meter need not have seen it
    assert found.peak_bytes - real.peak_bytes in (0, batch)
    assert found.peak.name == real.peak.name
    assert [found.parts[part] for part in ("parameters", "optimizer")] == [
        real.parts[part] for part in ("parameters", "optimizer")
    ]
    assert abs(found.measured.saved_bytes - real.saved_bytes) in (0, batch)


@pytest.mark.parametrize("precision", ["bf16", pytest.param("autocast-bf16", marks=pytest.mark.all)])
def test_a_step_as_trl_runs_it(precision, tmp_path):
    """No upcast, and adapters in BF16, whose states are BF16 too; with dropout, whose mask is no byte on a CPU."""
    setup = setup_of(LLAMA, {"precision": precision, "checkpointing": "full"})
    setup = replace(setup, adapter=Adapter("lora", 4, QV, "nf4-dq", dropout=0.1).trained_by("trl"))
    found, real = trace.train(setup, on="cpu"), real_step(setup, QV, PLAIN, tmp_path, "bf16", 0.1)
    batch = rounded(8 * setup.micro_batch * setup.sequence)
    assert found.peak_bytes - real.peak_bytes in (0, batch)
    for part in ("parameters", "optimizer"):
        assert found.parts[part] == real.parts[part]


@pytest.mark.parametrize("policy", ["none", "full"])
def test_a_base_in_8_bits_holds_what_its_products_read_until_the_graph_is_gone(policy, tmp_path):
    """LLM.int8() keeps its input as an attribute of its node, which no checkpoint knows of, on a CPU too."""
    base, how = QuantizedBase("int8", prepared=False), {"checkpointing": policy}
    setup = replace(setup_of(LLAMA, how), adapter=Adapter("lora", 4, QV, "int8", prepared=False))
    found, real = trace.train(setup, on="cpu"), real_step(setup, QV, base, tmp_path)
    batch = rounded(8 * setup.micro_batch * setup.sequence)
    assert found.peak_bytes - real.peak_bytes in (0, batch)
    with pytest.raises(WorkbookError, match="workbook trace train --lora-base int8"):
        budget.train(setup)


def test_on_cuda_a_product_in_8_bits_sums_in_32():
    """By hand, of 64 rows, 320 inputs and 640 outputs in BF16, as bitsandbytes' CUDA source has it."""
    from bitsandbytes import MatmulLtState, matmul

    with trace.fake(), without_outliers(cuda=True):
        x = torch.empty(64, 320, dtype=torch.bfloat16, requires_grad=True)
        state = MatmulLtState()
        state.CB, state.SCB = torch.empty(640, 320, dtype=torch.int8), torch.empty(640)
        state.has_fp16_weights, state.is_training, state.threshold = False, True, 6.0
        found = trace.record(lambda: matmul(x, state.CB, state=state), warmup=0)
    born = [event.block.size_bytes for event in found.events[found.first :] if event.sign > 0]
    half, codes, sums = 2 * 64 * 320, 64 * 320, 64 * 640
    assert born[:5] == [half, 512, codes, half, codes]  # in FP16, a scale for each row, codes, magnitudes, outliers
    assert [size for size in born[5:] if size > 512] == [4 * sums, 2 * sums, 2 * sums]


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_that_is_not_quantized_is_in_the_base_s_dtype(dtype):
    """The weights too, before they are packed: bitsandbytes decodes to the type that it was given."""
    model = base_on_meta(setup_of(QWEN2, {}), QuantizedBase("nf4", dtype))
    assert {parameter.dtype for parameter in model.parameters()} == {DTYPES[dtype]}


@pytest.mark.parametrize("weights", ["nf4", "nf4-dq"])
def test_the_base_is_the_budget_s_with_every_tensor_rounded_up(weights):
    setup = setup_of(LLAMA, {})
    found = trace.lora(setup, 4, QV, base=QuantizedBase(weights, prepared=False), on="cpu")
    adapters = 2 * 4 * 4 * sum((264 + 264, 264 + 132))  # 2 layers, rank 4, FP32: q_proj, v_proj
    rest = found.parts["parameters"] - adapters - budget.weight_bytes(ServeSetup(LLAMA, weights=weights))
    tensors = 14 * (6 if weights == "nf4-dq" else 3) + 8 + 2 + 8
    assert 0 < rest < tensors * 512


def test_preparing_costs_fp32_embeddings_and_hidden_states():
    setup = setup_of("tiny-llama", {"checkpointing": "full"})
    prepared, plain = (trace.lora(setup, 8, base=QuantizedBase("nf4", prepared=each)) for each in (True, False))
    model = setup.model
    extra = 2 * (2 * model.vocab * model.hidden + 9 * model.hidden)
    assert prepared.parts["parameters"] - plain.parts["parameters"] == pytest.approx(extra, rel=0.001)
    assert prepared.peak_bytes > plain.peak_bytes + extra


def product(tokens, nested, bias=False, outputs=640, inputs=320):
    """A real 4-bit product, called as Linear4bit calls it: the result, and the function that makes it."""
    from bitsandbytes import functional, matmul_4bit

    packed, state = functional.quantize_4bit(torch.randn(outputs, inputs), quant_type="nf4", compress_statistics=nested)
    x = torch.randn(tokens, inputs, requires_grad=True)
    added = torch.zeros(outputs) if bias else None
    return lambda: matmul_4bit(x, packed, quant_state=state, bias=added)


def allocated_within(run) -> list[int]:
    """Sizes of all that a real call allocates on the CPU, seen by the profiler inside the operator."""
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = profiler.profiler.kineto_results.events()
    return sorted(event.nbytes() for event in events if event.name() == "[memory]" and event.nbytes() > 0)


@pytest.mark.parametrize("nested", [False, True])
def test_a_product_decodes_weight_and_scales_first_as_the_profiler_sees(nested):
    """The same temporaries on CPU and CUDA; which is alive with which is read in bitsandbytes' CUDA source."""
    scales, decoded, output = 4 * 640 * 320 // 64, 4 * 640 * 320, 4 * 1024 * 640
    within = allocated_within(product(1024, nested))
    assert within == sorted([decoded, output, *([scales, scales] if nested else [])])


@pytest.mark.parametrize(
    ("tokens", "nested", "bias"), [(1024, False, False), (1024, True, False), (1024, True, True), (4, True, False)]
)
def test_on_cuda_the_decoded_weight_is_a_temporary_of_the_product(tokens, nested, bias):
    from bitsandbytes import matmul_4bit
    from bitsandbytes.functional import QuantState

    with trace.fake():
        weight, levels = torch.empty(640 * 320 // 2, 1, dtype=torch.uint8), torch.empty(16)
        absmax = torch.empty(3200, dtype=torch.uint8 if nested else torch.float32)
        beside = {}
        if nested:
            second = QuantState(absmax=torch.empty(13), code=torch.empty(256), blocksize=256, dtype=torch.float32)
            beside = {"offset": torch.empty(()), "state2": second}
        state = QuantState(
            absmax=absmax,
            shape=torch.Size((640, 320)),
            code=levels,
            blocksize=64,
            quant_type="nf4",
            dtype=torch.float16,
            **beside,
        )
        x, added = torch.empty(tokens, 320, dtype=torch.float16), torch.empty(640, dtype=torch.float16)
        found = trace.record(lambda: matmul_4bit(x, weight, state, bias=added if bias else None), warmup=0)
    born = [event.block.size_bytes for event in found.events[found.first :] if event.sign > 0]
    scales, decoded, output = [4 * 3200] * 2 if nested else [], 2 * 640 * 320, 2 * tokens * 640
    library = 2**20 if bias else 8_519_680
    assert born == ([*scales, decoded, output, library] if tokens > 64 else [output])


@pytest.mark.parametrize(
    ("base", "told"),
    [
        (lambda: QuantizedBase("nf4dq"), "did you mean 'nf4-dq'"),
        (lambda: QuantizedBase("int4-g128"), "quantized base"),
        (lambda: QuantizedBase(4), "quantized base"),
        (lambda: QuantizedBase("nf4", "fp8"), "dtype of a base"),
    ],
)
def test_bases_that_there_are_none_of(base, told):
    with pytest.raises(WorkbookError, match=told):
        base()


def test_refusals_of_the_run():
    with pytest.raises(WorkbookError, match="megatron"):
        trace.lora(setup_of("tiny-llama", {"precision": "megatron-bf16"}), 8, base="nf4")


def test_without_bitsandbytes_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(WorkbookError, match="bitsandbytes"):
        trace.lora(setup_of("tiny-llama", {}), 8, base="nf4")


def test_the_meter_counts_what_lies_beside_quantized_weights():
    """Scales and code tables are attributes of a weight, neither parameters nor buffers."""
    import bitsandbytes

    layer = bitsandbytes.nn.Linear4bit(256, 256, bias=False, compute_dtype=torch.float32, quant_type="nf4").to("cpu")
    found = measure.step(lambda: layer.train()(torch.ones(2, 256, requires_grad=True)).sum().backward(), layer)
    assert found.parts["parameters"] == 256 * 128 + 1024 + 512 + 512 + 512 + 1024  # codes, scales, offset, two tables
    eight = bitsandbytes.nn.Linear8bitLt(256, 256, bias=False, has_fp16_weights=False).to("cpu")
    assert sum(rounded(each.nbytes) for _, each in weights_of(eight)) == 256 * 256 + 1024
