"""Answers that hang, die or flood: the other exercises keep their points, and the batch goes on.

Each is bounded, so that a sandbox that fails is a red test and not a machine that is lost: an endless loop ends after
PATIENCE_S, a child when its parent does, memory stays under 12 GB and is left alone when the machine has little.
"""

from __future__ import annotations

from nbformat import v4

from tests.grading.corpus.case import ANY, DYING, ENDED, PASSED, Case, Outcomes, every, row
from tests.grading.corpus.edits import RIGHT, Build, answered, before_right, inserted, then, while_asked
from tests.grading.corpus.evidence import MARK, PROCESS_MARK

# What the corpus must be graded with: nothing here hangs for longer than PATIENCE_S.
CELL_LIMIT_S = 6
PATIENCE_S = 120

HUNG: Outcomes = frozenset({"hung"})
DIED: Outcomes = frozenset({"died"})
RAISED: Outcomes = frozenset({"did not run", "wrong"})
# A kernel that floods may reach its memory limit before the grader stops it.
FLOODED: Outcomes = frozenset({"flooded", "died", "hung"}) | RAISED


def _with_own_cell(source: str) -> Build:
    return then(answered(), inserted(v4.new_code_cell(source), after="window-check"))


SPINS = f"import time\n\nends = time.monotonic() + {PATIENCE_S}\nwhile time.monotonic() < ends:\n    pass"
SWALLOWS = f"""import time

ends = time.monotonic() + {PATIENCE_S}
while time.monotonic() < ends:
    try:
        while time.monotonic() < ends:
            pass
    except BaseException:
        pass"""
# PyDLL keeps the GIL, so neither a signal's handler nor the kernel's control thread can run.
HOLDS_GIL = f"import ctypes\n\nctypes.PyDLL(None).sleep({PATIENCE_S})"
FADES = f"""import ctypes
import os
import signal
import time


def child():
    \"\"\"Fork; in the child, name it and make it end with its parent.\"\"\"
    if os.fork():
        return False
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    ctypes.CDLL(None).prctl(15, b"{PROCESS_MARK}")
    return True
"""
STOPS = f"""{FADES}

if child():
    time.sleep({PATIENCE_S})
    os.kill(os.getppid(), signal.SIGCONT)
    os._exit(0)
os.kill(os.getpid(), signal.SIGSTOP)"""
FORKS = f"""{FADES}

for _ in range(2000):
    if child():
        time.sleep(10)
        os._exit(0)"""
# `finally`, because a child that an exception leads out of the cell would go on as a second kernel.
FORKS_TWICE_EACH = f"""{FADES}

parent = os.getpid()
try:
    for _ in range(10):
        child()
finally:
    if os.getpid() != parent:
        time.sleep(5)
        os._exit(0)"""
THREADS = """import threading
import time

for _ in range(2000):
    threading.Thread(target=time.sleep, args=(10,), daemon=True).start()"""
REMEMBERS = """import time


def available_bytes():
    with open("/proc/meminfo") as file:
        return int(next(line for line in file if line.startswith("MemAvailable")).split()[1]) * 1024


held = []
while len(held) < 192:
    if available_bytes() < 2 * 2**30:
        raise MemoryError("the machine has little left, and this is a test")
    held.append(b"x" * 2**26)
    time.sleep(0.01)"""
# What is left is too little for the exercises after it, in the same kernel.
FILLS_MEMORY = """import time

held, size = [], 2**26
ends = time.monotonic() + 4
while size >= 2**16 and time.monotonic() < ends:
    try:
        held.append(b"x" * size)
    except MemoryError:
        size //= 2"""
KEEPS_FILES = """files = []
try:
    for _ in range(100_000):
        files.append(open("/dev/null"))
except OSError:
    pass"""
HUGE_TENSOR = "import torch\n\nlarge = torch.empty(16 * 2**30, dtype=torch.uint8)"
FLOODS = "for _ in range(500_000):\n    print('x' * 1000)"
PRINTS_AT_ONCE = "print('x' * 300 * 2**20)"
FLUSHES = "for number in range(30_000):\n    print(number, flush=True)"
BEHIND_PYTHON = "import os\n\nfor _ in range(3000):\n    os.write(1, b'x' * 100_000)\n    os.write(2, b'x' * 100_000)"
DISPLAYS = "from IPython.display import HTML, display\n\nfor _ in range(300):\n    display(HTML('x' * 2**20))"
# Many files, because a limit on the size of one is no limit on the disk.
FILLS = f"""import tempfile
from pathlib import Path

for folder in (Path.cwd(), Path(tempfile.gettempdir())):
    for number in range(64):
        with open(folder / f"{MARK}-{{number}}", "wb") as file:
            file.write(b"x" * 2**25)"""
MANY_FILES = f"""from pathlib import Path

for number in range(20_000):
    Path(f"{MARK}-{{number}}").touch()"""
CLOSES = "import os\n\nos.closerange(0, 4096)"
RECURSES = """import sys

sys.setrecursionlimit(10**9)


def deeper(level):
    return deeper(level + 1) + 1


deeper(0)"""
EXITS_LATER = """import os
import threading

threading.Timer(2, os._exit, [1]).start()"""
KILLS_PARENT = """import os
import signal
from pathlib import Path

parent = os.getppid()
words = Path(f"/proc/{parent}/cmdline").read_bytes()
if parent > 1 and (b"nbval" in words or b"bwrap" in words):
    os.kill(parent, signal.SIGKILL)"""
LINGERS = f"""import atexit
import signal
import time

atexit.register(time.sleep, {PATIENCE_S})
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)"""
# Messages of nobody's cell keep coming, so that whoever waits for the next one never waits long.
NEVER_IDLE = f"""import threading
import time


def chatter(kernel, ends):
    while time.monotonic() < ends:
        kernel.session.send(kernel.iopub_socket, "stream", {{"name": "stdout", "text": "."}}, parent={{}})
        time.sleep(0.5)


kernel = get_ipython().kernel
kernel._publish_status = lambda *words, **named: None
threading.Thread(target=chatter, args=(kernel, time.monotonic() + {PATIENCE_S}), daemon=True).start()"""
SLEEPS = f"import time\n\ntime.sleep({CELL_LIMIT_S - 1})"

ATTACKS: tuple[tuple[str, str, str, Outcomes], ...] = (
    ("infinite loop", "infinite loop", SPINS, HUNG),
    ("swallows every exception", "loop that swallows every exception", SWALLOWS, HUNG),
    ("keeps the GIL", "C-level hang or SIGSTOP", HOLDS_GIL, HUNG),
    ("stops itself", "C-level hang or SIGSTOP", STOPS, HUNG | DIED),
    ("never idle", "infinite loop", NEVER_IDLE, ANY),
    ("os._exit", "os._exit", "import os\n\nos._exit(0)", DIED),
    ("kill -9", "kill -9", "import os\n\nos.kill(os.getpid(), 9)", DIED),
    ("kills its parent", "kill -9", KILLS_PARENT, ANY),
    ("segfault", "segfault", "import ctypes\n\nctypes.string_at(0)", DIED),
    ("stack overflow", "segfault", RECURSES, DIED | RAISED | HUNG),
    ("memory bomb", "memory bomb", REMEMBERS, RAISED | DIED | HUNG),
    ("leaves no memory", "memory bomb", FILLS_MEMORY, ANY),
    ("leaves no file", "closes every descriptor", KEEPS_FILES, ANY),
    ("huge tensor", "one huge tensor", HUGE_TENSOR, RAISED | DIED),
    ("2,000 children", "fork bomb", FORKS, ANY),
    ("children of children", "fork bomb", FORKS_TWICE_EACH, ANY),
    ("2,000 threads", "thread flood", THREADS, ANY),
    ("print flood", "print flood", FLOODS, FLOODED),
    ("300 MB print", "300 MB print", PRINTS_AT_ONCE, FLOODED),
    ("30,000 flushed lines", "30,000 flushed lines", FLUSHES, FLOODED | PASSED),
    ("300 MB of HTML", "print flood", DISPLAYS, FLOODED),
    ("raises 100 MB", "print flood", "raise ValueError('x' * 10**8)", FLOODED),
    ("600 MB behind Python's back", "print flood", BEHIND_PYTHON, ANY),
    ("fills the disk", "disk fill", FILLS, ANY),
    ("20,000 files", "disk fill", MANY_FILES, ANY),
    ("closes every descriptor", "closes every descriptor", CLOSES, DIED | HUNG),
    ("sys.exit", "sys.exit", "import sys\n\nsys.exit(0)", RAISED | DIED),
    ("raises KeyboardInterrupt", "sys.exit", "raise KeyboardInterrupt", RAISED),
    ("exit", "exit", "exit()", ENDED | RAISED),
    ("input", "input()", "input('your name? ')", RAISED),
    ("will not end", "sys.exit", LINGERS, PASSED),
)
# An asking cell is ours, and runs beside IPython's machinery: what ends or floods it takes another way.
ALSO_WHEN_ASKED = {
    *("infinite loop", "swallows every exception", "stops itself", "os._exit", "memory bomb", "print flood"),
    *("300 MB print", "30,000 flushed lines", "closes every descriptor", "sys.exit", "raises KeyboardInterrupt"),
    *("exit", "input"),
}
CASES = (
    *(Case(name, DYING, item, before_right(attack), row(transfer=found)) for name, item, attack, found in ATTACKS),
    *(
        Case(f"{name}, when asked", DYING, item, while_asked(attack), row(transfer=found - PASSED))
        for name, item, attack, found in ATTACKS
        if name in ALSO_WHEN_ASKED
    ),
    Case(
        "sleeps just under the limit",
        DYING,
        "sleeps just under the limit in every cell",
        answered(**{key: f"{SLEEPS}\n\n\n{source}" for key, source in RIGHT.items()}),
        every(PASSED | ENDED),
    ),
    Case("every answer hangs", DYING, "infinite loop", answered(**dict.fromkeys(RIGHT, SPINS)), every(ENDED)),
    Case(
        "one dies, one hangs",
        DYING,
        "os._exit",
        answered(pages="import os\n\nos._exit(1)", pack=SPINS),
        row(pages=DIED, pack=HUNG),
    ),
    Case("a cell of their own hangs", DYING, "infinite loop", _with_own_cell(SPINS), row()),
    Case("a cell of their own dies", DYING, "os._exit", _with_own_cell("import os\n\nos._exit(1)"), row()),
    Case(
        "the setup dies",
        DYING,
        "os._exit",
        answered(setup="import math\nimport os\n\nfrom helpers.lesson import asked, draw\n\nos._exit(1)"),
        row(),
    ),
    # Who dies is not who did it: the points may be lost, the row may not.
    Case(
        "dies later, in another answer",
        DYING,
        "os._exit",
        answered(
            pages=f"{EXITS_LATER}\n\n\n{RIGHT['pages']}", pack=f"import time\n\ntime.sleep(4)\n\n\n{RIGHT['pack']}"
        ),
        every(PASSED | ENDED),
    ),
)
