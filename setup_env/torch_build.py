"""Which build of torch this machine gets: CUDA for a GPU; for a laptop no gigabytes of CUDA, if avoidable."""

import platform
import re
import subprocess
import sys
from typing import List, NamedTuple, Optional

from .machine import GIB, Stop, diagnose, disk_is_full, last_line, require_space, run, say
from .pins import pins, read

OLDEST_TORCH = (2, 11)
CPU_BYTES, CUDA_BYTES = 3 * GIB, 8 * GIB
UV = "uv>=0.7.14,<1"  # the first with a stable --torch-backend; used once, not part of the environment


class Attempt(NamedTuple):
    """One way to get torch: commands that must all succeed, and the disk they need."""

    label: str
    commands: List[List[str]]
    need_bytes: int


def installed_torch(python: str) -> Optional[str]:
    """The version of torch in an environment ("2.13.0+cpu"), None where there is none."""
    code = "from importlib.metadata import version; print(version('torch'))"
    out = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return out.stdout.decode().strip() or None


def torch_will_do(version: Optional[str], pin: str, gpu: bool, system_torch: bool) -> bool:
    """Whether the torch at hand can stay.

    The pinned one without a GPU; with one, any supported build that is not CPU-only (2.11+cu126 stays,
    2.13.0+cpu goes), because the driver may rule out the pinned one.
    """
    if version is None:
        return False
    if system_torch or (gpu and not version.endswith("+cpu")):
        return OLDEST_TORCH <= tuple(map(int, re.findall(r"\d+", version)[:2])) < (3, 0)
    return version.split("+")[0] == pin and not gpu


def torch_attempts(python: str, pin: str, gpu: bool, system: str) -> List[Attempt]:
    """Ways to get torch, best first; each fails within seconds where it cannot work.

    No index is named here: pip knows the user's own configuration, uv knows where PyTorch keeps its builds.
    """
    pip = [python, "-m", "pip", "install"]
    uv = [python, "-m", "uv", "pip", "install", "--quiet", "--python", python]
    get_uv, exact, ranged = [*pip, UV], "torch==" + pin, "torch>={}.{},<3".format(*OLDEST_TORCH)
    plain = Attempt("the default build", [[*pip, exact]], CPU_BYTES if system != "Linux" else CUDA_BYTES)
    if system == "Darwin" or (system == "Windows" and not gpu):
        return [plain]
    if gpu:
        auto = "--torch-backend=auto"
        return [
            Attempt("the CUDA build for this driver, 3 GB", [get_uv, [*uv, auto, exact]], CUDA_BYTES),
            Attempt("an older CUDA build for this driver, 3 GB", [get_uv, [*uv, auto, ranged]], CUDA_BYTES),
            plain,
        ]
    return [
        Attempt("CPU build, 200 MB", [[*pip, exact + "+cpu"]], CPU_BYTES),
        Attempt("CPU build through uv, 200 MB", [get_uv, [*uv, "--torch-backend=cpu", exact]], CPU_BYTES),
        plain._replace(label="the default build: 3 GB, with CUDA that this machine does not use"),
    ]


def install_torch(python: str, gpu: bool) -> None:
    attempts = torch_attempts(python, pins(read("requirements.txt"))["torch"], gpu, platform.system())
    for number, attempt in enumerate(attempts, 1):
        require_space(attempt.need_bytes)
        say(f"2/3 torch ({attempt.label}) ...")
        for command in attempt.commands:
            code, output = run(command)
            if code:
                break
        else:
            return
        if disk_is_full(output):  # the next attempt needs no less
            break
        if number < len(attempts):
            say("    not available here: " + last_line(output))
    raise Stop("torch could not be installed:\n" + output.strip()[-1500:], diagnose(output))


def settle_torch(python: str, gpu: bool, system_torch: bool) -> str:
    """The version of the torch that this environment ends up with; installs one where none will do."""
    pin = pins(read("requirements.txt"))["torch"]
    version = installed_torch(python)
    if torch_will_do(version, pin, gpu, system_torch):
        say(f"2/3 torch {version} is there")
    elif system_torch:
        found = f"torch {version}" if version else "no torch"
        raise Stop(
            f"SYSTEM_TORCH=1, but {sys.executable} has {found}; 2.11 or later is needed.",
            "name a Python that has it (SYSTEM_TORCH=1 PYTHON=...), or `rm -rf .venv` and do without it.",
        )
    else:
        if version:  # else pip and uv find that 2.13.0+cpu satisfies ==2.13.0, and leave a GPU idle
            run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "torch"])
        install_torch(python, gpu)
    return installed_torch(python) or pin


def warn_without_cuda(python: str, torch: str) -> None:
    code, _ = run([python, "-c", "import torch; assert torch.cuda.is_available()"])
    if code:
        say(f"    warning: there is a GPU, but torch {torch} cannot use it: everything runs on the CPU.")
        say("    A newer NVIDIA driver usually helps; after that, `rm -rf .venv` and run make again.")
