"""Which attention kernel a GPU takes: each rule of PyTorch's sdp_utils.cpp, seen by the operator that ran."""

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.catalog import DEVICES
from helpers.memory import trace
from helpers.memory.trace.runs import capability_of

T4, A100, RTX_4090, H100 = (7, 5), (8, 0), (8, 9), (9, 0)
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


def taken(capability, dtype=torch.float16, width=64, value_width=None, kv_heads=8, kv_rows=128, grad=False, **how):
    """The kernel of one call with 8 heads and 128 rows."""
    with trace.fake(capability=capability), Seen() as seen:
        q = torch.empty(1, 8, 128, width, dtype=dtype, requires_grad=grad)
        k = torch.empty(1, kv_heads, kv_rows, width, dtype=dtype)
        v = torch.empty(1, kv_heads, kv_rows, value_width or width, dtype=dtype)
        functional.scaled_dot_product_attention(q, k, v, **how)
    (kernel,) = seen.kernels - {None}
    return kernel


@pytest.mark.parametrize(
    ("capability", "choices", "kernel"),
    [
        (A100, {}, "flash"),
        (H100, {"dtype": torch.bfloat16}, "flash"),
        (T4, {}, "efficient"),
        (T4, {"dtype": torch.float32}, "efficient"),
        (T4, {"dtype": torch.bfloat16}, "formula"),  # a T4's kernel has no BF16
        (A100, {"dtype": torch.float32}, "efficient"),
        (A100, {"dtype": torch.float64}, "formula"),
        (A100, {"width": 264}, "efficient"),  # flash ends at 256
        (A100, {"width": 20}, "flash"),  # padded to 24
        (T4, {"width": 20}, "formula"),  # no multiple of 8
        (T4, {"width": 18, "dtype": torch.float32}, "efficient"),  # no tensor cores, no alignment
        (A100, {"width": 18, "dtype": torch.float32}, "formula"),  # no multiple of 4: TF32's products need one
        (A100, {"width": 192, "value_width": 128}, "efficient"),  # DeepSeek's attention
        (A100, {"is_causal": True, "kv_rows": 256}, "efficient"),
        (A100, {"kv_heads": 2, "enable_gqa": True}, "flash"),
        (T4, {"kv_heads": 2, "enable_gqa": True}, "formula"),
        (RTX_4090, {"width": 208}, "flash"),
        (RTX_4090, {"width": 208, "grad": True}, "efficient"),  # flash's backward has too little shared memory there
        (RTX_4090, {"width": 256, "grad": True}, "flash"),
        (RTX_4090, {"width": 256, "grad": True, "dropout_p": 0.1}, "efficient"),
        (A100, {"width": 208, "grad": True}, "flash"),
    ],
)
def test_the_kernel_is_the_one_that_a_gpu_takes(capability, choices, kernel):
    assert taken(capability, **choices) == kernel


def test_a_mask_rules_out_flash():
    with trace.fake(capability=A100), Seen() as seen:
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
        assert taken(A100) == kernel


def test_where_no_kernel_is_left_pytorchs_own_error_comes():
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), pytest.raises(RuntimeError, match="No available kernel"):
        taken(T4)


@pytest.mark.parametrize(
    ("gpu", "capability"),
    [
        ("t4-16gb", T4),
        ("a100-40gb", A100),
        ("l4-24gb", RTX_4090),
        ("l40s-48gb", RTX_4090),
        ("a10-24gb", (8, 6)),
        ("rtx-3090-24gb", (8, 6)),
        ("rtx-4090-24gb", RTX_4090),
        ("rtx-5090-32gb", (12, 0)),
        ("h100-pcie", H100),
        ("t4", T4),
        (None, A100),
    ],
)
def test_the_compute_capability_of_a_card(gpu, capability):
    assert capability_of(gpu) == capability


def test_every_cuda_card_of_the_catalogue_has_one():
    """What stays with the A100's: its own two sizes, and what is no CUDA GPU."""
    others = {name for name in DEVICES if capability_of(name) == A100}
    assert all(name.startswith(("a100", "mi300x", "m2", "m3", "m4")) for name in others)
