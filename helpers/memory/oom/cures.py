"""What to change, the cheapest first, for a reason and a place. Words only: sizes come from `memory.fit`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..allocator.outcome import Reason
from .frames import Place
from .message import Oom, strangers
from .refused import is_windows, is_wsl
from .words import Kind


@dataclass(frozen=True)
class Change:
    """One thing to do, and what it costs."""

    do: str
    costs: str


_VARIABLE = re.compile(r"PYTORCH_(?:[A-Z]+_)?ALLOC_CONF")


def _expandable(oom: Oom) -> Change:
    """In the variable that the message names, which is its version's own; without one, both names.

    PYTORCH_ALLOC_CONF leaves CUDA's expandable segments off in torch 2.9.1 (pytorch/pytorch#183387); 2.13 reads both.
    """
    named = _VARIABLE.search(oom.text)
    name, before = (named[0], "") if named else ("PYTORCH_ALLOC_CONF", " (before torch 2.11 PYTORCH_CUDA_ALLOC_CONF)")
    return Change(
        f"{name}=expandable_segments:True{before}, set before the first CUDA call",
        "nothing to try; no effect on Windows, and old versions cannot share such tensors",
    )


REUSE = Change(
    "allocate the largest and longest-lived tensors first; pad or bucket lengths so that sizes repeat",
    "code, and the padding",
)
SPLIT = Change(
    "max_split_size_mb:512 in the same variable, where expandable segments are not supported",
    "large cached blocks are kept whole, so more memory stays reserved",
)
NO_GRAD = Change(
    "if this is evaluation: torch.inference_mode(), and no list that keeps losses or logits on the GPU "
    "(.item() or .cpu())",
    "nothing",
)
MICRO_BATCH = Change("a smaller micro-batch, accumulated to the same batch", "smaller kernels: some time")
CHECKPOINTING = Change(
    "checkpoint the layers: gradient_checkpointing_enable() or torch.utils.checkpoint",
    "one more forward, up to a third more compute",
)
CHUNKED_LOSS = Change(
    "compute the loss in chunks of tokens, or fused with lm_head (Liger, cut cross-entropy)", "code; almost no time"
)
LAST_LOGITS = Change("in generation keep the last token's logits only (logits_to_keep=1)", "nothing")
SDPA = Change("attn_implementation='sdpa' or 'flash_attention_2': the T × T scores are never stored", "nothing")
KV_ROOM = Change(
    "fewer sequences at once, a shorter context, or a cache in fewer bits or on the host (offloaded)",
    "throughput, length or quality",
)
STATIC_CACHE = Change("a static or paged cache: it grows without copying itself", "its full size from the start")
LOW_LOAD = Change(
    "load in the dtype that you run in (dtype='bfloat16') and straight onto the device "
    "(device_map), not in FP32 and then .to()",
    "nothing",
)
QUANTIZE = Change("load the weights in 8 or 4 bits", "quality: measure it")
OLD_MODEL = Change("del the model that was there before, then gc.collect() and torch.cuda.empty_cache()", "nothing")
FUSED = Change("AdamW(fused=True): the default holds one more copy of the parameters during step()", "nothing")
STATES = Change(
    "8-bit states (bitsandbytes AdamW8bit), Adafactor, or ZeRO over several GPUs",
    "rounded states, other updates, or more GPUs",
)
PREALLOCATE = Change("make the result once and copy into it: torch.cat holds inputs and output together", "code")
SHAPES = Change("print the shapes of that line: one huge request is usually a broadcast that nobody meant", "")
RETRY = Change("retry outside the `except`: inside it, the error's frames keep the failed step's tensors alive", "code")
LIMIT = Change(
    "raise or drop the limit: torch.cuda.set_per_process_memory_fraction, or the setting per_process_memory_fraction",
    "less for whoever shares the card",
)
UNCAP = Change("capped() is there to be met: make the block need less, or raise its GiB", "")
MPS_LIMIT = Change("torch.mps.empty_cache() between phases, and close what else uses the GPU", "a little time")
MPS_RATIO = Change("PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 lifts the limit", "the whole Mac may swap or freeze")
CACHE_BACK = Change(
    "torch.cuda.empty_cache() before the first call that needs it, so that the driver has room",
    "the next allocations are slower",
)
UTILIZATION = Change("a higher gpu_memory_utilization, if nobody else is on the card", "less room for others")
MODEL_LEN = Change("a smaller max_model_len", "longer requests are refused")
KV_FP8 = Change("kv_cache_dtype='fp8', or weights in fewer bits", "quality: measure it")
EAGER_VLLM = Change("enforce_eager=True: no CUDA graphs and their pools", "slower decoding")
STATIC_SHARE = Change("a larger --mem-fraction-static, if nobody else is on the card", "less room for activations")
GRAPHS = Change("--cuda-graph-max-bs and --chunked-prefill-size smaller", "slower at high load")
MORE_GPUS = Change("tensor parallel over more GPUs (--tp, --tensor-parallel-size)", "the GPUs")
KV_SHARE = Change("a smaller kv_cache_free_gpu_memory_fraction", "fewer tokens in the cache")
SMALLER_ENGINE = Change(
    "build with smaller max_batch_size, max_num_tokens and max_seq_len", "shorter or fewer requests"
)
UBATCH = Change("--ubatch-size 256 (-ub) and --flash-attn on: a smaller compute buffer", "some prompt speed")
CONTEXT = Change(
    "a shorter context (-c), fewer slots (-np), --cache-type-k q8_0 --cache-type-v q8_0", "length, or quality"
)
GPU_LAYERS = Change("fewer layers on the GPU (--n-gpu-layers): the CPU computes the others", "speed")
SMALLER_GGUF = Change("a file in fewer bits, as Q4_K_M", "quality: measure it")
JAX_SHARE = Change(
    "XLA_PYTHON_CLIENT_MEM_FRACTION=.92, or XLA_PYTHON_CLIENT_PREALLOCATE=false beside another process",
    "less for others, or fragments",
)
DONATE = Change("jit with donate_argnums: an update reuses the arrays that it replaces", "nothing")
REMAT = Change("jax.checkpoint around the layers", "one more forward, up to a third more compute")
EARLY_NCCL = Change(
    "make the communicator before memory fills: one all-reduce right after init_process_group", "nothing"
)
NCCL_BUFFERS = Change("NCCL_BUFFSIZE=1048576 and fewer channels (NCCL_MAX_NCHANNELS)", "bandwidth between GPUs")
WORKERS = Change("fewer DataLoader workers, a smaller prefetch_factor: each holds its own batches", "input speed")
HOST_LOAD = Change("load weights straight onto the GPU (device_map, safetensors), not through host memory", "nothing")
HOST_LIMIT = Change("raise the container's or job's memory limit", "a larger machine")
BLOCKING = Change(
    "run it once with CUDA_LAUNCH_BLOCKING=1 and torch.cuda.memory._record_memory_history(): it shows "
    "the line and the sizes",
    "a slow run",
)
SMI = Change("nvidia-smi: see who is on the card", "nothing")
PAGE_FILE = Change(
    "a larger page file (Windows: System, Advanced, Performance, Virtual memory): the card's memory at least",
    "disk space",
)
CLOSE = Change(
    "close what else uses the machine's memory, and load weights straight onto the GPU (device_map)", "nothing"
)
NO_PINNING = Change("pin_memory=False in DataLoader and offload settings", "slower copies to the GPU")
WSL_MEMORY = Change("a higher memory= under [wsl2] in .wslconfig, or native Windows or Linux", "less for Windows")
SMALLER_SHARE = Change("leave some of the card free: a smaller share, cache or batch", "less room")
APU_PAGES = Change(
    "on an APU let the kernel give the GPU more: ttm.pages_limit (amd-ttm sets it); rocminfo shows what it has",
    "memory for the rest of the machine",
)
RELAXED = Change("UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1, or the tensor in parts below 4 GiB", "some speed")
SHARED_SIZE = Change(
    "more shared memory: docker run --shm-size=8g or --ipc=host, a larger tmpfs on /dev/shm", "nothing"
)
FEWER_BATCHES = Change("fewer workers and a smaller prefetch_factor; num_workers=0 needs none of it", "input speed")
SMALLER_TILES = Change("smaller block sizes, or num_stages less by one, for this card", "some speed")
NEWER_KERNEL = Change(
    "a version of the library that is tuned for this card, or its PyTorch path", "time to look for it"
)
LOWER_UTILIZATION = Change("a lower gpu_memory_utilization, below the share that is free", "less KV cache")
OTHER_CARD = Change("another card: CUDA_VISIBLE_DEVICES=…", "nothing, if one is idle")

CURES_AT = {
    Place.LOADING: (LOW_LOAD, OLD_MODEL, QUANTIZE),
    Place.OPTIMIZER: (FUSED, STATES),
    Place.BACKWARD: (MICRO_BATCH, CHECKPOINTING, CHUNKED_LOSS),
    Place.RECOMPUTE: (MICRO_BATCH, CHUNKED_LOSS),
    Place.LOGITS: (LAST_LOGITS, CHUNKED_LOSS, MICRO_BATCH),
    Place.SCORES: (SDPA, MICRO_BATCH, CHECKPOINTING),
    Place.KV_CACHE: (STATIC_CACHE, KV_ROOM),
    Place.JOINING: (PREALLOCATE, NO_GRAD, MICRO_BATCH),
    Place.FORWARD: (NO_GRAD, MICRO_BATCH, CHECKPOINTING),
    Place.UNKNOWN: (NO_GRAD, MICRO_BATCH, CHECKPOINTING),
}
CURES_OF = {
    Kind.MPS: (MPS_LIMIT, MICRO_BATCH, MPS_RATIO),
    Kind.TRITON: (SMALLER_TILES, NEWER_KERNEL),
    Kind.SHARED: (SHARED_SIZE, FEWER_BATCHES),
    Kind.VLLM: (UTILIZATION, MODEL_LEN, KV_FP8, EAGER_VLLM),
    Kind.SGLANG: (STATIC_SHARE, GRAPHS, QUANTIZE, MORE_GPUS),
    Kind.TENSORRT_LLM: (SMI, KV_SHARE, SMALLER_ENGINE, MORE_GPUS),
    Kind.LLAMA_CPP: (SMI, UBATCH, CONTEXT, SMALLER_GGUF, GPU_LAYERS),
    Kind.NCCL: (EARLY_NCCL, CACHE_BACK, NCCL_BUFFERS, MICRO_BATCH),
    Kind.JAX: (SMI, JAX_SHARE, DONATE, REMAT, MICRO_BATCH),
    Kind.OLLAMA: (CONTEXT, SMALLER_GGUF, HOST_LIMIT),
    Kind.CUBLAS: (CACHE_BACK, SMI, MICRO_BATCH),
    Kind.DRIVER: (SMI, CACHE_BACK, BLOCKING),
    Kind.CAP: (UNCAP,),
}


def changes_for(oom: Oom, reason: Reason, place: Place, training: bool = False) -> tuple[Change, ...]:
    """What to do, cheapest first; at most five. What helps evaluation only is left out where `training` is known."""
    here = tuple(change for change in CURES_AT[place] if not (training and change is NO_GRAD))
    if oom.kind is Kind.VLLM and oom.capacity_bytes:
        return (SMI, LOWER_UTILIZATION, OTHER_CARD)
    if oom.kind is Kind.DRIVER and reason is Reason.HOST:
        return (NO_PINNING, WSL_MEMORY, HOST_LIMIT)
    if oom.kind is Kind.DRIVER and reason is Reason.OUTSIDE:
        return (SMI, OTHER_CARD)
    if oom.kind in CURES_OF:
        return (*CURES_OF[oom.kind], *(here if oom.kind is Kind.CAP else ()))[:5]
    if reason is Reason.HOST:
        return (HOST_LOAD, WORKERS, HOST_LIMIT) if place in (Place.UNKNOWN, Place.LOADING) else (WORKERS, HOST_LIMIT)
    if oom.capacity_bytes and oom.requested_bytes and oom.requested_bytes > oom.capacity_bytes:
        return (SHAPES, *here)[:4]
    if reason is Reason.UNCLEAR:
        return (*_of_the_unclear(oom), *(here if place is not Place.UNKNOWN else ()))[:5]
    if reason is Reason.FRAGMENTED:
        return (_expandable(oom), REUSE, SPLIT, here[0])
    return (*_first(oom, reason), *here)[:5]


def _first(oom: Oom, reason: Reason) -> tuple[Change, ...]:
    """What goes before asking for less, which helps in all of these cases."""
    match reason:
        case Reason.CAPPED:
            return (RELAXED if oom.backend == "XPU" and oom.allowed_bytes is None else LIMIT,)
        case Reason.OUTSIDE:
            return (_evict(oom), OTHER_CARD)
        case Reason.FULL if oom.sizes and oom.sizes.asked <= oom.sizes.unused:
            return (_expandable(oom),)
    return ()


def _of_the_unclear(oom: Oom) -> tuple[Change, ...]:
    if is_wsl(oom):
        return (SMALLER_SHARE, NO_PINNING, WSL_MEMORY)
    if is_windows(oom) and oom.sizes:
        return (CLOSE, PAGE_FILE, SMALLER_SHARE)
    if oom.backend == "HIP" and oom.sizes:
        return (APU_PAGES, BLOCKING)
    return (SMI, BLOCKING)


def _evict(oom: Oom) -> Change:
    pids = [str(held.pid) for held in strangers(oom)]
    if not pids:
        return SMI
    whose = f"{'process' if len(pids) == 1 else 'processes'} {', '.join(pids)} if it is yours"
    do = f"nvidia-smi, then end or move {whose}: often a notebook or a run that did not stop"
    return Change(do, "whatever it was doing")
