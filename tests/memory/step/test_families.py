"""The pages of the families, held against the trace, which runs Transformers' own code on tensors without memory.

Each model is small and has few words, so that its peaks lie in the layers; what is compared are tensors, without the
library's workspaces and without what the allocator leaves of its segments.
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from transformers.activations import ACT2FN

from helpers.catalog import MODELS, Adapter, TrainSetup, WorkbookError, model
from helpers.memory import budget, measure, trace
from helpers.memory.measure import steps
from helpers.memory.meter import Meter
from helpers.memory.step.decoders.attending import FORMULA
from helpers.memory.step.decoders.families import PAGES, Gpt2
from helpers.memory.step.layer_run import layer_run
from helpers.memory.step.operators import Operators
from helpers.techniques.checkpointing import checkpointed, flops_of

GPU = "a100-80gb"
SMALL = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
SMALL |= {"vocab_size": 256, "pad_token_id": None, "intermediate_size": 768}
HEAD, HALF = {"head_dim": 64}, {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 512}
LATENT = {"q_lora_rank": 256, "kv_lora_rank": 128, "num_key_value_heads": 8, "first_k_dense_replace": 1}
EXPERTS = {"moe_intermediate_size": 256, "num_experts_per_tok": 4}
FAMILIES = {
    "llama": ("llama-3-8b", HEAD),
    "mistral": ("mistral-7b", {**HEAD, "sliding_window": 512}),
    "qwen2": ("qwen2.5-7b", {}),
    "qwen3": ("qwen3-8b", HEAD),
    "gemma2": ("gemma-2-9b", HEAD | HALF),
    "gemma3_text": ("gemma-3-12b-text", HEAD | HALF),
    "gemma3_text, one head": ("gemma-3-1b", HEAD | HALF | {"num_key_value_heads": 1}),
    "phi3": ("phi-4", {}),
    "phi3, a window": ("phi-3-mini-4k", {"num_key_value_heads": 8, "sliding_window": 512}),
    "mixtral": ("mixtral-8x7b", {"num_local_experts": 8, "intermediate_size": 512}),
    "qwen3_moe": ("qwen3-30b-a3b", HEAD | EXPERTS | {"num_experts": 16}),
    "gpt_oss": ("gpt-oss-20b", HEAD | HALF | {"num_local_experts": 8, "num_experts_per_tok": 4}),
    "deepseek_v3": ("deepseek-v3", LATENT | EXPERTS | {"n_routed_experts": 16, "n_group": 4, "topk_group": 2}),
}
GPT2 = {"n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 256, "pad_token_id": None}
FAMILIES |= {
    "gpt2": ("gpt2", GPT2 | {"bos_token_id": 1, "eos_token_id": 2}),
    "opt": ("opt-13b", {"word_embed_proj_dim": 512, "ffn_dim": 1536, "bos_token_id": 1, "eos_token_id": 2}),
}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
INTERLEAVED = {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 1024, "num_local_experts": 4}
INTERLEAVED |= {"no_rope_layer_interval": 2, "attention_chunk_size": 512}
ROUTED = EXPERTS | {"n_routed_experts": 16, "use_qk_norm": True, "attention_bias": True}
FAMILIES |= {
    "smollm3": ({"model_type": "smollm3"}, ENDS),
    "glm4_moe": ({"model_type": "glm4_moe"}, HEAD | ENDS | ROUTED),
    "llama4_text": ({"model_type": "llama4_text"}, HEAD | ENDS | INTERLEAVED),
}
RULE = {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 64}
RULE |= {"full_attention_interval": 2, "shared_expert_intermediate_size": 128, "num_experts": 16}
FAMILIES |= {
    "qwen3_next": ({"model_type": "qwen3_next"}, HEAD | ENDS | EXPERTS | RULE),
    "qwen3_5_text": ({"model_type": "qwen3_5_text"}, HEAD | ENDS | RULE),
    "qwen3_5_moe_text": ({"model_type": "qwen3_5_moe_text"}, HEAD | ENDS | EXPERTS | RULE),
}
LAYER_NORM = ("gpt2", "opt")  # in BF16 its statistics are FP32 on CUDA, and BF16 on a CPU and in the trace
EAGER_ALONE = ("gemma2", "gpt_oss")
POLICIES = ("none", "full", "selective", "module:mlp")
QUICK = {  # the other ways of each family run at night
    ("phi3", "bf16", "full", "sdpa", 1),
    ("phi3, a window", "bf16", "selective", "sdpa", 2),
    ("gemma3_text", "autocast-bf16", "none", "sdpa", 1),
    ("gemma3_text, one head", "bf16", "module:mlp", "sdpa", 1),
    ("mixtral", "bf16", "full", "sdpa", 1),
    ("qwen3_moe", "autocast-bf16", "selective", "sdpa", 1),
    ("gpt_oss", "bf16", "full", "eager", 1),
    ("deepseek_v3", "bf16", "none", "sdpa", 1),
    ("deepseek_v3", "autocast-bf16", "none", "eager", 2),
    ("gemma2", "bf16", "full", "eager", 1),
    ("gpt2", "autocast-bf16", "none", "eager", 2),
    ("gpt2", "bf16", "none", "eager", 1),
    ("opt", "autocast-bf16", "selective", "sdpa", 2),
    ("smollm3", "bf16", "full", "eager", 1),
    ("glm4_moe", "bf16", "none", "sdpa", 1),
    ("llama4_text", "autocast-bf16", "full", "sdpa", 2),
    ("llama4_text", "bf16", "selective", "eager", 1),
    ("qwen3_next", "bf16", "full", "sdpa", 1),
    ("qwen3_5_text", "autocast-bf16", "none", "eager", 2),
    ("qwen3_5_moe_text", "fp32", "selective", "sdpa", 1),
}


def ways():
    for name in FAMILIES:
        for precision in ("bf16", "autocast-bf16", "fp32"):
            for policy in POLICIES:
                for attention in ("eager",) if name in EAGER_ALONE else ("sdpa", "eager"):
                    for micro_batch in (1, 2):
                        way = name, precision, policy, attention, micro_batch
                        if (name, policy) != ("opt", "module:mlp"):  # it has no MLP module
                            yield pytest.param(*way, marks=[] if way in QUICK else pytest.mark.all)


def setup_of(name, precision, policy, attention, micro_batch, sequence=1024):
    known, changes = FAMILIES[name]
    config = known if isinstance(known, dict) else model(known).config
    config = {key: value for key, value in config.items() if key != "quantization_config"}
    small = {} if name == "gpt2" else SMALL  # whose config has other names
    return TrainSetup(
        config | small | changes,
        precision,
        "sgd",
        micro_batch=micro_batch,
        sequence=sequence,
        checkpointing=policy,
        attention=attention,
    )


def tensors_at_peak(traced):
    return sum(block.size_bytes for block in traced.at_peak if not block.owner.startswith("cuBLAS"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_page_trains_the_weights_of_the_catalogue(name):
    """Each layer's gradients are of the shapes that its family says it has: a norm too many would be seen."""
    setup = setup_of(name, "fp32", "none", "eager" if name in EAGER_ALONE else "sdpa", 1, 64)
    for layer in set(setup.model.layers):
        came = Counter(arrival.shape for arrival in layer_run(setup, layer, kernel=FORMULA).arrivals)
        assert came == Counter(layer.tensors(setup.model.hidden))


@pytest.mark.parametrize(("name", "precision", "policy", "attention", "micro_batch"), list(ways()))
def test_a_step_is_what_the_trace_says(name, precision, policy, attention, micro_batch):
    setup = setup_of(name, precision, policy, attention, micro_batch)
    predicted, traced = budget.train(setup, GPU), trace.train(setup, GPU)
    statistics = 8 * (2 + 8) * setup.tokens if name in LAYER_NORM and precision == "bf16" else 0
    assert predicted.saved_bytes == pytest.approx(traced.measured.saved_bytes, rel=2e-4, abs=50_000 + statistics)
    assert predicted.tensor_bytes == pytest.approx(tensors_at_peak(traced), rel=0.005)


RECIPES = (
    {"precision": "torchao-fp8"},
    {"precision": "megatron-bf16"},
    {"in_backward": True},
    {"precision": "autocast-bf16-on-bf16"},
)
NO_FLOAT8 = ("gpt2", "llama4_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
RECIPES_QUICK = {("deepseek_v3", 0), ("opt", 0), ("gpt_oss", 1), ("phi3, a window", 2), ("gpt2", 3), ("gpt_oss", 3)}


@pytest.mark.parametrize("policy", ["none", "full"])
@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        pytest.param(name, at, marks=[] if (name, at) in RECIPES_QUICK else pytest.mark.all)
        for name in FAMILIES
        for at in range(len(RECIPES))
        if at or name not in NO_FLOAT8
    ],
)
def test_other_recipes_are_what_the_trace_says(name, recipe, policy):
    if recipe == 0:
        pytest.importorskip("torchao")
    setup = setup_of(name, "bf16", policy, "eager" if name in EAGER_ALONE else "sdpa", 1)
    setup = replace(setup, optimizer="adamw-fused", **RECIPES[recipe])
    predicted, traced = budget.train(setup, "h100"), trace.train(setup, "h100")
    assert predicted.tensor_bytes == pytest.approx(tensors_at_peak(traced), rel=0.001)


MEASURED_QUICK = {("phi3", "fp32"), ("gemma3_text", "bf16"), ("qwen3_moe", "autocast-bf16"), ("deepseek_v3", "bf16")}


@pytest.mark.parametrize("policy", ["none", "full"])
@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param(name, precision, marks=[] if (name, precision) in MEASURED_QUICK else pytest.mark.all)
        for name in FAMILIES
        for precision in ("bf16", "autocast-bf16", "fp32")
    ],
)
def test_a_real_step_on_a_cpu_is_what_was_predicted_for_none(name, precision, policy):
    """Without a card it is a CPU's: its kernels hold nothing besides, and take no V of another width than Q."""
    setup = setup_of(name, precision, policy, "eager" if name in EAGER_ALONE else "sdpa", 1, sequence=256)
    predicted, measured = budget.train(setup), measure.training_step(setup, "cpu")
    statistics = 8 * (2 + 8) * setup.tokens if name in LAYER_NORM and precision == "bf16" else 0
    assert predicted.saved_bytes == pytest.approx(measured.saved_bytes, abs=4_000 + statistics)
    assert predicted.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.01)


O_PROJ, NIGHT = {"kind": "lora", "rank": 8, "targets": "o_proj"}, pytest.mark.all
ADAPTED = [
    ("qwen3_moe", "bf16", "selective", O_PROJ),
    ("mixtral", "autocast-bf16", "full", O_PROJ),
    ("deepseek_v3", "bf16", "none", {**O_PROJ, "base": "nf4"}),
    pytest.param("gpt_oss", "bf16", "none", {**O_PROJ, "base": "nf4"}, marks=NIGHT),
    pytest.param("gpt_oss", "autocast-bf16", "full", O_PROJ, marks=NIGHT),
    pytest.param("deepseek_v3", "autocast-bf16", "module:attention", O_PROJ, marks=NIGHT),
    pytest.param("gemma3_text", "bf16", "module:mlp", {"targets": "all-linear", "base": "nf4"}, marks=NIGHT),
    ("phi3", "bf16", "selective:every-second", {"targets": "all-linear", "kind": "dora"}),
    pytest.param("qwen2", "autocast-bf16", "selective:attention", {"targets": "all-linear"}, marks=NIGHT),
    pytest.param("gpt2", "fp32", "full", {"targets": "c_attn"}, marks=NIGHT),
    ("gpt2", "bf16", "none", {"targets": "all-linear"}),  # what attention returned is named to the layer's end
    ("qwen3_5_text", "bf16", "full", {"targets": "all-linear"}),
    pytest.param("qwen3_next", "autocast-bf16", "none", {"targets": ("q_proj", "in_proj_qkvz")}, marks=NIGHT),
    pytest.param("llama4_text", "bf16", "selective", O_PROJ, marks=NIGHT),
    pytest.param("glm4_moe", "autocast-bf16", "full", {**O_PROJ, "base": "nf4"}, marks=NIGHT),
    pytest.param("smollm3", "bf16", "none", {"targets": "all-linear", "kind": "dora"}, marks=NIGHT),
    ("opt", "bf16", "full", {"targets": "all-linear", "base": "nf4"}),  # its MLP adds gradients in place
    ("opt", "autocast-bf16", "none", {"targets": "q_proj", "kind": "dora"}),  # a bias in FP32; the final norm's moment
]


@pytest.mark.parametrize(("name", "precision", "policy", "adapter"), ADAPTED)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # Transformers, of peft
@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")  # peft, of GPT-2
def test_adapters_of_every_family_under_every_policy(name, precision, policy, adapter):
    pytest.importorskip("peft")
    setup = setup_of(name, precision, policy, "eager" if name in EAGER_ALONE else "sdpa", 1)
    setup = replace(setup, adapter=Adapter(**adapter))
    predicted, traced = budget.train(setup, GPU), trace.train(setup, GPU)
    assert predicted.saved_bytes == pytest.approx(traced.measured.saved_bytes, rel=2e-4, abs=110_000)
    assert predicted.tensor_bytes == pytest.approx(tensors_at_peak(traced), rel=0.002)


def test_slices_written_into_an_empty_tensor_cost_what_autograd_makes_of_them():
    """DeepSeek's keys. In no small model does the peak lie here, so it is weighed by itself."""
    with Meter() as meter:
        x, y = torch.ones(1, 8, 64, 128, requires_grad=True), torch.ones(1, 1, 64, 64, requires_grad=True)
        nope, rot, key = x * 1, (y * 1).expand(-1, 8, -1, -1), torch.empty(1, 8, 64, 192)
        key[..., :128].copy_(nope)
        key[..., 128:].copy_(rot)
        del nope, rot
        gradient = torch.ones_like(key)
        key.backward(gradient)
    tape = Operators()
    x, y = tape.leaf(8 * 64 * 128, 4), tape.leaf(64 * 64, 4)
    nope, rot = tape.elementwise(x), tape.view(tape.elementwise(y), 8 * 64 * 64)
    key = tape.filled(nope, rot)
    del nope, rot
    gradient = tape.new(key.values, 4)
    tape.backward(key.node, key.values, 4, given=gradient)
    assert tape.highest.total == meter.peak_bytes


def test_gelu_new_costs_what_its_calls_make():
    """Eight of them; that of pow makes two more in its backward, which in no layer is the peak."""
    with Meter() as meter:
        x = torch.ones(64, 1024, requires_grad=True)
        gradient = torch.ones_like(x)
        ACT2FN["gelu_new"](x).backward(gradient)
    tape, shape = Operators(), model("gpt2")
    x = tape.leaf(64 * 1024, 4)
    gradient = tape.new(x.values, 4)
    out = Gpt2(TrainSetup(shape, "fp32", sequence=64), tape).activated(x)
    tape.backward(out.node, x.values, 4, given=gradient)
    assert tape.highest.total == meter.peak_bytes


ANOTHER = [{"sequence": 512}, {"micro_batch": 2}, {"micro_batches": 2}, {"attention": "eager"}, {"precision": "fp32"}]


@pytest.mark.parametrize("change", [*ANOTHER, {"adapter": Adapter()}], ids=str)
def test_what_is_remembered_of_a_layer_is_of_this_setup_alone(change):
    setup = setup_of("llama", "bf16", "none", "sdpa", 1)
    budget.train(setup)
    asked, shape = replace(setup, **change), setup.model
    assert budget.train(asked).moments == budget.train(replace(asked, model=replace(shape))).moments


def test_adapters_of_stacked_experts_are_refused():
    """peft takes "all-linear" to mean them too."""
    with pytest.raises(WorkbookError, match="stacked in one parameter"):
        budget.train(TrainSetup("mixtral-8x7b", "bf16", adapter=Adapter(targets="all-linear")))


def test_every_family_has_a_page_and_every_model_of_the_catalogue_an_answer():
    assert {name.split(",")[0] for name in FAMILIES} == set(PAGES)
    for name in MODELS:
        shape = model(name)
        attention = "eager" if shape.family in EAGER_ALONE else "sdpa"
        assert budget.train(TrainSetup(shape, "bf16", sequence=1024, attention=attention), GPU).peak_bytes > 0


def test_attention_that_transformers_does_not_have_is_refused():
    setup = setup_of("gpt_oss", "bf16", "none", "eager", 1)
    with pytest.raises(WorkbookError, match="attention sinks"):
        budget.train(replace(setup, attention="sdpa"))


COUNTED = [(name, policy) for name in FAMILIES for policy in ("none", "full", "selective:every-second", "module:mlp")]
COUNTED_QUICK = {("gpt_oss", "full"), ("deepseek_v3", "selective:every-second"), ("phi3", "module:mlp")}


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        pytest.param(*case, marks=[] if case in COUNTED_QUICK else NIGHT)
        for case in COUNTED
        if case != ("opt", "module:mlp")  # which has no such module
    ],
)
def test_flops_are_those_that_torch_counts(name, policy):
    """To the last one. DeepSeek's attention is eager here: a CPU has no fused kernel for its widths."""
    attention = "eager" if name in (*EAGER_ALONE, "deepseek_v3") else "sdpa"
    setup = setup_of(name, "fp32", policy, attention, 1, sequence=64)
    run = steps.training_run(replace(setup, checkpointing="none"), "cpu")
    with checkpointed(run.model, policy):
        assert budget.step_flops(setup).total == flops_of(run.step)


@pytest.mark.parametrize("policy", ["none", "full"])
@pytest.mark.parametrize("adapter", [{"targets": "all-linear"}, {"targets": "v_proj", "kind": "dora"}], ids=str)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # Transformers, of peft
def test_a_frozen_weight_takes_no_product_for_its_gradient(adapter, policy):
    peft = pytest.importorskip("peft")
    setup = replace(setup_of("qwen2", "fp32", policy, "sdpa", 1, sequence=64), adapter=Adapter(**adapter, rank=8))
    base = steps.build_model(replace(setup, adapter=None), "cpu")
    wanted = setup.adapter.targets if adapter.get("kind") else "all-linear"
    lora = peft.LoraConfig(
        r=8, target_modules=wanted, use_dora=adapter.get("kind") == "dora", task_type=peft.TaskType.CAUSAL_LM
    )
    tuned, ids = peft.get_peft_model(base, lora), torch.zeros(1, 64, dtype=torch.long)
    if policy == "full":
        tuned.enable_input_require_grads()
    with checkpointed(base, policy):
        counted = flops_of(lambda: tuned(input_ids=ids, labels=ids, use_cache=False).loss.backward())
    assert budget.step_flops(setup).total == counted


Q_PROJ, C_PROJ, IN_ATTENTION = {"targets": "q_proj"}, {"targets": "c_proj"}, "module:attention"
FOUND = {  # by steps of adapters and of several sequences that were run for real
    "frozen experts in FP32 keep nothing": ("qwen3_moe", "fp32", "none", "sdpa", 1, 512, O_PROJ),
    "the leaf of the micro-batch before": ("llama", "fp32", "full", "sdpa", 2, 256, Q_PROJ | {"of": 2}),
    "heads of several sequences are copied": ("llama", "bf16", "selective", "eager", 2, 256, {}),
    "V of several sequences is copied late": ("opt", "bf16", "selective", "eager", 2, 256, {}),
    "a copy for a product that is stored": ("llama", "autocast-bf16", "selective", "sdpa", 1, 512, Q_PROJ),
    "weights behind a checkpoint are named": ("gpt2", "bf16", IN_ATTENTION, "eager", 2, 256, C_PROJ),
    "a query of two types is as wide as both": ("deepseek_v3", "autocast-bf16", IN_ATTENTION, "eager", 2, 512, {}),
    "the formula copies a slice of V": ("deepseek_v3", "fp32", "none", "sdpa", 2, 512, {}),
    "its result lives while weights are cast": ("deepseek_v3", "bf16", IN_ATTENTION, "sdpa", 2, 256, {}),
}


@pytest.mark.parametrize("case", FOUND)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # Transformers, of peft
@pytest.mark.filterwarnings("ignore:fan_in_fan_out:UserWarning")  # peft, of GPT-2
def test_what_real_steps_have_shown(case):
    *shape, adapter = FOUND[case]
    setup, adapter = setup_of(*shape), dict(adapter)
    if adapter:
        pytest.importorskip("peft")
        setup = replace(setup, micro_batches=adapter.pop("of", 1), adapter=Adapter(**{"rank": 8, **adapter}))
    else:
        setup = replace(setup, in_backward=True)  # so that the peak is in a layer, and not in gradients
    predicted, traced = budget.train(setup), trace.train(setup, on="cpu")
    assert predicted.tensor_bytes == pytest.approx(tensors_at_peak(traced), rel=0.001)
    assert predicted.saved_bytes == pytest.approx(traced.measured.saved_bytes, abs=24_000)


def test_wide_heads_of_16_bits_sum_the_gradients_of_k_and_v_in_fp32():
    """The memory-efficient kernel, which a window takes: Gemma-3 with heads of 256, as the models have them."""
    config = {**model("gemma-3-12b-text").config, **SMALL, **HALF, "head_dim": 256}
    setup = TrainSetup(config, "bf16", "sgd", sequence=1024, checkpointing="full", in_backward=True)
    predicted, traced = budget.train(setup, GPU), trace.train(setup, GPU)
    assert predicted.tensor_bytes == pytest.approx(tensors_at_peak(traced), rel=0.001)


def test_flash_attention_sums_dq_in_fp32_and_has_dk_and_dv_of_every_query_head():
    """Where all else is so narrow that the peak is in attention's backward."""
    config = {**model("llama-3-8b").config, **SMALL, **HEAD, "hidden_size": 128, "intermediate_size": 64}
    setup = TrainSetup(config, "bf16", "sgd", sequence=1024, checkpointing="full", in_backward=True)
    predicted, traced = budget.train(setup, GPU), trace.train(setup, GPU)
    assert predicted.tensor_bytes == pytest.approx(tensors_at_peak(traced), abs=20_000)  # the ids
