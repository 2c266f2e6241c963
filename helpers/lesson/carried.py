"""An object that goes on in another process, again and again, with what its attributes hold and nothing else.

    found, state = carried(Router, (4, 16), use)          # in a process: router = Router(4, 16); found = use(router)
    found, state = carried(Router, (4, 16), use, state)   # in the next one: the router that `state` describes

Each process is a fork of this one, in which no object of that class ever worked. So whatever an object wrote elsewhere
(its class, a global, a library's module, a generator, a variable of a context, a file) is not there the next time, and
`len(state)` says how much it remembers, wherever in its attributes that is. Where a process cannot be forked the
object is made anew in this one.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import os
import pickle
import sys
from ast import literal_eval
from collections.abc import Callable
from itertools import count
from marshal import dumps, loads
from operator import attrgetter
from os import _exit, close, closerange, devnull, dup2, fork, kill, sysconf, waitpid
from os import open as _open
from signal import SIGKILL
from types import FunctionType
from typing import Any

from ..catalog.errors import WorkbookError
from .asking import lab
from .reading_only import leave_nothing_behind

FORKS = sys.platform == "linux"
MOST_PRINTED = 10_000
_M_PERTURB, _TO_ZERO = -6, 0xFF  # of glibc's malloc.h: what is allocated is filled with the byte's complement
_mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if FORKS else None  # of another libc: None
Use = Callable[[Any], Any]


def carried(kind: Callable, arguments: tuple, use: Use, state: bytes | None = None) -> tuple[Any, bytes]:
    """(what `use(it)` returned, its state afterwards), for a new `kind(*arguments)` or what `state` describes.

    What `use` returns is plain data of Python's own. Its errors are raised here.
    """
    if not FORKS:
        return _worked(kind, arguments, use, state)
    read, write = os.pipe()
    child = fork()
    if child == 0:
        _answer(write, lambda: _worked(kind, arguments, use, state))
    close(write)
    try:
        with open(read, "rb") as told:
            answer = told.read()
    finally:
        kill(child, SIGKILL)
        waitpid(child, 0)
    with contextlib.suppress(EOFError, ValueError, TypeError):  # it ended too early
        found, printed, then = loads(answer)  # no code of anybody's reads it here, where it could be kept
        print(printed, end="")
        if type(then) is bytes:
            return found, then
    _worked(kind, arguments, use, state)  # raises here what was raised there, with its lines
    raise RuntimeError(f"{_name(kind)} ended its process")


def state_of(thing: Any, kind: Callable | None = None) -> bytes:
    """What an object holds in its attributes, as bytes; a tensor or an array without what it is a view of.

    Classes and functions of the notebook are named only, where `kind` that made it finds its names, or its class.
    WorkbookError for what no other process could go on with.

    >>> len(state_of({1: 2}))
    22
    """
    buffer = io.BytesIO()
    try:
        _pickler(buffer, _names_of(kind or type(thing))).dump(thing)
    except (TypeError, ValueError, pickle.PicklingError, RecursionError) as error:
        what = f"what {type(thing).__name__} remembers cannot go on in another process ({error})"
        expected = "attributes of numbers, texts, lists, dicts, sets, arrays, tensors, objects of your own classes"
        raise WorkbookError(what, expected, "keep what is remembered as plain data") from None
    return buffer.getvalue()


def _worked(kind: Callable, arguments: tuple, use: Use, state: bytes | None) -> tuple[Any, bytes]:
    one = kind(*arguments) if state is None else _Unpickler(io.BytesIO(state), _names_of(kind)).load()
    return use(one), state_of(one, kind)


def _answer(write: int, work: Callable[[], tuple[Any, bytes]]) -> None:
    """In the child: write down what came of it, and end; nothing where it failed.

    A descriptor that two processes share has one offset, in which a number could be kept: all but one are closed. What
    was freed before the fork still holds what processes before this one sent: memory is cleared as it is taken. Names
    of files and semaphores, the priority of a parent: nothing of it can be changed. And where a grader asks, what is
    printed stays here.
    """
    try:
        if _mallopt:
            _mallopt(_M_PERTURB, _TO_ZERO)
        gc.freeze()  # what the fork was given is looked at by no collection, which would copy its pages
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # OpenMP's other threads are not forked: a kernel would wait for them for ever
        closerange(3, write)
        closerange(write + 1, sysconf("SC_OPEN_MAX"))
        nothing = _open(devnull, os.O_RDWR)
        for number in range(3):
            dup2(nothing, number)
        with contextlib.suppress(OSError):  # a processor whose calls nobody has numbered
            leave_nothing_behind()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            found, state = work()
        with open(write, "wb") as pipe:
            told = printed.getvalue()[:MOST_PRINTED] if lab() is None else ""
            pipe.write(dumps((found, told, state)))
    finally:
        _exit(0)


def _names_of(kind: Any) -> dict[str, Any]:
    """Where a class or function finds its names, itself among them."""
    of_class = [one for base in getattr(kind, "__mro__", ()) for one in vars(base).values()]
    functions = [one for one in (kind, *of_class) if isinstance(one, FunctionType)]
    names = functions[0].__globals__ if functions else {}
    return {**names, getattr(kind, "__qualname__", ""): kind}


def _pickler(buffer: io.BytesIO, names: dict[str, Any]) -> pickle.Pickler:
    import cloudpickle

    torch = sys.modules.get("torch")

    class Pickler(cloudpickle.Pickler):
        def persistent_id(self, one: Any) -> str | None:
            if not isinstance(one, type | FunctionType):
                return None
            with contextlib.suppress(AttributeError, KeyError):
                return one.__qualname__ if _named(one.__qualname__, names) is one else None
            return None

        def reducer_override(self, one: Any) -> Any:
            if torch is not None and isinstance(one, torch.Tensor):
                return _tensor, (_bytes_of(one, shared), one.dtype, tuple(one.shape))
            if torch is not None and isinstance(one, torch.UntypedStorage):
                return _storage, (_bytes_of(torch.empty(0, dtype=torch.uint8).set_(one), shared),)
            if type(one) is count:  # from Python 3.14 on it cannot be pickled
                return count, literal_eval(f"{repr(one).removeprefix('count')[:-1]},)")
            return super().reducer_override(one)

    shared: dict[int, bytearray] = {}  # by the storage's address
    return Pickler(buffer)


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO, names: dict[str, Any]) -> None:
        super().__init__(buffer)
        self.names = names

    def persistent_load(self, name: str) -> Any:
        return _named(name, self.names)


def _named(name: str, names: dict[str, Any]) -> Any:
    first, _, rest = name.partition(".")
    return attrgetter(rest)(names[first]) if rest else names[first]


def _bytes_of(tensor: Any, shared: dict[int, bytearray]) -> bytearray:
    """Its values; the same object for tensors that both have all of a storage, which they share again then."""
    import torch

    storage = tensor.untyped_storage()
    whole = tensor.is_contiguous() and storage.nbytes() == tensor.nbytes
    if whole and storage._cdata in shared:
        return shared[storage._cdata]
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = bytearray(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    if whole:
        shared[storage._cdata] = data
    return data


def _tensor(data: bytearray, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return (torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)).reshape(shape)


def _storage(data: bytearray) -> Any:
    import torch

    return _tensor(data, torch.uint8, (len(data),)).untyped_storage()


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", type(kind).__name__)
