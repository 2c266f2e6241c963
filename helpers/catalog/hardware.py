"""What a card adds to a run's own tensors, by PyTorch's rules: cuBLAS workspaces, and the attention kernel. No torch.

    from helpers.catalog.hardware import cuda_of
    cuda_of("h100").cublas_workspace_bytes                                  # 33554432, of one handle
    library_bytes("h100")                                                   # 67108864, of a training step
    cuda_of("t4").attention_kernel(AttentionCall("bf16", width=64))         # AttentionKernel.FORMULA

The closed form, the trace and the calculators all ask here, so that they cannot disagree about a card. What is said
is true of CUDA alone: `cuda_of` is None for AMD's and Apple's GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from .devices import Device, device
from .errors import WorkbookError
from .serve_setup import ServeSetup
from .train_setup import TrainSetup

REFERENCE = "a100-80gb"  # whose workspaces and kernels count where a GPU is meant and none is named
FLOAT8_REFERENCE = "h100-80gb"  # the same where products are in FP8, which an A100 has not
TURING, AMPERE, ADA, HOPPER, CONSUMER_BLACKWELL = (7, 5), (8, 0), (8, 9), (9, 0), (12, 0)
CUBLAS_HANDLES = 2  # of the main thread and of autograd's: each has a workspace once it has multiplied
FLASH_WIDTH = 256  # check_head_dim_size_flash
HALF_FORMATS = ("fp16", "bf16")


class AttentionKernel(Enum):
    """What `scaled_dot_product_attention` may run: a fused kernel, or the formula with its scores written out."""

    FLASH = "flash"
    EFFICIENT = "memory-efficient"
    FORMULA = "plain formula"


@dataclass(frozen=True)
class AttentionCall:
    """One call of `scaled_dot_product_attention`, as far as the choice of its kernel looks at it.

    `number_format` is the tensors' ("fp32", "bf16", …), `width` that of a head of Q and K, `value_width` of V where it
    is another. `causal` stands for `is_causal=True`, which flash takes for as many keys as queries only.
    """

    number_format: str
    width: int
    value_width: int | None = None
    heads: int = 1
    kv_heads: int = 1
    masked: bool = False
    causal: bool = False
    as_many_keys: bool = True
    dropout: bool = False
    trains: bool = True

    @property
    def is_half(self) -> bool:
        return self.number_format in HALF_FORMATS

    @property
    def values(self) -> int:
        return self.width if self.value_width is None else self.value_width


@dataclass(frozen=True)
class Cuda:
    """What PyTorch's CUDA build does on a GPU of this compute capability."""

    capability: tuple[int, int]

    @property
    def cublas_workspace_bytes(self) -> int:
        """One handle's: parseChosenWorkspaceSize in aten/src/ATen/cuda/CublasHandlePool.cpp.

        ":4096:2:16:8" by default, 4096 KiB twice and 16 KiB eight times, 8,519,680 B; from Hopper on 32 MiB.
        """
        return 32 * 2**20 if self.capability >= HOPPER else 2 * 4096 * 1024 + 8 * 16 * 1024

    @property
    def cublaslt_workspace_bytes(self) -> int:
        """One thread's, for products with a bias or in FP8: parseCUDABlasLtWorkspaceSize, same file, by default."""
        return 2**20

    def library_bytes(self, cublaslt_threads: int = 0) -> int:
        """What cuBLAS holds from the first training step on: a workspace for each of the two threads that multiply.

        And cuBLASLt, for each of `cublaslt_threads`, which add a bias to a product or multiply in FP8. Two smaller
        terms are left out, for they come and go within a kernel: what flash attention's backward sums in, and a
        softmax's temporary.
        """
        return CUBLAS_HANDLES * self.cublas_workspace_bytes + cublaslt_threads * self.cublaslt_workspace_bytes

    def attention_kernels(self, call: AttentionCall) -> tuple[AttentionKernel, ...]:
        """Those that can run `call`, in the order in which select_sdp_backend tries them.

        aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, for tensors that are not nested. On Hopper and Blackwell
        PyTorch 2.13 with a cuDNN newer than 9.15 tries cuDNN's kernel first; it keeps what flash keeps, and counts as
        flash here. Unlike flash it takes a mask, also with shared heads; that is not followed here.
        """
        flash = (AttentionKernel.FLASH,) if self._flash_can(call) else ()
        efficient = (AttentionKernel.EFFICIENT,) if self._efficient_can(call) else ()
        return (*flash, *efficient, AttentionKernel.FORMULA)

    def attention_kernel(self, call: AttentionCall) -> AttentionKernel:
        """The one that runs, unless `sdpa_kernel` switches it off."""
        return self.attention_kernels(call)[0]

    def _flash_can(self, call: AttentionCall) -> bool:
        """can_use_flash_attention: 16 bits, no mask, equal widths up to 256, from compute capability 8.0 on."""
        if not call.is_half or call.masked or self.capability < AMPERE:
            return False
        if call.width != call.values or call.width > FLASH_WIDTH or (call.causal and not call.as_many_keys):
            return False
        little = (8, 6) <= self.capability <= (8, 9) or self.capability >= CONSUMER_BLACKWELL  # shared memory
        return not (little and call.trains) or call.width <= 192 or (call.width > 224 and not call.dropout)

    def _efficient_can(self, call: AttentionCall) -> bool:
        """can_use_mem_efficient_attention: widths that its products of matrices take (minimum_gemm_alignment), and as
        many heads of K and V as of Q. (From PyTorch 2.14 on it repeats grouped ones; that is not followed here.)"""
        ampere = self.capability >= AMPERE
        if call.number_format == "fp64" or (call.number_format == "bf16" and not ampere):
            return False
        multiple = 8 if call.is_half else 4 if ampere else 1
        return not (call.width % multiple or call.values % multiple) and call.kv_heads == call.heads


def cuda_of(gpu: str | Device) -> Cuda | None:
    """CUDA as `gpu` runs it; None for a card without CUDA, and for one whose compute capability nobody knows.

    >>> cuda_of("rtx-4090").capability, cuda_of("mi300x")
    ((8, 9), None)
    """
    capability = device(gpu).capability
    return None if capability is None else Cuda(capability)


def library_bytes(gpu: str | Device | None, cublaslt_threads: int = 0) -> int:
    """What the libraries of a card take in a training step, beside its tensors (`Cuda.library_bytes`).

    PyTorch counts it as allocated; no operator returns it. 0 without a card, as on a CPU, and for a card without CUDA,
    whose libraries nobody here knows. `library_bytes(detect())` is for the reader's own.

    >>> library_bytes("a100"), library_bytes("h100"), library_bytes(None)
    (17039360, 67108864, 0)
    """
    cuda = None if gpu is None else cuda_of(gpu)
    return cuda.library_bytes(cublaslt_threads) if cuda else 0


def reference_of(setup: TrainSetup | ServeSetup) -> str:
    """The card that counts for `setup` where a GPU is meant and none is named."""
    float8 = isinstance(setup, TrainSetup) and setup.precision_recipe.linear_format
    return FLOAT8_REFERENCE if float8 else REFERENCE


def require_float8_kernels(setup: TrainSetup, card: Device) -> None:
    """Refuse FP8 products on a CUDA card that has none: `torch._scaled_mm` asks for compute capability 8.9."""
    if setup.precision_recipe.linear_format and card.capability and card.capability < ADA:
        what = f"precision is {setup.precision!r}, and the {card.title} has no FP8 products"
        raise WorkbookError(what, "an Ada, Hopper or Blackwell GPU", "choose precision='bf16', or --gpu h100")


def require_cuda(gpu: str | Device | None, wanted: str) -> Cuda:
    """CUDA as `gpu` runs it, as REFERENCE does for None; WorkbookError, with what was `wanted`, for other cards."""
    card = device(REFERENCE if gpu is None else gpu)
    cuda = cuda_of(card)
    if cuda is None:
        do = f"`workbook estimate --gpu {card.name}` knows the bytes of its tensors; leave the GPU out for an A100's"
        raise WorkbookError(f"{wanted} follows CUDA's kernels, and the {card.title} {_lack(card)}", "an NVIDIA GPU", do)
    return cuda


def context_of(card: Device | None) -> str:
    """What a process takes on a card beside its tensors, in words: "the CUDA context" where there is one."""
    return "the CUDA context" if card is None or cuda_of(card) else "its libraries"


def without_cuda(card: Device | None) -> tuple[str, ...]:
    """The sentence under an answer for a card that CUDA's rules do not hold for: what it leaves out; else none."""
    if card is None or cuda_of(card):
        return ()
    return (
        f"The {card.title} {_lack(card)}: these are the tensors alone, as a fused attention kernel saves them; what "
        "its own libraries and kernels take comes on top.",
    )


# Below these compute capabilities Transformers 5.23 loads a checkpoint dequantized (quantizer_finegrained_fp8.py and
# quantizer_mxfp4.py); vLLM has kernels of its own there.
KERNELS_FROM = {"fp8-e4m3": ADA, "mxfp4": TURING}


def dequantized(setup: ServeSetup, card: Device | None) -> ServeSetup:
    """What Transformers makes of `setup` on the card: weights in BF16 where it has no kernel for their format.

    >>> [dequantized(ServeSetup("gpt-oss-20b"), device(name)).weights for name in ("v100-16gb", "t4-16gb")]
    ['bf16', 'mxfp4']
    """
    cuda = cuda_of(card) if card else None
    least = KERNELS_FROM.get(setup.weights)
    if cuda is None or least is None or cuda.capability >= least or setup.model.stored:
        return setup
    return replace(setup, weights="bf16", skipped=None)


def lacks_bf16(card: Device, number_format: str) -> bool:
    """Whether products in `number_format` are BF16's, and the card is of a CUDA generation without units for them."""
    cuda = cuda_of(card)
    return number_format == "bf16" and cuda is not None and cuda.capability < AMPERE


def without_bf16(card: Device | None, number_format: str) -> tuple[str, ...]:
    """The sentence under an answer in `number_format` for a card that would have to emulate it; else none."""
    if card is None or not lacks_bf16(card, number_format):
        return ()
    return (f"The {card.title} has no units for products in BF16: use FP16 there, with a scaled loss.",)


def _lack(card: Device) -> str:
    return "has no CUDA" if card.vendor in ("amd", "apple", "intel") else "has no compute capability in the catalogue"
