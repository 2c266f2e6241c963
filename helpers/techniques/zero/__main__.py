"""Trains a small random Llama on every rank, and prints what each rank holds and sends.

On one machine, with as many ranks as it has GPUs (or, on CPUs, as you like):

    torchrun --standalone --nproc-per-node 4 -m helpers.techniques.zero --stage 3 --engine ours

On two machines of 8 GPUs, type the same line on both; `first` is the name or address of either:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint first:29500 --rdzv-id zero \\
        -m helpers.techniques.zero --stage 3

`--engine` is ours, fsdp2 (stages 2 and 3) or deepspeed; `--model` any model of the catalogue, with random weights.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from ...catalog.errors import WorkbookError, require_whole
from ...catalog.train_setup import TrainSetup
from ...memory.breakdown import format_bytes
from ...memory.measure import RankStep, rank_step, steps
from .ddp import DataParallelEngine
from .deepspeed import DeepSpeed
from .fsdp2 import FSDP2
from .rank_trace import STAGES

SMALL = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2048,
    "max_position_embeddings": 2048,
}


def engine_of(name: str, stage: int) -> Callable[..., DataParallelEngine]:
    """`engine(model, make, clip)` for a stage of one of the engines; WorkbookError where it has none."""
    if name == "ours":
        return STAGES[stage]
    if name == "deepspeed":
        return partial(DeepSpeed, stage=stage)
    if stage < 2:
        raise WorkbookError(f"stage {stage} with FSDP2", "2 or 3", "pass --stage 3, or --engine ours")
    return partial(FSDP2, reshard_after_forward=stage == 3)


def join() -> torch.device:
    """Join the ranks that torchrun started; this rank's device."""
    if "RANK" not in os.environ or "LOCAL_RANK" not in os.environ:
        do = f"torchrun --standalone --nproc-per-node 4 -m {__package__}"
        raise WorkbookError("this process is not a rank", "a start by torchrun, which starts them all", do)
    local = int(os.environ["LOCAL_RANK"])
    if torch.cuda.device_count() > local:
        torch.cuda.set_device(local)
        dist.init_process_group("nccl", device_id=torch.device("cuda", local))
        return torch.device("cuda", local)
    dist.init_process_group("gloo")
    return torch.device("cpu")


def train(
    setup: TrainSetup, engine: Callable[..., DataParallelEngine], count: int, device: torch.device
) -> tuple[list[Tensor], RankStep]:
    """Losses of `count` steps, averaged over ranks, and what the last step held and sent."""
    torch.manual_seed(0)
    runner: DataParallelEngine = engine(
        steps.build_model(setup, device.type), lambda ps: torch.optim.AdamW(ps, lr=1e-3), 1.0
    )
    numbers = torch.Generator().manual_seed(dist.get_rank())  # every rank its own text
    ids = torch.randint(0, setup.model.vocab, (setup.micro_batch, setup.sequence), generator=numbers).to(device)
    losses: list[Tensor] = []

    def backward() -> None:
        loss = runner.model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        losses.append(loss.detach())

    for _ in range(count - 1):
        backward()
        runner.step()
    last = rank_step(backward, runner.step, runner.holds)
    mean = torch.stack(losses)
    dist.all_reduce(mean)
    return list(mean / dist.get_world_size()), last


def report(title: str, losses: list[Tensor], last: RankStep) -> None:
    """On rank 0: the losses, and a line for every rank."""
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, last)
    if dist.get_rank():
        return
    print(title)
    print("loss  " + "  ".join(f"{loss:.4f}" for loss in losses))
    parts = list(dict.fromkeys(name for step in everyone for name in step.after_backward))
    print(f"{'rank':>4}" + "".join(f"{name:>14}" for name in (*parts, "peak", "payload", "sent")))
    for rank, step in enumerate(everyone):
        sizes = [step.after_backward.get(name, 0) for name in parts]
        sizes += [step.peak_bytes, step.traffic.payload_bytes, step.traffic.sent_bytes]
        print(f"{rank:>4}" + "".join(f"{format_bytes(size):>14}" for size in sizes))
    print("Held before step(), by category; the peak, and what travels, of the last step.")


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"torchrun ... -m {__package__}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage", type=int, choices=range(4), default=3)
    parser.add_argument("--engine", choices=("ours", "fsdp2", "deepspeed"), default="ours")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--model", help="a name in the catalogue")
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--sequence", type=int, default=64)
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    chosen = arguments(words)
    try:
        setup = TrainSetup(chosen.model or SMALL, "fp32", micro_batch=chosen.micro_batch, sequence=chosen.sequence)
        require_whole("--steps", chosen.steps, do="pass --steps 10")
        engine, device = engine_of(chosen.engine, chosen.stage), join()
        losses, last = train(setup, engine, chosen.steps, device)
    except WorkbookError as error:
        if os.environ.get("RANK", "0") == "0":
            print(error, file=sys.stderr)
        return 2
    title = f"{chosen.engine}, stage {chosen.stage}, {dist.get_world_size()} ranks on {dist.get_backend()}"
    report(f"{title}, {setup.model.parameters:,} parameters", losses, last)
    dist.destroy_process_group()
    return 0


def leave(code: int) -> NoReturn:
    """End the process at once, without the interpreter's shutdown.

    FSDP2's and DeepSpeed's caches keep a process group, and Gloo's threads with it, past `destroy_process_group()`. A
    thread that frees its last tensor during the shutdown aborts a process whose training was done, one run in sixty.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
