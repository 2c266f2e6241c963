"""What code in the sandbox can see and do, as facts that a test compares; run in a kernel like a learner's code."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from nbformat import v4

from helpers.grading.sandbox import levels, seccomp
from helpers.grading.sandbox.isolation import Limits
from helpers.grading.sandbox.worker import Worker
from tests.course.example_lab import code

ROOT = Path(__file__).resolve().parents[3]
SURVIVOR = "wb-survivor"  # names processes and files that must not outlive their notebook
SMALL = Limits(folder_bytes=8 << 20, file_bytes=4 << 20, processes=64)
SECRET = "WORKBOOK_TEST_SECRET"
# Where a notebook may leave files to itself, or must not to the next: ROOT is on Python's path.
PLACES = ["/tmp", "/dev/shm", ".", "/", "/dev", "/etc", "/run", "/run/kernel", "/run/workbook", "/usr", str(ROOT)]

FACTS = """
import ctypes, errno, json, os, resource, signal, socket, subprocess, sys
def tried(function):
    try:
        return function()
    except OSError as error:
        return errno.errorcode.get(error.errno, type(error).__name__)
def connected():
    with socket.create_connection(("127.0.0.1", PORT), timeout=2):
        return "connected"
def written(path):
    with open(path, "a"):
        return "written"
def filled(folder):
    # Bytes that fit, in files of a MiB; 300 MiB are enough to know.
    size, names = 0, []
    try:
        for number in range(300):
            with open(f"{folder}/fill-{number}", "wb", buffering=0) as file:
                names.append(file.name)
                for _ in range(16):
                    size += file.write(bytes(1 << 16))
    except OSError:
        pass
    for name in names:
        os.unlink(name)
    return size
def largest_file(path):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    size = 0
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(100):
                size += file.write(bytes(1 << 16))
    except OSError:
        pass
    os.unlink(path)
    return size
def forks():
    children = []
    try:
        for _ in range(200):
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    return len(children)
libc = ctypes.CDLL(None, use_errno=True)
def called(name, *arguments):
    # In a fork, because Linux gives no user namespace to a process with threads.
    child = os.fork()
    if child == 0:
        os._exit(0 if getattr(libc, name)(*arguments) == 0 else ctypes.get_errno())
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return "done" if number == 0 else errno.errorcode.get(number, number)
def numbered(number, *arguments):
    # A call by its number on this processor.
    tried = libc.syscall(number, *arguments)
    return "done" if tried >= 0 else errno.errorcode.get(ctypes.get_errno(), "?")
def thrown_out():
    # AF_VSOCK's stream is how a virtual machine calls its host.
    with socket.socket(40, socket.SOCK_STREAM):
        return "made"
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
facts = {
    "uid": [os.getuid(), os.geteuid(), os.getgid()],
    "become root": tried(lambda: os.setuid(0)),
    "capabilities": {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")},
    "new privileges": status["NoNewPrivs"].strip(),
    "seen": [path for path in HIDDEN if os.path.lexists(path)],
    "home": tried(lambda: os.listdir(HOME)),
    "root": sorted(os.listdir("/")),
    "environment": sorted(os.environ),
    "port": tried(connected),
    "name": tried(lambda: socket.getaddrinfo("example.com", 80) and "found"),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "first process": tried(lambda: open("/proc/1/environ").read()),
    "written": [path for path in KEPT if tried(lambda: written(path)) == "written"],
    "filled": {folder: filled(folder) for folder in ("/tmp", "/dev/shm")},
    "largest file": largest_file("/tmp/large"),
    "forks": forks(),
    "unshare user": called("unshare", 0x10000000),
    "unshare mount": called("unshare", 0x20000),
    "mount": called("mount", b"none", b"/tmp", b"tmpfs", 0, None),
    "vsock": tried(thrown_out),
    "families": [tried(lambda: socket.socket(f, socket.SOCK_DGRAM).close() or f) for f in (1, 2, 10, 3, 17, 38, 40)],
    "calls": {name: numbered(number, 0, 0, 0, 0, 0) for name, number in CALLS.items()},
    "seccomp": status["Seccomp"].strip(),
    "nice": os.nice(0),
    "processor time": resource.getrlimit(resource.RLIMIT_CPU),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
}
print(json.dumps(facts))
"""

LEAVES = f"""
import builtins, ctypes, os, random, sys, threading, time
import helpers.lesson
PLACES = {PLACES}
builtins.abs = lambda *_: 42
random.Random.random = lambda *_: 0.5
helpers.lesson.draw = None
os.environ["{SURVIVOR}"] = "1"
for folder in PLACES:
    try:
        open(folder + "/{SURVIVOR}", "w").close()
    except OSError:
        pass
threading.Thread(target=time.sleep, args=(1000,), name="{SURVIVOR}", daemon=True).start()
def daemon():
    # Twice forked, a session of its own, deaf to what it can be deaf to.
    import signal
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in range(1, 32):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except OSError:
                    pass
            os.setpgid(0, 0)
            ctypes.CDLL(None).prctl(15, b"{SURVIVOR}", 0, 0, 0)
            os.closerange(0, 1024)
            while True:
                time.sleep(1000)
        os._exit(0)
daemon()
time.sleep(0.3)
print(os.path.exists("/tmp/{SURVIVOR}"), abs(-1), helpers.lesson.draw, random.Random(1).random())
names = [open(f"/proc/{{name}}/comm").read().strip() for name in os.listdir("/proc") if name.isdigit()]
print("{SURVIVOR}" in names, threading.active_count() > 1)
"""

SEES = f"""
import json, os, random, threading
import helpers.lesson
found = []
for folder in filter(os.path.isdir, {PLACES}):
    found += [f"{{folder}}/{{name}}" for name in os.listdir(folder) if name == "{SURVIVOR}"]
found += [p for p in os.listdir("/proc") if p.isdigit() and open(f"/proc/{{p}}/comm").read().strip() == "{SURVIVOR}"]
found += [one.name for one in threading.enumerate() if one.name == "{SURVIVOR}"]
found += [name for name in os.environ if name == "{SURVIVOR}"]
print(json.dumps([found, abs(-1), callable(helpers.lesson.draw), random.Random(1).random() != 0.5]))
"""


def printed(worker: Worker, source: str) -> str:
    """What a notebook of one cell prints in the worker. AssertionError when it fails there."""
    result = worker.run(v4.new_notebook(cells=[code(source, "probe")]), wall_s=60)["probe"]
    assert result.passed, result.message
    return result.stdout


def facts(worker: Worker, secret: Path, port: int) -> dict:
    """FACTS in the worker; `secret` is a file and `port` a port of the grader's that no kernel may reach."""
    machine = [*seccomp.ARCHITECTURES].index(platform.machine()) if platform.machine() in seccomp.ARCHITECTURES else -1
    hidden = [str(secret), str(worker.folder), *(str(ROOT / name) for name in ("solutions", "labs", "tests", ".git"))]
    kept = [ROOT / "helpers", Path(os.__file__).parent, Path(json.__file__).parent, Path("/usr/bin")]
    kept += [Path("/"), Path("/etc"), Path("/dev"), Path("/run"), ROOT]
    names = {
        "HIDDEN": hidden,
        "HOME": str(Path.home()),
        "PORT": port,
        "CALLS": {name: numbers[machine] for name, numbers in seccomp.REFUSED.items()} if machine >= 0 else {},
        "KEPT": [f"{folder}/{SURVIVOR}" for folder in kept] + [str(ROOT / "helpers/__init__.py")],
    }
    return json.loads(printed(worker, "".join(f"{name} = {value!r}\n" for name, value in names.items()) + FACTS))


@contextlib.contextmanager
def grader() -> Iterator[tuple[Path, int]]:
    """A file and a port of the grader's, and a variable in its environment."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        secret = Path(folder) / "secret"
        secret.write_text("secret")
        os.environ[SECRET] = "secret"
        try:
            yield secret, server.getsockname()[1]
        finally:
            del os.environ[SECRET]


def worker_at(level: levels.SandboxLevel) -> Worker:
    """A worker at that level whose fork server has imported what a notebook will patch."""
    return Worker(level, ["helpers.lesson", "random"], limits=SMALL)


if __name__ == "__main__":  # as the user that runs this
    with grader() as (secret, port), worker_at(levels.best()) as worker:
        seen = {"facts": facts(worker, secret, port), "left": printed(worker, LEAVES)}
        print(json.dumps({"uid": os.getuid(), **seen, "found": json.loads(printed(worker, SEES))}))
