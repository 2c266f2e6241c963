"""Which tokens a window with sinks shows and keeps, row by row, padding or not."""

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques import kv_cache as kv
from tests.techniques.kv_cache.models import ragged, tiny


def numbered(first, count, rows=1):
    """Keys and values of `count` tokens that say which they are: token 7 is all sevens."""
    tokens = torch.arange(first, first + count, dtype=torch.float32)
    states = tokens[None, None, :, None].expand(rows, 2, -1, 3)
    return states, -states


def tokens_in(states):
    """Token numbers in each row, checked to be the same in every head and channel."""
    assert (states == states[:, :1, :, :1]).all()
    return states[:, 0, :, 0].long().tolist()


@pytest.mark.parametrize(("window", "sinks", "prompt"), [(4, 2, 10), (4, 2, 3), (1, 0, 5), (1, 3, 2), (6, 0, 1)])
def test_a_token_sees_the_sinks_and_the_window_that_ends_with_it(window, sinks, prompt):
    layer = kv.WindowLayer(window, sinks)
    for first, count in [(0, prompt), *((at, 1) for at in range(prompt, prompt + 9))]:
        sizes = layer.get_mask_sizes(count)
        keys, values = layer.update(*numbered(first, count))
        end = first + count
        expected = list(range(end)) if count > 1 else [at for at in range(end) if at < sinks or at >= end - window]
        assert tokens_in(keys) == tokens_in(-values) == [expected]
        assert sizes == (len(expected), end - len(expected))  # what the mask was made for
        assert tokens_in(layer.keys) == [[at for at in range(end) if at < sinks or at >= end - window]]


def test_padding_is_never_a_sink():
    layer = kv.WindowLayer(3, 2, padding=torch.tensor([0, 4, 7]))
    layer.update(*numbered(0, 8, rows=3))
    assert tokens_in(layer.keys) == [[0, 1, 5, 6, 7], [3, 4, 5, 6, 7], [3, 4, 5, 6, 7]]
    for at in range(8, 12):
        layer.update(*numbered(at, 1, rows=3))
    assert tokens_in(layer.keys) == [[0, 1, 9, 10, 11], [4, 5, 9, 10, 11], [7, 8, 9, 10, 11]]


@pytest.mark.parametrize("name", ["window:12+3", "window:5", "heavy:6+5"])
def test_a_padded_row_decodes_as_it_does_alone(name):
    model, lengths = tiny("llama-gqa", "eager"), (33, 21, 9, 2)
    batch = ragged(lengths)
    cache = kv.cache_of(model, name, attention_mask=batch.attention_mask)
    together = kv.greedy(model, batch.ids, 12, cache, batch.attention_mask)
    for row, length in enumerate(lengths):
        alone = kv.greedy(model, batch.ids[row : row + 1, -length:], 12, kv.cache_of(model, name))
        assert (together.logits[row] - alone.logits[0]).abs().max() < 1e-4, length


def test_without_its_padding_a_ragged_batch_goes_wrong():
    """Why `cache_of` takes the mask: the trap that the test above guards against is real."""
    model, batch = tiny("llama-gqa", "eager"), ragged((33, 9))
    right, wrong = (
        kv.greedy(
            model, batch.ids, 12, kv.cache_of(model, "window:12+3", attention_mask=mask), batch.attention_mask
        ).logits[1]
        for mask in (batch.attention_mask, None)
    )
    assert (right - wrong).abs().max() > 0.01


def test_keys_keep_the_rotation_they_came_with():
    model, ids = tiny("llama-gqa"), ragged((30,)).ids
    window, whole = kv.cache_of(model, "window:6+2"), kv.cache_of(model, "concat")
    kv.greedy(model, ids, 1, window)
    kv.greedy(model, ids, 1, whole)
    kept = [0, 1, *range(24, 30)]
    assert torch.equal(window.layers[0].keys, whole.layers[0].keys[:, :, kept])


@pytest.mark.parametrize(
    "mask", [torch.tensor([[1, 1, 0]]), torch.tensor([[0, 0]]), torch.tensor([1, 1]), torch.tensor([[0, 1, 0, 1]])]
)
def test_a_mask_that_is_not_padding_on_the_left(mask):
    with pytest.raises(WorkbookError, match="padding"):
        kv.cache_of(tiny("llama-gqa"), "window:4", attention_mask=mask)
