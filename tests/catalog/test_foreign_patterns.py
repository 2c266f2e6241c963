"""Regular expressions of strangers: real ones run, hostile ones are refused before they keep anything busy."""

import time

import pytest

from helpers.catalog import ServeSetup, WorkbookError
from helpers.catalog.foreign_patterns import compiled

# As llm-compressor, GPTQModel, AutoRound and Moonshot write them
REAL = [
    ".*lm_head",
    r".*mlp\.(gate|up|gate_up|down)_proj.*",
    r".*\.layers\..*\.mlp\.experts\..*_proj$",
    r"model\.layers\.(0|1|2|10|11|12|58|59|60)\.(self_attn|mlp)\.(q|k|v|o|gate|up|down)_proj",
    r"^(?!.*mlp).*q_proj",
    r".*\bmlp\.shared_expert_gate\b",
    r"(?:model\.)?(?:language_model\.)?layers\.\d+\.self_attn\..*",
    r"vision_tower.*",
    r"[^.]+\.layers\.\d{1,2}\..*",
    r"(model\.)?layers\.[0-9]{1,3}\.linear_attn.*?proj",
]
HOSTILE = [
    r"(a+)+$",
    r"(.*)*x",
    r"(.*.*)+x",
    r"((a|a))*b",
    r"(a|aa)+$",
    r"(?:(?:.+)?\.?)+x",
    r"([a-z]+\.?)*\d",
    r"(x{0,9}){9}y",
    ".*" * 8 + "x",
    "a?" * 40 + "a" * 40,
    "(.|.)" * 30 + "x",
    r"(.*)\1x",
    r"(?P<n>.*)(?P=n)x",
    r"(?=(.+)+x)",
    "a" * 5000,
    "(" * 3000,
]


@pytest.mark.parametrize("pattern", REAL)
def test_real_patterns_are_compiled(pattern):
    assert compiled(pattern)


@pytest.mark.parametrize("pattern", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("form", ["compressed-tensors", "gptq"])
def test_a_hostile_pattern_is_refused_at_once(pattern, form):
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    quantized = {
        "compressed-tensors": {"config_groups": groups, "ignore": [f"re:{pattern}"]},
        "gptq": {"bits": 4, "group_size": 128, "dynamic": {f"-:{pattern}": {}}},
    }[form]
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = {"model_type": "llama", **sizes, "vocab_size": 100}
    config["quantization_config"] = {"quant_method": form, **quantized}
    began = time.monotonic()
    with pytest.raises(WorkbookError, match="pattern"):
        ServeSetup(config)
    assert time.monotonic() - began < 5


def test_what_is_slow_on_a_name_is_refused_though_its_ways_are_few():
    """Five runs of letters: ten million ways, which take some tenths of a second."""
    with pytest.raises(ValueError, match="busy"):
        compiled("a*" * 5 + "b")
