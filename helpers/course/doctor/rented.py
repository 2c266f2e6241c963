"""What goes wrong on machines that one rents or shares, and not at home: problems that stop no chapter."""

from __future__ import annotations

from collections.abc import Iterator

from helpers.course.doctor.card import EXCLUSIVE
from helpers.course.doctor.machine import Machine
from helpers.course.doctor.nvidia_smi import Gpu
from helpers.course.doctor.problem import GIB, Problem, gib

UNSEEN_BYTES = 2 * GIB  # less may be the driver's own, or a desktop's
SHM_BYTES = GIB  # Docker gives 64 MiB unless it is asked; half the memory is usual elsewhere
MODEL_BYTES = 8 * GIB  # a model of three billion parameters in 16 bits takes 6 GiB
REPAIRS = {
    "replace": ("has memory that it can no longer repair", "rent another machine, and tell the provider"),
    "reset": ("waits for a reset, to repair its memory", "restart the machine; if it comes back, rent another"),
    "reboot": ("waits for a restart of its machine", "restart the machine; if it comes back, rent another"),
}


def hindrances(machine: Machine) -> tuple[Problem, ...]:
    """What costs time or right numbers on this machine, worst first; empty on a machine of one's own.

    Of the GPUs only the first is judged: the workbook computes there.
    """
    of_the_gpu = (problem for gpu in machine.gpus[:1] for problem in _gpu(gpu, machine))
    return (*of_the_gpu, *_shm(machine), *_models(machine))


def _gpu(gpu: Gpu, machine: Machine) -> Iterator[Problem]:
    card = gpu.card
    if card.repair:
        what, do = REPAIRS[card.repair]
        yield Problem(f"the {gpu.name} {what}", do)
    if card.compute_mode == EXCLUSIVE:
        what = f"the {gpu.name} is in exclusive mode: a second notebook gets no GPU"
        yield Problem(what, "sudo nvidia-smi -c 0; without that right, shut one kernel down before the next")
    if not card.mig:  # a slice is its holder's alone
        yield from _shared(gpu, machine)
    if card.link_lanes and card.link_lanes < (card.link_lanes_max or 0):
        slower = card.link_lanes_max // card.link_lanes
        what = f"PCIe has {card.link_lanes} of {card.link_lanes_max} lanes: host copies take {slower} times as long"
        yield Problem(what, "run `workbook doctor` while it copies; if it stays so, choose another machine")


def _shared(gpu: Gpu, machine: Machine) -> Iterator[Problem]:
    """Bytes of a shared card are right, since each process counts its own; its times belong to all."""
    other = _free_one(gpu, machine)
    elsewhere = f"CUDA_VISIBLE_DEVICES={other.uuid[:12]} make lab" if other else ""  # CUDA takes the beginning of it
    if gpu.card.strangers:
        users = ", ".join(gpu.card.strangers[:3])
        what = f"the {gpu.name} is used by {users}, too: bytes stay right, times do not"
        yield Problem(what, f"{elsewhere} takes one that is free" if other else "measure times when it is free")
    elif gpu.card.unseen_bytes >= UNSEEN_BYTES:
        what = f"{gib(gpu.card.unseen_bytes)} of the {gpu.name} are held by programs that cannot be seen from here"
        rest = f"if it stays, {elsewhere}" if other else "if it stays, somebody shares the card: trust no times"
        yield Problem(what, f"shut your own kernels down and look again; {rest}")


def _free_one(gpu: Gpu, machine: Machine) -> Gpu | None:
    """Another GPU that nobody uses; only the driver's list shows them all."""
    for one in machine.driver.gpus if machine.driver else ():
        quiet = not (one.processes or one.card.mig) and one.card.unseen_bytes < UNSEEN_BYTES
        if quiet and one.uuid and one.uuid.removeprefix("GPU-") != gpu.uuid.removeprefix("GPU-"):
            return one
    return None


def _shm(machine: Machine) -> Iterator[Problem]:
    size_bytes = machine.place.shm_bytes
    if not machine.gpus or size_bytes is None or size_bytes >= SHM_BYTES:
        return
    small = f"/dev/shm has {size_bytes / 2**20:.0f} MiB"
    remount = "sudo mount -o remount,size=8g /dev/shm"
    more = "start the container with --shm-size=8g" if machine.place.container else remount
    if len(machine.gpus) > 1:
        yield Problem(f"{small}: NCCL between GPUs fails", f"{more}, or export NCCL_SHM_DISABLE=1 (slower)")
    else:
        yield Problem(f"{small}: a DataLoader with workers dies of it (bus error)", f"{more}, or use num_workers=0")


def _models(machine: Machine) -> Iterator[Problem]:
    """A small disk under the home folder, a large one under the workbook: many providers set machines up so."""
    place, here_bytes = machine.place, machine.disk_free_bytes
    free_bytes = place.models_free_bytes
    if not place.wants_model or free_bytes is None or free_bytes >= MODEL_BYTES:
        return
    what = f"{gib(free_bytes)} free in {place.models_folder}, where models are downloaded to"
    if here_bytes is not None and here_bytes > free_bytes:
        yield Problem(what, f"export HF_HOME={place.models_could_be} ({gib(here_bytes)} free there)")
