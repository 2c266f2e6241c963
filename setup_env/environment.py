"""The environment in .venv, made in three steps and stamped with what it was made from."""

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import time

from . import machine
from .machine import GIB, ROOT, Stop, last_line, run, say
from .pins import read
from .torch_build import CPU_BYTES, CUDA_BYTES, settle_torch, warn_without_cuda

VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "workbook-stamp")
REFRESH_BYTES = GIB // 2
DEEPSPEED = "requirements-deepspeed.txt"


def venv_python() -> str:
    return os.path.join(VENV, *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))


def is_system_venv() -> bool:
    """Whether the .venv that is there lets the system's packages through."""
    config = os.path.join(VENV, "pyvenv.cfg")
    return os.path.exists(config) and "include-system-site-packages = true" in read(config)


def wants_system_torch() -> bool:
    """Asked for (make lab SYSTEM_TORCH=1), or how the existing .venv was made."""
    return os.environ.get("SYSTEM_TORCH", "") not in ("", "0") or is_system_venv()


def expected_stamp() -> str:
    """What .venv must have been made from. The folder counts: an environment does not survive a move."""
    facts = [read("requirements.txt"), read(DEEPSPEED), read("pyproject.toml"), read("setup.py"), ROOT]
    facts += [str(shutil.which("nvidia-smi") is not None), str(wants_system_torch())]
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()


def is_current() -> bool:
    return os.path.exists(STAMP) and os.path.exists(venv_python()) and read(STAMP) == expected_stamp()


def make_venv(system_torch: bool) -> None:
    """Create .venv unless a working one of the right kind is there."""
    works = machine.in_range(machine.version_of(venv_python()) or (0, 0))
    if works and is_system_venv() == system_torch:
        return
    flags = ["--system-site-packages"] if system_torch else []
    code, output = run([sys.executable, "-m", "venv", "--clear", *flags, VENV])
    if code and re.search(r"ensurepip|No module named venv", output):
        raise Stop(
            "This Python cannot create environments: its venv or ensurepip module is missing.",
            f"Debian, Ubuntu: apt install python3.{sys.version_info[1]}-venv, then run make again.",
        )
    if code:
        raise Stop("Creating .venv failed:\n" + output.strip(), machine.diagnose(output))


def install_rest(torch: str) -> None:
    """Every pin but torch, which stays as it is, and the workbook itself in place."""
    rest = re.sub(r"^torch==.*$", "torch==" + torch, read("requirements.txt"), flags=re.M)
    path = os.path.join(VENV, "requirements.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write(rest)
    install = [venv_python(), "-m", "pip", "install", "-r", path, "-e", ROOT]
    machine.require(install, "Installing the packages")


def install_deepspeed(python: str, system: str) -> None:
    """DeepSpeed, for chapter 09 alone, is built here: where that fails, say what is then missing; in CI stop."""
    if system != "Linux":
        say("    DeepSpeed is left out: it is at home on Linux. Chapter 09 does without, and says so.")
        return
    code, output = run([python, "-m", "pip", "install", "--quiet", "-r", os.path.join(ROOT, DEEPSPEED)])
    if not code:
        return
    if os.environ.get("CI", "") not in ("", "0", "false"):
        raise Stop("DeepSpeed could not be installed:\n" + output.strip()[-1500:], machine.diagnose(output))
    say("    warning: DeepSpeed could not be installed: " + last_line(output))
    say("    Chapter 09 leaves out what compares with it; everything else works. To try again:")
    say(f"    {python} -m pip install -r {DEEPSPEED}")


# Under .venv. No news and no update pop-up over the first page, which is shown as a page. ipyparallel is used from
# notebooks alone: its server extension is of an older kind, and JupyterLab warns of it at every start.
JUPYTER_SETTINGS = {
    "share/jupyter/lab/settings/overrides.json": {
        "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
        "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}},
    },
    "share/jupyter/lab/settings/page_config.json": {"disabledExtensions": {"ipyparallel-labextension": True}},
    "etc/jupyter/jupyter_server_config.json": {"ServerApp": {"jpserver_extensions": {"ipyparallel": False}}},
}


def quiet_jupyter() -> None:
    """JupyterLab without what a learner has no use for; a setting of the user's own wins."""
    for name, settings in JUPYTER_SETTINGS.items():
        path = os.path.join(VENV, *name.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(settings, file, indent=1)


def env() -> None:
    """Make .venv current. Leaves no stamp unless everything succeeded, so that the next run tries again."""
    if is_current():
        return
    start = time.time()
    gpu, system_torch = machine.has_gpu(), wants_system_torch()
    fresh_bytes = CUDA_BYTES if gpu else CPU_BYTES
    machine.require_space(REFRESH_BYTES if os.path.exists(venv_python()) else fresh_bytes)
    say("1/3 environment in .venv ({} GPU found) ...".format("NVIDIA" if gpu else "no NVIDIA"))
    make_venv(system_torch)
    if os.path.exists(STAMP):
        os.remove(STAMP)
    torch = settle_torch(venv_python(), gpu, system_torch)
    say("3/3 JupyterLab, Transformers and the other packages ...")
    install_rest(torch)
    install_deepspeed(venv_python(), platform.system())
    quiet_jupyter()
    if gpu:
        warn_without_cuda(venv_python(), torch)
    with open(STAMP, "w", encoding="utf-8") as file:
        file.write(expected_stamp())
    say(f"    ready in {time.time() - start:.0f} s")
