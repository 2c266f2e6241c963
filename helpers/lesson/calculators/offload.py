"""The offload calculator: what leaves the GPU, on which way, and whether the work hides it; serving or training."""

from __future__ import annotations

from typing import Any

from ...catalog.cache_formats import KV_FORMATS
from ...catalog.devices import DEVICES
from ...catalog.errors import require_name
from ...catalog.models import MODELS
from ...catalog.models import model as resolve_model
from ...catalog.serve_setup import ServeSetup
from ...catalog.split import Split
from ...catalog.tiers import TIERS
from ...catalog.train_setup import OFFLOADS, TrainSetup
from ...memory.step.refusals import attention_of
from .calculator import ANY_CONFIG, CONFIG, Calculator, Values
from .choices import MICRO_BATCHES, POLICIES, RESERVE, SEQUENCES, reserve_bytes, within_positions
from .offload_serving import HOST, STEPS, OffloadServingAnswer, offload_serving_answer
from .offload_training import USUAL_HOST, OffloadTrainingAnswer, offload_training_answer
from .quantization import FORMATS
from .zero import SHARDED_PRECISIONS

SERVE, TRAIN = "serve", "train"
OPTIMIZERS = ("adamw-fused", "adamw", "adamw-8bit", "lion", "adafactor", "sgd")
HOSTS = tuple(name for name, entry in TIERS.items() if entry.kind == "dram")
DISKS = tuple(name for name, entry in TIERS.items() if entry.kind == "nvme")
POWERS = tuple(2**power for power in range(13))
PERCENT = tuple(range(10, 101, 10))
COMMON = {
    "question": ("question", (SERVE, TRAIN), SERVE),
    "model": ("model", tuple(MODELS), "llama-3-70b"),
    CONFIG: ANY_CONFIG,
    "gpu": ("GPU", tuple(DEVICES), "rtx-4090-24gb"),
    "reserve": RESERVE,
}
SERVING = {
    "weights": ("weights", FORMATS, "fp8-e4m3"),
    "kv": ("KV cache", KV_FORMATS, "bf16"),
    "source": ("layers are in", (HOST, *TIERS), HOST),
    "step": ("step", STEPS, STEPS[0]),
    "users": ("users", POWERS, 1),
    "context": ("context, tokens", SEQUENCES, 2048),
    "buffers": ("buffers", (1, 2), 2),
    "serve_percent": ("% of FLOP rate", PERCENT, 100),
}
TRAINING = {
    "precision": ("precision", SHARDED_PRECISIONS, "megatron-bf16"),
    "optimizer": ("optimizer", OPTIMIZERS, OPTIMIZERS[0]),
    "stage": ("ZeRO stage", (0, 1, 2, 3), 3),
    "ranks": ("ranks", POWERS, 8),
    "ranks_per_host": ("on one host", (1, 2, 4, 8, 16), 8),
    "micro_batch": ("micro-batch", MICRO_BATCHES, 1),
    "micro_batches": ("accumulated", MICRO_BATCHES, 1),
    "sequence": ("sequence, tokens", SEQUENCES, 2048),
    "checkpointing": ("checkpointing", POLICIES, "full"),
    "offload_optimizer": ("optimizer in", OFFLOADS, "cpu"),
    "offload_parameters": ("parameters in", OFFLOADS, "cpu"),
    "host": ("host's memory", HOSTS, USUAL_HOST),
    "disk": ("disk", DISKS, "nd-h200-v5-nvme"),
    "train_percent": ("% of FLOP rate", PERCENT, 50),
}
ON_DISK = ("offload_optimizer", "offload_parameters")


class OffloadCalculator(Calculator):
    """Two questions whose controls take each other's place: what is not used leaves no gap."""

    closes = True


def offload(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `offload(question="train", model="llama-2-70b", gpu="h100")`."""
    invites = "When are the copies hidden? Add users to a prefill; let the layers come from a disk; ask about training."
    return OffloadCalculator(_compute, {**COMMON, **SERVING, **TRAINING}, start, invites, _used)


def _used(values: Values) -> set[str]:
    if values["question"] == SERVE:
        return {*COMMON, *SERVING}
    on_disk = any(values[part] == "nvme" for part in ON_DISK)
    return {*COMMON, *TRAINING} - (set() if on_disk else {"disk"})


def _compute(question: str, model: str, gpu: str, reserve: int, **chosen: Any) -> Any:
    if require_name("question", question, (SERVE, TRAIN)) == SERVE:
        return _serving(model, gpu, reserve, chosen)
    return _training(model, gpu, reserve, chosen)


def _serving(name: str, gpu: str, reserve: int, chosen: Values) -> OffloadServingAnswer:
    shape = resolve_model(name)
    context = within_positions(shape, chosen["context"])
    setup = ServeSetup(shape, chosen["weights"], chosen["kv"], chosen["users"], context)
    way = (chosen["step"], chosen["source"], chosen["buffers"], chosen["serve_percent"] / 100)
    return offload_serving_answer(setup, gpu, *way, reserve_bytes(reserve))


def _training(name: str, gpu: str, reserve: int, chosen: Values) -> OffloadTrainingAnswer:
    shape = resolve_model(name)
    same = ("precision", "optimizer", "micro_batch", "micro_batches", "checkpointing", *ON_DISK)
    setup = TrainSetup(
        shape,
        sequence=within_positions(shape, chosen["sequence"]),
        attention=attention_of(shape),
        split=Split(chosen["ranks"], chosen["stage"]),
        **{field: chosen[field] for field in same},
    )
    disk = chosen["disk"] if any(chosen[part] == "nvme" for part in ON_DISK) else None
    way = (chosen["host"], disk, chosen["ranks_per_host"], chosen["train_percent"] / 100)
    return offload_training_answer(setup, gpu, *way, reserve_bytes(reserve))
