"""How well learners' code can be shut in on this machine: tried, not guessed.

bubblewrap                  a private file system, no network, processes of its own, and a filter of system calls;
                            each kernel a fork of the warm fork server
bubblewrap without seccomp  the same without the filter, which this Linux or processor does not have
limits                      resource limits alone: learners' code can read and write what you can; only where they
                            are trusted
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ...catalog.errors import WorkbookError
from . import isolation, linux
from .run_folder import run_folder

NOBODY = 61184  # the first of the users without a name that Linux distributions leave to sandboxes


@dataclass(frozen=True)
class SandboxLevel:
    """'bubblewrap', or a weaker one and why no stronger one works here."""

    name: str
    why: str = ""

    @property
    def is_sandbox(self) -> bool:
        """True when each kernel is shut in, in namespaces of its own."""
        return self.name != "limits"

    @property
    def is_filtered(self) -> bool:
        """True when system calls that no lab needs are refused."""
        return self.name == "bubblewrap"

    def __str__(self) -> str:
        return f"{self.name} ({self.why})" if self.why else self.name


BUBBLEWRAP = SandboxLevel("bubblewrap")


def best(trust_learners: bool = False) -> SandboxLevel:
    """The strongest level that works here. WorkbookError when bubblewrap does not and the learners are not trusted.

    >>> best().name                                             # doctest: +SKIP
    'bubblewrap'
    """
    reason = _fails(BUBBLEWRAP)
    if not reason:
        return BUBBLEWRAP
    unfiltered = SandboxLevel("bubblewrap without seccomp", reason)
    if not _fails(unfiltered):
        return unfiltered
    if trust_learners:
        return SandboxLevel("limits", f"bubblewrap: {reason}")
    what = f"nothing on this machine can shut in learners' code\n  bubblewrap: {reason}"
    do = "apt install bubblewrap, or run with --trust-learners if you would run this code yourself"
    raise WorkbookError(what, "bubblewrap, and user namespaces within it", do)


def command(level: SandboxLevel, control: Path, module: str, options: Mapping[str, object]) -> list[str]:
    """What starts `python -m module CONTROL OPTIONS` within the view of `level`."""
    outer = isolation.bubblewrap(control) if level.is_sandbox else []
    inside = isolation.CONTROL if level.is_sandbox else str(control)
    as_nobody = NOBODY if os.geteuid() == 0 and level.is_sandbox else 0
    options = {**options, "namespaces": level.is_sandbox, "filtered": level.is_filtered}
    options["become"] = as_nobody
    return [*outer, sys.executable, "-m", module, inside, json.dumps(options)]


def hand_over(folder: Path, level: SandboxLevel) -> None:
    """As root, the folder becomes that of the user that the fork server runs as: in a sandbox another one."""
    if os.geteuid() == 0 and level.is_sandbox:
        os.chown(folder, NOBODY, NOBODY)


def _fails(level: SandboxLevel) -> str:
    """Why a kernel cannot be shut in so, or '': it is done once, with a kernel that does nothing."""
    if not sys.platform.startswith("linux"):
        return "it needs Linux"
    if not shutil.which("bwrap"):
        return "bwrap is not installed"
    with run_folder() as folder:
        control = folder / "control"
        for path in (control, control / "k"):
            path.mkdir(mode=0o700)
            hand_over(path, level)
        words = command(level, control, __name__, {})
        try:
            done = subprocess.run(words, env=isolation.environment(), capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    lines = (done.stderr or done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"exit status {done.returncode}")


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    if given["become"]:
        linux.become(given["become"])
    kinds = given["namespaces"], given["filtered"]
    isolation.run_isolated(lambda ready: ready(), f"{sys.argv[1]}/k", isolation.Limits(), *kinds)
