"""The closed form: bytes by part at every moment of a training step; of a serving replica in `serving`. No torch.

A training step is a short list of moments. Which of them is the peak depends on the shape of the run, so the
budget writes down all of them and takes the largest, instead of adding up worst cases that never meet.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..catalog.devices import Device
from ..catalog.devices import device as resolve_device
from ..catalog.errors import WorkbookError
from ..catalog.hardware import cuda_of, require_float8_kernels
from ..catalog.losses import FULL
from ..catalog.split import ONE_GPU, Split
from ..catalog.train_setup import TrainSetup
from .breakdown import Moment, Moments
from .serve.reads import decode_bytes as decode_bytes
from .serve.serving import ServeBudget as ServeBudget
from .serve.serving import serve as serve
from .serve.weights import weight_bytes as weight_bytes
from .step.flops import StepFlops, step_flops
from .step.kernels import has_fused_attention as has_fused_attention
from .step.kernels import require_kernels as require_kernels
from .step.ranks import tensor_parts
from .step.ranks.fsdp2 import FullyShardedStep
from .step.ranks.pipelines import PipelineRank
from .step.ranks.sharded import ShardedStep
from .step.refusals import require_closed_form
from .step.step import TapedStep
from .step.step import bytes_saved_by as bytes_saved_by

Step = TapedStep | PipelineRank


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
    rank: int = 0

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


def train(setup: TrainSetup, gpu: str | Device | None = None, rank: int = 0) -> TrainBudget:
    """Predict one training step, in bytes of one rank: forward, backward, `optimizer.step()`, gradients then freed.

    Of several micro-batches the moments are those of any but the first: all gradients are alive, and at `lm_head` and
    `embedding` a new one beside the sum that it is about to be added to.
    Optimizer states exist already (any step but the first), dropout is off, only the loss outlives the forward. None is
    for the tensors alone. `gpu`, by name or as a Device, adds the cuBLAS workspaces that PyTorch counts as allocated
    on it, 16.25 MiB on an A100 and 64 MiB on an H100; a card without CUDA adds nothing here
    (`catalog.hardware.without_cuda` says so in a sentence). `trace.train` is the same step, run; without a device that
    one is for an A100, and this one for a CPU. Raises WorkbookError for a model, or a checkpointing policy, whose
    activations have no closed form here, and for what no rank is predicted for.

    Llama-2-7B, micro-batch 1, sequence 2048, SDPA, fused AdamW: BF16 50.2 GiB, autocast 102 GiB, and 127 GiB with
    eight accumulated micro-batches.

    How `setup.split` shares it, `rank` being any of them but in a pipeline:

    - `data` and `zero`: what the stage shards is divided by the ranks, rounded up, and what is whole for a while added
      (`step.ranks.sharded`): two layers and the root at stage 3, buckets from stage 1 on; the flat in which DDP sends
      its last bucket is left out. What is offloaded is not in these bytes of the GPU: `zero.held` has it, by the memory
      that it went to.
    - `fsdp`, alone or by `tensor`: PyTorch's FSDP2, each decoder layer and then the rest sharded. "autocast-bf16" is
      its mixed precision: FP32 shards, BF16 gathered, gradients reduced as the split says; "bf16" and "fp32" are those
      throughout. Gathered weights leave after a forward; layers that the outermost checkpoint runs again are whole
      together. Llama-3-8B, one sequence of 4,096 with full checkpointing, fused AdamW, fsdp=8 on H100: 20.6 GiB, at the
      backward of the loss; with tensor=8 it is 8.8 GiB, whole logits most of them.
    - `tensor`: each layer shared by the plan in Transformers' config, as DTensor carries it out: hidden states and
      gathered logits whole on each. Before Transformers 5.21 an embedding that is not the head's too is as well, which
      is not followed here. Llama-2-7B in BF16, one sequence of 1,024, fused AdamW, tensor=4 on H100: 12.9 GiB.
    - `pipeline`: stages by "GPipe", "1F1B" or "Interleaved1F1B", through which `setup.micro_batches` pass. Its moments
      are a backward's beside what waits for other micro-batches, and `saved_bytes` are one micro-batch's. Interleaved,
      a rank has two stages, `rank` and `pipeline + rank`. Llama-3-8B in BF16, 1,024 tokens, full checkpointing, fused
      AdamW, 8 micro-batches, the last of four stages: 18.8 GiB without the libraries.
    """
    split, card = setup.split, None if gpu is None else resolve_device(gpu)
    split.stage_of(rank)  # which there must be
    if split.by_parts:
        return _answered(setup, _of_a_part(setup, split, rank, card), rank)
    require_closed_form(setup)
    if card and cuda_of(card):
        require_float8_kernels(setup, card)
    require_one_rank(setup)
    return _answered(setup, (ShardedStep if setup.zero else TapedStep)(setup, card), rank)


def _of_a_part(setup: TrainSetup, split: Split, rank: int, card: Device | None) -> Step:
    """A rank's step under FSDP2, tensor parallelism or a pipeline. WorkbookError for what no split is predicted for."""
    _require_plain(setup, split)
    alone = replace(setup, split=ONE_GPU)
    mine = tensor_parts.of_rank(alone, split.tensor) if split.tensor > 1 else alone
    require_closed_form(setup)
    require_kernels(mine, card)
    if split.pipeline > 1:
        return PipelineRank(alone, split.pipeline, rank, split.schedule, card)
    if split.fsdp > 1:
        return FullyShardedStep(mine, split.fsdp, card, split.reduced, split.tensor)
    return tensor_parts.TensorParallelStep(mine, split.tensor, card)


def _require_plain(setup: TrainSetup, split: Split) -> None:
    """Refuse mixtures of splits, and beside one what nobody has compared there."""
    one_gpu, trace_it = "ask for one GPU: nobody compared it on several", "trace it: `workbook trace train`"
    beside = {
        "adapters": (setup.adapter is not None, one_gpu),
        "an optimizer in the backward": (setup.in_backward, one_gpu),
        f"loss {setup.loss!r}": (setup.loss != FULL, one_gpu),
        f"{split.data:,} replicas": (split.data > 1, "pass data=1: a rank of more replicas holds the same"),
        "a pipeline": (split.pipeline > 1 and split.ranks > split.pipeline, trace_it),
        "weights that stay gathered": (not split.reshard and split.fsdp > 1, trace_it),
    }
    for what, do in ((what, do) for what, (there, do) in beside.items() if there):
        expected = "FSDP2, tensor parallelism, both of them or a pipeline, of a plain step"
        raise WorkbookError(f"{what} in a run on {split}, for which there is no closed form", expected, do)


def _answered(setup: TrainSetup, step: Step, rank: int) -> TrainBudget:
    kept = step.saved_bytes(), step.stored_bytes
    return TrainBudget(setup, step.moments(), *kept, step.cublas, step.paged_bytes, rank)


def require_one_rank(setup: TrainSetup) -> None:
    """Refuse FP8 under ZeRO: which of the casts FSDP takes over, nobody has compared."""
    if setup.zero and setup.precision_recipe.linear_format:
        what = f"{setup.precision} at ZeRO stage {setup.zero}"
        do = "choose zero=0, or predict precision='bf16', which shards the same bytes and casts nothing"
        raise WorkbookError(what, "a stage of 0: FSDP can gather weights in FP8, and has no closed form here", do)
