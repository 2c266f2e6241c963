"""DeepSpeed, for chapter 09 alone: it is built here, and where that fails everything else still works."""

import os

from .machine import ROOT, Stop, diagnose, last_line, run, say

REQUIREMENTS = "requirements-deepspeed.txt"


def in_ci() -> bool:
    return os.environ.get("CI", "") not in ("", "0", "false")


def install_deepspeed(python: str, system: str) -> None:
    """Install it, or say what is then missing; in CI, where its tests must run, stop."""
    if system != "Linux":
        say("    DeepSpeed is left out: it is at home on Linux. Chapter 09 does without, and says so.")
        return
    code, output = run([python, "-m", "pip", "install", "--quiet", "-r", os.path.join(ROOT, REQUIREMENTS)])
    if code and in_ci():
        raise Stop("DeepSpeed could not be installed:\n" + output.strip()[-1500:], diagnose(output))
    if code:
        say("    warning: DeepSpeed could not be installed: " + last_line(output))
        say("    Chapter 09 leaves out what compares with it; everything else works. To try again:")
        say(f"    {python} -m pip install -r {REQUIREMENTS}")
