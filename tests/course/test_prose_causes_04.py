"""The causes and the traps that chapter 04 names, each beside its control."""

from __future__ import annotations

from functools import cache
from unittest.mock import patch

import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from helpers.small_lm import language, load, perplexity
from helpers.techniques.precision import gradients


@cache
def text(words: int, rows: int = 1) -> torch.Tensor:
    return torch.tensor([one.ids for one in language.held_out_documents(rows, words)])


@torch.no_grad()
def loss_of(model) -> float:
    return model(input_ids=text(512), labels=text(512), use_cache=False).loss.item()


def norm_as_it_comes(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def norm_of_scaled(self, x):
    """The same in 16 bits, divided by 64 first, so that no square is infinite."""
    x = x / 64
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon / 64**2)


def louder(times: int):
    model = load().model
    with torch.no_grad():
        model.model.layers[-1].mlp.up_proj.weight *= times
        model.model.layers[-1].mlp.down_proj.weight /= times
    return model


def test_a_norm_in_fp16_fails_by_its_squares_alone_and_says_nothing():
    """Neither the type (BF16 does not fail) nor norms in 16 bits: scaled before they are squared they are right."""
    exact = loss_of(load().model)
    with patch.object(LlamaRMSNorm, "forward", norm_as_it_comes):
        assert exact + 1 < loss_of(load().model.half()) < 10
        assert loss_of(load().model.bfloat16()) == pytest.approx(exact, abs=0.02)
    with patch.object(LlamaRMSNorm, "forward", norm_of_scaled):
        assert loss_of(load().model.half()) == pytest.approx(exact, abs=0.02)
    assert loss_of(load().model.half()) == pytest.approx(exact, abs=0.02)


def test_a_norm_makes_zeros_of_a_token_whose_square_is_infinite():
    model, x = load().model.half(), torch.full((1, 192), 100.0, dtype=torch.float16)
    x[0, 0] = 300.0
    assert not norm_as_it_comes(model.model.norm, x).any()
    x[0, 0] = 200.0
    assert norm_as_it_comes(model.model.norm, x).all()


@pytest.mark.parametrize("times", [64, 128])
def test_a_layer_overflows_between_64_and_128_times_as_loud_and_computes_the_same(times):
    """No layer's numbers but those between `up_proj` and `down_proj` grow; FP32 and BF16 do not notice."""
    exact = loss_of(load().model)
    assert loss_of(louder(times)) == exact
    assert loss_of(louder(times).bfloat16()) == pytest.approx(exact, abs=0.02)
    for found in (loss_of(louder(times).half()), loss_under_autocast(louder(times))):
        assert (found != found) == (times == 128)


def loss_under_autocast(model) -> float:
    with torch.autocast("cpu", torch.float16):
        return loss_of(model)


def zeros_in_fp16(words: int, times: float) -> tuple[float, float]:
    """The share of zeros among the gradients of logits, and of weights, by so many times the mean loss."""
    model = load().model
    with gradients.collected(model) as found:
        (model(input_ids=text(words), labels=text(words), use_cache=False).loss * times).backward()
    return gradients.lost(found.logits, "fp16").zero, gradients.lost(found.all_weights(), "fp16").zero


def test_gradients_of_logits_vanish_as_the_loss_is_a_mean_and_those_of_weights_are_sums_again():
    """A sum in place of the mean has as few zeros with many tokens as with few: those that the softmax makes small."""
    (few, of_few), (many, of_many) = zeros_in_fp16(64, 1), zeros_in_fp16(1024, 1)
    (few_summed, _), (many_summed, _) = zeros_in_fp16(64, 63), zeros_in_fp16(1024, 1023)
    assert few < 0.7 < 0.9 < many
    assert few_summed == pytest.approx(many_summed, abs=0.1)
    assert many_summed < 0.35
    assert max(of_few, of_many) < 0.02


def changed(rate: float, kind: torch.dtype) -> float:
    """The share of the large weights, above 2⁻⁷, that two steps of AdamW change."""
    model = load().model.to(kind)
    before = [weight.detach().clone() for weight in model.parameters()]
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0)
    for _ in range(2):
        model(input_ids=text(64), labels=text(64), use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    large = [was.abs() > 2**-7 for was in before]
    moved = [(now != was)[at] for now, was, at in zip(model.parameters(), before, large, strict=True)]
    return torch.cat(moved).float().mean().item()


def test_weights_stand_still_in_bf16_and_at_a_small_rate_and_move_where_either_is_changed():
    assert changed(3e-5, torch.bfloat16) < 0.01
    assert changed(3e-5, torch.float32) > 0.9
    assert changed(5e-3, torch.bfloat16) > 0.6


def test_bf16_true_casts_no_weight_and_averages_follow_the_weight(tmp_path):
    load().model.bfloat16().save_pretrained(tmp_path)
    for how, kind in (({}, torch.bfloat16), ({"dtype": torch.float32}, torch.float32)):
        trainer = one_step(AutoModelForCausalLM.from_pretrained(tmp_path, **how), tmp_path, bf16=True)
        states = [value for state in trainer.optimizer.state.values() for value in state.values() if value.ndim]
        assert {value.dtype for value in states} == {kind} == {trainer.model.dtype}


def one_step(model, folder, **flags):
    how = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "logging_steps": 1}
    rows = [{"input_ids": text(64)[0], "labels": text(64)[0]}]
    trainer = Trainer(model, TrainingArguments(str(folder), max_steps=1, **how, **flags), train_dataset=rows)
    trainer.train()
    return trainer


@pytest.mark.parametrize("filtered", [True, False])
def test_trainer_logs_a_loss_of_zero_for_nan_by_a_default_of_its_own(filtered, tmp_path):
    flags = {} if filtered else {"logging_nan_inf_filter": False}
    (row, *_) = one_step(louder(128).half(), tmp_path, **flags).state.log_history
    assert row["grad_norm"] != row["grad_norm"]
    assert row["loss"] == 0 if filtered else row["loss"] != row["loss"]


def test_a_scaler_halves_for_ever_where_the_forward_pass_overflows_and_not_elsewhere():
    for times, skipped in ((1, 0), (128, 6)):
        model, scaler = louder(times), torch.amp.GradScaler("cpu", init_scale=2.0**16)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        before = model.lm_head.weight.detach().clone()
        for _ in range(6):
            with torch.autocast("cpu", torch.float16):
                loss = model(input_ids=text(64), labels=text(64), use_cache=False).loss
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() == 2.0 ** (16 - skipped)
        assert torch.equal(model.lm_head.weight, before) == bool(skipped)


@pytest.mark.parametrize(
    ("kind", "beta", "falls"),
    [(torch.bfloat16, 0.999, False), (torch.float32, 0.999, True), (torch.bfloat16, 0.95, True)],
)
def test_an_average_of_squares_cannot_fall_in_bf16_at_the_usual_beta(kind, beta, falls):
    weight = torch.nn.Parameter(torch.linspace(1, 2, 64).to(kind))
    optimizer = torch.optim.AdamW([weight], lr=1e-3, betas=(0.9, beta))
    weight.grad = weight.detach().clone()
    optimizer.step()
    before = optimizer.state[weight]["exp_avg_sq"].clone()
    weight.grad = torch.zeros_like(weight)
    for _ in range(100):
        optimizer.step()
    after = optimizer.state[weight]["exp_avg_sq"]
    assert bool((after < 0.95 * before).all()) == falls
    assert falls or torch.equal(after, before)


@pytest.mark.parametrize(("eps", "finite"), [(1e-8, False), (1e-4, True)])
def test_adamws_eps_is_zero_over_fp16_weights(eps, finite):
    """The chapter's *When it does not help*: a square that is zero, and an eps that is, too."""
    weight = torch.nn.Parameter(torch.ones(4).half())
    weight.grad = torch.tensor([1e-3, 1e-4, 0.0, 1e-5]).half()
    torch.optim.AdamW([weight], lr=1e-3, eps=eps, foreach=False).step()
    assert bool(weight.isfinite().all()) == finite


def test_a_sum_in_fp16_adds_in_more_bits_and_its_result_overflows():
    assert torch.ones(4096).half().sum() == 4096
    assert torch.ones(70_000).half().sum().isinf()
    assert torch.ones(70_000).half().sum(dtype=torch.float32) == 70_000


@pytest.mark.slow
def test_zeros_of_the_activations_gradients_cost_what_training_gains_and_the_weights_cost_nothing():
    """Companion 04: a loss divided by 4,096, SGD at a rate as many times larger; FP16 for one kind of gradients."""
    words = torch.tensor([one.ids for one in language.training_documents(25, 256, seed=1)]).view(25, 1, 256)
    held_out = language.held_out_documents(2)

    def perplexity_with(weights: bool, activations: bool) -> float:
        model = load().model
        for linear in (one for one in model.modules() if isinstance(one, torch.nn.Linear)):
            groups = linear.weight.detach().view(-1, 64)
            step = groups.abs().amax(-1, keepdim=True) / 2
            linear.weight.data = (((groups / step).floor().clamp(-2, 1) + 0.5) * step).view_as(linear.weight)
            if activations:
                linear.register_full_backward_hook(lambda _, given, __: (given[0].half().float(),))
        if weights:
            for one in model.parameters():
                one.register_hook(lambda grad: grad.half().float())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.03 * 4096)
        for ids in words:
            (model(input_ids=ids, labels=ids, use_cache=False).loss / 4096).backward()
            optimizer.step()
            optimizer.zero_grad()
        return perplexity(model, held_out)

    exact, of_weights, of_activations = (
        perplexity_with(*how) for how in ((False, False), (True, False), (False, True))
    )
    assert of_weights == pytest.approx(exact, abs=0.01)
    assert of_activations > exact + 0.08
