"""Meshes of two dimensions, and ranks that disagree: a sentence, on every rank, while all stay alive."""

from __future__ import annotations

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.lesson.ranks import RankError
from helpers.techniques import parallel
from tests.techniques.parallel import expert_cases
from tests.techniques.parallel import split_cases as cases
from tests.techniques.parallel.test_split import expected_part


@pytest.mark.parametrize("sequence", [False, True])
def test_two_by_two_have_the_whole_models_loss_and_gradients(ranks4, sequence):
    want, gradients = cases.alone_on_four_rows("tied")
    names = {cases.split_name(name): name for name in gradients}
    for loss, parts, rank in ranks4.run(cases.on_a_mesh, sequence):
        assert loss == pytest.approx(want, rel=1e-9)
        for name, got in parts.items():
            part = expected_part(name, gradients[names[name]], rank, 2, kv_heads=4)
            torch.testing.assert_close(got, part, rtol=1e-6, atol=1e-8)


DISAGREE = [
    (cases.different_models, "rank 1 has num_key_value_heads = 4, and rank 0 has 1"),
    (cases.without_biases_on_one, r"rank 1 has .*q_proj.bias = None, and rank 0 has \(48,\)"),
    (cases.of_another_family, "a GPT2LMHeadModel is not split here"),
    (cases.with_eager_attention, "attention is 'eager'"),
    (cases.different_meshes, "rank 1 has data = 2, and rank 0 has 4"),
    (cases.different_inputs, "ids or labels differ between the ranks"),
    (cases.equally_many_other_ids, "ids or labels differ between the ranks"),
    (expert_cases.moe_uneven_tokens, "numbers of tokens differ between the ranks"),
]


@pytest.mark.parametrize(("call", "what"), DISAGREE)
def test_ranks_that_disagree_are_told_so_and_live(ranks4, call, what):
    with pytest.raises(RankError, match=what) as error:
        ranks4.run(call, timeout_s=20)
    assert error.value.alive


@pytest.mark.parametrize(
    ("sizes", "do"), [({"data": 3, "tensor": 2}, "mesh(data=2, tensor=2)"), ({"tensor": 3}, "mesh(tensor=4)")]
)
def test_a_mesh_that_does_not_fit_is_refused_with_one_that_does(ranks4, sizes, do):
    with pytest.raises(WorkbookError) as error:
        ranks4.run(cases.mesh_of, **sizes)
    assert do in error.value.what


def test_outside_of_ranks_it_says_where_to_run():
    with pytest.raises(WorkbookError, match="there is no process group"):
        parallel.split(cases.build())
