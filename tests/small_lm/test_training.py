"""Training: what a batch grades, the rates, and that a run which was stopped goes on as if it had not been."""

import json
from itertools import pairwise

import pytest
import torch
from transformers import AutoTokenizer

from helpers.catalog import WorkbookError
from helpers.small_lm import load, training
from helpers.small_lm.examples import ANSWER_WEIGHT, STAGES, TrainingStage, batch
from helpers.small_lm.language import TOKEN_ID
from helpers.small_lm.model import tokenizer
from helpers.small_lm.words import VOCABULARY

SHORT = (TrainingStage("copying", words=64, rows=2, steps=1), TrainingStage("facts", words=48, rows=2, steps=1))


def test_copying_grades_only_what_was_seen_before():
    drawn = batch(STAGES[0], step=3, seed=0)
    assert drawn.ids.shape == drawn.weights.shape == (16, 128)
    assert 0.2 < drawn.graded.float().mean() < 0.9
    for ids, graded in zip(drawn.ids.tolist(), drawn.graded.tolist(), strict=True):
        pairs = list(pairwise(ids))
        assert all(pairs[at - 1] in pairs[: at - 1] for at in range(1, len(ids)) if graded[at])
    assert torch.equal(drawn.weights, drawn.graded.float())


def test_answers_weigh_four_times():
    drawn = batch(STAGES[-1], step=900, seed=0)
    assert set(drawn.weights.unique().tolist()) == {1.0, ANSWER_WEIGHT}
    words = [[VOCABULARY[token] for token in row] for row in drawn.ids.tolist()]
    row, at = drawn.graded.nonzero()[-1].tolist()
    assert words[row][at - 5 : at - 2] == ["recall", "that", "they"]


def test_no_two_steps_share_a_document():
    rows = [tuple(row) for step in range(6) for row in batch(STAGES[1], step, seed=0).ids.tolist()]
    assert len(set(rows)) == len(rows) == 96
    assert torch.equal(batch(STAGES[1], 2, 0).ids, batch(STAGES[1], 2, 0).ids)
    assert not torch.equal(batch(STAGES[1], 2, 0).ids, batch(STAGES[1], 2, 1).ids)


def test_the_rate_rises_stays_and_falls():
    factors = [training.rate_factor(step, 1000) for step in range(1000)]
    assert factors[0] == 1 / training.WARMUP_STEPS
    assert factors[49:650] == [1.0] * 601
    assert factors[650:] == sorted(factors[650:], reverse=True)
    assert 0 < factors[-1] < 0.01


def test_every_parameter_has_one_optimizer():
    model = training.untrained(0)
    held = [weight for each in training.optimizers(model) for group in each.param_groups for weight in group["params"]]
    assert len(held) == len({id(weight) for weight in held}) == len(list(model.parameters()))
    assert all(weight.dim() == 2 for weight in training.optimizers(model)[0].param_groups[0]["params"])


def test_the_shape():
    model = training.untrained(0)
    assert sum(weight.numel() for weight in model.parameters()) == 1_734_336
    assert model.lm_head.weight is not model.model.embed_tokens.weight


def test_the_weight_of_a_word_is_its_share_of_the_loss():
    model, drawn = training.untrained(0), batch(SHORT[1], 0, 0)
    loss, _ = training.loss_and_right(model, drawn)
    logits = model(drawn.ids).logits.log_softmax(-1)
    total = sum(
        weight * -logits[row, at, drawn.ids[row, at + 1]].item()
        for row in range(2)
        for at in range(47)
        for weight in [drawn.weights[row, at + 1].item()]
    )
    assert loss.item() == pytest.approx(total / drawn.weights[:, 1:].sum().item(), rel=1e-4)


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(training, "STAGES", SHORT)


def test_stopped_and_resumed_is_the_same_run(short, tmp_path, monkeypatch):
    whole = training.train(tmp_path / "whole")
    advance = training.Run.advance

    def stopped(run):
        if run.step == 1:
            raise KeyboardInterrupt
        return advance(run)

    monkeypatch.setattr(training.Run, "advance", stopped)
    assert training.main(tmp_path / "parts") == training.INTERRUPTED
    assert load(tmp_path / "parts").model.config.hidden_size == 192  # what there is can be used
    monkeypatch.setattr(training.Run, "advance", advance)
    parts = training.train(tmp_path / "parts")
    for one, other in zip(whole.parameters(), parts.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not (tmp_path / "parts" / training.STATE).exists()


def test_another_runs_folder_is_refused(short, tmp_path):
    run = training.Run(seed=1, stages=SHORT)
    run.save(tmp_path)
    with pytest.raises(WorkbookError) as caught:
        training.train(tmp_path, seed=0)
    assert "seed 1" in caught.value.what


def test_main_prints_and_keeps_the_scores(short, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training, "score", lambda model: {"perplexity": 400.0, "recall": 0.0})
    monkeypatch.setattr(training, "shipped_scores", lambda: {"perplexity": 3.0, "recall": 1.0})
    assert training.main(tmp_path, seed=3) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["perplexity", "400.0000", "3.0000"]
    told = json.loads((tmp_path / training.CARD).read_text(encoding="utf-8"))
    assert (told["scores"]["perplexity"], told["parameters"]) == (400.0, 1_734_336)
    assert "--seed 3" in told["trained_by"]
    assert told["stages"] == ["copying: 1 steps of 2 × 64 words", "facts: 1 steps of 2 × 48 words"]


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), "1", True, None])
def test_scales_that_cannot_be(scale, tmp_path):
    with pytest.raises(WorkbookError):
        training.train(tmp_path, steps_scale=scale)


def test_every_stage_is_left_a_step(tmp_path):
    assert [stage.steps for stage in training._scaled(1e-9)] == [1] * len(STAGES)
    assert training._scaled(1.0) == STAGES


def test_the_tokenizer_round_trips(tmp_path):
    tokenizer().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = loaded("they gave anna bread .").input_ids
    assert ids == [TOKEN_ID[word] for word in ("<bos>", "they", "gave", "anna", "bread", ".")]
    assert loaded.decode(ids[1:]) == "they gave anna bread ."
    assert loaded("they gave zanzibar").input_ids[-1] == loaded.unk_token_id == 1
    assert loaded.get_vocab() == TOKEN_ID
