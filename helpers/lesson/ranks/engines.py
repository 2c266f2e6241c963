"""Starting and stopping processes: ipyparallel's controller, its engines, a client to them, and the reaper."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import subprocess
import sys
import tempfile
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from ...catalog.errors import WorkbookError, require_package
from . import forked, reaper

START_S = 120
PREFIX = "workbook-ranks-"
CONTROLLER = [
    "--IPController.use_threads=True",
    "--nodb",  # few processes, and no copy of the results
    "--HeartMonitor.period=200",
    "--HeartMonitor.max_heartmonitor_misses=1000",  # an engine registers after two heartbeats
]
PORTS_NEEDED = 20  # the controller takes 18
ENGINE = ["--IPEngine.enable_nanny=False", "--IPEngine.timeout=60"]  # the driver itself watches the engines
QUIET = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "1000"}  # before torch is loaded: see Group._prepare


class Engines:
    """Engines and a client to them, once launched. `close()` leaves no process and no file; it may be called twice.

    `processes` are the local engines by process id; with a profile it is empty, as they may be on any machine.
    """

    def __init__(self, profile: str | None) -> None:
        self._ipp, self.profile = _ipyparallel(), profile
        self.folder, self.mark = _folder(profile), uuid.uuid4().hex
        self.processes: dict[int, psutil.Process] = {}
        self._undo = contextlib.ExitStack()
        self.close = weakref.finalize(self, close_if_owner, self._undo, os.getpid())  # also at exit, and when collected
        started = start_reaper(self.mark, self.folder)
        sys.audit(reaper.STARTED, started.pid)
        self._undo.callback(stop_reaper, started)
        self._undo.callback(reaper.reap, self.mark, self.folder)

    def launch(self, count: int) -> None:
        """Start them and connect. An interrupt takes effect once all have started, so that `close` finds them all."""
        with ThreadPoolExecutor(1) as starter:
            cluster = starter.submit(self._start, count).result()
        self.client = cluster.connect_client_sync()
        self._undo.callback(self.client.close)
        self.client.wait_for_engines(count, timeout=START_S, interactive=False)
        if self.profile is None:
            self.processes = {pid: psutil.Process(pid) for pid in self.client[:].apply_sync(os.getpid)}

    def _start(self, count: int) -> Any:
        cluster, marked = _cluster(self._ipp, self.folder, self.profile), {"environment": {reaper.MARK: self.mark}}
        if self.profile is not None:
            self._undo.callback(cluster.stop_cluster_sync)  # its engines may be on other machines
            cluster.start_controller_sync(**marked)
            cluster.start_engines_sync(count, **marked)
        else:
            ports = free_ports(PORTS_NEEDED)
            arguments = [*CONTROLLER, f"--IPController.ports={ports[0]}-{ports[-1]}"]
            cluster.start_controller_sync(controller_args=arguments, **marked)
            marked["environment"] |= QUIET
            cluster.start_engines_sync(count, engine_args=ENGINE, **marked)
            sys.audit(reaper.STARTED, cluster.controller.pid, *(one.pid for one in cluster.engines.values()))
        return cluster

    def last_log_line(self) -> str:
        """For a start that failed: what the processes wrote last."""
        logs = sorted(Path(self.folder).glob("log/*.log"))
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines() if line]
        return f"the last line of their logs was: {lines[-1]}" if lines else "their logs are empty"


def free_ports(count: int) -> range:
    """Free ports in a row, below those that a system gives to whoever asks for any (from 32768 on Linux).

    The controller binds its ports seconds after it chose them. One that another process was given meanwhile leaves
    engines without a heartbeat, which nobody tells them: they wait until the start is given up.
    """
    for _ in range(100):  # after these any will do: the controller says what is wrong
        start = random.SystemRandom().randrange(10_000, 32_768 - count)
        ports = range(start, start + count)
        if all(map(_is_free, ports)):
            break
    return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _ipyparallel() -> ModuleType:
    do = "pip install ipyparallel cloudpickle"
    require_package("cloudpickle", "a function that travels to ranks", do)
    return require_package("ipyparallel", "a group of ranks", do)


def _folder(profile: str | None) -> str:
    """A new folder: on this machine, or inside the profile's, which engines on other machines usually share."""
    if profile is None:
        return tempfile.mkdtemp(prefix=PREFIX)
    from IPython.core.profiledir import ProfileDir, ProfileDirError
    from IPython.paths import get_ipython_dir

    home = get_ipython_dir()
    try:
        place = ProfileDir.find_profile_dir_by_name(home, profile).location
    except ProfileDirError:
        do = f"ipython profile create --parallel --profile={profile}"
        raise WorkbookError(f"there is no IPython profile {profile!r}", f"a folder of it in {home}", do) from None
    return tempfile.mkdtemp(prefix=PREFIX, dir=place)


def _cluster(ipp: ModuleType, folder: str, profile: str | None) -> Any:
    """Not started yet. Without a profile nothing of the user's configuration is read or written."""
    log = logging.getLogger("workbook.ranks")
    log.handlers, log.propagate = [logging.NullHandler()], False
    quiet = {"parent": None, "log": log, "shutdown_atexit": False, "delay": 0}
    if profile is not None:
        return ipp.Cluster(profile_dir=str(Path(folder).parent), **quiet)
    engines = _forking(folder) if sys.platform == "linux" else "local"
    return ipp.Cluster(profile_dir=folder, cluster_file="", load_profile=False, engines=engines, **quiet)


def _forking(folder: str) -> type:
    """ipyparallel's launcher of all engines by one command, which is mpiexec to it, and `forked` here."""
    from ipyparallel.cluster.launcher import MPIEngineSetLauncher

    class ForkingEngineSetLauncher(MPIEngineSetLauncher):
        def find_args(self) -> list[str]:
            return [sys.executable, "-P", forked.__file__, str(self.n), folder, *self.program_args]

    return ForkingEngineSetLauncher


def start_reaper(mark: str, folder: str) -> subprocess.Popen:
    """In a session of its own, so that Ctrl-C does not reach it, and unmarked, so that no reaper ends it."""
    environment = {name: value for name, value in os.environ.items() if name != reaper.MARK}
    command = [sys.executable, "-P", reaper.__file__, str(os.getpid()), mark, folder]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, stdin=pipe, stdout=null, stderr=null, env=environment, start_new_session=True)


def stop_reaper(process: subprocess.Popen) -> None:
    """Close the pipe that it reads, and wait until it has ended everything."""
    process.communicate()


def close_if_owner(undo: contextlib.ExitStack, owner: int) -> None:
    """Undo what was started, last first, whatever fails on the way. A forked child owns nothing."""
    if os.getpid() == owner:
        with contextlib.suppress(Exception):
            undo.close()
