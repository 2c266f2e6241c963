"""Weights in their format: to the byte what bitsandbytes holds, and what published checkpoints weigh."""

import contextlib
import logging
from collections import Counter

import pytest
import torch

from helpers.catalog import MODELS, ServeSetup, WorkbookError, model, number_format
from helpers.catalog.by_transformers import count_on_meta
from helpers.memory import budget
from helpers.memory.serve.weights import is_quantized, layer_bytes, weight_bytes, weight_parts
from tests.memory.configs import GEMMA2, GPT2, OPT, QWEN2

# Widths that neither 2 nor 64 divides: every tail is there, half a byte too.
LLAMA = {
    "model_type": "llama",
    "hidden_size": 129,
    "intermediate_size": 331,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 66,
    "vocab_size": 301,
}
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 301,
    "num_local_experts": 4,
}
NARROW_OPT = {**OPT, "word_embed_proj_dim": 96, "hidden_size": 128, "num_attention_heads": 4, "ffn_dim": 256}
CONFIGS = {"llama": LLAMA, "qwen2, tied": QWEN2, "gpt2, Conv1D": GPT2, "mixtral": MIXTRAL, "opt-350m": NARROW_OPT}
HOW = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-dq": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "int8": {"load_in_8bit": True},
}
SAME_AS = {"fp4": "nf4"}  # other levels, the same bytes


@contextlib.contextmanager
def quiet():
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a random model with this config, made once."""
    from transformers import AutoConfig, AutoModelForCausalLM

    folders = {}

    def folder(name):
        if name not in folders:
            net = AutoModelForCausalLM.from_config(AutoConfig.for_model(**CONFIGS[name]), dtype=torch.bfloat16)
            folders[name] = tmp_path_factory.mktemp("model")
            net.save_pretrained(folders[name])
        return folders[name]

    with quiet():
        yield folder


def quantized_by_bitsandbytes(folder, **how):
    pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    with quiet():
        return AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=BitsAndBytesConfig(**how), dtype=torch.bfloat16
        )


def held_parts(net) -> dict[str, int]:
    """Bytes of all parameters and of what bitsandbytes keeps beside them, each storage once."""
    parts = Counter(quantized=0, scales=0, constants=0, kept=0)
    for weight in net.parameters():
        state = getattr(weight, "quant_state", None)
        parts["kept" if weight.is_floating_point() else "quantized"] += weight.untyped_storage().nbytes()
        parts["scales"] += weight.SCB.nbytes if getattr(weight, "SCB", None) is not None else 0
        if state is not None:
            parts["scales"] += state.absmax.nbytes + (state.state2.absmax.nbytes if state.nested else 0)
            parts["constants"] += state.code.nbytes
            parts["constants"] += state.offset.nbytes + state.state2.code.nbytes if state.nested else 0
    return dict(parts)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", CONFIGS)
def test_to_the_byte_what_bitsandbytes_holds(name, how, saved):
    real = held_parts(quantized_by_bitsandbytes(saved(name), **HOW[how]))
    setup = ServeSetup(CONFIGS[name], weights=SAME_AS.get(how, how), context=16)
    assert dict(weight_parts(setup)) == real
    assert weight_bytes(setup) == sum(real.values())


@pytest.mark.parametrize("skipped", [["lm_head"], ["lm_head", "down_proj"], ["lm_head", "q_proj", "k_proj"], []])
def test_skipped_modules_are_those_of_the_config(skipped, saved):
    net = quantized_by_bitsandbytes(saved("llama"), **HOW["nf4-dq"], llm_int8_skip_modules=skipped)
    assert dict(weight_parts(ServeSetup(LLAMA, weights="nf4-dq", skipped=skipped))) == held_parts(net)


FAMILIES = [
    "llama-3.2-1b",
    "gpt2",
    "mixtral-8x7b",
    "qwen2.5-1.5b",
    "qwen3-0.6b",
    "qwen3-30b-a3b",
    "gemma-2-9b",
    "gemma-3-1b",
    "phi-4",
    "deepseek-v3",
    "gpt-oss-20b",
    "opt-13b",
    "mistral-7b",
]


def replaced_by_bitsandbytes(config) -> Counter:
    """(outputs, inputs) of the layers that Transformers hands to bitsandbytes, on a model without memory."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import get_keys_to_not_convert

    with torch.device("meta"), quiet():
        net = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), dtype=torch.bfloat16)
        replace_with_bnb_linear(net, get_keys_to_not_convert(net), BitsAndBytesConfig(load_in_4bit=True))
    return Counter(
        (one.out_features, one.in_features) for one in net.modules() if isinstance(one, bitsandbytes.nn.Linear4bit)
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_the_layers_of_every_family_are_those_that_bitsandbytes_replaces(name):
    config = dict(model(name).config)
    if config["model_type"] != "deepseek_v3":  # whose first layers differ from the others
        config |= {"num_hidden_layers": 2} if "n_layer" not in config else {"n_layer": 2}
    config.pop("layer_types", None)
    setup = ServeSetup(config, weights="nf4", context=16)
    ours = Counter()
    for group in setup.model.linears():
        if is_quantized(setup, group):
            ours[group.linear.outputs, group.linear.inputs] += group.count
    assert ours == replaced_by_bitsandbytes(config)


def test_families_are_all_there():
    assert {model(name).family for name in FAMILIES} == {model(name).family for name in MODELS}


# Sizes that model cards and logs give, with the source in a comment: GB or GiB as printed there.
PUBLISHED = [
    ("gpt-oss-20b", "mxfp4", 12.8, 2**30),  # gpt-oss model card, arXiv:2508.10925, table 1: checkpoint size
    ("gpt-oss-120b", "mxfp4", 60.8, 2**30),  # the same
]


@pytest.mark.parametrize(("name", "weights", "size", "unit_bytes"), PUBLISHED)
def test_published_checkpoints(name, weights, size, unit_bytes):
    assert weight_bytes(ServeSetup(name, weights=weights)) / unit_bytes == pytest.approx(size, abs=0.051)


TINYLLAMA = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
GPTQ = [
    ("llama-2-7b", "int8-g128", 7.16),  # file list of TheBloke/LLaMa-7B-GPTQ, gptq-8bit-128g-actorder_True: same shape
    (TINYLLAMA, "int4-g128", 0.77),  # model card of TheBloke/TinyLlama-1.1B-intermediate-step-715k-1.5T-GPTQ
    (TINYLLAMA, "int4-g32", 0.82),  # the same
]


@pytest.mark.parametrize(("name", "weights", "size_gb"), GPTQ, ids=["llama-7b", "tinyllama-g128", "tinyllama-g32"])
def test_published_gptq_files(name, weights, size_gb):
    """A file also holds the group of each input of each layer, four bytes."""
    setup = ServeSetup(name, weights=weights)
    group_of_inputs = 4 * sum(one.count * one.linear.inputs for one in setup.model.linears() if one.part != "lm_head")
    assert round((weight_bytes(setup) + group_of_inputs) / 1e9, 2) == size_gb


def test_experts_stay_in_16_bits_unless_one_says_otherwise():
    names = (None, ["lm_head"], ["lm_head", "experts"])
    plain, all_of_it, named = (ServeSetup("mixtral-8x7b", weights="nf4", skipped=skipped) for skipped in names)
    experts = next(group.count for group in plain.model.linears() if group.part == "experts")
    assert experts == 32 * 8
    assert weight_bytes(plain) > 3.4 * weight_bytes(all_of_it)
    assert weight_bytes(named) == weight_bytes(plain)


def test_a_tied_head_is_the_embedding_and_never_quantized():
    tied, skipped_none = (ServeSetup(QWEN2, weights="int8", skipped=skipped) for skipped in (None, ()))
    assert weight_bytes(tied) == weight_bytes(skipped_none)


@pytest.mark.parametrize("part", ["attention", "mlp", "lm_head"])
def test_what_is_skipped_costs_16_bits_a_weight(part):
    setups = [ServeSetup("llama-3-8b", weights="int4-g64", skipped=skipped) for skipped in ([], [part])]
    weights = sum(group.weights for group in setups[0].model.linears() if group.part == part)
    rule = number_format("int4-g64")
    assert weight_bytes(setups[1]) - weight_bytes(setups[0]) == 2 * weights - rule.storage_bytes(weights)


def test_a_decode_step_reads_idle_experts_in_neither_format():
    for skipped in (None, ["lm_head"]):
        setup = ServeSetup("mixtral-8x7b", weights="nf4", context=1, skipped=skipped)
        group = [one for one in setup.model.linears() if one.part == "experts"]
        rule = number_format("nf4" if skipped else "bf16")
        idle = sum(one.count * 6 // 8 * (rule.storage_bytes(one.linear.weights) + rule.constant_bytes) for one in group)
        looked_up = 2 * (setup.model.vocab - 1) * setup.model.hidden
        cached = budget.serve(setup).held["kv_cache"]
        assert budget.decode_bytes(setup) == weight_bytes(setup) - looked_up - idle + cached


def test_a_counted_family_is_summed_layer_by_layer_too():
    shape, counted = model(GEMMA2), count_on_meta(GEMMA2, "counted", "Transformers")
    for weights in ("nf4-dq", "int4-g32", "fp8-e4m3"):
        assert weight_parts(ServeSetup(counted, weights=weights)) == weight_parts(ServeSetup(shape, weights=weights))


@pytest.mark.parametrize("skipped", ["lm_haed", ["lm_head", "querry_proj"], [3], 7])
def test_unknown_layers_to_skip(skipped):
    with pytest.raises(WorkbookError, match="layers to skip"):
        ServeSetup(LLAMA, weights="nf4", skipped=skipped)


def test_fp8_in_blocks_has_a_scale_for_each():
    """DeepSeek-V3's attention by hand: q in two, 1,536 x 7,168 and 24,576 x 1,536, K and V in two, the output.

    576 rows are four blocks and a half, which has a scale of its own.
    """
    setup = ServeSetup("deepseek-v3")
    attention = [group for group in setup.model.layers[0].linears() if group.part == "attention"]
    scales = 12 * 56 + 192 * 12 + 5 * 56 + 256 * 4 + 56 * 128
    values = 1536 * 7168 + 24576 * 1536 + 576 * 7168 + 32768 * 512 + 7168 * 16384
    assert sum(group.count * layer_bytes(setup, group) for group in attention) == values + 4 * scales


def test_one_fp8_scale_a_weight_without_blocks():
    setup = ServeSetup("qwen3-8b", weights="fp8-e4m3")
    assert weight_parts(setup)["scales"] == 0
    assert weight_parts(setup)["constants"] == 4 * 36 * 7


def test_qwens_own_fp8_is_in_blocks():
    """36 layers: q, k, v, o of 4,096 x (4,096, 1,024, 1,024, 4,096), gate, up and down of 4,096 x 12,288."""
    blocks = 36 * (2 * 32 * 32 + 2 * 8 * 32 + 3 * 32 * 96)
    assert weight_parts(ServeSetup("Qwen/Qwen3-8B-FP8"))["scales"] == 4 * blocks
