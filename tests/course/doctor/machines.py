"""Machines that nobody here has, and what the doctor must say of each: FAULTS, and FINE ones without any."""

from __future__ import annotations

from dataclasses import replace

from helpers.course.doctor.machine import Machine, with_processes
from helpers.course.doctor.needs import ChapterNeeds, Needs
from helpers.course.doctor.nvidia_smi import ListedGpu, NvidiaDriver
from helpers.course.doctor.packages import Package, Torch

GIB = 2**30
H100 = ListedGpu("NVIDIA H100 80GB HBM3", 81121 * 2**20, 70 * GIB, "9.0", "GPU-1", ("python (process 4711), 9.1 GiB",))
DRIVER = NvidiaDriver("550.54", "12.4", (replace(H100, capability=""),))
CUDA = Torch(cuda_build="12.4", threads=8, gpus=(H100,), architectures=("sm_80", "sm_90"))
CPU_BUILD = Torch(threads=2, why_not="AssertionError: Torch not compiled with CUDA enabled")
PACKAGES = tuple(
    Package(name, "2.13.0", ">=2.11,<3") for name in ("torch", "transformers", "jupyterlab", "bitsandbytes")
)
GOOD = Machine(
    system="Linux x86_64 (Debian)",
    python=Package("Python", "3.12.4", ">=3.11,<3.14"),
    environment="the workbook's .venv",
    venv_waits=False,
    in_clone=True,
    cpu="EPYC",
    cores=8,
    memory_bytes=64 * GIB,
    memory_free_bytes=60 * GIB,
    memory_limited=False,
    disk_free_bytes=50 * GIB,
    packages=PACKAGES,
    torch=CUDA,
    gpus=(H100,),
    driver=DRIVER,
    visible_devices=None,
)
LAPTOP = replace(GOOD, torch=CPU_BUILD, gpus=(), driver=None)
CHAPTERS = (
    ChapterNeeds("00", "Start here", False, Needs(GIB // 2, 0, "unused", ("torch",))),
    ChapterNeeds("02", "Training", True, Needs(4 * GIB, 2 * GIB, "optional", ("torch", "transformers"))),
)


def packages(**changes: Package) -> tuple[Package, ...]:
    return tuple(changes.get(one.name, one) for one in PACKAGES)


def beside_a_gpu(**torch: object) -> Machine:
    return replace(GOOD, gpus=(), torch=Torch(threads=8, **torch))


def lost(why_not: str = "", cuda: str = "13.0", **gpu: object) -> Machine:
    """An H100 that the driver lists and torch, built for CUDA 13.0, cannot use."""
    driver = replace(DRIVER, cuda=cuda, gpus=(replace(H100, **gpu),))
    return replace(GOOD, gpus=(), driver=driver, torch=Torch(threads=8, cuda_build="13.0", why_not=why_not))


DIVIDED = NvidiaDriver("580.1", "13.0", (replace(H100, mig=True, slices=2),))
SLICE = ListedGpu("NVIDIA H100 80GB HBM3 MIG 1g.10gb", int(9.75 * GIB), 9 * GIB, "9.0", "some-slice")
MIG_SLICE = replace(GOOD, gpus=with_processes((SLICE,), DIVIDED), driver=DIVIDED)
GONE = Package("torch")
AGAIN = "rm -rf .venv; make lab"
# machine, what is said first, what to do, the chapters that cannot run
FAULTS = {
    "python outside the range": (
        replace(LAPTOP, python=Package("Python", "3.14.0", ">=3.11,<3.14", in_range=False)),
        "Python 3.14.0 is outside >=3.11,<3.14",
        "make lab PYTHON=python3.12",
        ["00", "02"],
    ),
    "python outside the range, with the right one in .venv": (
        replace(LAPTOP, venv_waits=True, python=Package("Python", "3.14.0", ">=3.11,<3.14", in_range=False)),
        "Python 3.14.0 is outside",
        "source .venv/bin/activate",
        ["00", "02"],
    ),
    "no torch": (
        replace(LAPTOP, torch=None, packages=packages(torch=GONE)),
        "not installed: torch",
        AGAIN,
        ["00", "02"],
    ),
    "no torch on Colab": (
        replace(LAPTOP, torch=None, environment="Colab", packages=packages(torch=replace(GONE, wants=">=2.11,<3"))),
        "not installed: torch",
        "pip install 'torch>=2.11,<3'",
        ["00", "02"],
    ),
    "a .venv that nobody activated": (
        replace(LAPTOP, torch=None, environment="conda", venv_waits=True, packages=packages(torch=GONE)),
        "not installed: torch",
        "source .venv/bin/activate",
        ["00", "02"],
    ),
    "torch breaks": (
        replace(LAPTOP, torch=None, packages=packages(torch=replace(PACKAGES[0], error="OSError: libcudart.so"))),
        "torch 2.13.0 does not import: OSError: libcudart.so",
        AGAIN,
        ["00", "02"],
    ),
    "transformers too old": (
        replace(LAPTOP, packages=packages(transformers=Package("transformers", "4.57.0", ">=5.15,<6", in_range=False))),
        "transformers 4.57.0 is outside the workbook's range >=5.15,<6",
        "pip install 'transformers>=5.15,<6'",
        ["02"],
    ),
    "2 GiB of memory": (
        replace(LAPTOP, memory_bytes=2 * GIB, memory_free_bytes=GIB),
        "4 GiB of memory needed, this machine has 2 GiB",
        "larger machine",
        ["02"],
    ),
    "a container of 2 GiB": (
        replace(LAPTOP, memory_bytes=2 * GIB, memory_free_bytes=GIB, memory_limited=True),
        "this container may use 2 GiB",
        "raise the container's limit",
        ["02"],
    ),
    "memory taken": (replace(LAPTOP, memory_free_bytes=3 * GIB), "3 GiB free", "Shut Down All Kernels", ["02"]),
    "full disk": (replace(LAPTOP, disk_free_bytes=GIB), "2 GiB of disk needed, 1 GiB free", "cache purge", ["02"]),
    "CPU build beside a GPU": (beside_a_gpu(), "use the NVIDIA H100 80GB HBM3: this torch is the CPU build", AGAIN, []),
    "driver too old": (
        beside_a_gpu(cuda_build="13.0", why_not="RuntimeError: driver too old"),
        "driver 550.54 supports CUDA 12.4, this torch needs 13.0",
        "rm -rf .venv; make lab chooses a build for this driver",
        [],
    ),
    "a driver of CUDA 11": (lost(cuda="11.4"), "supports CUDA 11.4", "update to a driver for CUDA 12.0 or later", []),
    "MIG without a slice": (lost(mig=True), "no slice of it has been made", "nvidia-smi -mig 0", []),
    "slices, and none for this container": (
        lost("RuntimeError: No CUDA GPUs are available", mig=True, slices=2),
        "No CUDA GPUs are available",
        "docker run --gpus all",
        [],
    ),
    "prohibited": (lost(compute_mode="Prohibited"), "compute mode is Prohibited", "nvidia-smi -c 0", []),
    "no fabric manager": (
        lost("RuntimeError: cudaGetDeviceCount() Error 802: system not yet initialized"),
        "Error 802",
        "nvidia-fabricmanager",
        [],
    ),
    "no fabric manager, and a driver a little older than torch": (
        lost("RuntimeError: Error 802: system not yet initialized", cuda="12.2"),
        "Error 802",
        "nvidia-fabricmanager",
        [],
    ),
    "no unified memory": (lost("RuntimeError: CUDA unknown error - this"), "unknown error", "modprobe nvidia-uvm", []),
    "held in exclusive mode": (
        lost("AcceleratorError: CUDA-capable device(s) is/are busy or unavailable"),
        "busy or unavailable",
        "shut down what computes on it",
        [],
    ),
    "CPU build beside a GPU, and no clone": (
        replace(beside_a_gpu(), in_clone=False),
        "this torch is the CPU build",
        "pytorch.org/get-started",
        [],
    ),
    "hidden GPU": (
        replace(beside_a_gpu(cuda_build="12.4"), visible_devices=""),
        "CUDA_VISIBLE_DEVICES='' hides it",
        "unset CUDA_VISIBLE_DEVICES",
        [],
    ),
    "no access to the GPU": (
        beside_a_gpu(cuda_build="12.4", why_not="RuntimeError: no permission"),
        "torch cannot use the NVIDIA H100 80GB HBM3: RuntimeError: no permission",
        "--gpus all",
        [],
    ),
    "a GPU that torch has no code for": (
        replace(GOOD, gpus=(ListedGpu("Tesla V100", 16 * GIB, 15 * GIB, "7.0"),)),
        "no code for the Tesla V100 (compute capability 7.0)",
        AGAIN,
        [],
    ),
    "GPU memory taken": (
        replace(GOOD, gpus=(replace(H100, free_bytes=GIB),)),
        "has 1 GiB free, held by python (process 4711), 9.1 GiB",
        "nvidia-smi",
        [],
    ),
    "nvidia-smi hangs": (
        replace(LAPTOP, driver=NvidiaDriver(problem="nvidia-smi did not answer within 10 s")),
        "did not answer",
        "restart the machine",
        [],
    ),
    "bitsandbytes breaks": (
        replace(LAPTOP, packages=packages(bitsandbytes=replace(PACKAGES[3], error="ImportError: triton"))),
        "bitsandbytes 2.13.0 does not import: ImportError: triton",
        "--force-reinstall --no-deps 'bitsandbytes",
        [],
    ),
    "no JupyterLab": (
        replace(LAPTOP, packages=packages(jupyterlab=Package("jupyterlab"))),
        "not installed: jupyterlab",
        "pip install 'jupyterlab'",
        [],
    ),
}
FINE = {
    "a laptop": LAPTOP,
    "an H100": GOOD,
    "no bitsandbytes": replace(LAPTOP, packages=packages(bitsandbytes=Package("bitsandbytes"))),
    "no JupyterLab on Colab": replace(LAPTOP, environment="Colab", packages=packages(jupyterlab=Package("jupyterlab"))),
    "an older CUDA 12 driver that torch accepts": replace(GOOD, driver=replace(DRIVER, cuda="12.0")),
    "nothing can be told": replace(LAPTOP, memory_bytes=None, memory_free_bytes=None, disk_free_bytes=None),
    "AMD": replace(LAPTOP, torch=Torch(hip_build="6.4", threads=8, gpus=(H100,)), gpus=(H100,)),
    "a MIG slice beside other people's": MIG_SLICE,
    "no clone, and no JupyterLab": replace(LAPTOP, in_clone=False),
}
