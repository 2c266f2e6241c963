"""The closed form: bytes by part at every moment of a training step; of a serving replica in `serving`. No torch.

A training step is a short list of moments. Which of them is the peak depends on the shape of the run, so the
budget writes down all of them and takes the largest, instead of adding up worst cases that never meet.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..catalog.devices import Device
from ..catalog.devices import device as resolve_device
from ..catalog.errors import WorkbookError, require_whole
from ..catalog.hardware import cuda_of, require_float8_kernels
from ..catalog.losses import FULL
from ..catalog.setup import TrainSetup
from .breakdown import Moment, Moments
from .serve.serving import ServeBudget as ServeBudget
from .serve.serving import decode_bytes as decode_bytes
from .serve.serving import serve as serve
from .serve.weights import weight_bytes as weight_bytes
from .step.flops import StepFlops, step_flops
from .step.in_backward import StepInBackward
from .step.kernels import has_fused_attention as has_fused_attention
from .step.kernels import require_kernels as require_kernels
from .step.ranks import tensor_parts
from .step.ranks.fsdp2 import FullyShardedStep
from .step.ranks.pipelines import PipelineRank
from .step.ranks.sharded import ShardedStep
from .step.refusals import require_closed_form
from .step.step import TapedStep
from .step.step import bytes_saved_by as bytes_saved_by


@dataclass(frozen=True)
class TrainBudget(Moments):
    """A predicted training step: its moments in order, and the largest of them.

    `saved_bytes` are alive at the end of forward and were not before, as in a `Measurement`: to the byte on a CPU for
    Llama, Qwen and GPT-2, but for GPT-2's norms in BF16, whose statistics are FP32 on CUDA only. `kept_bytes` of them
    are what the decoder layers keep, which is what checkpointing is about. `library_bytes` are cuBLAS' workspaces on
    the card that was named, at every moment in the part "workspace"; 0 where none was, or it has no CUDA.
    `paged_bytes` are states of a paged optimizer that are in no moment: on a card with CUDA they lie in unified memory,
    which PyTorch does not count and the driver moves to the host where room is short. Elsewhere they are counted, and
    this is 0.
    """

    setup: TrainSetup
    moments: tuple[Moment, ...]
    saved_bytes: int
    kept_bytes: int
    library_bytes: int = 0
    paged_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        return self.peak.total

    @property
    def tensor_bytes(self) -> int:
        """The peak without the libraries: what a meter sees, and a CPU needs."""
        return self.peak_bytes - self.library_bytes

    @property
    def flops(self) -> StepFlops:
        """FLOPs of the step, those that checkpointing runs again apart."""
        return step_flops(self.setup)


def train(setup: TrainSetup, device: str | Device | None = None) -> TrainBudget:
    """Predict one training step, in bytes per rank: forward, backward, `optimizer.step()`, gradients then freed.

    Of several micro-batches the moments are those of any but the first: all gradients are alive, and at `lm_head` and
    `embedding` a new one beside the sum that it is about to be added to.
    Optimizer states exist already (any step but the first), dropout is off, only the loss outlives the forward. None is
    for the tensors alone. `device`, by name or as a Device, adds the cuBLAS workspaces that PyTorch counts as allocated
    on it, 16.25 MiB on an A100 and 64 MiB on an H100; a card without CUDA adds nothing here
    (`catalog.hardware.without_cuda` says so in a sentence). ZeRO divides what the stage shards by the ranks, rounded
    up, and adds what is whole for a while (`sharded`): two layers and the root at stage 3, buckets from stage 1 on; the
    flat in which DDP sends its last bucket is left out. What is offloaded is not in these bytes of the GPU: `zero.held`
    has it, by the memory that it went to. Raises WorkbookError for a model, or a checkpointing policy, whose
    activations have no closed form here. `trace.train(setup, device)` is the same step, run; without a device that one
    is for an A100, and this one for a CPU.

    Llama-2-7B, micro-batch 1, sequence 2048, SDPA, fused AdamW: BF16 50.2 GiB, autocast 102 GiB, and 127 GiB with
    eight accumulated micro-batches.
    """
    card = _card(device)
    require_closed_form(setup)
    if card and cuda_of(card):
        require_float8_kernels(setup, card)
    require_one_rank(setup)
    kind = ShardedStep if setup.zero else StepInBackward if setup.in_backward else TapedStep
    return _answered(setup, kind(setup, card))


def fsdp2(
    setup: TrainSetup, ranks: int, device: str | Device | None = None, *, reduced: str = "fp32", tensor: int = 1
) -> TrainBudget:
    """Predict one rank of a step under PyTorch's FSDP2, each decoder layer and then the rest sharded over `ranks`.

    "autocast-bf16" is FSDP2's mixed precision here: FP32 shards, BF16 gathered, gradients reduced in FP32 as torchtitan
    does, or with `reduced="bf16"` as accelerate does; "bf16" and "fp32" are those throughout. Gathered weights leave
    after a forward (`reshard_after_forward`). Layers that the outermost checkpoint runs again are whole together.
    With `tensor` the ranks are those of one dimension of a mesh, and shard what `tensor` ranks of the other have
    divided as `tensor_parallel` says: ranks × tensor GPUs in all.

    Raises WorkbookError for other precisions, for offload of all that is kept, where SDPA has no fused kernel, and
    with `tensor` where `tensor_parallel` would. Llama-3-8B, one sequence of 4,096 with full checkpointing, fused AdamW,
    on 8 ranks of H100: 20.6 GiB, at the backward of the loss; with tensor=8 it is 8.8 GiB, whole logits most of them.
    """
    require_whole("tensor", tensor, 1, tensor_parts.MAX_RANKS, do="pass tensor=1 for FSDP2 alone")
    mine, card = tensor_parts.of_rank(setup, tensor) if tensor > 1 else setup, _card(device)
    require_kernels(mine, card)
    _require_plain("FSDP2", setup)
    return _answered(setup, FullyShardedStep(mine, ranks, card, reduced, tensor))


def tensor_parallel(setup: TrainSetup, ranks: int, device: str | Device | None = None) -> TrainBudget:
    """Predict one of `ranks` that share each layer by the plan in Transformers' config, as DTensor carries it out.

    All ranks are equal. Hidden states and gathered logits are whole on each; before Transformers 5.21 an embedding
    that is not the head's too is as well, which is not followed here. Raises WorkbookError where the trace would
    refuse, and for other precisions than fp32, bf16 and autocast-bf16. Llama-2-7B in BF16, one sequence of 1,024, fused
    AdamW, four ranks of H100: 12.9 GiB.
    """
    mine, card = tensor_parts.of_rank(setup, ranks), _card(device)
    require_kernels(mine, card)
    _require_plain("tensor parallelism", setup)
    return _answered(setup, tensor_parts.TensorParallelStep(mine, ranks, card))


def pipeline(
    setup: TrainSetup, ranks: int, stage: int = 0, schedule: str = "1F1B", device: str | Device | None = None
) -> TrainBudget:
    """Predict rank `stage` of a pipeline of `ranks`, by "GPipe", "1F1B" or "Interleaved1F1B", as PyTorch runs it.

    `setup.micro_batches` of them pass. Its moments are a backward's beside what waits for other micro-batches, and
    `saved_bytes` are one micro-batch's. Interleaved, the rank has two stages, `stage` and `ranks + stage`. Raises
    WorkbookError for zero bubble, for policies but none, full and every:K, and for autocast with two stages.
    Llama-3-8B in BF16, 1,024 tokens with full checkpointing, fused AdamW, 8 micro-batches, the last of four stages:
    18.8 GiB without the libraries.
    """
    card = _card(device)
    require_kernels(setup, card)
    _require_plain("a pipeline", setup)
    return _answered(setup, PipelineRank(setup, ranks, stage, schedule, card))


def _card(device: str | Device | None) -> Device | None:
    return None if device is None else resolve_device(device)


def _require_plain(what: str, setup: TrainSetup) -> None:
    """WorkbookError for what no split is predicted for."""
    require_closed_form(setup)
    if setup.adapter or setup.in_backward or setup.zero or setup.ranks > 1 or setup.loss != FULL:
        do = "leave adapter, in_backward, loss, zero and ranks as they are: the ranks are this function's"
        raise WorkbookError(f"a setup that {what} is not predicted for", "a plain step of one rank's micro-batch", do)


def _answered(setup: TrainSetup, step: TapedStep | PipelineRank) -> TrainBudget:
    return TrainBudget(setup, step.moments(), step.saved_bytes(), step.stored_bytes, step.cublas, step.paged_bytes)


def require_one_rank(setup: TrainSetup) -> None:
    """Refuse FP8 under ZeRO: which of the casts FSDP takes over, nobody has compared."""
    if setup.zero and setup.precision_recipe.linear_format:
        what = f"{setup.precision} at ZeRO stage {setup.zero}"
        do = "choose zero=0, or predict precision='bf16', which shards the same bytes and casts nothing"
        raise WorkbookError(what, "a stage of 0: FSDP can gather weights in FP8, and has no closed form here", do)
