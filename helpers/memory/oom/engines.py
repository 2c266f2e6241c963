"""Why the messages of everybody but PyTorch's allocator are written: a reason and a sentence for each kind."""

from __future__ import annotations

import contextlib
import re
from dataclasses import replace

from ..allocator.outcome import Reason
from ..closed_form.breakdown import format_bytes
from .frames import StackFrame
from .message import ORDINARY_OUTSIDE_BYTES, Oom, Why
from .words import Kind

PINNING = re.compile(r"pin_memory|cudaHostAlloc|cudaHostRegister|cudaMallocHost")
CONTEXT = re.compile(r"_lazy_init|_cuda_init|cuCtxCreate|cuDevicePrimaryCtxRetain")


def why(oom: Oom, stack: tuple[StackFrame, ...] = ()) -> Why:
    """The reason for a message of another kind than the allocator's."""
    if oom.kind is Kind.VLLM:
        return _vllm(oom)
    if oom.kind is Kind.DRIVER and (decided := _driver(oom, stack)):
        return decided
    known = {
        name: format_bytes(size) for name, size in vars(oom).items() if name.endswith("_bytes") and size is not None
    }
    if oom.kind in _WITH_SIZES:
        with contextlib.suppress(KeyError):  # a size that the sentence names and the message does not
            reason, sentence = _WITH_SIZES[oom.kind]
            return replace(_WITHOUT_SIZES[oom.kind], reason=reason, sentence=sentence.format(**known))
    return _WITHOUT_SIZES[oom.kind]


def _driver(oom: Oom, stack: tuple[StackFrame, ...]) -> Why | None:
    """The driver's words are the same for everything; what was called tells host memory and a full card apart."""
    calls = [oom.text, *(f"{frame.function} {frame.code}" for frame in stack)]
    if any(map(PINNING.search, calls)):
        return PINNED
    return NO_CONTEXT if any(map(CONTEXT.search, calls)) else None


def _vllm(oom: Oom) -> Why:
    asked, free, capacity = oom.requested_bytes, oom.free_bytes, oom.capacity_bytes
    if oom.requested_tokens is not None and oom.free_tokens is not None:
        sentence = (
            f"One sequence of max_model_len has {oom.requested_tokens:,} tokens, and the share of the card that vLLM "
            f"may use (gpu_memory_utilization) leaves a KV cache of {oom.free_tokens:,}."
        )
        return Why(Reason.CAPPED, sentence)
    if asked is None or free is None:
        return _WITHOUT_SIZES[Kind.VLLM]
    if capacity is None:
        sentence = (
            f"One sequence of max_model_len needs {format_bytes(asked)} of KV cache, and the share of the card that "
            f"vLLM may use leaves {format_bytes(free)}."
        )
        return Why(Reason.CAPPED, sentence)
    taken = capacity - free
    start = f"vLLM would keep {format_bytes(asked)} of the card (gpu_memory_utilization), and {format_bytes(free)} were"
    if taken > ORDINARY_OUTSIDE_BYTES:
        whose = f"others held {format_bytes(taken)} before it started, often a run that did not stop."
        return Why(Reason.OUTSIDE, f"{start} free: {whose}")
    return Why(Reason.CAPPED, f"{start} free: what is missing is no more than contexts and a desktop take.")


PINNED = Why(
    Reason.HOST,
    "The call was for pinned host memory, which CUDA reports with the same words: the machine's memory, or the limit "
    "on how much of it may be pinned, ran out. WSL has a low one.",
    ("pin_memory=False, or fewer and smaller pinned buffers, does without it.",),
)
# tensorflow/tensorflow/issues/30594: several programs on one server's card.
NO_CONTEXT = Why(
    Reason.OUTSIDE,
    "Not even a context fitted, which is the first thing that a process asks for and some hundred MiB: others fill the "
    "card.",
)
_WITH_SIZES = {  # sentences with fields of Oom
    Kind.CAP: (
        Reason.CAPPED,
        "{allocated_bytes} in tensors and {requested_bytes} more pass the cap of {allowed_bytes} that `capped` sets; "
        "the machine itself has more.",
    ),
    Kind.MPS: (
        Reason.CAPPED,
        "{allocated_bytes} of PyTorch's, {other_bytes} of other Metal memory and {requested_bytes} more pass the "
        "{allowed_bytes} that PyTorch may take of the memory that CPU and GPU share.",
    ),
    Kind.TRITON: (
        Reason.FULL,
        "This is not the card's memory. One block of the kernel needs {requested_bytes} of shared memory on the chip, "
        "and this card gives a block {allowed_bytes}.",
    ),
    Kind.LLAMA_CPP: (
        Reason.FULL,
        "llama.cpp asked the driver for one buffer of {requested_bytes}, and the card had less than that free. It "
        "takes a few large buffers at the start: the log names their sizes before this line, not what others hold.",
    ),
    Kind.OLLAMA: (
        Reason.HOST,
        "What Ollama would keep off the GPU takes {requested_bytes} of the machine's own memory, and {free_bytes} were "
        "available.",
    ),
    Kind.TENSORRT_LLM: (
        Reason.FULL,
        "TensorRT asked the driver for one buffer of {requested_bytes}, and the card, or the MIG slice, had less free.",
    ),
    Kind.NCCL: (
        Reason.FULL,
        "NCCL asked the driver for {requested_bytes} for the buffers of a communicator, which are no tensors, and the "
        "card had less left. PyTorch's cache may hold much of it.",
    ),
    Kind.JAX: (
        Reason.UNCLEAR,
        "XLA could not place {requested_bytes}. JAX takes three quarters of a card when it starts and serves arrays "
        "from that; the message does not say how much of it was in use, or whether somebody else had the card first.",
    ),
    Kind.DRIVER: (
        Reason.UNCLEAR,
        "The driver refused {requested_bytes}; the message does not say how much was free, or who holds the card.",
    ),
    Kind.HOST: (
        Reason.HOST,
        "A tensor of {requested_bytes} did not fit the machine's own memory; the GPU is not involved. The message does "
        "not say how much was free.",
    ),
    Kind.KILLED: (
        Reason.HOST,
        "The kernel killed the process for the machine's own memory; it held {process_bytes} of it.",
    ),
}
_WITHOUT_SIZES = {
    Kind.CAP: Why(Reason.CAPPED, "A cap of this workbook was reached."),
    Kind.MPS: Why(Reason.CAPPED, "PyTorch's limit on the memory that it may take from the Mac was reached."),
    Kind.TRITON: Why(Reason.FULL, "One block of a kernel needs more shared memory than the chip gives to a block."),
    Kind.VLLM: Why(
        Reason.CAPPED,
        "After weights and activations, the share of the card that vLLM may use (gpu_memory_utilization) leaves no "
        "block for the KV cache.",
    ),
    Kind.SGLANG: Why(
        Reason.CAPPED,
        "After the weights, the share of the card that SGLang may keep (mem_fraction_static: weights and KV cache) "
        "leaves nothing for the KV cache.",
        ("Out of memory *while serving* wants the opposite, a smaller share: activations need what is left over.",),
    ),
    Kind.TENSORRT_LLM: Why(
        Reason.FULL,
        "TensorRT-LLM asked the driver for a buffer and the card had too little left. The text gives no sizes: the log "
        "has them before this line, as MemUsageChange.",
    ),
    Kind.LLAMA_CPP: Why(Reason.FULL, "llama.cpp asked the driver for a buffer, and the card had too little left."),
    Kind.OLLAMA: Why(Reason.HOST, "The machine's own memory was too small for what Ollama keeps off the GPU."),
    Kind.NCCL: Why(
        Reason.FULL,
        "NCCL asked the driver for the buffers of a communicator, which are no tensors, and the card had too little "
        "left. The text gives no sizes; PyTorch's cache may hold much of the card.",
    ),
    # Without its memory up front JAX is prone to fragments: jax-ml/jax/issues/788.
    Kind.JAX: Why(
        Reason.UNCLEAR,
        "XLA could not place a buffer, and the text gives no sizes.",
        possible=(Reason.FULL, Reason.OUTSIDE, Reason.FRAGMENTED),
    ),
    Kind.HOST: Why(Reason.HOST, "The machine's own memory ran out, not the GPU's."),
    # pytorch/pytorch/issues/5040 and 16979: a container's /dev/shm has 64 MiB unless told otherwise.
    Kind.SHARED: Why(
        Reason.HOST,
        "A DataLoader worker wrote a batch to shared memory (/dev/shm) and there was no room: that file system has a "
        "limit of its own, 64 MiB in a container that was not told otherwise. The GPU is not involved.",
    ),
    # A container's limit of 1 GB (happylun/SketchModeling/issues/5) or offload that fills the host
    # (deepspeedai/DeepSpeed/issues/4239) end like this, without a word of memory.
    Kind.KILLED: Why(
        Reason.HOST,
        "A process was killed from outside (SIGKILL). That is how the kernel, or a container's limit, ends one that "
        "takes too much of the machine's own memory.",
        (
            "The text does not prove it: a scheduler sends the same signal, and a launcher to the ranks that are left. "
            "`dmesg | grep -i oom` or the container's events do.",
        ),
    ),
    Kind.CUBLAS: Why(
        Reason.FULL,
        "cuBLAS asked the driver for its handle or workspace and the card had too little left. The text gives no "
        "sizes; PyTorch's cache may hold much of the card.",
        (
            "Seen too when a kernel before it failed or the CUDA libraries do not match: "
            "CUDA_LAUNCH_BLOCKING=1 shows where.",
        ),
    ),
    Kind.DRIVER: Why(
        Reason.UNCLEAR,
        "CUDA itself refused, outside PyTorch's allocator, and gives no sizes: a context, a library or pinned host "
        "memory had no room.",
        (
            "The traceback's line may be later than the call that failed: CUDA_LAUNCH_BLOCKING=1 shows it.",
            # microsoft/WSL/issues/8447, OpenMOSS/MOSS/issues/328; facebookresearch/muss/issues/37
            "Found behind it: under WSL, the limit on pinned memory or on WSL's own memory; else a card that other "
            "processes fill, so that not even a context fits.",
        ),
        possible=(Reason.OUTSIDE, Reason.HOST),
    ),
}
