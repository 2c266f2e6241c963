"""How each engine words that memory is out: the sentence with gaps, and the unit of a figure that stands without one.

A template is the engine's own string. The figures of a thread go into its gaps as they were printed, so a message is
rebuilt without a copy of anybody's prose. `[...]` is left out where a figure in it is missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SPLIT_HINT = (
    " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See "
    "documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"
)
SPLIT_HINT_2_1 = SPLIT_HINT.replace(
    "reserved memory is >> allocated memory", "reserved but unallocated memory is large"
)
SEGMENTS_HINT = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate {asked} (GPU {gpu}; {total} total capacity; {allocated} "
    "already allocated; {free} free; "
)
OLD_RESERVED = OLD + "[{allowed} allowed; ]{reserved} reserved in total by PyTorch)"
NEW = (
    "Tried to allocate {asked}. GPU {gpu} has a total capacity of {total} of which {free} is free. "
    "{holders}[Including non-PyTorch memory, this process has {process} memory in use. ][{allowed} allowed; ]Of the "
    "allocated memory {allocated} is allocated by PyTorch, [with {private} allocated in private pools (e.g., CUDA "
    "Graphs), ]and {cached} is reserved by PyTorch but unallocated."
)
HOLDER = "Process {pid} has {size} memory in use. "
UTILIZATION_HINT = "Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."


@dataclass(frozen=True)
class Template:
    """`text` with gaps; `unit` is the unit of a bare number in it."""

    text: str
    unit: str = "B"

    def fill(self, numbers: Mapping[str, object]) -> str:
        """The message with these figures; KeyError for a gap outside `[...]` that has none."""
        holders = numbers.get("holders", {})
        assert isinstance(holders, dict)
        lines = "".join(HOLDER.format(pid=pid, size=size) for pid, size in holders.items())
        gaps = {**numbers, "holders": lines}

        def part(match: re.Match[str]) -> str:
            wanted = re.findall(r"\{(\w+)\}", match[1])
            return match[1] if all(name in gaps for name in wanted) else ""

        return re.sub(r"\[([^\[\]]*\{\w+\}[^\[\]]*)\]", part, self.text).format_map(gaps)


TEMPLATES = {
    "pytorch-1.0": Template(OLD + "{cached} cached[; {inactive} inactive])"),
    "pytorch-1.4": Template(OLD_RESERVED),
    "pytorch-1.10": Template(OLD_RESERVED + SPLIT_HINT),
    "pytorch-2.1": Template(
        f"torch.cuda.OutOfMemoryError: CUDA out of memory. {NEW}".replace("capacity", "capacty") + SPLIT_HINT_2_1
    ),
    "pytorch-2.2": Template(f"torch.OutOfMemoryError: CUDA out of memory. {NEW}{SEGMENTS_HINT}"),
    "pytorch-hip": Template(f"torch.OutOfMemoryError: HIP out of memory. {NEW}{SEGMENTS_HINT}"),
    "pytorch-xpu": Template(
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate {asked}. GPU {gpu} has a total capacity of "
        "{total}[ of which {free} is free]. Of the allocated memory {allocated} is allocated by PyTorch, and {cached} "
        "is reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory."
    ),
    "ipex": Template(
        "RuntimeError: XPU out of memory. Tried to allocate {asked} (GPU {gpu}; {total} total capacity; {allocated} "
        "already allocated; {reserved} reserved in total by PyTorch)"
    ),
    "pytorch-mps": Template(
        "RuntimeError: MPS backend out of memory (MPS allocated: {allocated}, other allocations: {other}, max allowed: "
        "{allowed}). Tried to allocate {asked} on {pool} pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable "
        "upper limit for memory allocations (may cause system failure)."
    ),
    "pytorch-cut": Template("OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU"),
    "pytorch-nvml": Template(
        'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":{line}, '
        "please report a bug to PyTorch."
    ),
    "vllm-startup": Template(
        "ValueError: Free memory on device [{device} ]({free}/{total} GiB) on startup is less than desired GPU memory "
        "utilization ({share}, {asked} GiB). Decrease GPU memory utilization or reduce GPU memory used by other "
        "processes.",
        "GiB",
    ),
    "vllm-no-block": Template(
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing the engine."
    ),
    "vllm-tokens": Template(
        "ValueError: The model's max seq len ({sequence}) is larger than the maximum number of tokens that can be "
        f"stored in KV cache ({{tokens}}). {UTILIZATION_HINT}"
    ),
    "vllm-sequence": Template(
        "ValueError: To serve at least one request with the models's max seq len ({sequence}), ({asked} KV cache is "
        "needed, which is larger than the available KV cache memory ({free}). [Based on the available memory, the "
        f"estimated maximum model length is {{estimate}}. ]{UTILIZATION_HINT}"
    ),
    "ggml-buffer": Template(
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating {asked} MiB on device {gpu}: cudaMalloc failed: out of "
        "memory\n{caller}: failed to allocate {backend}{gpu} buffer of size {size}",
        "MiB",
    ),
    "ggml-malloc": Template(
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating {asked} MiB on device {gpu}: cudaMalloc failed: out of "
        "memory\nllama_model_load: error loading model: unable to allocate backend buffer",
        "MiB",
    ),
    "ggml-pinned": Template("ggml_cuda_host_malloc: failed to allocate {asked} MiB of pinned memory: {error}", "MiB"),
    "ggml-2023": Template("CUDA error 2 at {place}: out of memory\ncurrent device: 0"),
    "ggml-2024": Template("CUDA error: out of memory\n  current device: 0, in function alloc at {place}"),
    "ollama-runner": Template(
        "Error: llama runner process has terminated: cudaMalloc failed: out of memory\n{caller}: failed to allocate "
        "{backend}{gpu} buffer of size {asked}"
    ),
    "ollama-host": Template("Error: model requires more system memory ({asked}) than is available ({free})"),
    "sglang": Template("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."),
    "tensorrt-llm": Template(
        "[TensorRT-LLM][ERROR] CUDA runtime error in {call}: out of memory (tensorrt_llm/cpp/tensorrt_llm/runtime/"
        "{place})"
    ),
    "nccl": Template("host:100:100 [{rank}] {place} NCCL WARN Cuda failure 'out of memory'"),
    "nccl-alloc": Template(
        "host:100:100 [{rank}] {place} NCCL WARN Cuda failure 'out of memory'\n\nhost:100:100 [{rank}] {again} NCCL "
        "WARN Failed to CUDA calloc {asked} bytes"
    ),
    "jax-trying": Template(
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate {asked} "
        "bytes."
    ),
    "jax-2019": Template(
        "Execution of replica 0 failed: Resource exhausted: Out of memory while trying to allocate {asked} bytes."
    ),
    "jax-request": Template(
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for {asked} ({exact}B) on device ordinal {gpu}"
    ),
    "tensorflow": Template(
        "E tensorflow/stream_executor/cuda/cuda_driver.cc:924] failed to allocate {rounded} ({asked} bytes) from "
        "device: CUDA_ERROR_OUT_OF_MEMORY"
    ),
    "tensorflow-context": Template(
        "failed initializing StreamExecutor for CUDA device ordinal 0: Internal: failed call to "
        "cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY: out of memory; total memory reported: {total}"
    ),
    "triton": Template(
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: {asked}, Hardware limit: "
        "{allowed}. Reducing block sizes or `num_stages` may help."
    ),
    "triton-1": Template(
        "triton.code_gen.OutOfResources: out of resource: shared memoryRequired: {asked}Hardware limit: {allowed}"
    ),
    "bitsandbytes": Template("Error out of memory at line {line} in file {place}"),
    "cublas": Template("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `{call}`"),
    "cuda-error": Template(
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other "
        "API call, so the stacktrace below might be incorrect."
    ),
    "deepspeed-launcher": Template("[launch.py:315:sigkill_handler] exits with return code = -9"),
    "cpu-allocator": Template(
        "RuntimeError: [{prefix}]DefaultCPUAllocator: can't allocate memory: you tried to allocate {asked} bytes. "
        "Error code 12 (Cannot allocate memory)"
    ),
    "cpu-allocator-windows": Template(
        "RuntimeError: [{prefix}]DefaultCPUAllocator: not enough memory: you tried to allocate {asked} bytes."
    ),
    "shm": Template(
        "RuntimeError: DataLoader worker (pid {pid}) is killed by signal: Bus error. It is possible that dataloader's "
        "workers are out of shared memory. Please try to raise your shared memory limit."
    ),
    "worker": Template("RuntimeError: DataLoader worker (pid {pid}) is killed by signal: Killed."),
    "kernel": Template(
        "[12.5] Out of memory: Killed process {pid} ({name}) total-vm:{total}kB, anon-rss:{process}kB, "
        "file-rss:{files}kB",
        "kB",
    ),
    "shell": Template("Killed"),
    "torchrun": Template(
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: {rank} (pid: {pid}) of "
        "binary: python"
    ),
    "spawn": Template(
        "torch.multiprocessing.spawn.ProcessExitedException: process {rank} terminated with signal SIGKILL"
    ),
    "exit-9": Template("Training failed with exit code -9"),
    "sigkill": Template("subprocess.CalledProcessError: Command died with <Signals.SIGKILL: 9>."),
    "exit-137": Template("Process finished with exit code 137 (interrupted by signal 9: SIGKILL)"),
}
