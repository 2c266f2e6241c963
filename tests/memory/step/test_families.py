"""The pages of the families, held against the trace, which runs Transformers' own code on tensors without memory.

Each model is small and has few words, so that its peaks lie in the layers; what is compared are tensors, without the
library's workspaces and without what the allocator leaves of its segments.
"""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
import torch
from transformers.activations import ACT2FN

from helpers.catalog import MODELS, Adapter, TrainSetup, model
from helpers.memory import budget
from helpers.memory.measure import steps
from helpers.memory.meter import Meter
from helpers.memory.step.decoders.attending import FORMULA
from helpers.memory.step.decoders.families import PAGES, Gpt2
from helpers.memory.step.layer_run import layer_run
from helpers.memory.step.operators import Operators
from helpers.techniques.checkpointing import checkpointed, flops_of
from tests.memory.step.agreement import CONV1D_WARNS, PEFT_WARNS, agree, by_night, refused

GPU = "a100-80gb"
SMALL = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4}
SMALL |= {"vocab_size": 256, "pad_token_id": None, "intermediate_size": 768}
HEAD, HALF = {"head_dim": 64}, {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 512}
LATENT = {"q_lora_rank": 256, "kv_lora_rank": 128, "num_key_value_heads": 8, "first_k_dense_replace": 1}
EXPERTS = {"moe_intermediate_size": 256, "num_experts_per_tok": 4}
GPT2 = {"n_embd": 512, "n_layer": 4, "n_head": 8, "vocab_size": 256, "pad_token_id": None}
ENDS = {"bos_token_id": 1, "eos_token_id": 2}
ONE_BY_ONE = {"interleave_moe_layer_step": 2, "intermediate_size_mlp": 1024, "num_local_experts": 4}
ONE_BY_ONE |= {"no_rope_layer_interval": 2, "attention_chunk_size": 512}
ROUTED = EXPERTS | {"n_routed_experts": 16, "use_qk_norm": True, "attention_bias": True}
RULE = {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 64}
RULE |= {"full_attention_interval": 2, "shared_expert_intermediate_size": 128, "num_experts": 16}
FAMILIES = {
    "llama": ("llama-3-8b", HEAD),
    "mistral": ("mistral-7b", HEAD | {"sliding_window": 512}),
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
    "gpt2": ("gpt2", GPT2 | ENDS),
    "opt": ("opt-13b", ENDS | {"word_embed_proj_dim": 512, "ffn_dim": 1536}),
    "smollm3": ({"model_type": "smollm3"}, ENDS),
    "glm4_moe": ({"model_type": "glm4_moe"}, HEAD | ENDS | ROUTED),
    "llama4_text": ({"model_type": "llama4_text"}, HEAD | ENDS | ONE_BY_ONE),
    "qwen3_next": ({"model_type": "qwen3_next"}, HEAD | ENDS | EXPERTS | RULE),
    "qwen3_5_text": ({"model_type": "qwen3_5_text"}, HEAD | ENDS | RULE),
    "qwen3_5_moe_text": ({"model_type": "qwen3_5_moe_text"}, HEAD | ENDS | EXPERTS | RULE),
}
LAYER_NORM = ("gpt2", "opt")  # in BF16 its statistics are FP32 on CUDA, and BF16 on a CPU and in the trace
EAGER_ALONE = ("gemma2", "gpt_oss")
PRECISIONS, POLICIES = ("bf16", "autocast-bf16", "fp32"), ("none", "full", "selective", "module:mlp")
QUICK = """
phi3 bf16 full sdpa 1; phi3, a window bf16 selective sdpa 2; gemma3_text autocast-bf16 none sdpa 1;
gemma3_text, one head bf16 module:mlp sdpa 1; mixtral bf16 full sdpa 1; qwen3_moe autocast-bf16 selective sdpa 1;
gpt_oss bf16 full eager 1; deepseek_v3 bf16 none sdpa 1; deepseek_v3 autocast-bf16 none eager 2;
gemma2 bf16 full eager 1; gpt2 autocast-bf16 none eager 2; gpt2 bf16 none eager 1; opt autocast-bf16 selective sdpa 2;
smollm3 bf16 full eager 1; glm4_moe bf16 none sdpa 1; llama4_text autocast-bf16 full sdpa 2;
llama4_text bf16 selective eager 1; qwen3_next bf16 full sdpa 1; qwen3_5_text autocast-bf16 none eager 2;
qwen3_5_moe_text fp32 selective sdpa 1
"""  # the other ways of each family run at night
QUICK = {(" ".join(way[:-4]), *way[-4:-1], int(way[-1])) for way in map(str.split, QUICK.split(";"))}


WAYS = [
    (name, precision, policy, attention, micro_batch)
    for name, precision, policy in product(FAMILIES, PRECISIONS, POLICIES)
    for attention in (("eager",) if name in EAGER_ALONE else ("sdpa", "eager"))
    for micro_batch in (1, 2)
    if (name, policy) != ("opt", "module:mlp")  # it has no MLP module
]


def setup_of(name, precision, policy, attention=None, micro_batch=1, sequence=1024):
    attention = attention or ("eager" if name in EAGER_ALONE else "sdpa")
    known, changes = FAMILIES[name]
    config = known if isinstance(known, dict) else model(known).config
    config = {key: value for key, value in config.items() if key != "quantization_config"}
    small = {} if name == "gpt2" else SMALL  # whose config has other names
    return TrainSetup(config | small | changes, precision, "sgd", micro_batch, sequence, policy, attention)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_page_trains_the_weights_of_the_catalogue(name):
    """Each layer's gradients are of the shapes that its family says it has: a norm too many would be seen."""
    setup = setup_of(name, "fp32", "none", sequence=64)
    for layer in set(setup.model.layers):
        came = Counter(arrival.shape for arrival in layer_run(setup, layer, kernel=FORMULA).arrivals)
        assert came == Counter(layer.tensors(setup.model.hidden))


@pytest.mark.parametrize(("name", "precision", "policy", "attention", "micro_batch"), by_night(WAYS, QUICK))
def test_a_step_is_what_the_trace_says(name, precision, policy, attention, micro_batch):
    setup = setup_of(name, precision, policy, attention, micro_batch)
    agree(setup, GPU, of="tensors", peak=0.005, saved={"rel": 2e-4, "abs": 50_000 + statistics_of(name, setup)})


def statistics_of(name, setup):
    return 8 * (2 + 8) * setup.tokens if name in LAYER_NORM and setup.precision == "bf16" else 0


RECIPES = ({"precision": "torchao-fp8"}, {"precision": "megatron-bf16"}, {"in_backward": True})
RECIPES += ({"precision": "autocast-bf16-on-bf16"},)
NO_FLOAT8 = ("gpt2", "llama4_text", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
RECIPES_QUICK = {("deepseek_v3", 0), ("opt", 0), ("gpt_oss", 1), ("phi3, a window", 2), ("gpt2", 3), ("gpt_oss", 3)}


OF_RECIPES = [(name, at) for name in FAMILIES for at in range(len(RECIPES)) if at or name not in NO_FLOAT8]


@pytest.mark.parametrize("policy", ["none", "full"])
@pytest.mark.parametrize(("name", "recipe"), by_night(OF_RECIPES, RECIPES_QUICK))
def test_other_recipes_are_what_the_trace_says(name, recipe, policy):
    if recipe == 0:
        pytest.importorskip("torchao")
    setup = replace(setup_of(name, "bf16", policy), optimizer="adamw-fused", **RECIPES[recipe])
    agree(setup, "h100", of="tensors")


MEASURED_QUICK = {("phi3", "fp32"), ("gemma3_text", "bf16"), ("qwen3_moe", "autocast-bf16"), ("deepseek_v3", "bf16")}


@pytest.mark.parametrize("policy", ["none", "full"])
@pytest.mark.parametrize(("name", "precision"), by_night(product(FAMILIES, PRECISIONS), MEASURED_QUICK))
def test_a_real_step_on_a_cpu_is_what_was_predicted_for_none(name, precision, policy):
    """Without a card it is a CPU's: its kernels hold nothing besides, and take no V of another width than Q."""
    setup = setup_of(name, precision, policy, sequence=256)
    agree(setup, real=True, peak=0.01, saved={"abs": 4_000 + statistics_of(name, setup)})


O_PROJ = {"kind": "lora", "rank": 8, "targets": "o_proj"}
HOW = {"o_proj": O_PROJ, "all": {"targets": "all-linear"}, "q_proj": {"targets": "q_proj"}, "nf4": {"base": "nf4"}}
HOW |= {"c_attn": {"targets": "c_attn"}, "two": {"targets": ("q_proj", "in_proj_qkvz")}, "dora": {"kind": "dora"}}
# By day those with a star. Of GPT-2 what attention returned is named to the layer's end; OPT's MLP adds gradients in
# place, and under autocast it has a bias in FP32, and its highest moment in the final norm.
ADAPTED = """
*qwen3_moe bf16 selective o_proj; *mixtral autocast-bf16 full o_proj; *deepseek_v3 bf16 none o_proj nf4;
gpt_oss bf16 none o_proj nf4; gpt_oss autocast-bf16 full o_proj; deepseek_v3 autocast-bf16 module:attention o_proj;
gemma3_text bf16 module:mlp all nf4; *phi3 bf16 selective:every-second all dora;
qwen2 autocast-bf16 selective:attention all; gpt2 fp32 full c_attn; *gpt2 bf16 none all; *qwen3_5_text bf16 full all;
qwen3_next autocast-bf16 none two; llama4_text bf16 selective o_proj; glm4_moe autocast-bf16 full o_proj nf4;
smollm3 bf16 none all dora; *opt bf16 full all nf4; *opt autocast-bf16 none q_proj dora
"""
ADAPTED = [case.strip() for case in ADAPTED.split(";")]


@pytest.mark.parametrize("case", by_night(ADAPTED, [case for case in ADAPTED if case[0] == "*"]))
@PEFT_WARNS
@CONV1D_WARNS
def test_adapters_of_every_family_under_every_policy(case):
    pytest.importorskip("peft")
    name, precision, policy, *words = case.removeprefix("*").split()
    adapter = Adapter(**{key: value for word in words for key, value in HOW[word].items()})
    setup = replace(setup_of(name, precision, policy), adapter=adapter)
    agree(setup, GPU, of="tensors", peak=0.002, saved={"rel": 2e-4, "abs": 110_000})


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
    setup = setup_of("llama", "bf16", "none")
    budget.train(setup)
    asked, shape = replace(setup, **change), setup.model
    assert budget.train(asked).moments == budget.train(replace(asked, model=replace(shape))).moments


def test_every_family_has_a_page_and_every_model_of_the_catalogue_an_answer():
    assert {name.split(",")[0] for name in FAMILIES} == set(PAGES)
    for name in MODELS:
        shape = model(name)
        attention = "eager" if shape.family in EAGER_ALONE else "sdpa"
        assert budget.train(TrainSetup(shape, "bf16", sequence=1024, attention=attention), GPU).peak_bytes > 0


STACKED = TrainSetup("mixtral-8x7b", "bf16", adapter=Adapter(targets="all-linear"))  # peft takes it to mean them too
test_what_nobody_runs_is_refused = refused(
    (lambda: budget.train(STACKED), "stacked in one parameter"),
    (lambda: budget.train(setup_of("gpt_oss", "bf16", "none", "sdpa")), "attention sinks"),
)


COUNTED = set(product(FAMILIES, ("none", "full", "selective:every-second", "module:mlp"))) - {("opt", "module:mlp")}
COUNTED_QUICK = {("gpt_oss", "full"), ("deepseek_v3", "selective:every-second"), ("phi3", "module:mlp")}


@pytest.mark.parametrize(("name", "policy"), by_night(sorted(COUNTED), COUNTED_QUICK))
def test_flops_are_those_that_torch_counts(name, policy):
    """To the last one. DeepSeek's attention is eager here: a CPU has no fused kernel for its widths."""
    attention = "eager" if name in (*EAGER_ALONE, "deepseek_v3") else "sdpa"
    setup = setup_of(name, "fp32", policy, attention, 1, sequence=64)
    run = steps.training_run(replace(setup, checkpointing="none"), "cpu")
    with checkpointed(run.model, policy):
        assert budget.step_flops(setup).total == flops_of(run.step)


@pytest.mark.parametrize("policy", ["none", "full"])
@pytest.mark.parametrize("adapter", [{"targets": "all-linear"}, {"targets": "v_proj", "kind": "dora"}], ids=str)
@PEFT_WARNS
def test_a_frozen_weight_takes_no_product_for_its_gradient(adapter, policy):
    peft = pytest.importorskip("peft")
    setup = replace(setup_of("qwen2", "fp32", policy, sequence=64), adapter=Adapter(**adapter, rank=8))
    base = steps.build_model(replace(setup, adapter=None), "cpu")
    dora = adapter.get("kind") == "dora"
    wanted = setup.adapter.targets if dora else "all-linear"
    lora = peft.LoraConfig(r=8, target_modules=wanted, use_dora=dora, task_type=peft.TaskType.CAUSAL_LM)
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
@PEFT_WARNS
@CONV1D_WARNS
def test_what_real_steps_have_shown(case):
    *shape, adapter = FOUND[case]
    setup, adapter = setup_of(*shape), dict(adapter)
    if adapter:
        pytest.importorskip("peft")
        setup = replace(setup, micro_batches=adapter.pop("of", 1), adapter=Adapter(**{"rank": 8, **adapter}))
    else:
        setup = replace(setup, in_backward=True)  # so that the peak is in a layer, and not in gradients
    agree(setup, of="tensors", saved={"abs": 24_000})


IN_ITS_BACKWARD = {  # where attention's peak is, and all else is narrow
    # The memory-efficient kernel, which a window takes: Gemma-3 with heads of 256, as the models have them
    "16 bits sum the gradients of k and v in fp32": ("gemma-3-12b-text", {**HALF, "head_dim": 256}, 0.001),
    "flash attention sums dq in fp32, and has dk and dv of every query head": (
        "llama-3-8b", {**HEAD, "hidden_size": 128, "intermediate_size": 64}, {"abs": 20_000},  # the ids
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", IN_ITS_BACKWARD)
def test_kernels_of_attention_hold_more_in_their_backward(case):
    name, changes, allowed = IN_ITS_BACKWARD[case]
    config = {**model(name).config, **SMALL, **changes}
    setup = TrainSetup(config, "bf16", "sgd", sequence=1024, checkpointing="full", in_backward=True)
    agree(setup, GPU, of="tensors", peak=allowed)
