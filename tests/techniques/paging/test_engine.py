"""The engine: tokens and logits of Transformers' `generate`, however memory is shared, taken away and given back."""

import pytest
import torch

from helpers.catalog import WorkbookError, model
from helpers.small_lm import held_out_documents, load
from helpers.techniques import paging
from tests.techniques.kv_cache.models import FAMILIES, tiny

LENGTHS = ((41, 9), (30, 4), (7, 12), (16, 1), (33, 7), (1, 10))
PLAIN = [family for family in FAMILIES if family != "gemma2-hybrid"]  # soft-capped scores: refused


def requests(lengths=LENGTHS, vocab=60, shared=0, seed=1):
    random = torch.Generator().manual_seed(seed)
    start = torch.randint(1, vocab, (shared,), generator=random).tolist()
    return [(start + torch.randint(1, vocab, (prompt,), generator=random).tolist(), new) for prompt, new in lengths]


def generated(net, prompt, new_tokens):
    """Tokens and the logits of each, by `generate`, one request alone."""
    out = net.generate(
        torch.tensor([prompt]),
        do_sample=False,
        max_new_tokens=new_tokens,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    return out.sequences[0, len(prompt) :].tolist(), torch.cat(out.logits)


def engine_of(net, blocks=64, block_size=8, **options):
    return paging.Engine(net, blocks, block_size, **{"max_running": 4, "keep_logits": True, **options})


def assert_as_generate(net, engine, asked):
    answers = engine.run(asked)
    for answer, (prompt, new_tokens) in zip(answers, asked, strict=True):
        tokens, logits = generated(net, prompt, new_tokens)
        assert answer.tokens == tokens
        torch.testing.assert_close(torch.stack(answer.logits), logits, atol=1e-4, rtol=0)
    assert_all_given_back(engine)
    return answers


def assert_all_given_back(engine):
    manager = engine.manager
    assert {**manager.tables, **manager.host_tables, **manager.lengths, **engine.to_fork} == {}
    assert manager.available == manager.blocks
    assert len(manager.host_free) == engine.pool.host_blocks


@pytest.mark.parametrize("attention", ["gathered", "block-by-block"])
@pytest.mark.parametrize("family", PLAIN)
def test_every_family_as_generate(family, attention):
    net = tiny(family)
    assert_as_generate(net, engine_of(net, attention=attention), requests())
    assert net.config._attn_implementation != "workbook_paged"


@pytest.mark.parametrize("block_size", [1, 5, 16, 64])
def test_block_sizes(block_size):
    net = tiny("llama-gqa")
    assert_as_generate(net, engine_of(net, 512 // block_size, block_size), requests())


@pytest.mark.parametrize("family", ["llama-gqa", "mistral-window", "gpt2-mha"])
def test_shared_prefixes(family):
    net, asked = tiny(family), requests(shared=21)
    engine = engine_of(net)
    answers = assert_as_generate(net, engine, asked)
    assert [answer.prefix_tokens for answer in answers] == [0] + [16] * 5
    assert engine.prefix.hits.found == 80
    again = engine.run(asked)  # all prompts are known now, and the answers that follow them
    assert [answer.tokens for answer in again] == [answer.tokens for answer in answers]
    assert engine.prefix.hits.found == 80 + sum((len(prompt) - 1) // 8 * 8 for prompt, _ in asked)


@pytest.mark.parametrize("new_tokens", [20, 15, 16])
def test_a_conversation_finds_its_own_answers(new_tokens):
    net, engine = tiny("llama-gqa"), engine_of(tiny("llama-gqa"))
    (prompt, _), *_ = requests()
    (first,) = engine.run([(prompt, new_tokens)])
    (second,) = assert_as_generate(net, engine, [([*first.ids, 5, 6, 7], 6)])
    assert second.prefix_tokens == (41 + new_tokens - 1) // 8 * 8  # the last token was never fed


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"prefix": False}, marks=pytest.mark.all),
        {},
        pytest.param({"preempt": "swap", "host_blocks": 12, "prefix": False}, marks=pytest.mark.all),
        {"preempt": "swap", "host_blocks": 12},
        pytest.param({"preempt": "swap", "host_blocks": 1}, marks=pytest.mark.all),
    ],
    ids=["recompute", "recompute-prefix", "swap", "swap-prefix", "host-full"],
)
def test_preempted_answers_are_the_same(options):
    net = tiny("llama-gqa")
    asked = requests(((20, 30), (18, 25), (9, 40), (30, 12)), shared=3)
    answers = assert_as_generate(net, engine_of(net, blocks=10, **options), asked)
    assert sum(answer.preempted for answer in answers) > 0


def test_swapping_computes_nothing_again():
    net, asked = tiny("llama-gqa"), requests(((20, 30), (18, 25), (9, 40)))
    feeds = {}
    for preempt in ("recompute", "swap"):
        engine = engine_of(net, blocks=10, preempt=preempt, host_blocks=10, prefix=False)
        seen, forward = [], engine._forward
        engine._forward = lambda answers, new, seen=seen, forward=forward: (
            seen.append(len(answers) * new),
            forward(answers, new),
        )[1]
        assert sum(answer.preempted for answer in engine.run(asked)) > 0
        feeds[preempt] = sum(seen)
    once = sum(len(prompt) + new - 1 for prompt, new in asked)
    assert feeds["swap"] == once < feeds["recompute"]


@pytest.mark.parametrize("blocks", [64, 12])
def test_samples_share_the_prompt(blocks):
    net, (prompt, new_tokens) = tiny("llama-gqa"), requests(((29, 9),))[0]
    engine = engine_of(net, blocks)
    made = engine.submit(prompt, new_tokens, samples=4)
    engine.step()
    if blocks == 64:  # 3 full blocks shared; the fourth, part full, was copied by all but the last to write
        assert len({block for table in engine.manager.tables.values() for block in table}) == 3 + 4
    engine.run([])
    (greedy, logits) = generated(net, prompt, new_tokens)
    ranked = logits[0].topk(4).indices.tolist()
    assert made[0].tokens == greedy
    for answer, first in zip(made, ranked, strict=True):
        rest, _ = generated(net, [*prompt, first], new_tokens - 1)
        assert answer.tokens == [first, *rest]
    assert_all_given_back(engine)


def test_the_pool_is_as_large_as_the_formula():
    net = tiny("qwen3-head-dim")
    engine = engine_of(net, blocks=10, block_size=8)
    engine.run(requests())
    assert engine.pool.bytes == 10 * paging.block_bytes(model(FAMILIES["qwen3-head-dim"]), 8, value_bytes=4)


def test_the_end_token_ends_an_answer():
    net, (prompt, _) = tiny("llama-mqa"), requests()[0]
    tokens, _ = generated(net, prompt, 12)
    end = tokens[5]
    net.generation_config.eos_token_id = [end, 61]
    try:
        (answer,) = engine_of(net).run([(prompt, 12)])
    finally:
        net.generation_config.eos_token_id = None
    assert answer.tokens == tokens[: tokens.index(end) + 1]


@pytest.mark.slow
def test_the_small_model_in_a_ragged_batch():
    net, _ = load()
    documents = held_out_documents(6, 200)
    lengths = (150, 20), (33, 40), (7, 12), (90, 5), (64, 33), (120, 8)
    asked = [(list(text.ids[:prompt]), new) for text, (prompt, new) in zip(documents, lengths, strict=True)]
    answers = assert_as_generate(net, paging.Engine(net, blocks=24, keep_logits=True), asked)
    assert sum(answer.preempted for answer in answers) > 0
    padded = [[0] * (150 - len(prompt)) + prompt for prompt, _ in asked]
    mask = torch.tensor([[0] * (150 - len(prompt)) + [1] * len(prompt) for prompt, _ in asked])
    batch = net.generate(torch.tensor(padded), attention_mask=mask, do_sample=False, max_new_tokens=40)[:, 150:]
    for row, answer in zip(batch.tolist(), answers, strict=True):
        assert answer.tokens == row[: len(answer.tokens)]


@pytest.mark.parametrize(
    ("prompt", "new_tokens", "message"),
    [
        ([], 3, "the prompt of request 1"),
        ([1, 60], 3, "each from 0 to 59"),
        ("text", 3, "the prompt of request 1"),
        ([1.0], 3, "the prompt of request 1"),
        ([1, 2], 0, "0 new tokens in request 1"),
        ([1, 2], 2.5, "2.5 new tokens"),
        ([1] * 510, 3, "request 1 comes to 513 tokens\n  expected: at most 512, the model's context"),
        ([1] * 60, 30, "comes to 90 tokens: 0 such users fit in the pool\n  expected: at most 80 tokens, 10 blocks"),
    ],
)
def test_a_refused_request_harms_no_other(prompt, new_tokens, message):
    net, (good, other) = tiny("llama-gqa"), requests(((12, 6), (20, 5)))
    before, refused, after = engine_of(net, blocks=10).run([good, (prompt, new_tokens), other])
    assert isinstance(refused.refused, WorkbookError)
    assert message in str(refused.refused)
    assert refused.tokens == []
    for answer, asked in ((before, good), (after, other)):
        assert (answer.refused, answer.tokens) == (None, generated(net, *asked)[0])


def test_who_waits_is_told_how_many_fit():
    engine = engine_of(tiny("llama-gqa"), blocks=10, prefix=False)
    for asked in requests(((30, 10), (30, 10), (30, 10))):
        engine.submit(*asked)
    engine.step()
    assert (len(engine.running), len(engine.waiting)) == (2, 1)
    assert engine.shortage == paging.Shortage(request=2, needed=4, available=2, blocks=10, users=2, tokens=40)
    assert str(engine.shortage).startswith("request 2 waits: it needs 4 blocks, and 2 of 10 are available")
    engine.run([])
    assert engine.shortage is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: engine_of(tiny("llama-gqa"), blocks=0), "blocks is 0"),
        (lambda: engine_of(tiny("llama-gqa"), block_size=0), "block_size is 0"),
        (lambda: engine_of(tiny("llama-gqa"), max_running=0), "max_running is 0"),
        (lambda: engine_of(tiny("llama-gqa"), preempt="swop"), "did you mean 'swap'"),
        (lambda: engine_of(tiny("llama-gqa"), attention="gather"), "did you mean 'gathered'"),
        (lambda: engine_of(tiny("llama-gqa")).run([([1], 2)], samples=0), "samples is 0"),
        (lambda: engine_of(tiny("gemma2-hybrid")).run([([1], 2)]), "with softcap"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(WorkbookError, match=message):
        call()
    assert tiny("gemma2-hybrid").config._attn_implementation != "workbook_paged"
