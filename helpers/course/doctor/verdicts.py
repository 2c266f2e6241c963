"""What stands in the way, and the one thing to do about it: a Machine and what chapters need, to problems.

Pure functions; nothing is asked here. `unmet` stops a chapter, `troubles` costs something; of a GPU that the driver
lists and torch cannot use, `why_unused` says the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from .machine import Machine
from .needs import GIB, Needs
from .nvidia_smi import PROHIBITED, ListedGpu, NvidiaDriver
from .packages import Package, Torch

OPTIONAL = ("bitsandbytes", "torchao")  # missing is no fault until a chapter needs it
NO_CUDA = "export CUDA_VISIBLE_DEVICES="
HIDDEN = ("", "-1", "NoDevFiles")  # values of CUDA_VISIBLE_DEVICES that show no GPU
OLDEST_CUDA = "12.0"  # torch 2.8 and later have no build for a driver below it
# what torch says when CUDA does not start, and what to do then
SAID = (
    (r"not yet initialized", "sudo systemctl restart nvidia-fabricmanager; in a container, take another machine"),
    (r"CUDA unknown error", "sudo modprobe nvidia-uvm; if that does not help, restart the machine"),
    (r"busy or unavailable", "shut down what computes on it (`nvidia-smi` lists it)"),
)
OTHERWISE = "restart the machine; in a container, start it with GPUs (docker run --gpus all)"


@dataclass(frozen=True)
class Problem:
    """What is wrong, and the one thing to type or do about it."""

    what: str
    do: str


def gib(size_bytes: int) -> str:
    """`0.5 GiB`, `23.5 GiB`, `140 GiB`: three figures at most."""
    size = size_bytes / GIB
    return f"{size:.0f} GiB" if size >= 99.95 or size == round(size) else f"{size:.1f} GiB"


def without_repeats(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Each remedy once: problems that the same thing cures are told together, at the first one's place."""
    merged: dict[str, Problem] = {}
    for one in problems:
        first = merged.get(one.do)
        merged[one.do] = one if first is None else replace(first, what=f"{first.what}; {one.what}")
    return tuple(merged.values())


def unmet(needs: Needs, machine: Machine) -> tuple[Problem, ...]:
    """Why this machine cannot run what has these `needs`, worst first; empty when it can."""
    packages = tuple(machine.package(name) for name in needs.packages)
    return (*_python(machine), *_faults(packages, machine), *_sizes(needs, machine), *_gpu(needs, machine))


def troubles(needs: Needs, machine: Machine) -> tuple[Problem, ...]:
    """What stops no chapter, yet costs something: a GPU left idle or full, an odd package."""
    others = (one for one in machine.packages if one.name not in needs.packages and not _is_excused(one, machine))
    return (*_idle_gpu(machine), *_full_gpu(needs, machine), *_faults(tuple(others), machine))


def usable_gpu(machine: Machine) -> bool:
    """Whether torch can run code on a GPU here."""
    return machine.torch is not None and any(has_code_for(gpu, machine.torch) for gpu in machine.gpus)


def has_code_for(gpu: ListedGpu, torch: Torch) -> bool:
    """Whether this torch holds code for the GPU: a build for sm_80 runs on 8.0 to 8.9, compute_90 on 9.0 and later.

    >>> has_code_for(ListedGpu("V100", capability="7.0"), Torch(architectures=("sm_75", "sm_80")))
    False
    """
    own = [int(part) for part in gpu.capability.split(".") if part]
    built = re.findall(r"\b(sm|compute)_(\d+)(\d)[a-z]?\b", " ".join(torch.architectures))
    if not own or torch.hip_build or not built:
        return True  # nothing to compare: torch says that it can
    lowest = ((kind, [int(major), int(minor)]) for kind, major, minor in built)
    return any(version <= own and (kind == "compute" or version[0] == own[0]) for kind, version in lowest)


def why_unused(machine: Machine, driver: NvidiaDriver, torch: Torch) -> Problem:
    """The reason, as precisely as can be told: the build, what hides it, its mode, torch's own words, the driver."""
    gpu, hidden = driver.gpus[0], machine.visible_devices
    lost = f"torch cannot use the {gpu.name}"
    if not torch.cuda_build:
        kind = "for AMD GPUs" if torch.hip_build else "the CPU build"
        return Problem(f"{lost}: this torch is {kind}", _again(machine))
    if hidden is not None and hidden.strip() in HIDDEN:
        return Problem(f"{lost}: CUDA_VISIBLE_DEVICES={hidden!r} hides it", "unset CUDA_VISIBLE_DEVICES")
    if gpu.mig and not gpu.slices:
        what = f"{lost}: it is in MIG mode and no slice of it has been made"
        return Problem(what, "sudo nvidia-smi -mig 0 brings the whole card back; without that right ask for a slice")
    if gpu.compute_mode == PROHIBITED:
        return Problem(f"{lost}: its compute mode is {PROHIBITED}", "sudo nvidia-smi -c 0")
    told = f"{lost}: {torch.why_not}" if torch.why_not else lost
    for pattern, do in SAID:
        if re.search(pattern, torch.why_not):
            return Problem(told, do)
    if is_older(driver.cuda, torch.cuda_build):  # asked last: a driver for 12.2 runs most of what was built for 12.8
        what = f"{lost}: driver {driver.version} supports CUDA {driver.cuda}, this torch needs {torch.cuda_build}"
        return Problem(what, _for_the_driver(machine, driver))
    return Problem(told, OTHERWISE)


def is_older(have: str, need: str) -> bool:
    """Whether version `have` is below `need`, both like "12.4"; False where either is unknown.

    >>> is_older("9.2", "12.4"), is_older("", "12.4")
    (True, False)
    """
    older, newer = ([int(part) for part in re.findall(r"\d+", text)[:2]] for text in (have, need))
    return bool(older and newer) and older < newer


def _for_the_driver(machine: Machine, driver: NvidiaDriver) -> str:
    """An older torch, or a newer driver; a container's driver is the host's, and stays."""
    if not is_older(driver.cuda, OLDEST_CUDA):
        return f"{_again(machine)} chooses a build for this driver"
    newer = f"a driver for CUDA {OLDEST_CUDA} or later"
    return f"update to {newer}; in a container, rent a machine that has one; until then, {NO_CUDA}"


def _python(machine: Machine) -> Iterator[Problem]:
    if not machine.python.in_range:
        what = f"Python {machine.python.version} is outside {machine.python.wants}"
        yield Problem(what, _activate(machine) or "install Python 3.12 and run `make lab PYTHON=python3.12`")


def _faults(packages: tuple[Package, ...], machine: Machine) -> Iterator[Problem]:
    """What is wrong with these: those that are missing together, every other fault by itself."""
    if missing := tuple(one for one in packages if not one.version):
        names = ", ".join(one.name for one in missing)
        yield Problem(f"not installed: {names}", _install(missing, machine))
    for one in packages:
        if one.version and one.error:
            what = f"{one.name} {one.version} does not import: {one.error}"
            yield Problem(what, _install((one,), machine, "--force-reinstall --no-deps "))
        elif one.version and not one.in_range:
            what = f"{one.name} {one.version} is outside the workbook's range {one.wants}"
            yield Problem(what, _install((one,), machine))


def _install(packages: tuple[Package, ...], machine: Machine, flags: str = "") -> str:
    """The first thing that helps: use the .venv that waits, let make choose a torch, or pip for the rest."""
    if machine.venv_waits:
        return _activate(machine)
    if machine.in_clone and machine.environment != "Colab" and any(one.name == "torch" for one in packages):
        return _again(machine)
    return f"python -m pip install {flags}" + " ".join(f"'{one.name}{one.wants}'" for one in packages)


def _again(machine: Machine) -> str:
    """What installs torch anew, in the build that this machine can use."""
    return "rm -rf .venv; make lab" if machine.in_clone else "the install command of pytorch.org/get-started"


def _activate(machine: Machine) -> str:
    """How to enter the .venv that waits; "" where none does."""
    if not machine.venv_waits:
        return ""
    command = ".venv\\Scripts\\activate" if machine.system.startswith("Windows") else "source .venv/bin/activate"
    return f"{command}, then `workbook doctor` (this is {machine.environment}; the packages are in .venv)"


def _is_excused(one: Package, machine: Machine) -> bool:
    """Colab has a front end of its own, and needs neither JupyterLab nor what is optional anywhere."""
    optional = (*OPTIONAL, "jupyterlab") if machine.environment == "Colab" else OPTIONAL
    return not one.version and one.name in optional


def _sizes(needs: Needs, machine: Machine) -> Iterator[Problem]:
    need, total_bytes, free_bytes = gib(needs.memory_bytes), machine.memory_bytes, machine.memory_free_bytes
    if total_bytes is not None and total_bytes < needs.memory_bytes:
        share = "this container may use" if machine.memory_limited else "this machine has"
        do = "raise the container's limit" if machine.memory_limited else "use a larger machine, or Colab"
        yield Problem(f"{need} of memory needed, {share} {gib(total_bytes)}", do)
    elif free_bytes is not None and free_bytes < needs.memory_bytes:
        do = "close other programs, and kernels that still run (JupyterLab: Kernel, Shut Down All Kernels)"
        yield Problem(f"{need} of memory needed, {gib(free_bytes)} free", do)
    if machine.disk_free_bytes is not None and machine.disk_free_bytes < needs.disk_bytes:
        what = f"{gib(needs.disk_bytes)} of disk needed, {gib(machine.disk_free_bytes)} free"
        yield Problem(what, "free some space (`python -m pip cache purge` often helps)")


def _gpu(needs: Needs, machine: Machine) -> Iterator[Problem]:
    if needs.gpu == "required" and not usable_gpu(machine):
        yield Problem("a GPU that torch can use is needed", "run this on a machine with an NVIDIA GPU")


def _idle_gpu(machine: Machine) -> Iterator[Problem]:
    driver, torch = machine.driver, machine.torch
    if driver and driver.problem:
        do = "run `nvidia-smi`; if it fails there too, restart the machine or reinstall the driver"
        yield Problem(driver.problem, do)
    if torch is None:
        return
    if gpu := next((gpu for gpu in machine.gpus if not has_code_for(gpu, torch)), None):
        what = f"this torch has no code for the {gpu.name} (compute capability {gpu.capability})"
        yield Problem(what, f"{_again(machine)} chooses a build again; if it does not help, {NO_CUDA} stays on the CPU")
    if driver and driver.gpus and not machine.gpus:
        yield why_unused(machine, driver, torch)


def _full_gpu(needs: Needs, machine: Machine) -> Iterator[Problem]:
    """What a chapter takes of the CPU's memory at its peak is above what it takes of a GPU's."""
    if needs.gpu == "unused":
        return
    for gpu in machine.gpus[:1]:  # torch runs on the first
        if gpu.free_bytes is not None and gpu.free_bytes < needs.memory_bytes:
            holders = f", held by {', '.join(gpu.processes[:3])}" if gpu.processes else ""
            what = f"the {gpu.name} has {gib(gpu.free_bytes)} free{holders}"
            yield Problem(what, f"end what holds it (`nvidia-smi` lists it), or stay on the CPU: {NO_CUDA}")
