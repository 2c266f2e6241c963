"""Machines that one rents or shares, and what the doctor must say of each; the pattern is doctor_machines'."""

from __future__ import annotations

from dataclasses import replace

from helpers.course.doctor.card import Card
from helpers.course.doctor.machine import Machine, as_the_driver_has_them
from helpers.course.doctor.nvidia_smi import Driver, Gpu
from helpers.course.doctor.packages import Torch
from helpers.course.doctor.place import Place
from tests.course.doctor_machines import CPU_BUILD, DRIVER, GIB, GOOD, H100

SOUND = Card(
    compute_mode="Default", ecc=True, persistence=True, link_gen=1, link_gen_max=5, link_lanes=16, link_lanes_max=16
)
OF_ONES_OWN = Place(machine_memory_bytes=64 * GIB, machine_cores=8, shm_bytes=32 * GIB)
CONTAINER = Place(
    container=True,
    machine_memory_bytes=1008 * GIB,
    machine_cores=128,
    shm_bytes=64 * 2**20,
    models_folder="/root/.cache/huggingface/hub",
    models_free_bytes=3 * GIB,
    models_could_be="/workspace/huggingface",
    drops=True,
)


def with_card(others: tuple[Gpu, ...] = (), **changes: object) -> Machine:
    """The good H100 whose card differs in this, beside `others` that torch can use, too."""
    gpu = replace(H100, processes=(), card=replace(SOUND, **changes))
    every = (gpu, *others)
    return replace(GOOD, gpus=every, driver=replace(DRIVER, gpus=every), place=OF_ONES_OWN)


def lost(card: Card = SOUND, cuda: str = "13.0", **torch: object) -> Machine:
    """An H100 that the driver lists and torch cannot use."""
    driver = replace(DRIVER, cuda=cuda, gpus=(replace(H100, card=card),))
    return replace(GOOD, gpus=(), driver=driver, torch=Torch(threads=8, cuda_build="13.0", **torch), place=OF_ONES_OWN)


SECOND = replace(H100, uuid="GPU-f124aa59-d406", processes=(), card=SOUND)
IN_USE = replace(SECOND, processes=("python (process 1), 9 GiB",))
RTX_4090 = Gpu("NVIDIA GeForce RTX 4090", 24564 * 2**20, 23 * GIB, "8.9", "GPU-4", card=replace(SOUND, ecc=False))
T4 = Gpu("Tesla T4", 15360 * 2**20, 14 * GIB, "7.5", "GPU-5", card=SOUND)
IN_THE_CONTAINER = replace(
    GOOD, gpus=(), torch=Torch(cuda_build="13.0", threads=8), place=replace(CONTAINER, shm_bytes=None)
)
OLD_4090 = replace(IN_THE_CONTAINER, driver=Driver("535.183", "12.2", (RTX_4090,)))
OLDER_T4 = replace(IN_THE_CONTAINER, driver=Driver("470.256", "11.4", (T4,)))
RENTED_H100 = replace(
    with_card(),
    memory_bytes=16 * GIB,
    memory_free_bytes=14 * GIB,
    memory_limited=True,
    place=CONTAINER,
    tunnel="ssh -L 8888:localhost:8888 root@machine",
)
TWO_SLICES = replace(SOUND, mig=True, slices=2, unseen_bytes=40 * GIB)
DIVIDED = replace(H100, processes=("python (process 2), 30 GiB",), card=TWO_SLICES)
SLICE = Gpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb", int(9.75 * GIB), 9 * GIB, "9.0", "some-slice")
MIG_SLICE = replace(
    GOOD,
    gpus=as_the_driver_has_them((SLICE,), Driver("580.1", "13.0", (DIVIDED,))),
    driver=Driver("580.1", "13.0", (DIVIDED,)),
    place=OF_ONES_OWN,
)

# machine, what is said first, what to do; none of these stops a chapter
HINDERED = {
    "a rented H100, 64 MiB of /dev/shm": (RENTED_H100, "/dev/shm has 64 MiB: a DataLoader", "--shm-size=8g"),
    "small /dev/shm, no container": (
        replace(with_card(), place=replace(OF_ONES_OWN, shm_bytes=2**20)),
        "/dev/shm has 1 MiB",
        "sudo mount -o remount,size=8g /dev/shm",
    ),
    "small /dev/shm and two GPUs": (
        replace(with_card(others=(SECOND,)), place=CONTAINER),
        "NCCL between GPUs fails",
        "export NCCL_SHM_DISABLE=1",
    ),
    "an RTX 4090 with an old driver, in a container": (
        OLD_4090,
        "torch cannot use the NVIDIA GeForce RTX 4090: driver 535.183 supports CUDA 12.2, this torch needs 13.0",
        "rm -rf .venv; make lab chooses a build for this driver",
    ),
    "the same, out of a container": (
        replace(OLD_4090, place=OF_ONES_OWN),
        "driver 535.183 supports CUDA 12.2",
        "update the NVIDIA driver, or rm -rf .venv; make lab",
    ),
    "a driver of CUDA 11, in a container": (
        OLDER_T4,
        "torch cannot use the Tesla T4: driver 470.256 supports CUDA 11.4",
        "rent a machine whose driver supports CUDA 12.0 or later",
    ),
    "a driver of CUDA 11, out of a container": (
        replace(OLDER_T4, place=OF_ONES_OWN),
        "driver 470.256 supports CUDA 11.4",
        "update the NVIDIA driver: no torch from 2.11 on runs on this one",
    ),
    "somebody else computes": (
        with_card(strangers=("alice",)),
        "the NVIDIA H100 80GB HBM3 is used by alice, too: bytes stay right, times do not",
        "when it is free",
    ),
    "somebody else computes, and a card is free": (
        with_card(strangers=("alice",), others=(SECOND,)),
        "is used by alice",
        "CUDA_VISIBLE_DEVICES=GPU-f124aa59 make lab takes one that is free",
    ),
    "somebody in another container": (
        with_card(unseen_bytes=60 * GIB, others=(SECOND,)),
        "60 GiB of the NVIDIA H100 80GB HBM3 are held by programs that cannot be seen",
        "if it stays, CUDA_VISIBLE_DEVICES=GPU-f124aa59 make lab",
    ),
    "somebody in another container, and every card taken": (
        with_card(unseen_bytes=60 * GIB, others=(IN_USE,)),
        "60 GiB",
        "trust no times",
    ),
    "exclusive": (with_card(compute_mode="Exclusive_Process"), "a second notebook gets no GPU", "nvidia-smi -c 0"),
    "four lanes of sixteen": (with_card(link_lanes=4), "4 of 16 lanes: host copies take 4 times", "while it copies"),
    "memory beyond repair": (with_card(repair="replace"), "can no longer repair", "rent another machine"),
    "memory to be repaired": (with_card(repair="reset"), "waits for a reset", "restart the machine"),
    "no room for a model": (
        replace(with_card(), place=replace(CONTAINER, shm_bytes=8 * GIB, wants_model=True)),
        "3 GiB free in /root/.cache/huggingface/hub, where models are downloaded to",
        "export HF_HOME=/workspace/huggingface (50 GiB free there)",
    ),
    "MIG without a slice": (lost(replace(SOUND, mig=True)), "no slice of it has been made", "nvidia-smi -mig 0"),
    "slices, and none for this container": (
        lost(replace(SOUND, mig=True, slices=2), why_not="RuntimeError: No CUDA GPUs are available"),
        "No CUDA GPUs are available",
        "docker run --gpus all",
    ),
    "prohibited": (lost(replace(SOUND, compute_mode="Prohibited")), "compute mode is Prohibited", "nvidia-smi -c 0"),
    "no fabric manager": (
        lost(why_not="RuntimeError: Unexpected error from cudaGetDeviceCount() Error 802: system not yet initialized"),
        "Error 802",
        "nvidia-fabricmanager",
    ),
    "no fabric manager, and a driver a little older than torch": (
        lost(cuda="12.2", why_not="RuntimeError: Error 802: system not yet initialized"),
        "Error 802",
        "nvidia-fabricmanager",
    ),
    "no unified memory": (
        lost(why_not="RuntimeError: CUDA unknown error - this may be"),
        "CUDA unknown error",
        "modprobe nvidia-uvm",
    ),
    "held in exclusive mode": (
        lost(why_not="AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        "busy or unavailable",
        "shut down what computes on it",
    ),
}
UNHINDERED = {
    "a sound card": with_card(),
    "an MIG slice beside other people's": MIG_SLICE,
    "a desktop holds a little": with_card(unseen_bytes=GIB),
    "small /dev/shm, and no GPU": replace(RENTED_H100, gpus=(), torch=CPU_BUILD, driver=None),
    "a small disk for models, and none wanted": replace(
        with_card(), place=replace(CONTAINER, shm_bytes=8 * GIB, models_free_bytes=1)
    ),
    "both disks small": replace(
        with_card(),
        disk_free_bytes=2 * GIB,
        place=replace(CONTAINER, shm_bytes=8 * GIB, models_free_bytes=2 * GIB, wants_model=True),
    ),
    "an idle link": with_card(link_gen=1),
    "a card made for eight lanes": with_card(link_lanes=8, link_lanes_max=8),
    "the driver tells nothing": with_card(link_gen=None, link_lanes=None, link_lanes_max=None, ecc=None),
}
