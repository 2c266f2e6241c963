"""What stands in the way: a Machine and what chapters need, to problems. Pure functions; nothing is asked here."""

from __future__ import annotations

import re
from collections.abc import Iterator

from helpers.course.doctor.lost_gpu import why_unused
from helpers.course.doctor.machine import Machine
from helpers.course.doctor.needs import Needs
from helpers.course.doctor.nvidia_smi import Gpu
from helpers.course.doctor.packages import Package, Torch
from helpers.course.doctor.problem import AGAIN, NO_CUDA, Problem, gib

OPTIONAL = ("bitsandbytes",)  # missing is no fault until a chapter needs it


def unmet(needs: Needs, machine: Machine) -> tuple[Problem, ...]:
    """Why this machine cannot run what has these `needs`, worst first; empty when it can."""
    return (*_python(machine), *_packages(needs, machine), *_sizes(needs, machine), *_gpu(needs, machine))


def troubles(needs: Needs, machine: Machine) -> tuple[Problem, ...]:
    """What stops no chapter, yet costs something: a GPU left idle or full, an odd package, too many threads."""
    others = (one for one in machine.packages if one.name not in needs.packages and not _is_excused(one, machine))
    packages = _faults(tuple(others), machine)
    return (*_idle_gpu(machine), *_full_gpu(needs, machine), *packages, *_threads(machine))


def usable_gpu(machine: Machine) -> bool:
    """Whether torch can run code on a GPU here."""
    return machine.torch is not None and any(has_code_for(gpu, machine.torch) for gpu in machine.gpus)


def has_code_for(gpu: Gpu, torch: Torch) -> bool:
    """Whether this torch holds code for the GPU: a build for sm_80 runs on 8.0 to 8.9, compute_90 on 9.0 and later.

    >>> has_code_for(Gpu("V100", capability="7.0"), Torch(architectures=("sm_75", "sm_80")))
    False
    """
    match = re.fullmatch(r"(\d+)\.(\d+)", gpu.capability)
    built = [re.fullmatch(r"(sm|compute)_(\d+)(\d)[a-z]?", name) for name in torch.architectures]
    if match is None or torch.hip_build or not any(built):
        return True  # nothing to compare: torch says that it can
    major, minor = int(match[1]), int(match[2])
    for kind, *digits in (found.groups() for found in built if found):
        of_major, of_minor = map(int, digits)
        if (of_major == major and of_minor <= minor) or (kind == "compute" and (of_major, of_minor) <= (major, minor)):
            return True
    return False


def _python(machine: Machine) -> Iterator[Problem]:
    if not machine.python.in_range:
        what = f"Python {machine.python.version} is outside {machine.python.wants}"
        yield Problem(what, _activate(machine) or "install Python 3.12 and run `make lab PYTHON=python3.12`")


def _packages(needs: Needs, machine: Machine) -> Iterator[Problem]:
    yield from _faults(tuple(machine.package(name) for name in needs.packages), machine)


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
    if machine.environment != "Colab" and any(one.name == "torch" for one in packages):
        return AGAIN
    return f"python -m pip install {flags}" + " ".join(f"'{one.name}{one.wants}'" for one in packages)


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
    """A GPU is there and stays unused: why, as precisely as can be told."""
    driver, torch = machine.driver, machine.torch
    if driver and driver.problem:
        do = "run `nvidia-smi`; if it fails there too, restart the machine or reinstall the driver"
        yield Problem(driver.problem, do)
    if torch is None:
        return
    unsupported = [gpu for gpu in machine.gpus if not has_code_for(gpu, torch)]
    for gpu in unsupported[:1]:
        what = f"this torch has no code for the {gpu.name} (compute capability {gpu.capability})"
        yield Problem(what, f"{AGAIN} chooses a build again; if it does not help, {NO_CUDA} stays on the CPU")
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


def _threads(machine: Machine) -> Iterator[Problem]:
    if machine.torch and machine.torch.threads > machine.cores:
        what = f"torch starts {machine.torch.threads} threads on {machine.cores} cores: they wait for each other"
        yield Problem(what, f"export OMP_NUM_THREADS={machine.cores}")
