"""The words by which each kind of message is found, and those beside which its sizes stand.

They are those of c10/cuda/CUDACachingAllocator.cpp (torch 1.0 to 2.13) and c10/xpu, aten/src/ATen/mps/MPSAllocator.mm,
c10/core/impl/alloc_cpu.cpp, vLLM's kv_cache_utils.py and gpu_worker.py, SGLang's model runner, ggml (llama.cpp,
Ollama), TensorRT-LLM's runtime, NCCL, XLA (JAX, TensorFlow), Triton, bitsandbytes, the Linux kernel, shells and
launchers, and of this workbook's `capped`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..closed_form.breakdown import TextEnum

LOOKED_FOR = (
    "'CUDA out of memory' (HIP and XPU too), 'MPS backend out of memory', CUBLAS_STATUS_ALLOC_FAILED, 'CUDA error: out "
    "of memory', DefaultCPUAllocator, vLLM's 'No available memory for the cache blocks' or 'Free memory on device', "
    "SGLang's 'Not enough memory', ggml's 'cudaMalloc failed: out of memory' (llama.cpp, Ollama), TensorRT-LLM's 'CUDA "
    "runtime error', NCCL's 'Cuda failure 2', JAX's RESOURCE_EXHAUSTED, Triton's OutOfResources, a worker's 'Bus "
    "error', 'Killed', SIGKILL or exit code 137"
)


class Kind(TextEnum):
    """Who says that memory is out: ALLOCATOR is PyTorch's, CAP this workbook's `capped`, DRIVER is CUDA itself."""

    ALLOCATOR = "allocator"
    CAP = "cap"
    MPS = "mps"
    CUBLAS = "cublas"
    DRIVER = "driver"
    TRITON = "triton"
    VLLM = "vllm"
    SGLANG = "sglang"
    TENSORRT_LLM = "tensorrt-llm"
    LLAMA_CPP = "llama.cpp"
    OLLAMA = "ollama"
    NCCL = "nccl"
    JAX = "jax"
    HOST = "host"
    SHARED = "shared memory"
    KILLED = "killed"


WHOLE = r"\d{1,20}"  # more digits are no figure of a real message, and Python's own conversions refuse or overflow
SIZE = rf"({WHOLE}(?:[.,]{WHOLE})?) ?(bytes|[kKMGT]i?B|B)\b"  # a decimal comma is printed in some locales
# By field of Oom. "cached" (torch 1.0 to 1.3) is without what is allocated, "reserved in total" (1.4 to 2.0) with it.
SIZES_IN: Mapping[Kind, Mapping[str, str]] = {
    Kind.ALLOCATOR: {
        "requested_bytes": r"Tried to allocate {}",
        "capacity_bytes": r"total capaci?ty of {}|{} total capacity",
        "free_bytes": r"of which {} is free|{} free",
        "allocated_bytes": r"Of the allocated memory {} is allocated|{} already allocated",
        "cached_bytes": r"{} is reserved by PyTorch but unallocated|{} cached",
        "private_bytes": r"{} allocated in private pools",
        "process_bytes": r"this process has {} memory",
        "allowed_bytes": r"{} allowed",
    },
    Kind.CAP: {
        "requested_bytes": r"allocate {}",
        "allocated_bytes": r"{} is allocated",
        "allowed_bytes": r"The cap is {}",
        "free_bytes": r"of which {} is free",
    },
    Kind.MPS: {
        "requested_bytes": r"Tried to allocate {}",
        "allocated_bytes": r"MPS allocated: {}",
        "allowed_bytes": r"max allowed: {}",
        "other_bytes": r"other allocations: {}",
    },
    Kind.DRIVER: {
        "requested_bytes": r"failed to allocate \S+ \((\d{1,20}) bytes\)",
        "capacity_bytes": r"total memory reported: (\d{1,20})",
    },
    Kind.TRITON: {"requested_bytes": r"Required: (\d{1,20})", "allowed_bytes": r"Hardware limit: (\d{1,20})"},
    Kind.VLLM: {
        "requested_bytes": r"{} KV cache is needed|utilization \([\d.]+, {}\)",
        "free_bytes": r"available KV cache memory \({}\)|on device \S* ?\((\d{1,20}(?:\.\d{1,20})?)/[\d.]+ (GiB)\)",
        "capacity_bytes": r"on device \S* ?\([\d.]+/{}\)",
    },
    Kind.LLAMA_CPP: {"requested_bytes": r"allocating {} on device|buffer of size (\d{1,20})"},
    Kind.OLLAMA: {"requested_bytes": r"system memory \({}\)", "free_bytes": r"than is available \({}\)"},
    Kind.TENSORRT_LLM: {"requested_bytes": r"amount of GPU memory \({}\)"},
    Kind.NCCL: {"requested_bytes": r"Failed to CUDA \w+ {}"},
    Kind.JAX: {"requested_bytes": r"(?:while trying to allocate|allocating|allocate request for) {}"},
    Kind.HOST: {
        "requested_bytes": r"(?i:you tried to allocate) {}|Unable to allocate {}|failed to allocate {} of pinned"
    },
    Kind.KILLED: {"process_bytes": r"anon-rss:{}"},
}
# A terminal or an issue form wraps a message at any of its spaces, so each stands for any white space.
KINDS: Mapping[Kind, re.Pattern[str]] = {
    kind: re.compile(words.replace(" ", r"\s+"), re.MULTILINE)
    for kind, words in {
        Kind.ALLOCATOR: r"(?:CUDA|HIP|XPU|(?<![\w.])NPU) out of memory|OutOfMemoryError: Tried to allocate"
        r'|NVML_SUCCESS == \w+ INTERNAL ASSERT FAILED at "[^"\n]*CUDACachingAllocator',
        Kind.CAP: r"(?<!CUDA\s)(?<!HIP\s)out of memory\. Tried to allocate [^.]+\.\d+ \w+\. The cap is",
        Kind.MPS: r"MPS backend out of memory",
        Kind.CUBLAS: r"CUBLAS_STATUS_ALLOC_FAILED",
        Kind.DRIVER: r"(?:CUDA|HIP)(?: driver)? error: out of memory|CUDA error \d+ at \S+: out of memory"
        r"|(?:failed to allocate \S+ \(\d+ bytes\) from device: |failed call to cu\w+: )?CUDA_ERROR_OUT_OF_MEMORY"
        r"|cudaErrorMemoryAllocation|Error out of memory at line \d+ in file",
        Kind.TRITON: r"out of resource: shared memory",
        Kind.VLLM: r"ValueError: (?:No available memory for the cache blocks|To serve at least one request with"
        r"|Free memory on device [^(]{0,40}\([\d.]+/|The model's max seq len \(\d+\) is larger than the maximum)",
        Kind.SGLANG: r"Not enough memory\. Please try to \w+ --mem-fraction-static",
        Kind.TENSORRT_LLM: r"(?:\[TensorRT-LLM\]\[ERROR\] )+CUDA runtime error in [\s\S]{0,200}?: out of memory"
        r"|Requested amount of GPU memory \(\d+ bytes\) could not be allocated",
        Kind.LLAMA_CPP: r"(?:allocating [\d.]+ MiB on device \d+: )?(?:cuda|hip)Malloc failed: out of memory"
        r"(?:\s*\n.{0,120}failed to allocate \w+ buffer of size \d+)?"
        r"|failed to allocate (?:CUDA|ROCm)\d+ buffer of size",
        Kind.OLLAMA: r"requires more system memory \(",
        Kind.NCCL: r"Cuda failure (?:2 )?'out of memory'(?:\s+[^\n]{0,120}\s?Failed to CUDA \w+ \d+ bytes)?",
        Kind.JAX: r"RESOURCE_EXHAUSTED: (?:Out of memory|Failed to allocate)|Resource exhausted: Out of memory",
        Kind.HOST: r"DefaultCPUAllocator:|ArrayMemoryError|^MemoryError\b"
        r"|failed to allocate [\d.,]+ MiB of pinned memory",
        Kind.SHARED: r"is killed by signal: Bus error|insufficient shared memory \(shm\)",
        Kind.KILLED: r"Killed process \d+|is killed by signal: Killed|exit\s?code\s*:?\s*(?:-9|137)\b"
        r"(?:\s*\(interrupted by signal 9:\s?SIGKILL\))?|SIGKILL|return code = -9\b"
        r"|^.{0,80}\bKilled\s*$|line \d+:\s+\d+ Killed\b",
    }.items()
}
