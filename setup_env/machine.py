"""What this machine is and has: Python, disk, GPU; and running commands on it."""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from typing import List, Optional, Tuple

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OLDEST, TOO_NEW = (3, 11), (3, 15)
GIB = 2**30
BEAT_S = 15  # seconds between two lines of progress; on a terminal one line is rewritten every second


class Stop(Exception):  # noqa: N818 - a planned end, not an error of the program
    """Ends the setup with what is wrong and what to do; never a traceback."""

    def __init__(self, what: str, do: str) -> None:
        super().__init__(what + "\n  do: " + do)


def in_range(version: Tuple[int, ...]) -> bool:
    return OLDEST <= tuple(version[:2]) < TOO_NEW


def version_of(python: str) -> Optional[Tuple[int, int]]:
    """(major, minor) of an interpreter, None where it does not run (pyenv leaves such shims)."""
    code = "import sys; print(*sys.version_info[:2])"
    try:
        out = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        major, minor = out.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError):
        return None


def another_python() -> Optional[str]:
    """The newest supported interpreter on PATH under its versioned name."""
    for minor in range(TOO_NEW[1] - 1, OLDEST[1] - 1, -1):
        name = f"python3.{minor}"
        if shutil.which(name) and version_of(name) == (3, minor):
            return name
    return None


def require_python() -> None:
    """Return under a supported Python; hand over to one that PATH has; else stop."""
    if in_range(sys.version_info):
        return
    other = None if os.environ.get("WORKBOOK_PYTHON_CHOSEN") else another_python()
    if other:
        sys.exit(subprocess.call([other, "-m", "setup_env", *sys.argv[1:]], cwd=ROOT))
    version = ".".join(map(str, sys.version_info[:3]))
    raise Stop(
        f"{sys.executable} is Python {version}; the workbook needs 3.11, 3.12, 3.13 or 3.14.",
        "install one (Debian, Ubuntu: apt install python3.12 python3.12-venv; macOS: brew install "
        "python@3.12),\n      then run make again; make lab PYTHON=/path/to/python3.12 chooses one.",
    )


def require_space(need_bytes: int) -> None:
    free_bytes = shutil.disk_usage(ROOT).free
    if free_bytes < need_bytes:
        raise Stop(
            f"Not enough disk: {free_bytes / GIB:.1f} GiB free in {ROOT}, {need_bytes / GIB:.1f} needed.",
            "free some space (`pip cache purge` often helps), or clone the repository on a larger disk.",
        )


def has_gpu() -> bool:
    """True where nvidia-smi lists a GPU; a driver that is installed but broken counts as none."""
    try:
        out = subprocess.run(["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return out.returncode == 0 and b"GPU" in out.stdout


class Progress(threading.Thread):
    """Says every few seconds what a long command is at; on a terminal in one line, which is gone at the end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.doing, self.count, self.ended = "", 0, threading.Event()

    def read(self, line: str) -> None:
        """One line of pip's: the package that it looks at, or that it has begun to install all of them."""
        found = re.match(r"Collecting ([A-Za-z0-9_.-]+)", line)
        if found:
            self.count += 1
            self.doing = "package {}, {}".format(self.count, re.split("[=<>!~]", found.group(1))[0])
        elif line.startswith("Installing collected packages"):
            self.doing = "writing {} packages to disk".format(line.count(",") + 1)

    def run(self) -> None:
        start, live = time.time(), sys.stdout.isatty()
        while not self.ended.wait(1 if live else BEAT_S):
            told = "    {:.0f} s  {}".format(time.time() - start, self.doing or "working")
            print("\r" + told[:78].ljust(78) if live else told, end="" if live else "\n", flush=True)
        if live:
            print("\r" + " " * 78 + "\r", end="", flush=True)

    def end(self) -> None:
        self.ended.set()
        self.join()


def run(command: List[str]) -> Tuple[int, str]:
    """Exit code and everything printed. uv gives up on an unreachable index in seconds, not minutes."""
    env = dict(os.environ, PIP_DISABLE_PIP_VERSION_CHECK="1", UV_HTTP_RETRIES="1", UV_HTTP_TIMEOUT="30")
    progress, printed = Progress(), []
    progress.start()
    try:
        with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
            for line in running.stdout or ():
                printed.append(line.decode("utf-8", "replace"))
                progress.read(printed[-1])
    finally:
        progress.end()
    return running.returncode, "".join(printed)


def disk_is_full(output: str) -> bool:
    return bool(re.search(r"No space left on device|Errno 28|os error 28", output))


def diagnose(output: str) -> str:
    """What to do about a failed command, from what it printed."""
    if disk_is_full(output):
        return "the disk (or the temporary folder: set TMPDIR) is full; free some space, then run make again."
    if re.search(r"Temporary failure in name|Failed to establish|Connect(ion|Timeout|Error)|ProxyError", output):
        return "the package index cannot be reached; check the network or pip's configuration, then make again."
    return "read the lines above; if they do not help, `rm -rf .venv` and run make again."


def require(command: List[str], what: str) -> None:
    code, output = run(command)
    if code:
        tail = "\n".join("    " + line for line in output.strip().splitlines()[-12:])
        raise Stop(f"{what} failed:\n{tail}", diagnose(output))


def last_line(output: str) -> str:
    return (output.strip().splitlines() or ["no reason given"])[-1].strip()[:160]


def say(text: str) -> None:
    print(text, flush=True)
