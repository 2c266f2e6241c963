"""The work of prefill and of decode, against torch's own counter of FLOPs and by hand."""

import pytest
import torch

from helpers.catalog import ServeSetup, model
from helpers.memory import budget
from helpers.techniques import kv_cache as kv
from tests.techniques.kv_cache.models import FAMILIES, ragged, tiny

EXACT = ["llama-gqa", "llama-mqa", "qwen3-head-dim", "gpt2-mha"]


def counted(run):
    """FLOPs of `run` under torch's counter, with attention written out and so not causal: every query, every key."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize("family", EXACT)
def test_flops_of_a_decode_step_are_those_that_torch_counts(family):
    net, users, context = tiny(family, "eager"), 2, 40
    ids, cache = ragged((context,) * users).ids, kv.cache_of(tiny(family, "eager"), "concat")
    kv.greedy(net, ids, 1, cache)
    flops = counted(lambda: net(input_ids=ids[:, :1], past_key_values=cache))
    expected = kv.phases(ServeSetup(model(FAMILIES[family]), users=users, context=context)).decode.flops
    assert 0 <= flops - expected <= 2 * 24  # some versions of Transformers make the rotary angles by a product


def test_prefill_reads_the_weights_once_and_decode_for_every_token():
    setup = ServeSetup("llama-3-8b", users=4, context=1000)
    both = kv.phases(setup)
    assert both.prefill.read_bytes == budget.weight_bytes(setup)
    assert both.decode.read_bytes == budget.decode_bytes(setup)
    assert both.prefill.written_bytes == 1000 * both.decode.written_bytes == 4 * 1000 * 131_072
    assert both.prefill.intensity > 500 * both.decode.intensity


def test_a_window_bounds_the_scores_and_not_what_is_written():
    shape = model(FAMILIES["mistral-window"])
    short, long = (kv.phases(ServeSetup(shape, context=context)).decode for context in (100, 400))
    assert short.flops == long.flops
    assert short.written_bytes == long.written_bytes == shape.kv_values(1) * 2
    inside, whole = (kv.phases(ServeSetup(model(FAMILIES["llama-gqa"]), context=context)) for context in (1, 2))
    pair = 4 * 3 * 4 * 8  # one query and one key, in three layers of four heads of eight channels
    assert whole.decode.flops - inside.decode.flops == pair
    assert whole.prefill.flops - inside.prefill.flops == inside.decode.flops - 2 * 60 * 32
