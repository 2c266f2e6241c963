"""What CUDA's kernels allocate and a CPU's do not, each rule with the place in PyTorch that it comes from.

The meter sees what operators return. Here is what they hold besides, while they run or for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ..account import rounded
from ..meter import Meter
from ..timeline import BACKWARD, OPTIMIZER, Block

_aten = torch.ops.aten
PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.addmv, _aten.mv}


def workspace_bytes(capability: tuple[int, int]) -> int:
    """One cuBLAS workspace: parseChosenWorkspaceSize in aten/src/ATen/cuda/CublasHandlePool.cpp.

    ":4096:2:16:8" by default, 4096 KiB twice and 16 KiB eight times; 32 MiB on Hopper and Blackwell.
    """
    return 4096 * 8 * 1024 if capability[0] in (9, 10) else 2 * 4096 * 1024 + 8 * 16 * 1024


FUSED_TOKENS = 64
LT_WORKSPACE_BYTES = 1024 * 1024  # parseCUDABlasLtWorkspaceSize in CublasHandlePool.cpp, by default


class FakeMeter(Meter):
    """A meter for tensors without values. Optimizers ask some for one: a step counter's, a norm's. They get 1.0.

    Such numbers scale updates and decide no size; anywhere else, to ask for a value is an error.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # two thirds of all calls, and the slowest way to this answer
        if func is _aten._local_scalar_dense.default and self.where()[0] == OPTIMIZER:
            return 1.0
        return super().__torch_dispatch__(func, types, args, kwargs)


class CudaMeter(FakeMeter):
    """Also counts what CUDA's kernels keep to themselves."""

    def __init__(self, capability: tuple[int, int]) -> None:
        super().__init__()
        self.workspace_bytes = workspace_bytes(capability)
        self.workspaces: dict[str, Block] = {}  # by library and thread: autograd has handles of its own

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        packet = func._overloadpacket
        if packet in PRODUCTS:
            self._workspace(*self._library(biased=packet is _aten.addmm and args[0].dim() == 1))
        elif packet in TRANSIENT:
            for size_bytes in TRANSIENT[packet](*args):
                self.transient(size_bytes)
        elif packet._qualified_op_name == "bitsandbytes::gemm_4bit":
            self._four_bit_product(*args)
        return result

    def _four_bit_product(self, x: torch.Tensor, weight: torch.Tensor, shape: Sequence[int], absmax: torch.Tensor,
                          block: int, kind: str, bias: torch.Tensor | None = None,
                          absmax_8bit: torch.Tensor | None = None, *_: object) -> None:  # fmt: skip
        """_dequant_linear_fallback in bitsandbytes/backends/cuda/ops.py: weight and scales decoded, then F.linear.

        For few tokens a kernel decodes as it multiplies and holds nothing: up to 4 on every GPU, up to 16 to 512
        by shape and GPU (_gemm_4bit_use_custom_cuda). Here the line is at 64.
        """
        if x.numel() // x.shape[-1] <= FUSED_TOKENS and shape[1] % block == 0:
            return
        decoded = [x.element_size() * shape[0] * shape[1]]
        if absmax_8bit is not None:
            decoded += [4 * absmax_8bit.numel()] * 2  # without the offset, and with it
        self.transient(sum(map(rounded, decoded)))
        self._workspace(*self._library(biased=bias is not None))

    def _library(self, biased: bool) -> tuple[str, int]:
        return ("cuBLASLt", LT_WORKSPACE_BYTES) if biased else ("cuBLAS", self.workspace_bytes)

    def _workspace(self, library: str, size_bytes: int) -> None:
        """getCurrentCUDABlasHandle, getCUDABlasLtWorkspace: one for each thread, made at its first product and kept.

        A product with a bias goes through cuBLASLt (addmm_out_cuda_impl in aten/src/ATen/native/cuda/Blas.cpp).
        """
        name = f"{library}, {'autograd' if self.where()[0] == BACKWARD else 'main'} thread"
        if name not in self.workspaces:
            self.workspaces[name] = self.hold(size_bytes, name)


def _softmax_backward(grad: torch.Tensor, output: torch.Tensor, *_: object) -> list[int]:
    """softmax_backward_cuda_out in aten/src/ATen/native/cuda/SoftMax.cu: `Tensor tmp = grad * output`."""
    return [grad.numel() * max(grad.element_size(), output.element_size())]


def _flash_backward(grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, *_: object) -> list[int]:
    """mha_bwd in flash_attn/flash_api.cpp: softmax_d and, in FP32, dq_accum with rows rounded up to 128; for grouped
    heads dk and dv of every query head, summed afterwards."""
    batch, heads, rows, width = q.shape
    rounded_rows, rounded_width = -(-rows // 128) * 128, -(-width // 32) * 32
    sizes = [4 * batch * heads * rounded_rows, 4 * batch * heads * rounded_rows * rounded_width]
    if k.shape[1] != heads:
        sizes += [k.element_size() * batch * heads * k.shape[2] * width] * 2
    return [sum(sizes)]


def _efficient_backward(grad: torch.Tensor, q: torch.Tensor, *_: object) -> list[int]:
    """_efficient_attention_backward in transformers/cuda/attention_backward.cu: delta, and for 16-bit types a
    workspace in which grad_q is summed up in FP32 (kNeedsAccumGradQ in kernel_backward.h)."""
    batch, heads, rows, _ = q.shape
    accumulator = 4 * q.numel() if q.element_size() == 2 else 0
    return [4 * batch * heads * rows + accumulator]


TRANSIENT = {
    _aten._softmax_backward_data: _softmax_backward,
    _aten._scaled_dot_product_flash_attention_backward: _flash_backward,
    _aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
}
