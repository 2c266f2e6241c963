"""The command line of setup_env, see the package's docstring."""

import os
import platform
import re
import subprocess
import sys
from typing import Dict, List

from .environment import env, is_current, quiet_jupyter, venv_python
from .machine import ROOT, Stop, require_python, say
from .pins import environment_yml, read

START = "/lab/tree/workspace/START.md"
FIRST_CHAPTER = "/lab/tree/notebooks/00_start_here.ipynb"  # where there can be no workspace


def first_page() -> str:
    """Bring the learner's copies up to date, and say which page to open."""
    command = [venv_python(), "-m", "helpers.cli", "workspace"]
    return FIRST_CHAPTER if subprocess.call(command, cwd=ROOT) else START


def lab_arguments(system: str, environ: Dict[str, str], root: bool, page: str) -> List[str]:
    """JupyterLab's arguments: no browser where there is no screen, and root allowed where we are root."""
    arguments = ["--LabApp.default_url=" + page, "--ServerApp.log_level=WARN", "--LabApp.log_level=WARN"]
    if system == "Linux" and not (environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")):
        arguments.append("--no-browser")
    return arguments + (["--allow-root"] if root else [])


def where_to_look(extra: List[str], environ: Dict[str, str], page: str) -> List[str]:
    """What to open where there is no screen. JupyterLab prints no address itself where the token is the user's own."""
    words = " ".join(extra)
    port = re.search(r"--(?:ServerApp\.)?port[= ](\d+)", words)
    number = port.group(1) if port else environ.get("JUPYTER_PORT", "8888")
    own = re.search(r"--(?:ServerApp|IdentityProvider)\.(?:token|password)", words)
    if own or environ.get("JUPYTER_TOKEN") or environ.get("JUPYTER_TOKEN_FILE"):
        first = f"No screen here: open http://localhost:{number}{page} in a browser; your own token opens it."
    else:
        first = "No screen here: open the http://localhost address below in a browser."
    ssh = f"From another computer, first run there: ssh -L {number}:localhost:{number} <this machine>"
    return [first, ssh, "If that port is taken JupyterLab takes the next one, and says so."]


def lab(extra: List[str]) -> int:
    env()
    quiet_jupyter()
    is_root = getattr(os, "geteuid", lambda: 1)() == 0
    page = first_page()
    arguments = lab_arguments(platform.system(), dict(os.environ), is_root, page)
    if "--no-browser" in arguments:
        for line in where_to_look(extra, dict(os.environ), page):
            say(line)
    say("JupyterLab starts; Ctrl-C twice stops it.")
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # its kernels' idle threads leave their cores to others
    return become([venv_python(), "-m", "jupyterlab", *arguments, *extra])


def become(words: List[str]) -> int:
    """Run a server in place of this process, so that Ctrl-C is the server's: it asks, and stops its kernels.

    A parent that waited with `subprocess.call` would kill the server at the first Ctrl-C.
    """
    os.chdir(ROOT)
    if os.name != "nt":
        os.execv(words[0], words)
    server = subprocess.Popen(words)
    while True:
        try:
            return server.wait()
        except KeyboardInterrupt:
            pass


def main(arguments: List[str]) -> int:
    try:
        if not is_current():
            require_python()
        if arguments[:1] == ["lab"]:
            return lab(arguments[1:])
        if arguments == ["environment.yml"]:
            with open(os.path.join(ROOT, "environment.yml"), "w", encoding="utf-8") as file:
                file.write(environment_yml(read("requirements.txt")))
        elif arguments == ["env"]:
            env()
        else:
            raise Stop("Unknown arguments: " + " ".join(arguments), "env, lab or environment.yml")
        return 0
    except Stop as stop:
        print("\n" + str(stop), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped. Run the same command to go on.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
