"""Which attention kernel a GPU takes, seen by the operator that ran; what it holds meanwhile, by hand from source."""

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.memory import trace
from helpers.memory.trace import attention

MIB = 2**20
T4, A100, RTX_4090 = (7, 5), (8, 0), (8, 9)


def on_meta(batch, heads, rows, width, dtype=torch.float16):
    return torch.empty(batch, heads, rows, width, dtype=dtype, device="meta")


def backward(capability, *shape, dtype=torch.float16):
    q = on_meta(*shape, dtype=dtype)
    return attention.efficient_backward(capability, q, q, q, q)


@pytest.mark.parametrize(
    ("capability", "shape", "floats"),
    [
        (T4, (2, 32, 512, 64), 8 * (64 * 64 + 4)),  # 8 blocks of 64 rows; grad_k and grad_v in registers
        (A100, (2, 32, 512, 64), 8 * (64 * 64 + 4)),
        (T4, (2, 12, 1024, 128), 16 * 2 * (64 * 64 + 4) + 2 * 8 * 64 * 128),  # 200 // 24 = 8 splits of the keys
        (T4, (1, 12, 1024, 128), 16 * 2 * (64 * 64 + 4) + 2 * 16 * 64 * 128),  # as many as there are blocks of keys
        (T4, (8, 32, 1024, 128), 16 * 2 * (64 * 64 + 4) + 2 * 1 * 64 * 128),  # 200 // 256 = 0, so 1
        (A100, (2, 12, 1024, 128), 8 * 1 * (128 * 128 + 4)),  # blocks of 128 rows and columns, in registers again
        (A100, (2, 12, 1024, 256), 8 * 4 * (128 * 64 + 4) + 2 * 8 * 64 * 256),
        (RTX_4090, (2, 12, 1024, 128), 16 * 2 * (64 * 64 + 4) + 2 * 8 * 64 * 128),
        (RTX_4090, (2, 12, 1024, 80), 8 * 2 * (128 * 64 + 4)),  # the kernel made for Stable Diffusion
        (T4, (1, 1, 65, 64), 2 * (64 * 64 + 4)),  # the last block is whole, too
    ],
)
def test_the_memory_efficient_backward_in_16_bits(capability, shape, floats):
    batch, heads, rows, _ = shape
    assert backward(capability, *shape) == [(4 * batch * heads * rows, 4 * batch * heads * floats)]


def test_values_may_be_narrower_than_keys():
    """DeepSeek's 192 and 128: the widest of the two chooses the tile, and grad_v is as wide as the values."""
    q, v = on_meta(2, 12, 1024, 192), on_meta(2, 12, 1024, 128)
    floats = 8 * 3 * (128 * 64 + 4) + 8 * 64 * (256 + 128)
    assert attention.efficient_backward(A100, v, q, q, v) == [(4 * 2 * 12 * 1024, 4 * 2 * 12 * floats)]
    assert attention.efficient_forward(A100, q, q, v) == []


def test_in_fp32_the_product_that_makes_delta_comes_first():
    numbers, delta = 2 * 12 * 1024 * 64, 4 * 2 * 12 * 1024
    workspace = 4 * 2 * 12 * 16 * (64 * 64 + 4)  # grad_q is summed up there in FP32 too: keys are split
    assert backward(A100, 2, 12, 1024, 64, dtype=torch.float32) == [(delta, delta, 4 * numbers), (delta, workspace)]


def test_wide_heads_are_summed_up_beside_the_result_in_16_bits():
    q = on_meta(2, 8, 512, 256)
    assert attention.efficient_forward(T4, q, q, q) == [(4 * q.numel(),)]
    assert attention.efficient_forward(T4, *[q.float()] * 3) == []
    assert attention.efficient_forward(T4, *[on_meta(2, 8, 512, 128)] * 3) == []


def test_flash_backward_holds_row_sums_an_fp32_gradient_and_the_unsummed_gradients_of_grouped_heads():
    q, k = on_meta(2, 8, 200, 40), on_meta(2, 2, 200, 40)
    alone = (4 * 2 * 8 * 256, 4 * 2 * 8 * 256 * 64)  # 200 rows become 256, a width of 40 becomes 64
    assert attention.flash_backward(A100, q, q, q) == [alone]
    assert attention.flash_backward(A100, q, q, k) == [(*alone, *[2 * 2 * 8 * 200 * 40] * 2)]


def traced(width, seen):
    """The sizes of the blocks that a forward and a backward on a T4 allocate."""
    with trace.fake(gpu="t4"):
        q = torch.empty(1, 8, 512, width, dtype=torch.float16, requires_grad=True)
        run = lambda: functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()  # noqa: E731
        found = trace.record(run, warmup=0)
    return [event.block.size_bytes for event in found.events[found.first :] if event.sign > 0 and event.phase == seen]


def test_a_trace_counts_each_of_them_as_a_block_of_its_own():
    delta, workspace = attention.efficient_backward(T4, *[on_meta(1, 8, 512, 64)] * 4)[0]
    born = traced(64, "backward")
    assert workspace in born
    assert born[born.index(workspace) - 1] == delta
    assert 4 * 8 * 512 * 256 in traced(256, "forward")


def test_the_seeds_of_dropout_lie_on_the_host():
    """Seed and offset of the memory-efficient kernel: results of the operator, 512 bytes each if they were counted."""
    assert traced(64, "forward").count(0) == 2


KERNELS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_softmax": "formula",
    "_safe_softmax": "formula",
}


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.kernels = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.kernels.add(KERNELS.get(func.overloadpacket.__name__))
        return func(*args, **(kwargs or {}))


def taken(gpu, dtype=torch.float16, width=64, value_width=None, kv_heads=8, kv_rows=128, grad=False, **how):
    """The kernel of one call with 8 heads and 128 rows."""
    with trace.fake(gpu=gpu), Seen() as seen:
        q = torch.empty(1, 8, 128, width, dtype=dtype, requires_grad=grad)
        k = torch.empty(1, kv_heads, kv_rows, width, dtype=dtype)
        v = torch.empty(1, kv_heads, kv_rows, value_width or width, dtype=dtype)
        functional.scaled_dot_product_attention(q, k, v, **how)
    (kernel,) = seen.kernels - {None}
    return kernel


@pytest.mark.parametrize(
    ("gpu", "choices", "kernel"),
    [
        ("a100", {}, "flash"),
        ("h100", {"dtype": torch.bfloat16}, "flash"),
        ("t4", {}, "efficient"),
        ("t4", {"dtype": torch.float32}, "efficient"),
        ("t4", {"dtype": torch.bfloat16}, "formula"),  # a "t4"'s kernel has no BF16
        ("a100", {"dtype": torch.float32}, "efficient"),
        ("a100", {"dtype": torch.float64}, "formula"),
        ("a100", {"width": 264}, "efficient"),  # flash ends at 256
        ("a100", {"width": 20}, "flash"),  # padded to 24
        ("t4", {"width": 20}, "formula"),  # no multiple of 8
        ("t4", {"width": 18, "dtype": torch.float32}, "efficient"),  # no tensor cores, no alignment
        ("a100", {"width": 18, "dtype": torch.float32}, "formula"),  # no multiple of 4: TF32's products need one
        ("a100", {"width": 192, "value_width": 128}, "efficient"),  # DeepSeek's attention
        ("a100", {"is_causal": True, "kv_rows": 256}, "efficient"),
        ("a100", {"kv_heads": 2, "enable_gqa": True}, "flash"),
        ("t4", {"kv_heads": 2, "enable_gqa": True}, "formula"),
        ("rtx-4090", {"width": 208}, "flash"),
        ("rtx-4090", {"width": 208, "grad": True}, "efficient"),  # flash's backward has too little shared memory there
        ("rtx-4090", {"width": 256, "grad": True}, "flash"),
        ("rtx-4090", {"width": 256, "grad": True, "dropout_p": 0.1}, "efficient"),
        ("a100", {"width": 208, "grad": True}, "flash"),
    ],
)
def test_the_kernel_is_the_one_that_a_gpu_takes(gpu, choices, kernel):
    assert taken(gpu, **choices) == kernel


def test_a_mask_rules_out_flash():
    with trace.fake(gpu="a100"), Seen() as seen:
        q = torch.empty(1, 8, 128, 64, dtype=torch.float16)
        functional.scaled_dot_product_attention(q, q, q, attn_mask=torch.ones(128, 128, dtype=torch.bool))
    assert seen.kernels - {None} == {"efficient"}


@pytest.mark.parametrize(
    ("backend", "kernel"),
    [
        (SDPBackend.FLASH_ATTENTION, "flash"),
        (SDPBackend.EFFICIENT_ATTENTION, "efficient"),
        (SDPBackend.MATH, "formula"),
    ],
)
def test_sdpa_kernel_is_obeyed(backend, kernel):
    with sdpa_kernel(backend):
        assert taken("a100") == kernel


def test_where_no_kernel_is_left_pytorchs_own_error_comes():
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        taken("t4")
