"""While an answer is asked: it sees nobody's variables, and keeps nothing where bytes are not counted.

Python raises an event where somebody asks for a frame, for all objects, or for a file (PEP 578), and Linux refuses
files that grow beyond a limit. So what is refused does not depend on how it is spelled:

*   **Frames**, which lead to the variables of whoever asks. A library's function gets one for itself if it is the very
    function that stands in its file, says so in its own code, and does not hand it on: `namedtuple` does, a pool of
    threads that was handed `sys._getframe` does not. Whoever was asked by us, or by an import, gets one too.
*   **Bytes in files, shared memory, pipes, names of files, other processes.** An answer's memory is counted, and these
    are not. What the ranks of `helpers.lesson` need to start is not refused. What was opened before is shut: `stores`.

Whose code it is decides `genuine`. What decides is held by closures, which patches of modules do not change, and those
are sealed: Python would show a closure's cells to whoever asks for them, and raise no event. It is no wall: a thread of
a learner's may come between two lines of ours. `tamper_checks` names the spellings.
"""

from __future__ import annotations

import _posixshmem
import _posixsubprocess
import builtins
import contextlib
import importlib
import linecache
import logging
import os
import sys
import traceback
from _thread import get_ident as _thread_of
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from sys import _getframe as _frame_at
from sys import audit
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import ref

from .. import PACKAGE
from ..catalog.sealed import SEALED, sealed
from . import genuine, modes, stores
from .genuine import LIBRARIES, OF_THE_LAB, OURS, PATHS, Codes, Whose, codes_of, file_of, place_of, whose
from .modes import MODES, make_modes_loud, may_ask
from .ranks.reaper import STARTED
from .stores import Socket, There, adopt_orphans, now_there, number_of, reopen, shut

_FRAME, _ATTRIBUTE, _HOOK = "sys._getframe", "object.__getattr__", "sys.addaudithook"
_REFERENTS = "gc.get_referents"
_OF_FRAMES = (_FRAME, "sys._current_frames")
_TO_FRAMES = frozenset({"tb_frame", "gi_frame", "cr_frame", "ag_frame"})  # attributes
_SEEING = frozenset(
    {
        *(*_OF_FRAMES, "sys._current_exceptions", "sys.settrace", "sys.setprofile", "sys.monitoring.register_callback"),
        *("gc.get_objects", "gc.get_referrers", _REFERENTS),
        *("ctypes.PyObj_FromPtr", "ctypes.string_at", "ctypes.wstring_at", "ctypes.cdata", "ctypes.dlopen"),
    }
)
_KEEPING = frozenset(
    {
        *("os.mkdir", "os.rename", "os.link", "os.symlink", "os.setxattr", "os.truncate", "os.putenv"),
        *("os.utime", "os.chmod", "os.chown"),  # sixteen bytes in each file that was there before
        *("mmap.__new__", "socket.__new__", "sqlite3.connect", "resource.setrlimit", "resource.prlimit"),
        *("os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "subprocess.Popen"),
        # For these we raise the events ourselves: _SILENT
        *(
            "os.pipe",
            "os.memfd_create",
            "_posixshmem.shm_open",
            "os.openpty",
            "os.eventfd",
            "_posixsubprocess.fork_exec",
        ),
    }
)
_STARTING = ("socket.__new__", STARTED)
_SILENT = {"pipe": "os.pipe", "pipe2": "os.pipe", "memfd_create": "os.memfd_create", "shm_open": "_posixshmem.shm_open"}
_SILENT |= {"openpty": "os.openpty", "eventfd": "os.eventfd"}
_SILENT |= dict.fromkeys(("fork_exec", "_fork_exec"), "_posixsubprocess.fork_exec")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
MOST_IN_A_FILE = 16 << 10  # what ranks write while they start fits; no tensor worth hiding does
_NOWHERE = os.devnull
_SMALL_TEXT, _SMALL_TEXTS = 1 << 10, 1 << 15  # of a variable of the environment; of all that are set

_IMPORTS = "<frozen importlib"
# Who gets a frame and hands it to whoever called; and who looks at one and hands it to nobody.
_PASS_ON = {("inspect.py", "currentframe"), ("logging/__init__.py", "<lambda>")}
_LOOKS = {
    *{("collections/__init__.py", "namedtuple"), ("enum.py", "_create_"), ("typing.py", "_caller")},
    *{("typing_extensions.py", "_caller"), ("typing_extensions.py", "_has_generic_or_protocol_as_origin")},
    *{
        ("logging/__init__.py", "findCaller"),
        ("logging/__init__.py", "handleError"),
        ("warnings.py", "warn"),
        ("inspect.py", "getgeneratorstate"),
    },
    *{("traceback.py", name) for name in ("format_stack", "extract_stack", "print_stack", "clear_frames")},
    *{("traceback.py", name) for name in ("walk_tb", "_walk_tb_with_full_positions")},
    *{("asyncio/coroutines.py", "_format_coroutine"), ("asyncio/base_tasks.py", "_task_get_stack")},
}
_LOADS = {"CDLL", "PyDLL", "LoadLibrary"}
# Who may start processes and write files whoever called: what starts ranks, what goes on in a fork, an import that
# stores what it compiled, PyTorch where it makes the folder of its compiler, an event loop that makes itself a socket.
_STARTS: tuple[str, ...] = (f"{OURS}lesson{os.sep}ranks{os.sep}", f"{OURS}lesson{os.sep}carried.py")
_STARTS += ("/ipyparallel/", "/torch/_inductor/runtime/cache_dir_utils.py")
_WAKES = ("asyncio/selector_events.py", "_make_self_pipe")
_UNCHANGED = (traceback, traceback.StackSummary, linecache, logging)  # what _LOOKS hand a frame on to
_LOOK_OF_OURS = (
    *("lesson.asking", "lesson.tracebacks", "lesson.ranks.recorder"),
    *("memory.meter.gradient_sum", "memory.meter.heap", "memory.meter.process"),
)
SEEN = "an answer reached for {}, by which what asks it could be seen: it was refused"
NAMED = "a cell of the learner's own reached for {}, by which the kernel itself can be seen"
UNSEEN = "{} is not for answers: what asks them could be seen. Cells of your own may trace and profile"
UNCOUNTED = "{} is not for answers: what they keep is counted in memory. Cells of your own may use it"


class Guard(NamedTuple):
    """`asking()` is the time in which it refuses, `told()` what was reached for, in words; `ours` hears of our code.

    `read` is the code of libraries that it has read, for a guard in another process.
    """

    asking: Callable[[], contextlib.AbstractContextManager[None]]
    told: Callable[[], list[str]]
    ours: Callable[[CodeType, dict[str, Any]], None]
    read: Mapping[str, Codes]


def guard(lab: Iterable[CodeType] = (), before: There | None = None, read: Mapping[str, Codes] | None = None) -> Guard:
    """From here on this process is watched, for good. Called once, before anything of a learner's runs.

    A rank gets copies of the lab's own code: what equals `lab` counts as ours; and what was there `before`. `read` is
    what another process, which the rank belongs to, has read of libraries' files.
    """
    if "torch" in sys.modules:
        for name in _LOOK_OF_OURS:  # what comes later is not ours
            importlib.import_module(f"{PACKAGE}.{name}")
    every = vars(stores) | vars(modes) | vars(genuine) | globals()
    ours = {name: value for name, value in every.items() if not name.startswith("__")}
    ours |= {"__builtins__": dict(vars(builtins)), "__name__": __name__, "__file__": __file__}
    for name, value in list(ours.items()):  # a namespace that nobody else has: who changes this module changes nothing
        if isinstance(value, FunctionType) and value.__module__ in _COPIED:
            ours[name] = FunctionType(value.__code__, ours, name, value.__defaults__)
    adopt_orphans()
    read = read_ahead() if read is None else read
    return ours["_guard"](lab, before or now_there(), ours["closer"](empty=before is not None), read)


def _guard(
    copied: Iterable[CodeType], before: There, close_modes: Callable[[], None], read: Mapping[str, Codes]
) -> Guard:
    depth, texts, reached, looking = [0], [0], list[str](), set[int]()
    sockets, processes = list[ref](), set[int]()  # of what starts ranks
    know = whose(copied, read)
    kept = {str(vars(one).get("__file__")): [_as_it_is(one)] for one in _modules_of_ours()}
    also = [_as_it_is(holder) for holder in _UNCHANGED]
    _make_loud()
    make_modes_loud()

    def unchanged(frame: FrameType) -> bool:
        """Whether what it hands the frame to is what it was."""
        both = kept.get(frame.f_code.co_filename, also)
        return all(now.get(name) is value for now, was in both for name, value in was.items())

    def heard(event: str, arguments: tuple[Any, ...]) -> None:
        sees = event in _SEEING or event == MODES or (event == _ATTRIBUTE and arguments[1] in _TO_FRAMES)
        keeps = depth[0] and (event in _KEEPING or (event == "open" and (arguments[2] or 0) & _WRITES))
        if event == _HOOK or (event == _REFERENTS and any(type(one) is SEALED for one in arguments[0])):
            raise RuntimeError(f"{event} is not for what is asked here")
        if event not in _STARTING and not keeps and not (sees and (depth[0] or event in _OF_FRAMES)):
            return
        thread = _thread_of()
        if thread in looking:
            return
        looking.add(thread)
        frame = _frame_at(1)
        looking.discard(thread)  # from here on: what runs of a learner's, as it is compared with something, is watched
        if event in _STARTING and _starts_ranks(frame, know):
            processes.update(arguments if event == STARTED else ())
            sockets.extend(ref(one) for one in arguments[:1] if type(one) is Socket)
        if not keeps and not sees:
            return
        what = str(arguments[1]) if event == _ATTRIBUTE else event if event != MODES else f"torch.{arguments[0]}"
        word = what.rpartition(".")[2]
        learners = not file_of(frame.f_code).startswith(LIBRARIES) or _passes_to_a_learner(frame)
        if event == "os.putenv":
            texts[0] += len(arguments[1])
        if keeps:
            small = event == "os.putenv" and len(arguments[1]) < _SMALL_TEXT and texts[0] < _SMALL_TEXTS
            allowed = small or _may_keep(event, arguments, frame, know)
        elif event == MODES:  # of ours, which raises it, and who calls that
            learners, allowed = True, may_ask(word, frame.f_back, know.genuine, place_of)
        elif depth[0]:
            allowed = _may_see(word, frame, know) and unchanged(frame)
            learners = learners or not know.genuine(frame) or word not in frame.f_code.co_names
        else:
            allowed = not learners
        if not allowed and keeps:
            raise PermissionError(UNCOUNTED.format(_in_words(event, arguments)))
        if not allowed and learners:
            reached.append((SEEN if depth[0] else NAMED).format(what))
        if not allowed and depth[0]:
            raise RuntimeError(UNSEEN.format(what))

    @contextlib.contextmanager
    def asking() -> Iterator[None]:
        soft, hard = getrlimit(RLIMIT_FSIZE)
        setrlimit(RLIMIT_FSIZE, (MOST_IN_A_FILE, hard))  # whoever writes: Python, or a library that tells nobody
        depth[0] += 1
        shared = []
        try:
            looking.add(_thread_of())
            close_modes()
            shared = shut(before, [number_of(one) for at in sockets if (one := at()) is not None], processes)
            looking.discard(_thread_of())
            yield
        finally:
            depth[0] -= 1
            reopen(shared)
            setrlimit(RLIMIT_FSIZE, (soft, hard))

    def ours(code: CodeType, names: dict[str, Any]) -> None:
        looking.add(_thread_of())
        frame: FrameType | None = _frame_at(1)
        looking.discard(_thread_of())
        while frame is not None:
            if not file_of(frame.f_code).startswith(LIBRARIES):
                raise RuntimeError("code of the lab comes from the lab")
            frame = frame.f_back
        know.learn(code, names)

    sys.addaudithook(heard)
    return Guard(sealed(asking), sealed(lambda: list(dict.fromkeys(reached))), sealed(ours), read)


def _may_see(word: str, frame: FrameType | None, know: Whose) -> bool:
    """Whether who asks for `word` in `frame` asks for itself."""
    if word == "dlopen":  # a library that opens another, and says so
        while frame is not None and know.genuine(frame) and place_of(frame)[0] == "ctypes/__init__.py":
            frame = frame.f_back
        return frame is not None and know.genuine(frame) and not _LOADS.isdisjoint(frame.f_code.co_names)
    if word in ("string_at", "wstring_at", "cdata", "PyObj_FromPtr"):  # of ctypes: memory by its address
        while frame is not None and know.genuine(frame) and not know.ours(frame):
            frame = frame.f_back
        return frame is not None and know.ours(frame)
    while frame is not None and know.genuine(frame) and word in frame.f_code.co_names and place_of(frame) in _PASS_ON:
        word, frame = "currentframe", frame.f_back
    if frame is None or not know.genuine(frame) or word not in frame.f_code.co_names:
        return False
    if place_of(frame) in _LOOKS:
        return not _shows_variables(frame)
    while frame is not None and know.genuine(frame):
        if know.ours(frame) or frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def _may_keep(event: str, arguments: tuple, frame: FrameType | None, know: Whose) -> bool:
    """Whether what `frame` does keeps nothing of an answer's."""
    path = arguments[0] if arguments and type(arguments[0]) is str else ""
    if event == "open" and path == _NOWHERE:
        return True
    while frame is not None and know.genuine(frame):
        file = frame.f_code.co_filename
        imports = frame.f_code.co_name == "<module>"
        if imports or any(part in file for part in _STARTS) or file.startswith(OF_THE_LAB):
            return True
        if (file.startswith(_IMPORTS) and "__pycache__" in path) or place_of(frame) == _WAKES:
            return True
        frame = frame.f_back
    return False


def _starts_ranks(frame: FrameType | None, know: Whose) -> bool:
    while frame is not None and know.genuine(frame) and not any(one in frame.f_code.co_filename for one in _STARTS):
        frame = frame.f_back
    return frame is not None and know.genuine(frame)


def _passes_to_a_learner(frame: FrameType) -> bool:
    """Whether its function gives frames to who calls it, and that was a learner's code, or nobody."""
    if place_of(frame) in _LOOKS:
        return False
    back = frame.f_back
    passes = file_of(frame.f_code).endswith(("/inspect.py", "/traceback.py", "/logging/__init__.py"))
    return passes and (back is None or not file_of(back.f_code).startswith(LIBRARIES))


def _shows_variables(frame: FrameType | None) -> bool:
    """Whether a traceback is read together with the variables of its frames."""
    while frame is not None and file_of(frame.f_code).endswith("/traceback.py"):
        if frame.f_locals.get("capture_locals", False) is not False:
            return True
        frame = frame.f_back
    return False


def _modules_of_ours() -> list[ModuleType]:
    return [one for name, one in list(sys.modules.items()) if name.partition(".")[0] == PACKAGE]


def _as_it_is(holder: ModuleType | type) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Its names, and the functions and classes that they stand for now."""
    return vars(holder), {name: value for name, value in vars(holder).items() if callable(value)}


def _in_words(event: str, arguments: tuple) -> str:
    return f"a file that is written ({arguments[0]!r:.200})" if event == "open" else event


def _make_loud() -> None:
    """Raise events where Python raises none: for pipes, terminals, files in memory, shared memory, other processes."""
    for name, event in _SILENT.items():
        for module in (os, sys.modules.get("posix"), _posixshmem, _posixsubprocess, sys.modules.get("subprocess")):
            if (function := getattr(module, name, None)) is not None:
                setattr(module, name, _loud(event, function))


def _loud(event: str, function: Callable) -> Callable:
    def heard(*arguments: Any, **named: Any) -> Any:
        audit(event)
        return function(*arguments, **named)

    heard.__name__, heard.__doc__ = function.__name__, function.__doc__
    return heard


@cache
def read_ahead() -> dict[str, Codes]:
    """The code of what looks at frames: read while nothing is asked, for what is read takes memory. It takes 0.1 s.

    Kernels are forked from a process that has read it, and ranks get what their kernel has.
    """
    files = [f"{OURS}{name.replace('.', os.sep)}.py" for name in _LOOK_OF_OURS]
    names = {"ctypes/__init__.py", modes.STACK, *(file for file, _ in _LOOKS | _PASS_ON)}
    files += [os.path.join(folder, *name.split("/")) for folder in PATHS for name in names]
    return {file: codes_of(file) for file in files if os.path.exists(file)}


_COPIED = (__name__, genuine.__name__, modes.__name__, stores.__name__)
