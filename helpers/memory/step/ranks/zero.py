"""ZeRO in closed form: what a rank holds between backward and step, what it sends, and the least that takes. No torch.

Parameters lie end to end in flats, each padded until all ranks' shards are equally long, as `helpers.techniques.zero`
lays them: one flat per gradient bucket, at stage 3 one per decoder layer and one for all the rest, the root. What is
sent is counted on a ring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod

from ....catalog.errors import WorkbookError, require_number, require_whole
from ....catalog.layers import TensorShape
from ....catalog.shape import ModelShape
from ....catalog.train_setup import OFFLOADS, TrainSetup
from ...breakdown import Breakdown

BUCKET_BYTES = 25 * 2**20  # as in PyTorch's DistributedDataParallel
PAPER_LEAVES_OUT = (
    "activations, logits and their temporaries",
    "layers that are whole while they work (stage 3)",
    "buckets in flight",
    "the optimizer's temporaries",
    "padding",
)
_WEIGHTS, _GRADIENTS, _OPTIMIZER = 2, 2, 12  # bytes per parameter; K = 12: an FP32 copy and Adam's two states


# How many times a ring passes the payload along, each rank sending (N-1)/N of it per pass. Patarasuk and Yuan 2009;
# NCCL's own notes on performance count the same way. A broadcast or a reduce is a chain: all ranks but one send.
PASSES = {
    "all_reduce": 2,
    **dict.fromkeys(("all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter"), 1),
}


@dataclass(frozen=True)
class Flat:
    """Parameters end to end, in values. Ten on four ranks: three to a shard, twelve in the padded whole.

    >>> Flat(10, 4).shard, Flat(10, 4).padded
    (3, 12)
    """

    values: int
    ranks: int

    @property
    def shard(self) -> int:
        return -(-self.values // self.ranks)

    @property
    def padded(self) -> int:
        return self.shard * self.ranks


@dataclass(frozen=True)
class Tiers:
    """One rank's bytes by part in each memory: the GPU's own, the host's, an NVMe disk."""

    device: Breakdown
    host: Breakdown
    nvme: Breakdown

    @property
    def total(self) -> int:
        return self.device.total + self.host.total + self.nvme.total


@dataclass(frozen=True)
class Collective:
    """One call: its kind, the whole buffer it is about, and the ranks that take part.

    >>> Collective("all_reduce", 1000, 4).sent_bytes
    1500
    """

    kind: str
    payload_bytes: int
    ranks: int

    @property
    def sent_bytes(self) -> int:
        """What each rank sends on average, rounded up: payload x passes x (N-1)/N; `send` sends all of it."""
        if self.kind == "send":
            return self.payload_bytes
        return -(-(self.payload_bytes * PASSES[self.kind] * (self.ranks - 1)) // self.ranks)


@dataclass(frozen=True)
class Traffic:
    """The collectives of a step, in order."""

    calls: tuple[Collective, ...]

    @property
    def payload_bytes(self) -> int:
        return sum(call.payload_bytes for call in self.calls)

    @property
    def sent_bytes(self) -> int:
        """What this rank sends; as much arrives."""
        return sum(call.sent_bytes for call in self.calls)

    def of(self, kind: str) -> Traffic:
        return Traffic(tuple(call for call in self.calls if call.kind == kind))

    @property
    def kinds(self) -> tuple[str, ...]:
        """In order of first use."""
        return tuple(dict.fromkeys(call.kind for call in self.calls))

    def passes(self, model_bytes: int) -> Fraction:
        """The payload in units of the model, all-reduces counted twice: 2 for DDP and ZeRO-1 and 2, 3 for ZeRO-3."""
        return Fraction(sum(PASSES.get(call.kind, 1) * call.payload_bytes for call in self.calls), model_bytes)


@dataclass(frozen=True)
class LinkBytes:
    """What one rank moves between memories in a step: down to the host, up from it, to and from its disk."""

    down_bytes: int = 0
    up_bytes: int = 0
    nvme_read_bytes: int = 0
    nvme_written_bytes: int = 0

    def floor_s(self, link_bytes_per_s: float) -> float:
        """Seconds on a link of that rate in each direction; the disk, which is slower, is left out."""
        return max(self.down_bytes, self.up_bytes) / require_rate(link_bytes_per_s)


@lru_cache(maxsize=64)
def units(model: ModelShape) -> tuple[int, ...]:
    """Values of what is gathered at once at stage 3: the root (embedding, final norm, head), then each layer.

    Llama-2-7B: 262,148,096 in the root, 202,383,360 in each of 32 layers.
    """
    if model.counted:
        expected = "a family with a closed form in helpers.catalog.families"
        do = "count it on ranks: helpers.memory.measure.rank_step"
        raise WorkbookError(f"the layers of {model.name} are not known tensor by tensor", expected, do)
    each = {layer: layer.parameters for layer in set(model.layers)}
    layers = [each[layer] for layer in model.layers]
    return (model.parameters - sum(layers), *layers)


def buckets(setup: TrainSetup) -> tuple[int, ...]:
    """Values of each gradient bucket of stages 0 to 2: about `BUCKET_BYTES` of weights, the last parameter first."""
    units(setup.model)
    return _buckets(setup.model, BUCKET_BYTES // setup.precision_recipe.weight_bytes)


@lru_cache(maxsize=64)
def _buckets(model: ModelShape, most: int) -> tuple[int, ...]:
    values: Counter[int] = Counter()
    for number, shape in numbered(model, most):
        values[number] += prod(shape)
    return tuple(values.values())


def numbered(model: ModelShape, most: int) -> Iterator[tuple[int, TensorShape]]:
    """Each tensor with its bucket's number, the last first. None is divided: a bucket of `most` values is full."""
    number = filled = 0
    for shape in reversed(list(model.tensors())):
        if filled >= most:
            number, filled = number + 1, 0
        filled += prod(shape)
        yield number, shape


def flats(setup: TrainSetup) -> tuple[Flat, ...]:
    """Every flat of a setup; at stage 3 the root's is the first."""
    return tuple(Flat(values, setup.ranks) for values in (units(setup.model) if setup.zero == 3 else buckets(setup)))


def held(setup: TrainSetup) -> Tiers:
    """One rank's parameters, gradients and optimizer (with master copies) between backward and `step()`, by memory.

    Exact for the engines of `helpers.techniques.zero` but for the model's buffers. FSDP2 pads each tensor's first
    dimension instead; DeepSpeed holds its buckets beside it (5e8 elements, unless set). From stage 2 on gradients
    follow the optimizer off the GPU; a host optimizer steps on its own copy of the shard. With the optimizer on a disk
    they are in two places, as in ZeRO-Infinity: summed in the host's memory, and the sum in a file (DeepSpeed 0.19,
    runtime/zero/stage3.py, `partition_grads`). Adafactor's factors are divided by the ranks. Activations, whole layers
    and temporaries are in `budget.train`, not here.

    Llama-2-7B, FP32, AdamW, stage 3, 4 ranks: 6.28 GiB of parameters, as much of gradients, 12.55 of states.
    """
    laid, whole, recipe = flats(setup), setup.model.parameters, setup.precision_recipe
    shards, padded = sum(flat.shard for flat in laid), sum(flat.padded for flat in laid)
    parts = {
        "parameters": (whole, padded, padded, shards)[setup.zero] * recipe.weight_bytes,
        # DDP's are views of the buckets that were all-reduced, so padded; those of stage 1 are as backward left them
        "gradients": (padded, whole, shards, shards)[setup.zero] * recipe.grad_bytes,
        "optimizer": _optimizer(setup, laid),
    }
    optimizer = setup.offload_optimizer
    tiers = {"parameters": [setup.offload_parameters], "optimizer": [optimizer], "gradients": ["none"]}
    if setup.zero >= 2:
        tiers["gradients"] = ["cpu", "nvme"] if optimizer == "nvme" else [optimizer]
    device, host, nvme = (
        Breakdown({part: size if where in tiers[part] else 0 for part, size in parts.items()}) for where in OFFLOADS
    )
    return Tiers(device, host, nvme)


def _optimizer(setup: TrainSetup, laid: Sequence[Flat]) -> int:
    recipe, rule = setup.precision_recipe, setup.optimizer_rule
    width, ranks = recipe.optimized_bytes, setup.ranks if setup.zero else 1
    if rule.factored or not setup.zero:
        trained = Counter(setup.model.trained()).items()
        states = -(-sum(count * rule.state_bytes(shape, width, role) for (shape, role), count in trained) // ranks)
    else:
        states = sum(rule.state_bytes((flat.shard,), width) for flat in laid)
    values = sum(flat.shard for flat in laid) if setup.zero else setup.model.parameters
    return states + values * (recipe.master_bytes if setup.offload_optimizer == "none" else width)


def traffic(setup: TrainSetup, micro_batches: int | None = None) -> Traffic:
    """The collectives of one step over `micro_batches` accumulated passes, flat by flat; payloads padded.

    None is as many as the setup has.

    Gradients travel in the recipe's gradient dtype, parameters in the weights'. DDP and stage 1 reduce once a step,
    stages 2 and 3 in every pass; stage 3 gathers in every pass each layer twice and the root once. The ring factor
    (N-1)/N is in `sent_bytes`. The 4 bytes with which ranks agree on a gradient norm are left out.

    Llama-2-7B in BF16: `passes(2 * parameters)` is 2 at stages 0, 1 and 2, and 2.96 at stage 3, for the root is
    gathered once. Rajbhandari et al., ZeRO, 2020, section 7.
    """
    micro_batches = _passes(setup, micro_batches)
    recipe, laid = setup.precision_recipe, flats(setup)
    reduced = _calls("all_reduce" if setup.zero == 0 else "reduce_scatter", laid, recipe.grad_bytes)
    gathered = _calls("all_gather", laid, recipe.weight_bytes) if setup.zero else ()
    if setup.zero == 3:
        return Traffic((*gathered, *gathered[1:], *reduced) * micro_batches)
    return Traffic(reduced * (micro_batches if setup.zero == 2 else 1) + gathered)


def _passes(setup: TrainSetup, micro_batches: int | None) -> int:
    passes = setup.micro_batches if micro_batches is None else micro_batches
    return require_whole("micro_batches", passes, do="pass how many backward passes come before one step()")


def _calls(kind: str, laid: Sequence[Flat], width: int) -> tuple[Collective, ...]:
    return tuple(Collective(kind, flat.padded * width, flat.ranks) for flat in laid)


def link_bytes(setup: TrainSetup, micro_batches: int | None = None) -> LinkBytes:
    """What offload moves in a step, per rank: nothing without one. `micro_batches` are as in `traffic`.

    Optimizer: gradient shards go down in every pass that reduces, updated shards come up. Parameters: each gather
    brings its shard up, and what a GPU updated goes down. A disk reads and writes all it holds of the optimizer and
    its gradients once, however many passes are summed before, and of parameters what passes through the host.

    Llama-2-7B, pure BF16, stage 2, 4 ranks, optimizer on the host: 3.14 GiB down and as much up.
    """
    micro_batches = _passes(setup, micro_batches)
    optimizer, parameters = setup.offload_optimizer != "none", setup.offload_parameters != "none"
    if not (optimizer or parameters):
        return LinkBytes()
    laid, recipe, tiers = flats(setup), setup.precision_recipe, held(setup)
    shards = sum(flat.shard for flat in laid)
    passes = micro_batches if setup.zero >= 2 else 1
    updated = shards * recipe.weight_bytes
    down = up = 0
    if optimizer:
        down += passes * shards * recipe.grad_bytes
        up += 0 if parameters else updated
    if parameters:
        up += micro_batches * (2 * shards - laid[0].shard) * recipe.weight_bytes
        down += 0 if optimizer else updated
    states = tiers.nvme["optimizer"] + tiers.nvme["gradients"]
    on_disk = setup.offload_parameters == "nvme"
    return LinkBytes(down, up, states + (up if on_disk else 0), states + (updated if on_disk else 0))


def floor_s(moved: Traffic, link_bytes_per_s: float) -> float:
    """Seconds that the sending alone takes at `link_bytes_per_s` in one direction: no step is faster.

    It overlaps with compute at best; the larger of the two is then the floor of the step.
    """
    return moved.sent_bytes / require_rate(link_bytes_per_s)


def require_rate(link_bytes_per_s: float) -> float:
    """The rate, or WorkbookError where it is none."""
    do = "pass device('h100').link_bytes_per_s('nvlink'), or 25e9 for 200 Gb/s"
    expected = "bytes per second in one direction, above 0"
    return require_number("the link's rate", link_bytes_per_s, expected=expected, do=do)


def paper_bytes(parameters: int, ranks: int, stage: int) -> int:
    """Bytes per rank by the ZeRO paper's own convention: 2 of weights, 2 of gradients, 12 of mixed-precision Adam.

    Rajbhandari et al., ZeRO, 2020 (arXiv 1910.02054), figure 1; GB there are 1e9 bytes. `PAPER_LEAVES_OUT` is what
    it does not count. 7.5e9 parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB at stages 0 to 3.
    """
    require_whole("parameters", parameters, do="pass the model's parameters as an int, as in 7_500_000_000")
    require_whole("ranks", ranks, do="pass the world size")
    require_whole("stage", stage, 0, 3, expected="0 (plain data parallelism), 1, 2 or 3", do="pass one of these")
    whole = ((_OPTIMIZER, 1), (_GRADIENTS, 2), (_WEIGHTS, 3))
    return sum(-(-parameters * width // (ranks if stage >= sharded_from else 1)) for width, sharded_from in whole)
