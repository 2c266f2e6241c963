"""What chapter 06 tells to write is there in the installed libraries, and does what its line is priced as."""

from __future__ import annotations

import inspect
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

from helpers.course import notebook as nb
from helpers.memory import measure
from helpers.techniques import checkpointing as ck
from tests.house.tree import ROOT


@pytest.fixture(scope="module")
def told() -> str:
    (path,) = (ROOT / "notebooks").glob("06_*.ipynb")
    (source,) = [one.source for one in nb.read(path).cells if one.id == "06-do-this"]
    return source


def test_trainer_has_both_names_and_passes_options_on(told):
    names = {field.name for field in fields(TrainingArguments)}
    options = inspect.signature(LlamaForCausalLM.activation_checkpointing_enable).parameters
    assert names >= {"gradient_checkpointing", "activation_checkpointing", "gradient_checkpointing_kwargs"}
    assert {"every_n_layers", "offload"} <= {*options}
    assert all(f"`{name}" in told for name in ("gradient_checkpointing=True", "gradient_checkpointing_kwargs"))


def test_peft_switches_it_on_by_itself():
    from peft import prepare_model_for_kbit_training

    assert inspect.signature(prepare_model_for_kbit_training).parameters["use_gradient_checkpointing"].default is True


def test_accelerate_and_deepspeed_have_the_names():
    from accelerate import FullyShardedDataParallelPlugin

    assert "activation_checkpointing" in {field.name for field in fields(FullyShardedDataParallelPlugin)}
    if spec := find_spec("deepspeed"):  # not imported: that takes seconds
        source = Path(spec.origin).with_name("runtime") / "activation_checkpointing/checkpointing.py"
        assert "\ndef checkpoint(function, " in source.read_text(encoding="utf-8")


def test_pytorch_still_takes_the_old_engine_with_a_warning():
    with pytest.warns(UserWarning, match="use_reentrant|None of the inputs"):
        out = torch.utils.checkpoint.checkpoint(torch.nn.Linear(2, 2), torch.ones(1, 2))
    assert not out.requires_grad  # the newer one's would


def test_every_second_layer_keeps_what_the_first_half_would():
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2, vocab_size=64
    )
    network, ids = LlamaForCausalLM(config).train(), torch.zeros(2, 32, dtype=torch.long)

    def kept() -> int:
        run = lambda: network(input_ids=ids, labels=ids, use_cache=False).loss.backward()  # noqa: E731
        return measure.step(run, network, warmup=0).saved_bytes

    with ck.checkpointed(network, "first:2"):
        half = kept()
    network.activation_checkpointing_enable(every_n_layers=2)
    assert kept() == half < 0.7 * (network.activation_checkpointing_disable() or kept())
