"""The shipped checkpoint is what its card says; another model by name or environment; and what is refused."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from helpers.catalog import WorkbookError
from helpers.small_lm import load, perplexity, recall
from helpers.small_lm.language import TOKEN_ID
from helpers.small_lm.model import CHECKPOINT, ENVIRONMENT
from helpers.small_lm.training import compared, score, shipped_scores


@pytest.fixture(scope="module")
def shipped():
    return load(CHECKPOINT)


def test_it_is_a_small_llama_with_grouped_heads(shipped):
    model, tokenizer = shipped
    assert isinstance(model, LlamaForCausalLM)
    assert not model.training
    assert model.dtype is torch.float32
    assert model.config._attn_implementation == "sdpa"
    assert model.config.num_attention_heads // model.config.num_key_value_heads == 3
    assert tokenizer.get_vocab() == TOKEN_ID
    assert sum(path.stat().st_size for path in CHECKPOINT.iterdir()) < 12_000_000


def test_the_scores_are_those_of_its_card(shipped):
    """Recall counts questions: one near a tie may turn with the instruction set, 1/64 of a distance."""
    told = shipped_scores()
    assert perplexity(shipped.model) == pytest.approx(told["perplexity"], rel=1e-3)
    for asked in recall(shipped.model, distances=(100, 1000)).by_distance:
        assert asked.rate == pytest.approx(told[f"recall at {asked.distance}"], abs=1 / 60)
        assert asked.rate >= 0.98


def test_it_answers_in_words(shipped):
    model, tokenizer = shipped
    text = tokenizer(
        "in may they gave anna bread . the old fox ran slowly near the hill . recall that they gave anna",
        return_tensors="pt",
    )
    written = model.generate(**text, max_new_tokens=2, do_sample=False)[0, -2:]
    assert tokenizer.decode(written) == "bread ."


def test_each_call_is_a_model_of_its_own():
    first, second = load(CHECKPOINT).model, load(CHECKPOINT).model
    with torch.no_grad():
        first.lm_head.weight.zero_()
    assert second.lm_head.weight.abs().sum() > 0


def test_any_transformers_program_can_read_it():
    assert AutoModelForCausalLM.from_pretrained(CHECKPOINT).config.model_type == "llama"


def test_loading_draws_nothing(capfd):
    load(CHECKPOINT)
    seen = capfd.readouterr()
    assert (seen.out, seen.err) == ("", "")


def test_the_environment_names_another(shipped, tmp_path, monkeypatch):
    shipped.model.save_pretrained(tmp_path)
    shipped.tokenizer.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_theta_note": "another"}))
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    assert load().model.config.rope_theta_note == "another"
    assert not hasattr(load(CHECKPOINT).model.config, "rope_theta_note")  # what is named goes before the environment


@pytest.mark.parametrize("name", ["gpt2", "./nowhere", "/no/such/folder", "a/b/c", "~/nowhere"])
def test_names_that_are_no_model(name, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, name)
    with pytest.raises(WorkbookError) as caught:
        load()
    assert repr(name) in caught.value.what
    assert ENVIRONMENT in caught.value.do


def test_a_hub_model_without_a_network(monkeypatch):
    """Offline by the hub's own switch, which is read at its import: a real network is never asked."""
    code = "from helpers.small_lm import load\nfrom helpers.catalog import WorkbookError\ntry:\n    load('no/such')\n"
    code += "except WorkbookError as error:\n    print(error)"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "cannot load 'no/such'" in done.stdout
    assert f"unset {ENVIRONMENT}" in done.stdout


def test_a_folder_without_a_checkpoint(tmp_path):
    with pytest.raises(WorkbookError) as caught:
        load(tmp_path)
    assert str(tmp_path) in caught.value.what


def test_importing_the_room_is_light():
    code = "import sys, helpers.small_lm; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


def test_scores_stand_side_by_side():
    lines = compared({"perplexity": 3.1, "recall": 0.5}, {"perplexity": 3.0, "recall": 1.0}).splitlines()
    assert lines[0].split() == ["this", "run", "shipped"]
    assert lines[1].split() == ["perplexity", "3.1000", "3.0000"]


@pytest.mark.slow
def test_the_card_has_every_score(shipped):
    assert score(shipped.model).keys() == shipped_scores().keys()
