"""What is kept of a card beside a run's tensors: by card, engine and number of ranks. The one model of it, no torch.

    reserve(device("t4")).size_bytes                            # 158 MiB: one process of PyTorch
    reserve(device("h100"), ranks=8).size_bytes                 # 1,738 MiB: with NCCL's buffers of eight
    reserve(device("h100"), "vllm", ranks=2).size_bytes         # what serve.engines.vllm has outside torch

It is the upper end of what is known. Of a process of PyTorch: its context (`catalog.contexts`) and, where ranks work
together, NCCL's buffers for one group of them. cuBLAS's workspaces are no part of it: PyTorch allocates them, and the
closed form counts them. Left out, for they are no matter of the card: a screen or Windows (up to 1.3 GiB, and more
under Windows 10), other programs of a machine whose memory is shared, groups of tensor and expert parallelism
beside the first, which take as much again each, and drivers before CUDA 11.7, whose contexts took up to 1,343 MiB.
`--reserve` says another number.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.contexts import MIB, Basis, Context, context
from ...catalog.devices import Device
from ...catalog.engines import ENGINES
from ...catalog.errors import require_name, require_whole
from ...catalog.hardware import HOPPER, context_of
from ..serve.engines.vllm import CONTEXT_BYTES, outside_torch_bytes

PYTORCH = "transformers"  # PyTorch by itself: training, and a forward of Transformers
MOST_RANKS = 2**20

# A group's first all-reduce on four A100 with NVLink, torch.distributed: 544 MiB for two ranks, 688 for more
# (NVIDIA/nccl, issue 964). NCCL has 24 channels there, and a buffer for each neighbour in each of them.
PAIR_MIB, GROUP_MIB = 544, 688
# Without NVLink (a card that can be bridged counts as bridged) NCCL has 2 channels: 106 MiB more on a 3090 among four
# than alone, 112 on a 3080 among eight (axolotl-ai-cloud/axolotl, issue 1717; huggingface/trl, issue 3436).
WITHOUT_LINK_MIB = 112
# In which switches add up, from Hopper on, for more than two ranks: channels x 2 x 1 MiB for each rank of a machine
# (nvlsTotalSize in src/transport/nvls.cc, NCCL 2.22 and later; up to 2.20 six times as much).
SWITCH_MIB, BLACKWELL_SWITCH_MIB = 32, 48
MACHINE, RACK = 8, 32  # ranks that switches join; NCCL_MAX_NVLS_ARITY
BLACKWELL = (10, 0)
OWN = {Basis.CARD: "", Basis.SYSTEM: "", Basis.GENERATION: ", as of its generation", Basis.OTHERS: ", as of others"}


@dataclass(frozen=True)
class Reserve:
    """Bytes kept of `card` for one of `ranks` processes; `told` says for what, after "kept for"."""

    card: Device
    size_bytes: int
    told: str
    context: Context


def reserve(card: Device, engine: str = PYTORCH, ranks: int = 1) -> Reserve:
    """What a rank of `engine` holds beside tensors. Raises WorkbookError for an unknown engine and a count below 1.

    >>> from helpers.catalog import device
    >>> [reserve(device("h100"), ranks=ranks).size_bytes // MIB for ranks in (1, 2, 4, 8, 16)]
    [794, 1338, 1610, 1738, 1738]
    >>> reserve(device("rtx-3090"), ranks=4).told
    'the CUDA context and NCCL, as of its generation'
    """
    require_name("engine", engine, ENGINES)
    require_whole("ranks", ranks, most=MOST_RANKS, do="pass ranks=1 for one process")
    found = context(card)
    group = 0 if engine == "llama.cpp" else _group_bytes(card, ranks)
    size = found.size_bytes + group
    if card.capability and engine in ("vllm", "sglang"):
        size = outside_torch_bytes(ranks) if engine == "vllm" else CONTEXT_BYTES[ranks > 1]
    who = "macOS" if found.basis is Basis.SYSTEM else context_of(card)
    return Reserve(card, size, f"{who}{' and NCCL' if group else ''}{OWN[found.basis]}", found)


def reserve_growth(card: Device, before: int, after: int) -> int:
    """How much more PyTorch keeps on `after` ranks than on `before`."""
    return reserve(card, ranks=after).size_bytes - reserve(card, ranks=before).size_bytes


def _group_bytes(card: Device, ranks: int) -> int:
    """NCCL's buffers for one group of `ranks`, of AMD's cards RCCL's as NCCL's."""
    if ranks == 1 or card.vendor == "apple":
        return 0
    if not {"nvlink", "infinity-fabric"} & set(card.links):
        return WITHOUT_LINK_MIB * MIB
    if ranks == 2:
        return PAIR_MIB * MIB
    capability = card.capability or (0, 0)
    joined = min(ranks, MACHINE if "pcie" in card.links else RACK)
    each = BLACKWELL_SWITCH_MIB if capability >= BLACKWELL else SWITCH_MIB if capability >= HOPPER else 0
    return (GROUP_MIB + each * joined) * MIB
