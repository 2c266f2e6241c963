"""A training step with states off the device: the places that its bytes pass, and the micro-batch that hides them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...catalog.devices import Device, device
from ...catalog.errors import WorkbookError, require_number, require_whole
from ...catalog.tiers import Tier, TierKind, tier
from ...catalog.train_setup import TrainSetup
from ..breakdown import TextEnum
from ..step.flops import step_flops
from ..step.ranks.zero import held, link_bytes
from .overlap import fewest


class Passage(TextEnum):
    """Where bytes pass on their way between a GPU and where they are kept."""

    DOWN = "PCIe, down"
    UP = "PCIe, up"
    MEMORY = "memory of the host"
    READ = "disk, read"
    WRITTEN = "disk, written"


ONE_RANKS = (Passage.DOWN, Passage.UP)  # the others serve all ranks of a host


@dataclass(frozen=True)
class Hop:
    """Bytes that pass through one place in a step, and how fast it lets them: `place` says whose it is."""

    name: Passage
    size_bytes: int
    bytes_per_s: float
    place: str

    @property
    def seconds(self) -> float:
        return self.size_bytes / self.bytes_per_s


def training_hops(
    setup: TrainSetup, gpu: str | Device, host: str | Tier, disk: str | Tier | None = None, ranks_per_host: int = 8
) -> tuple[Hop, ...]:
    """Where the bytes of one training step pass that offloads: each GPU's PCIe, the host's memory, its disks.

    PCIe is one rank's own; memory and disks serve all ranks of a host. The host's optimizer reads master weights,
    states and gradients, writes the first two, and writes each new weight before it goes up. Gradients of several
    micro-batches are summed in its memory: each after the first is read, with the sum so far, and the new sum written.
    What crosses PCIe or comes from a disk passes through the host's memory as well. The longest hop is the floor of a
    step that overlaps all of them, the sum that of one that does not.

    Llama-2-70B in BF16 with FP32 gradients and AdamW, ZeRO-3 on eight H100 of one host, all of it in the host's memory:
    PCIe moves 34.5 GB down and 34.4 up, 0.54 s each; 2.62 TB pass 614 GB/s of DRAM, 4.26 s.
    """
    card, ranks = device(gpu), min(setup.ranks, require_whole("ranks_per_host", ranks_per_host, do="a DGX has 8"))
    tiers, moved = held(setup), link_bytes(setup)
    if moved.down_bytes + moved.up_bytes == 0:
        do = "pass TrainSetup(..., split=Split(8, zero=2), offload_optimizer='cpu')"
        raise WorkbookError("this setup offloads nothing", "an offload of the optimizer or of the parameters", do)
    states, gradients = tiers.host["optimizer"] + tiers.nvme["optimizer"], tiers.host["gradients"]
    on_disk = moved.nvme_read_bytes + moved.nvme_written_bytes
    through = moved.down_bytes + moved.up_bytes + on_disk + 3 * (setup.micro_batches - 1) * gradients
    weights = tiers.host["parameters"] + tiers.nvme["parameters"] or moved.up_bytes
    update = 2 * states + gradients + weights if setup.offload_optimizer != "none" else 0
    pcie, memory = card.link_bytes_per_s("pcie"), _of_kind("dram", host, "'dgx-h100-dram'")
    slot = f"PCIe of the {card.title}, each way"
    hops = [
        Hop(Passage.DOWN, moved.down_bytes, pcie, slot),
        Hop(Passage.UP, moved.up_bytes, pcie, slot),
        Hop(Passage.MEMORY, ranks * (update + through), memory.read_bytes_per_s, memory.name),
    ]
    if on_disk:
        drives = _of_kind("nvme", _needed(disk), "'nd-h200-v5-nvme'")
        read, written = ranks * moved.nvme_read_bytes, ranks * moved.nvme_written_bytes
        hops.append(Hop(Passage.READ, read, drives.read_bytes_per_s, drives.name))
        hops.append(Hop(Passage.WRITTEN, written, drives.write_bytes_per_s, drives.name))
    return tuple(hops)


def _of_kind(kind: TierKind, given: str | Tier, example: str) -> Tier:
    """The tier, if it is memory or a disk as is wanted: a host's optimizer does not step on a network."""
    found = tier(given)
    if found.kind != kind:
        expected = "the memory of a host" if kind == "dram" else "a disk"
        raise WorkbookError(
            f"{found.title} is no {'memory of a host' if kind == 'dram' else 'disk'}", expected, f"pass {example}"
        )
    return found


def _needed(disk: str | Tier | None) -> str | Tier:
    if disk is None:
        do = "pass disk='nd-h200-v5-nvme', or another of helpers.catalog.tiers.TIERS"
        raise WorkbookError("the setup offloads to a disk, and none is named", "the disk's tier", do)
    return disk


def training_compute_s(setup: TrainSetup, gpu: str | Device, efficiency: float = 0.5) -> float:
    """Seconds that one rank computes in a step, at `efficiency` of what the datasheet promises for its format."""
    require_number("efficiency", efficiency, below=1 + 1e-9, expected="a share up to 1", do="pass efficiency=0.5")
    rate = device(gpu).flops_per_s(setup.precision_recipe.activation_format)
    return step_flops(setup).total / (rate * efficiency)


def micro_batch_that_hides(
    setup: TrainSetup, gpu: str | Device, hops: Sequence[Hop], efficiency: float = 0.5
) -> int | None:
    """The least micro-batch whose compute takes as long as the longest of `hops`; None where none of MAX_COUNT does.

    No hop grows with it: weights, gradients and states are the same for any batch.
    """
    longest_s = max(hop.seconds for hop in hops)
    return fewest(lambda count: training_compute_s(replace(setup, micro_batch=count), gpu, efficiency) >= longest_s)
