"""PyTorch's DTensor on the same model: the whole model's loss and gradients."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from helpers.catalog import WorkbookError
from tests.techniques.parallel import split_cases as cases
from tests.versions import divided_embedding

OPTIONS = [
    {},
    {"shared_entries": True},
    {"loss": "parallel"},
    {"sequence": True},
    {"sequence": True, "loss": "parallel"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
@pytest.mark.parametrize("kind", ["even", "even tied", "even biases"])
def test_two_ranks_have_the_whole_models_loss_and_gradients(ranks2, kind, options):
    want, gradients = cases.alone(kind)
    for loss, found in ranks2.run(cases.by_dtensor, kind, **options):
        assert loss == pytest.approx(want, rel=1e-9)
        for name, gradient in gradients.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "name"), [("plain", "intermediate_size is 51"), ("one kv head", "num_key_value_heads is 1")]
)
def test_sizes_that_do_not_divide_are_refused(ranks2, kind, name):
    with pytest.raises(WorkbookError, match=name) as error:
        ranks2.run(cases.by_dtensor, kind)
    assert "use parallel.split" in error.value.what


@divided_embedding
def test_transformers_own_plan_has_the_same_loss_bytes_and_traffic(ranks2):
    want = cases.small_alone()
    assert ranks2.run(cases.small_loss) == pytest.approx([want] * 2, rel=1e-5)
    for loss, size, forward, backward in ranks2.run(cases.by_transformers):
        assert loss == pytest.approx(want, rel=1e-5)
        assert size == 3_472_128
        assert Counter(kind for kind, *_ in forward) == {"all_reduce": 9, "all_gather": 1}
        assert Counter(kind for kind, *_ in backward) == {"all_reduce": 21}


def test_transformers_cannot_give_four_ranks_two_kv_heads(ranks4):
    """Its own words are "shape '[2, 16, -1, 32]' is invalid", from inside attention."""
    with pytest.raises(WorkbookError, match="num_attention_heads is 6 on 4 ranks"):
        ranks4.run(cases.by_transformers)
