"""Messages of real failures: their words and figures, as torch 1.0 to 2.13, vLLM, the kernel, a shell print them."""

TAIL = (
    " If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management"
)


ME = "Including non-PyTorch memory, this process has {} memory in use."
ALONE = ME.format("1.00 GiB")


def now(asked, total, unused, tensors, cached, who=ALONE):
    """The sentence of torch 2.2 to 2.13."""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {total} "
        f"of which {unused} is free. {who} Of the allocated memory {tensors} is allocated by PyTorch, and {cached} is "
        f"reserved by PyTorch but unallocated.{TAIL}"
    )


def before(asked, total, tensors, unused, reserved):
    """The sentence of torch 1.4 to 2.0."""
    return (
        f"RuntimeError: CUDA out of memory. Tried to allocate {asked} (GPU 1; {total} total capacity; {tensors} "
        f"already allocated; {unused} free; {reserved} reserved in total by PyTorch) If reserved memory is >>"
    )


def ggml(mib, device, who, size, backend="CUDA"):
    """The two lines of ggml, in llama.cpp, Ollama and LM Studio."""
    return (
        f"ggml_backend_cuda_buffer_type_alloc_buffer: allocating {mib} MiB on device {device}: cudaMalloc failed: "
        f"out of memory\n{who}: failed to allocate {backend}{device} buffer of size {size}"
    )


# text, reason, what the explanation must say
REAL = {
    "2.5, a third cached": (
        now("22.78 GiB", "31.47 GiB", "12.73 GiB", "9.08 GiB", "9.35 GiB"),
        "full",
        "716.80 MiB would be missing",
    ),
    "2.5, cached in pieces": (
        now("3.00 GiB", "23.65 GiB", "1.66 GiB", "12.09 GiB", "4.84 GiB"),
        "fragmented",
        "6.50 GiB",
    ),
    "2.2, nearly all in tensors": (
        now("22.00 MiB", "23.65 GiB", "11.06 MiB", "22.90 GiB", "194.87 MiB"),
        "full",
        "0.8% of what PyTorch holds",
    ),
    "2.6, full": (
        now("30.29 GiB", "10.74 GiB", "3.69 GiB", "6.10 GiB", "396.58 MiB"),
        "full",
        "larger than the card's",
    ),
    "2.1, capacty": (
        now("32.00 MiB", "4.00 GiB", "41.56 MiB", "2.58 GiB", "1.90 MiB").replace("capacity", "capacty"),
        "unclear",
        "more than the 32.00 MiB asked",
    ),
    "2.1, a little too much": (
        now("2.00 GiB", "11.91 GiB", "406.38 MiB", "11.18 GiB", "219.44 MiB"),
        "full",
        "1.39 GiB would be missing",
    ),
    "2.9, another process": (
        now(
            "24.00 MiB",
            "7.60 GiB",
            "15.38 MiB",
            "217.80 MiB",
            "50.20 MiB",
            "Process 3936 has 5.38 GiB memory in use. " + ME.format("2.19 GiB"),
        ),
        "outside",
        "5.38 GiB",
    ),
    "2.4, another process has what is missing": (
        now(
            "1.16 GiB",
            "31.36 GiB",
            "471.69 MiB",
            "15.03 GiB",
            "100.00 MiB",
            ME.format("16.63 GiB") + " Process 19239 has 14.26 GiB memory in use.",
        ),
        "outside",
        "process 19239 (14.26 GiB) holds more",
    ),
    "2.5, in a container": (
        now(
            "248.00 MiB",
            "22.28 GiB",
            "33.38 MiB",
            "20.60 GiB",
            "171.43 MiB",
            "Process 6314 has 22.23 GiB memory in use.",
        ),
        "full",
        "Process 6314 is probably this one",
    ),
    "2.1, two in a container": (
        now(
            "448.00 MiB",
            "79.10 GiB",
            "64.31 MiB",
            "72.12 GiB",
            "200.00 MiB",
            "Process 175080 has 1.46 GiB memory in use. Process 175356 has 77.26 GiB memory in use.",
        ),
        "outside",
        "Process 175356 is probably this one",
    ),
    "2.6, a fraction": (
        now(
            "996.00 MiB",
            "44.43 GiB",
            "9.06 GiB",
            "17.44 GiB",
            "59.88 MiB",
            f"Process 2102129 has 17.54 GiB memory in use. {ME.format('17.81 GiB')} 17.69 GiB allowed;",
        ),
        "capped",
        "17.69 GiB",
    ),
    "2.6, a fraction and pieces, on Windows": (
        now(
            "3.98 GiB",
            "31.84 GiB",
            "16.30 GiB",
            "6.74 GiB",
            "7.02 GiB",
            ME.format("17179869184.00 GiB") + " 17.51 GiB allowed;",
        ),
        "fragmented",
        "of the 17.51 GiB allowed",
    ),
    "1.10, in pieces": (
        before("1.65 GiB", "7.79 GiB", "3.53 GiB", "1.40 GiB", "5.28 GiB"),
        "fragmented",
        "1.75 GiB cached",
    ),
    "1.12, full": (
        before("7.74 GiB", "23.69 GiB", "18.60 GiB", "2.78 GiB", "19.05 GiB"),
        "full",
        "4.51 GiB would be missing",
    ),
    "1.13, swapped by Windows": (
        before("1.78 GiB", "4.00 GiB", "7.42 GiB", "0 bytes", "8.43 GiB"),
        "full",
        "(Windows)",
    ),
    "1.12, a broadcast": (
        before("130674.91 GiB", "79.15 GiB", "27.53 GiB", "37.61 GiB", "28.21 GiB"),
        "full",
        "shapes",
    ),
    "1.8, a fraction": (
        "CUDA out of memory. Tried to allocate 5.59 GiB (GPU 0; 11.17 GiB total capacity; 0 bytes already "
        "allocated; 10.91 GiB free; 5.59 GiB allowed; 0 bytes reserved in total by PyTorch)",
        "capped",
        "5.59 GiB",
    ),
    "1.0": (
        "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 10.92 GiB total capacity; 8.57 GiB "
        "already allocated; 0.28 GiB free; 1.68 GiB cached)",
        "fragmented",
        "1.68 GiB cached",
    ),
    "HIP": (
        now("704.00 GiB", "191.69 GiB", "186.02 GiB", "4.89 GiB", "2.25 MiB", "").replace("CUDA", "HIP"),
        "full",
        "larger",
    ),
    "a desktop's driver": (
        now("4.00 GiB", "24.00 GiB", "1.00 GiB", "12.00 GiB", "0.10 GiB", ""),
        "outside",
        "10.90 GiB of the card are held by something else",
    ),
    "MPS": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: 17.35 GiB, max allowed: "
        "27.20 GiB). Tried to allocate 292.50 MiB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0",
        "capped",
        "17.35 GiB of other Metal memory",
    ),
    "MPS, older": (
        "RuntimeError: MPS backend out of memory (MPS allocated: 5.56 GB, other allocations: 1.10 GB, max allowed:"
        " 6.80 GB). Tried to allocate 768.00 MB on private pool.",
        "capped",
        "768.00 MiB",
    ),
    "our cap": (
        "torch.OutOfMemoryError: out of memory. Tried to allocate 5.00 MiB. The cap is 4.00 MiB, of which 1.00 MiB is "
        "free; 3.00 MiB is allocated.",
        "capped",
        "the cap of 4.00 MiB",
    ),
    "no sizes": ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "unclear", "gives no sizes"),
    "cuBLAS": (
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "full",
        "cuBLAS",
    ),
    "driver": (
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "unclear",
        "outside PyTorch's allocator",
    ),
    "vLLM, no block": (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "capped",
        "no block",
    ),
    # github.com/triton-lang/triton/issues/8182
    "Triton": (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: "
        "101376. Reducing block sizes or `num_stages` may help.",
        "full",
        "This is not the card's memory",
    ),
    # github.com/pytorch/pytorch/issues/16979
    "a worker's shared memory": (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "host",
        "--shm-size",
    ),
    "vLLM, a long model": (
        "ValueError: To serve at least one request with the models's max seq len (1048576), (24.00 GiB KV "
        "cache is needed, which is larger than the available KV cache memory (9.97 GiB). Try",
        "capped",
        "leaves 9.97 GiB",
    ),
    "host": (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 132426121216 bytes. Error code 12 (Cannot allocate memory)",
        "host",
        "123.33 GiB",
    ),
    "host, Windows": (
        "RuntimeError: DefaultCPUAllocator: not enough memory: you tried to allocate 1981808640 bytes.",
        "host",
        "1.85 GiB",
    ),
    "kernel": (
        "[12.5] Out of memory: Killed process 777 (python) total-vm:9kB, anon-rss:62914560kB, file-rss:0kB",
        "host",
        "60.00 GiB",
    ),
    "shell": ("./run.sh: line 3: 12345 Killed                  python train.py", "host", "SIGKILL"),
    "shell, alone": ("epoch 3\nKilled\n", "host", "SIGKILL"),
    "torchrun": ("  exitcode  : -9 (pid: 79468)", "host", "SIGKILL"),
    "worker": ("RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.", "host", "SIGKILL"),
    # github.com/ggml-org/llama.cpp/issues/20431, the weights
    "llama.cpp, weights": (
        ggml("144817.04", 0, "alloc_tensor_range", 151851674624)
        + "\nllama_model_load: error loading model: unable to allocate CUDA0 buffer",
        "full",
        "one buffer of 141.42 GiB",
    ),
    # github.com/ggml-org/llama.cpp/issues/11476, issues/16725 and ik_llama.cpp/issues/749, compute buffers
    "llama.cpp, a second card": (
        ggml("9866.00", 1, "ggml_gallocr_reserve_n", 10345253120)
        + "\nllama_kv_cache_update_impl: failed to allocate compute buffers",
        "full",
        "9.63 GiB refused on GPU 1",
    ),
    "llama.cpp, ROCm": (
        ggml("14136.04", 0, "ggml_gallocr_reserve_n", 14822711296, "ROCm")
        + "\ngraph_reserve: failed to allocate compute buffers",
        "full",
        "--ubatch-size",
    ),
    "ik_llama.cpp": (ggml("279356.51", 0, "ggml_gallocr_reserve_n", 292926534144), "full", "one buffer of 272.81 GiB"),
    "llama.cpp, its first line alone": (
        ggml("9866.00", 1, "ggml_gallocr_reserve_n", 10345253120).split("\n")[0],
        "full",
        "9.63 GiB refused on GPU 1",
    ),
    # github.com/ollama/ollama/issues/9782
    "Ollama, the runner": (
        "Error: llama runner process has terminated: cudaMalloc failed: out of memory\n"
        "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 838447104",
        "full",
        "799.61 MiB refused on GPU 0",
    ),
    "Ollama, the host": (
        "Error: model requires more system memory (5.6 GiB) than is available (4.4 GiB)",
        "host",
        "4.40 GiB were available",
    ),
    # github.com/sgl-project/sglang/issues/322 and 4330
    "SGLang": (
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        "capped",
        "a larger --mem-fraction-static",
    ),
    # github.com/triton-inference-server/tensorrtllm_backend/issues/281, NVIDIA/TensorRT-LLM/issues/498 and 1060
    "TensorRT-LLM": (
        "[TensorRT-LLM][ERROR] [TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, "
        "mCudaStream->get()): out of memory (/app/tensorrt_llm/cpp/tensorrt_llm/runtime/tllmBuffers.h:112)",
        "full",
        "free_gpu_memory_fraction",
    ),
    "TensorRT-LLM, ranks": (
        "RuntimeError: [TensorRT-LLM][ERROR] CUDA runtime error in error: out of memory (ipcUtils.cpp:48)",
        "full",
        "MemUsageChange",
    ),
    # github.com/PKU-YuanGroup/Open-Sora-Plan/issues/386
    "NCCL": ("[0] enqueue.cc:1085 NCCL WARN Cuda failure 'out of memory'", "full", "no tensors"),
    "NCCL, numbered": ("ncclUnhandledCudaError. Last error:\nCuda failure 2 'out of memory'", "full", "NCCL_BUFFSIZE"),
    # github.com/google-deepmind/alphafold/issues/1023, sokrypton/ColabFold/issues/65, onpix/LLNeRF/issues/9,
    # ecmwf-lab/ai-models-graphcast/issues/18 and jax-ml/jax/issues/788
    "JAX": (
        "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406166528 bytes.",
        "unclear",
        "6.90 GiB",
    ),
    "JAX, allocating": ("RESOURCE_EXHAUSTED: Out of memory allocating 20029400304 bytes.", "unclear", "18.65 GiB"),
    "JAX, a request": (
        "RESOURCE_EXHAUSTED: Failed to allocate request for 2.99GiB (3206250496B) on device ordinal 0",
        "unclear",
        "2.99 GiB refused on GPU 0",
    ),
    "JAX, 2019": (
        "Execution of replica 0 failed: Resource exhausted: Out \nof memory while trying to allocate 5520758552 bytes.",
        "unclear",
        "5.14 GiB",
    ),
}
