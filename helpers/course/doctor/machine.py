"""This machine as plain data: gathered by small functions that never raise, each of which a test can replace."""

from __future__ import annotations

import ipaddress
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from helpers.course.doctor import limits, nvidia_smi
from helpers.course.doctor.nvidia_smi import Driver, Gpu
from helpers.course.doctor.packages import Package, Probes, Torch, python_itself
from helpers.course.doctor.place import Place, around

JUPYTER_PORT = 8888


@dataclass(frozen=True)
class Machine:
    """What the doctor knows; None or "" is what nobody could tell.

    `cores` and the memory are this process's share where a container limits it. `environment` is in words,
    `venv_waits` says that the clone has a .venv which this Python is not. `gpus` are those that torch can use,
    `driver` is NVIDIA's. `port_holder` is who listens where JupyterLab would; `tunnel` the line that a remote
    reader types on their own computer. `place` is what a rented machine has otherwise than a laptop.
    """

    system: str
    python: Package
    environment: str
    venv_waits: bool
    cpu: str
    cores: int
    memory_bytes: int | None
    memory_free_bytes: int | None
    memory_limited: bool
    disk_free_bytes: int | None
    packages: tuple[Package, ...]
    torch: Torch | None
    gpus: tuple[Gpu, ...]
    driver: Driver | None
    visible_devices: str | None
    port_holder: str
    tunnel: str
    place: Place = field(default_factory=Place)

    def package(self, name: str) -> Package:
        """The package by name, as not installed when nobody looked for it."""
        return next((one for one in self.packages if one.name == name), Package(name))


def gather(root: Path, names: Iterable[str]) -> Machine:
    """This machine, with the packages called `names` imported in processes of their own. About three seconds."""
    probes = Probes(root, names)  # they run while the rest is asked
    driver = nvidia_smi.ask()
    memory = limits.memory()
    environment, venv_waits = environment_of(root, os.environ, sys.prefix)
    packages, torch = probes.answers()
    return Machine(
        system=system_name(),
        python=python_itself(root),
        environment=environment,
        venv_waits=venv_waits,
        cpu=cpu_name(),
        cores=limits.cores(),
        memory_bytes=memory.total_bytes,
        memory_free_bytes=memory.free_bytes,
        memory_limited=memory.limited,
        disk_free_bytes=disk_free(root),
        packages=packages,
        torch=torch,
        gpus=as_the_driver_has_them(torch.gpus if torch else (), driver),
        driver=driver,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        port_holder=listener(JUPYTER_PORT),
        tunnel=tunnel(os.environ, JUPYTER_PORT),
        place=around(root, os.environ, memory.machine_bytes),
    )


def as_the_driver_has_them(gpus: tuple[Gpu, ...], driver: Driver | None) -> tuple[Gpu, ...]:
    """torch's GPUs with the processes and settings that the driver tells; the two may count in another order."""
    known = driver.gpus if driver else ()
    by_uuid = {one.uuid.removeprefix("GPU-"): one for one in known if one.uuid}
    return tuple(_joined(gpu, by_uuid.get(gpu.uuid.removeprefix("GPU-")), known) for gpu in gpus)


def _joined(gpu: Gpu, twin: Gpu | None, known: tuple[Gpu, ...]) -> Gpu:
    """A slice has a name and a number of its own (`NVIDIA A100 MIG 1g.5gb`), and the settings of its card."""
    if twin is not None:
        return replace(gpu, processes=twin.processes, card=twin.card)
    whole, mark, _ = gpu.name.partition(" MIG ")
    divided = (one for one in known if mark and one.card.mig and one.name == whole)
    twin = next(divided, None)
    return gpu if twin is None else replace(gpu, card=twin.card)  # its processes may be another slice's


def system_name() -> str:
    """`Linux x86_64 (Debian GNU/Linux 12)`."""
    if platform.system() == "Darwin":
        return f"macOS {platform.mac_ver()[0]} {platform.machine()}"
    try:
        detail = platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError, AttributeError):
        detail = platform.release()
    return f"{platform.system()} {platform.machine()} ({detail})"


def cpu_name() -> str:
    """The processor as the system calls it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(named), "") or platform.processor() or platform.machine()


def disk_free(root: Path) -> int | None:
    try:
        return shutil.disk_usage(root).free
    except OSError:
        return None


def environment_of(root: Path, environ: Mapping[str, str], prefix: str) -> tuple[str, bool]:
    """Which environment this Python belongs to, in words; and whether the clone's own .venv is there, unused."""
    venv = root / ".venv"
    if _same(Path(prefix), venv):
        return "the workbook's .venv", False
    waits = (venv / "pyvenv.cfg").is_file()
    if "COLAB_RELEASE_TAG" in environ:
        return "Colab", waits
    if _same(Path(prefix), Path(environ.get("CONDA_PREFIX", os.devnull))):
        return f"conda environment {environ.get('CONDA_DEFAULT_ENV', '')}".strip(), waits
    is_venv = prefix != sys.base_prefix
    return (f"the environment in {prefix}" if is_venv else "the system's own Python, in no environment"), waits


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def listener(port: int) -> str:
    """Who listens on `port` of this machine: "" for nobody, else the program as far as the system tells."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.3):
            pass
    except OSError:
        return ""
    try:
        import psutil

        pids = [c.pid for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.laddr[1] == port]
        process = psutil.Process(next(pid for pid in pids if pid))
        jupyter = any("jupyter" in word for word in process.cmdline())
        return f"{'Jupyter' if jupyter else process.name()} (process {process.pid})"
    except Exception:  # no psutil, or a process of somebody else's
        return "another program"


def tunnel(environ: Mapping[str, str], port: int) -> str:
    """The ssh line for a reader who is logged in from elsewhere, "" otherwise.

    The address is the one that the login reached, unless it is private: behind a container or a router, the
    outside knows this machine by another, which nothing here can tell.
    """
    if not (connection := environ.get("SSH_CONNECTION", "")):
        return ""
    user = environ.get("USER") or environ.get("LOGNAME")
    forward = f"ssh -L {port}:localhost:{port}"
    words = connection.split()
    try:
        public = ipaddress.ip_address(words[2]).is_global
    except (ValueError, IndexError):
        public = False
    if not (public and user):
        return f"{forward} {user or 'user'}@machine"
    other_port = f" -p {words[3]}" if len(words) > 3 and words[3] not in ("22", "") else ""
    return f"{forward}{other_port} {user}@{words[2]}"
