"""The field's kernels under our masks, and what PyTorch says of the backend that ran."""

import pytest
import torch
import torch.nn.functional as F

from helpers.memory.meter import FreshMeter
from helpers.techniques import attention
from helpers.techniques.attention import engines
from tests.techniques.attention.drawn import EXACT, by_definition, error

MASKS = [
    attention.Full(),
    attention.Causal(),
    attention.Window(30, 3),
    attention.BlockSparse(100, [[1, 0, 0], [1, 1, 0], [0, 1, 1]]),
]


def drawn(queries=20, keys=300, heads=4, kv_heads=2, dim=16, **options):
    shapes = [(heads, queries), (kv_heads, keys), (kv_heads, keys)]
    return [torch.randn(1, h, n, dim, generator=torch.Generator().manual_seed(n), **options) for h, n in shapes]


@pytest.mark.parametrize("mask", MASKS)
def test_flex_attention_under_our_masks(mask):
    q, k, v = drawn()
    assert error(engines.flex(q, k, v, mask), by_definition(q, k, v, mask)[0]) < EXACT


def test_flex_attention_of_queries_before_the_first_key():
    q, k, v = drawn(queries=30, keys=20)
    assert error(engines.flex(q, k, v), by_definition(q, k, v, attention.Causal())[0]) < EXACT


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "flash"),
        ({"is_causal": True}, "flash"),
        ({"attn_mask": torch.ones(64, 64, dtype=torch.bool)}, "flash"),
        ({"dropout_p": 0.1}, "math"),
        ({"attn_mask": torch.zeros(64, 64, requires_grad=True)}, "math"),
    ],
)
def test_which_backend_ran_on_a_cpu(options, expected):
    q, k, v = drawn(64, 64, kv_heads=4)
    assert engines.which_backend(q, k, v, **options) == expected


def test_what_ran_shows_in_its_memory():
    """The backend that is called "math" holds the matrix, and "flash" does not: the names are no guess."""
    q, k, v = drawn(512, 512, kv_heads=4)
    for options, matrices in (({}, 0), ({"dropout_p": 0.1}, 1)):
        with FreshMeter() as meter:
            F.scaled_dot_product_attention(q, k, v, **options)
        assert meter.peak_bytes // (4 * 512 * 512 * 4) >= matrices
        assert (meter.peak_bytes < 2 * q.nbytes) == (matrices == 0)


def test_each_backend_is_asked():
    q, k, v = drawn(64, 64, kv_heads=4)
    assert engines.backends(q, k, v) == {
        "flash": engines.TAKES_IT,
        "memory-efficient": "No viable backend for scaled_dot_product_attention was found",
        "cudnn": "No viable backend for scaled_dot_product_attention was found",
        "math": engines.TAKES_IT,
    }
    assert engines.backends(q, k, v, dropout_p=0.1)["flash"] == "Both fused kernels do not support non-zero dropout."
    assert "same last dimension" in engines.backends(q, k, v[..., :8])["flash"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu():
    q, k, v = (tensor.cuda().half() for tensor in drawn(256, 256, dim=64))
    for mask in MASKS:
        torch.testing.assert_close(engines.flex(q, k, v, mask), attention.naive(q, k, v, mask), atol=5e-3, rtol=5e-3)
    assert engines.which_backend(q, k, v, enable_gqa=True) != "math"
    single = engines.backends(q.float(), k.float(), v.float(), enable_gqa=True)
    assert single["math"] == engines.TAKES_IT != single["flash"]
    for mask in MASKS[:3]:
        output, _ = attention.triton_tiled(q, k, v, mask)
        torch.testing.assert_close(output, attention.tiled(q, k, v, mask)[0], atol=5e-3, rtol=5e-3)
