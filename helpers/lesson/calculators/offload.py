"""The offload calculator: what leaves the GPU, on which way, and whether the work hides it; serving or training."""

from __future__ import annotations

from typing import Any

from ...catalog.errors import require_name
from ...questions.parameter import Parameter
from ...questions.parameters import ANY_CONFIG, POWERS, RESERVE, SEQUENCES, changed
from ...questions.question import Question
from ...questions.setups import Values
from .calculator import Calculator
from .offload_serving import OFFLOAD_SERVE, PERCENT, OffloadServingAnswer
from .offload_training import OFFLOAD_TRAIN, OffloadTrainingAnswer
from .quantization import FORMATS
from .zero import SHARDED_PRECISIONS

OPTIMIZERS = ("adamw-fused", "adamw", "adamw-8bit", "lion", "adafactor", "sgd")
ON_DISK = ("offload_optimizer", "offload_parameters")
WAYS = {one.name: one for one in (OFFLOAD_SERVE, OFFLOAD_TRAIN)}
SHARES = {"serve": "serve_percent", "train": "train_percent"}  # of the FLOP rate
COMMON = ("question", "model", "config", "gpu")
OF_WAY = {
    "serve": ("weights", "kv", "source", "step", "users", "context", "buffers", "serve_percent"),
    "train": (
        *("precision", "optimizer", "zero", "ranks", "ranks_per_host", "micro_batch", "micro_batches", "sequence"),
        *("checkpointing", *ON_DISK, "host", "disk", "train_percent"),
    ),
}


def offload(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `offload(question="train", model="llama-2-70b", gpu="h100")`."""
    return Calculator(OFFLOAD, start)


def _ask(question: str, **said: Any) -> OffloadServingAnswer | OffloadTrainingAnswer:
    """Of what the controls of both questions say, the part that is about one."""
    way = WAYS[require_name("question", question, WAYS)]
    own = {name: value for name, value in said.items() if name in (*OF_WAY[question], "model", "gpu")}
    own["efficiency"] = own.pop(SHARES[question]) / 100
    if question == "train" and not any(own[part] == "nvme" for part in ON_DISK):
        own["disk"] = None
    return way.ask({**own, "reserve_bytes": said["reserve_bytes"]})


def _used(values: Values) -> set[str]:
    one = values["question"]
    on_disk = one == "serve" or any(values[part] == "nvme" for part in ON_DISK)
    return {*COMMON, *OF_WAY.get(one, ()), "reserve"} - (set() if on_disk else {"disk"})


_EVERY = {one.name: one for way in (OFFLOAD_TRAIN, OFFLOAD_SERVE) for one in way.parameters if one.name != "reserve"}
OFFLOAD = Question(
    "offload",
    "what leaves the GPU: seconds of its way beside those of the work, bytes in each memory",
    _ask,
    changed(
        (*_EVERY.values(), ANY_CONFIG),
        model={"start": "llama-3-70b"},
        gpu={"start": "rtx-4090-24gb"},
        weights={"steps": FORMATS, "start": "fp8-e4m3"},
        users={"steps": POWERS[:13]},
        context={"steps": SEQUENCES},
        precision={"steps": SHARDED_PRECISIONS, "start": "megatron-bf16"},
        optimizer={"steps": OPTIMIZERS},
        zero={"start": 3},
        ranks={"label": "ranks", "start": 8},
        checkpointing={"start": "full"},
        offload_optimizer={"start": "cpu"},
        offload_parameters={"start": "cpu"},
    ),
    title="Offloading",
    asks="Does the work hide the copies from host or disk?",
    invites="When are the copies hidden? Add users to a prefill; let the layers come from a disk; ask about training.",
    controls=(*COMMON, *OF_WAY["serve"], *OF_WAY["train"], "reserve"),
    front=("question", "model", "gpu", "users", "source", "micro_batch", *ON_DISK),
    shown=(
        Parameter("question").with_control("question", tuple(WAYS), "serve"),
        *(
            Parameter(name).with_control("% of FLOP rate", PERCENT, start)
            for name, start in (("serve_percent", 100), ("train_percent", 50))
        ),
        RESERVE,
    ),
    used=_used,
    closes=True,
)
