"""What CUDA's kernels allocate and a CPU's do not, each rule with the place in PyTorch that it comes from.

The meter sees what operators return. Here is what they hold besides, while they run or for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from ...catalog.hardware import Cuda
from ..breakdown import Phase
from ..meter.meter import Meter
from ..meter.timeline import AllocationEvent, StorageLifetime
from ..step.decoders.linears import FUSED_TOKENS
from . import attention, scratch
from .shapes import ShapeCache

_aten = torch.ops.aten
DEVICE = torch.ops.prim.device.default
WAIT = torch.ops._c10d_functional.wait_tensor.default if torch.distributed.is_available() else None
# A gradient that is scattered into new zeros is so in place, unless a mode is active (index_backward and
# value_selecting_reduction_backward in torch/csrc/autograd/FunctionsManual.cpp and aten ask areAnyTensorSubclassLike)
SCATTERED = {_aten.index_put.default: _aten.index_put_.default, _aten.scatter.src: _aten.scatter_.src}
PRODUCTS = {_aten.mm, _aten.addmm, _aten.bmm, _aten.baddbmm, _aten.addmv, _aten.mv, _aten._scaled_mm}


# cuDNN chooses how a convolution is computed, and with how much memory: PyTorch takes the first plan that it proposes
# whose workspace can be had (run_single_conv in ATen/native/cudnn/Conv_v8.cpp), and sets no limit (pytorch issue 49207:
# 48 GiB for an input of 2). So none is counted; where each would be is marked, for `Trace.with_convolutions`.
CONVOLUTIONS = {_aten.convolution, _aten.convolution_backward}
CONVOLVES = "cuDNN"


class FakeMeter(Meter):
    """A meter for tensors without values. Optimizers ask some for one: a step counter's, a norm's. They get 1.0.

    Such numbers scale updates and decide no size; anywhere else, to ask for a value is an error. One number drawn alone
    has a value, 1.0 too: Transformers before 5.23 asks whether it is below the part of layers to drop, even where that
    is 0, and none is dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.shapes = ShapeCache()

    def call(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if func is _aten.rand.default and not args[0]:
            return torch.tensor(1.0, **kwargs)  # of a constant a fake mode knows the value
        return self.shapes.call(func, args, kwargs)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Meter's own dispatch is wrapped against dynamo; once is enough, and each time costs as much as a meter."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if func is DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # two thirds of all calls, and the slowest way to this answer
        if func is _aten._local_scalar_dense.default and (self.stepping or self.where()[0] == Phase.OPTIMIZER):
            return 1.0
        if func is WAIT and isinstance(args[0], FakeTensor):
            return args[0]  # the very tensor that is waited for; the fake kernel makes another
        return super().__torch_dispatch__(func, types, args, kwargs)


class CudaMeter(FakeMeter):
    """Also counts what CUDA's kernels keep to themselves."""

    def __init__(self, cuda: Cuda) -> None:
        super().__init__()
        self.cuda = cuda
        self.workspaces: dict[str, StorageLifetime] = {}  # by library and thread: autograd has handles of its own
        self.stream: Callable[[], int] = lambda: 0  # in which CUDA stream an allocation is made

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if func is DEVICE:  # asks where a tensor is: no kernel
            return super().__torch_dispatch__(func, types, args, kwargs)
        packet = func._overloadpacket
        if packet._qualified_op_name == "bitsandbytes::gemm_4bit":
            return self._four_bit_product(func, types, args, kwargs)
        if packet._qualified_op_name == "bitsandbytes::int8_scaled_mm":
            return self._eight_bit_product(func, types, args, kwargs)
        if func in SCATTERED and self.where()[0] == Phase.BACKWARD and self._is_newest(args[0]):
            func = SCATTERED[func]
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if packet in CONVOLUTIONS:
            self._mark(CONVOLVES)
        elif packet in PRODUCTS:
            self.multiplied(packet is _aten._scaled_mm or (packet is _aten.addmm and args[0].dim() == 1))
        elif packet in TRANSIENT:
            for sizes_bytes in TRANSIENT[packet](self.cuda.capability, *args, **(kwargs or {})):
                with self.held(*sizes_bytes):
                    pass
            if packet is _aten._scaled_dot_product_efficient_attention:
                self._on_host(result[2:])  # dropout's seed and offset, unless a graph is captured (attention.cu)
        return result

    def _mark(self, owner: str) -> None:
        """A block of no bytes, freed at once, while what an operator reads and writes is there."""
        block = self.hold(0, owner)
        self.events.append(AllocationEvent(block, -1, self.where()[0]))

    def _is_newest(self, tensor: torch.Tensor) -> bool:
        block = self.block_of(tensor)
        return block is not None and block is next(reversed(self.live.values()))

    def _allocated(self, block: StorageLifetime) -> None:
        block.stream = self.stream()
        super()._allocated(block)

    def _on_host(self, tensors: Iterable[torch.Tensor]) -> None:
        """These come from an operator, and take no memory of the device."""
        for tensor in tensors:
            block = self.live[tensor.untyped_storage()._cdata]
            self.live_bytes -= block.size_bytes
            block.size_bytes = 0

    def _four_bit_product(self, func, types, args, kwargs) -> Any:
        """_dequant_linear_fallback in bitsandbytes/backends/cuda/ops.py: weight and scales decoded, then F.linear.

        For few tokens a kernel decodes as it multiplies and holds nothing: up to 4 on every GPU, up to 16 to 512
        by shape and GPU (_gemm_4bit_use_custom_cuda). Here the line is at FUSED_TOKENS.
        """
        given: tuple[Any, ...] = (*args, None, None)
        x, _, shape, _, block, _, bias, scales_8bit, *_ = given
        if x.numel() // x.shape[-1] <= FUSED_TOKENS and shape[1] % block == 0:
            return super().__torch_dispatch__(func, types, args, kwargs)
        scales = [] if scales_8bit is None else [4 * scales_8bit.numel()] * 2  # without the offset, and with it
        with self.held(*scales, x.element_size() * shape[0] * shape[1]):
            result = super().__torch_dispatch__(func, types, args, kwargs)
            self.multiplied(bias is not None)
        return result

    def _eight_bit_product(self, func, types, args, kwargs) -> Any:
        """int8_mm_dequant in bitsandbytes/backends/cuda/ops.py: sums in 32 bits, those in FP16, and a cast of these."""
        values = args[0].numel() // args[0].shape[-1] * len(args[1])
        dtype = (*args, *(kwargs or {}).values())[5:6]
        halves = [2 * values] if dtype and dtype[0] not in (None, torch.float16) else []
        with self.held(4 * values, *halves):
            return super().__torch_dispatch__(func, types, args, kwargs)

    def multiplied(self, light: bool = False) -> None:
        """getCurrentCUDABlasHandle, getCUDABlasLtWorkspace: one for each thread, made at its first product and kept.

        A product with a bias goes through cuBLASLt (addmm_out_cuda_impl in aten/src/ATen/native/cuda/Blas.cpp), and so
        does one in FP8 (scaled_gemm in aten/src/ATen/cuda/CUDABlas.cpp).
        """
        library = "cuBLASLt" if light else "cuBLAS"
        name = f"{library}, {'autograd' if self.where()[0] == Phase.BACKWARD else 'main'} thread"
        if name not in self.workspaces:
            sizes_bytes = (self.cuda.cublas_workspace_bytes, self.cuda.cublaslt_workspace_bytes)
            self.workspaces[name] = self.hold(sizes_bytes[light], name)


def _softmax_backward(
    capability: tuple[int, int], grad: torch.Tensor, output: torch.Tensor, *_, **__
) -> attention.Held:
    """softmax_backward_cuda_out in aten/src/ATen/native/cuda/SoftMax.cu: `Tensor tmp = grad * output`."""
    return [(grad.numel() * max(grad.element_size(), output.element_size()),)]


TRANSIENT: dict[Any, Callable[..., attention.Held]] = {
    _aten._softmax_backward_data: _softmax_backward,
    _aten._scaled_dot_product_flash_attention_backward: attention.flash_backward,
    _aten._scaled_dot_product_efficient_attention: attention.efficient_forward,
    _aten._scaled_dot_product_efficient_attention_backward: attention.efficient_backward,
    _aten.sort: scratch.sort,
    _aten.embedding_dense_backward: scratch.embedding_backward,
}
