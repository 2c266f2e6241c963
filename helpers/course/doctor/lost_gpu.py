"""Why torch cannot use a GPU that the driver lists, and what brings it back."""

from __future__ import annotations

import re

from helpers.course.doctor.card import PROHIBITED
from helpers.course.doctor.machine import Machine
from helpers.course.doctor.nvidia_smi import Driver
from helpers.course.doctor.packages import Torch
from helpers.course.doctor.problem import AGAIN, NO_CUDA, Problem

HIDDEN = ("", "-1", "NoDevFiles")
OLDEST_CUDA = "12.0"  # torch 2.8 and later have no build for a driver below it
# what torch says when CUDA does not start, and what that means
SAID = (
    (r"not yet initialized", "sudo systemctl restart nvidia-fabricmanager; in a container, take another machine"),
    (r"CUDA unknown error", "sudo modprobe nvidia-uvm; if that does not help, restart the machine"),
    (r"busy or unavailable", "shut down what computes on it (`nvidia-smi` lists it)"),
)
OTHERWISE = "restart the machine; in a container, start it with GPUs (docker run --gpus all)"


def why_unused(machine: Machine, driver: Driver, torch: Torch) -> Problem:
    """The reason, as precisely as can be told: the build, what hides it, the driver, its mode, torch's own words."""
    gpu, hidden = driver.gpus[0], machine.visible_devices
    lost = f"torch cannot use the {gpu.name}"
    if not torch.cuda_build:
        kind = "for AMD GPUs" if torch.hip_build else "the CPU build"
        return Problem(f"{lost}: this torch is {kind}", AGAIN)
    if hidden is not None and hidden.strip() in HIDDEN:
        return Problem(f"{lost}: CUDA_VISIBLE_DEVICES={hidden!r} hides it", "unset CUDA_VISIBLE_DEVICES")
    if gpu.card.mig and not gpu.card.slices:
        what = f"{lost}: it is in MIG mode and no slice of it has been made"
        return Problem(what, "sudo nvidia-smi -mig 0 brings the whole card back; without that right ask for a slice")
    if gpu.card.compute_mode == PROHIBITED:
        return Problem(f"{lost}: its compute mode is {PROHIBITED}", "sudo nvidia-smi -c 0")
    told = f"{lost}: {torch.why_not}" if torch.why_not else lost
    for pattern, do in SAID:
        if re.search(pattern, torch.why_not):
            return Problem(told, do)
    if is_older(driver.cuda, torch.cuda_build):  # asked last: a driver for 12.2 runs most of what was built for 12.8
        what = f"{lost}: driver {driver.version} supports CUDA {driver.cuda}, this torch needs {torch.cuda_build}"
        return Problem(what, _for_the_driver(machine, driver))
    return Problem(told, OTHERWISE)


def _for_the_driver(machine: Machine, driver: Driver) -> str:
    """A newer driver or an older torch; in a container the driver is the host's, and stays."""
    inside = machine.place.container
    if not is_older(driver.cuda, OLDEST_CUDA):
        older = f"{AGAIN} chooses a build for this driver"
        return older if inside else f"update the NVIDIA driver, or {older}"
    if inside:
        return f"rent a machine whose driver supports CUDA {OLDEST_CUDA} or later; on this one, {NO_CUDA}"
    return f"update the NVIDIA driver: no torch from 2.11 on runs on this one; until then, {NO_CUDA}"


def is_older(have: str, need: str) -> bool:
    """Whether version `have` is below `need`, both like "12.4"; False where either is unknown.

    >>> is_older("9.2", "12.4"), is_older("", "12.4")
    (True, False)
    """
    if not (have and need):
        return False
    return tuple(map(int, re.findall(r"\d+", have)[:2])) < tuple(map(int, re.findall(r"\d+", need)[:2]))
