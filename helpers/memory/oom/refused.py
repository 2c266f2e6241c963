"""A request that the driver refused although enough was free: what is known to cause that, by what the message shows.

PyTorch asks how much is free after the last try has failed, so the figure is a moment younger than the failure. Each
cause below has a thread or a page in which it was found.
"""

from __future__ import annotations

from ...catalog.devices import DEVICES
from ..allocator.outcome import Reason
from ..breakdown import format_bytes
from .message import ROUNDING_BYTES, MessageSizes, Oom, Why

GIB = 2**30
XPU_SINGLE_BYTES = 4 * GIB
LARGEST_CARD_BYTES = max(device.capacity_bytes for device in DEVICES.values())

# Windows promises memory of a card only as far as RAM and page file together could hold it, so that a small page file
# refuses what the card has free. A larger page file cured it in github.com/victorchall/EveryDream2trainer/issues/163,
# AUTOMATIC1111/stable-diffusion-webui/issues/5252 and ollama/ollama/issues/8825; in pytorch/pytorch/issues/40002 the
# machine's memory was full. Others asked for less: lufficc/SSD/issues/113. No message tells these cases apart.
WINDOWS = (
    "This is Windows by its look. There memory of the card is promised only as far as the machine's memory and page "
    "file could hold it: a full machine or a small page file refuses what is free. Asking for less has helped too."
)
# Below what nvidia-smi calls free the driver under WSL refuses to make memory resident (microsoft/WSL/issues/41176; of
# 95 GiB a request for 3.48 failed with 50 free in pytorch/pytorch/issues/182286), and pinned host memory is limited
# there (docs.nvidia.com/cuda/wsl-user-guide, known limitations; microsoft/WSL/issues/8447).
WSL = (
    "This is WSL: its driver refuses some of what it reports as free, and limits pinned host memory. A smaller share "
    "of the card and pin_memory=False are what helped others."
)
# An APU's card memory is the part of the machine's that the kernel lets the GPU have: 15.24 GiB where 96 were set aside
# in ROCm/TheRock/issues/1054. hipMemGetInfo has reported a wrong total (ROCm/legacy-rocm-build/issues/5444), and in
# ROCm/TheRock/issues/4598 more is free than there is.
ROCM = (
    "On ROCm the figures need not belong together: of an APU the kernel decides how much the GPU may have "
    "(ttm.pages_limit), and the driver has reported another total, or more free than there is."
)
# Found in the open: a process that ended between the failure and the message; a GPU instance or a device plug-in that
# gives a process less than the card (pytorch/pytorch/issues/112377 is a MIG slice;
# awslabs/aws-virtual-gpu-device-plugin/issues/21); a full host (pytorch/pytorch/issues/40002).
ELSEWHERE = (
    "Another process may have let go between the failure and this message; a MIG slice or a shared card may give this "
    "process less than the card; and a driver that cannot get host memory says the same."
)
# Level Zero refuses a single allocation above its max_mem_alloc_size, 4 GiB on most cards, unless it is told otherwise:
# oneapi-src/unified-runtime/pull/1245, pytorch/pytorch/pull/176868, intel/compute-runtime/issues/627.
XPU = (
    "One request of {asked} is above what Intel's driver gives in one piece, 4 GiB on most cards, however much is "
    "free; UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1 lifts that."
)


def single_allocation(oom: Oom) -> Why | None:
    """Intel's limit on one allocation, where it is the only thing in the way."""
    asked = oom.requested_bytes
    if oom.backend != "XPU" or asked is None or asked < XPU_SINGLE_BYTES:
        return None
    room = oom.free_bytes if oom.free_bytes is not None else (oom.capacity_bytes or 0) - (oom.reserved_bytes or 0)
    return Why(Reason.CAPPED, XPU.format(asked=format_bytes(asked))) if asked <= room else None


def without_sizes(oom: Oom) -> Why:
    """A message without all of its sizes; it may have been cut, or may have failed while it was written."""
    if "INTERNAL ASSERT" in oom.text:
        # pytorch/pytorch/issues/112377: PyTorch 2.1 asked NVML for the processes of a MIG slice, which has no answer.
        sentence = (
            "PyTorch ran out of memory and failed again while it asked the driver who holds the card, as 2.1 does on a "
            "MIG slice. Nothing more is known: a newer PyTorch prints the sizes."
        )
        return Why(Reason.UNCLEAR, sentence, possible=(Reason.CAPPED, Reason.FULL))
    if (oom.requested_bytes or 0) > LARGEST_CARD_BYTES:
        sentence = (
            f"One request of {format_bytes(oom.requested_bytes or 0)} is larger than any card that is known here."
        )
        return Why(Reason.FULL, f"{sentence} Look at the shapes on that line.")
    given = "does not give all of the sizes" if oom.capacity_bytes or oom.allocated_bytes else "gives no sizes"
    sentence = f"The message {given}, so it does not tell a full card from a fragmented one."
    return Why(Reason.UNCLEAR, sentence, possible=(Reason.FULL, Reason.FRAGMENTED))


def although_free(oom: Oom, sizes: MessageSizes) -> Why:
    asked, _, _, free = map(format_bytes, sizes)
    sentence = f"{free} were free when the message was written, more than the {asked} asked."
    if oom.backend == "HIP":
        return Why(Reason.UNCLEAR, f"{sentence} {ROCM}", possible=(Reason.CAPPED, Reason.FRAGMENTED))
    if is_wsl(oom):
        return Why(Reason.UNCLEAR, f"{sentence} {WSL}", possible=(Reason.CAPPED, Reason.HOST))
    if is_windows(oom):
        return Why(Reason.UNCLEAR, f"{sentence} {WINDOWS}", possible=(Reason.HOST, Reason.FULL))
    return Why(Reason.UNCLEAR, f"{sentence} {ELSEWHERE}", possible=(Reason.OUTSIDE, Reason.CAPPED, Reason.HOST))


def is_wsl(oom: Oom) -> bool:
    """Linux's PyTorch over Windows' driver: asked who holds the card, the driver answers -1."""
    return "17179869184.00 GiB memory in use" in oom.text or any(held.held_bytes is None for held in oom.holders)


def is_windows(oom: Oom) -> bool:
    """PyTorch for Windows never names processes (c10/cuda/CMakeLists.txt leaves the driver's interface out there).

    Messages before 2.1 name none anywhere. There the capacity tells: Windows reports a card's memory whole (6.00 GiB,
    11.99 GiB), Linux less what the driver keeps (5.93, 11.75).
    """
    if oom.backend != "CUDA" or oom.process_bytes is not None or oom.holders or is_wsl(oom):
        return False
    if "has a total capac" in oom.text:
        return True
    capacity = oom.capacity_bytes or 0
    return capacity > GIB and -capacity % GIB <= ROUNDING_BYTES
