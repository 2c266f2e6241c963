"""How well learners' code can be shut in on this machine: tried, not guessed.

bubblewrap   a private file system, no network, processes of its own; each kernel a fork of the warm nursery
cold         bubblewrap too, but Linux lets no fork have namespaces of its own: a fresh nursery for each kernel
unshare      the same walls as bubblewrap, built by our own mounts
limits       resource limits alone: learners' code can read and write what you can; only where they are trusted
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from helpers.catalog.errors import WorkbookError
from helpers.course.sandbox import linux, view
from helpers.course.sandbox.isolation import Limits, run_isolated

NOBODY = 61184  # the first of the users without a name that Linux distributions leave to sandboxes


@dataclass(frozen=True)
class Level:
    """One level by name, and why none above it works here."""

    name: str
    why: str = ""

    @property
    def warm(self) -> bool:
        """True when one nursery serves many kernels."""
        return self.name != "cold"

    @property
    def spaces(self) -> bool:
        """True when each kernel gets namespaces of its own."""
        return self.name in ("bubblewrap", "unshare")

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


def best(trust_learners: bool = False, candidates: tuple[str, ...] = ("bubblewrap", "cold", "unshare")) -> Level:
    """The strongest level that works here. WorkbookError when that is none and the learners are not trusted.

    >>> best().name                                             # doctest: +SKIP
    'bubblewrap'
    """
    reasons = []
    for name in candidates:
        reason = _fails(Level(name))
        if not reason:
            return Level(name, "; ".join(reasons))
        reasons.append(f"{name}: {reason}")
    if trust_learners:
        return Level("limits", "; ".join(reasons))
    raise WorkbookError(
        "nothing on this machine can shut in learners' code\n  " + "\n  ".join(reasons),
        "bubblewrap, or user namespaces for `unshare`",
        "apt install bubblewrap, or run with --trust-learners if you would run this code yourself",
    )


def command(level: Level, control: Path, module: str, options: dict) -> list[str]:
    """What starts `python -m module CONTROL OPTIONS` within the view of `level`."""
    wrapped = level.name in ("bubblewrap", "cold")
    outer = view.bubblewrap(control, own_processes=level.name == "cold") if wrapped else []
    inside = view.CONTROL if wrapped else str(control)
    as_nobody = NOBODY if os.geteuid() == 0 and level.name != "limits" else 0
    options = options | {"spaces": level.spaces, "enter": level.name == "unshare", "become": as_nobody}
    return [*outer, sys.executable, "-m", module, inside, json.dumps(options)]


def hand_over(*folders: Path) -> None:
    """As root, the folders become those of the user that the nursery runs as."""
    for folder in folders:
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)


def settle(control: Path, options: dict) -> Path:
    """Inside, first of all: the walls that bubblewrap did not build, and the user; where the control folder is now."""
    if options["enter"]:
        view.enter(control)
        control = Path(view.CONTROL)
    if options["become"]:
        linux.become(options["become"])
    return control


def _fails(level: Level) -> str:
    """Why a kernel cannot be shut in so, or '': it is done once, with a kernel that does nothing."""
    if level.name in ("bubblewrap", "cold") and not shutil.which("bwrap"):
        return "bwrap is not installed"
    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    with tempfile.TemporaryDirectory(prefix="wb-", dir="/tmp") as folder:
        control = Path(folder) / "control"
        for path in (control, control / "k", Path(folder) / "root"):
            path.mkdir()
            hand_over(path)
        words = command(level, control, __name__, {})
        try:
            done = subprocess.run(words, env=view.environment(), capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"exit status {done.returncode}")


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    place = settle(Path(sys.argv[1]), given)
    run_isolated(lambda ready: ready(), str(place / "k"), Limits(), given["spaces"])
