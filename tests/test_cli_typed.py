"""What people type beside models: several cards, formats as engines spell them, German decimals, other engines."""

import pytest

from helpers.catalog import ServeSetup, WorkbookError, device
from helpers.catalog.adapters import Adapter
from helpers.catalog.cache_formats import kv_name
from helpers.catalog.engines import engine
from helpers.cli import main

SERVE = "estimate serve --model llama-3.1-8b --gpu h100"


@pytest.mark.parametrize(
    ("typed", "card", "count"),
    [("2x3090", "3090", 2), ("8 x H200", "h200", 8), ("RTX 3090 x2", "rtx-3090", 2), ("3090,3090", "3090", 2)],
)
def test_several_cards_are_told_how_to_ask(typed, card, count):
    with pytest.raises(WorkbookError, match="names several cards") as refused:
        device(typed)
    assert f"--cards {card}={count}" in refused.value.do
    assert f"--tensor {count}" in refused.value.do
    assert device(card)


@pytest.mark.parametrize("typed", ["rtx-4091", "gtx 9", "2xfoo", "x", "12GiB,", "4090 ti"])
def test_what_is_no_card_is_not_several(typed):
    with pytest.raises(WorkbookError, match="unknown device"):
        device(typed)


def test_a_size_may_have_a_comma():
    assert device("24,5GiB") == device("24.5GiB")


@pytest.mark.parametrize(
    ("typed", "meant"), [("fp8", "fp8-e4m3"), ("float16", "fp16"), ("w4a16", "w4a16-g128"), ("AWQ", "awq-int4")]
)
def test_formats_as_engines_spell_them(typed, meant):
    assert ServeSetup("llama-3.1-8b", weights=typed) == ServeSetup("llama-3.1-8b", weights=meant)


@pytest.mark.parametrize(("typed", "meant"), [("fp8", "fp8-e4m3"), ("fp8_e5m2", "fp8-e5m2"), ("f16", "fp16")])
def test_caches_as_engines_spell_them(typed, meant):
    assert kv_name(typed) == meant


@pytest.mark.parametrize("typed", ["q4_k_m", "Q4_K", "iq2_xxs", "q8_0"])
def test_a_format_of_gguf_names_the_file(typed):
    with pytest.raises(WorkbookError, match="name the file"):
        ServeSetup("llama-3.1-8b", weights=typed)


@pytest.mark.parametrize(
    ("typed", "told"),
    [("ollama", "--engine llama.cpp"), ("LMStudio", "--engine llama.cpp"), ("tensorrt-llm", "leave --engine out")],
)
def test_other_engines(typed, told):
    with pytest.raises(WorkbookError) as refused:
        engine(typed)
    assert told in refused.value.do
    assert "did you mean" not in refused.value.do


def test_qlora_is_lora_on_a_base_in_4_bits():
    with pytest.raises(WorkbookError, match="--lora-base nf4"):
        Adapter("qlora")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--context 8k", "write 8192"),
        ("--context 8,192", "write 8192"),
        ("--context 131.072", "write 131072"),
        ("--context 8.19", "not a whole number\n"),
        ("--engine vllm --share 0,9", "write 0.9"),
    ],
)
def test_numbers_as_people_write_them(flags, told, capsys):
    assert main([*SERVE.split(), *flags.split()]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "told"), [("2x3090", "3090=2"), ("3090", "3090=1"), ("=", "h100=8,h200=4")])
def test_cards_of_a_plan(typed, told, capsys):
    assert main(["plan", "serve", "llama-3.1-8b", "--cards", typed]) == 2
    assert f"pass --cards {told}" in capsys.readouterr().err
