"""Whose code a frame runs: the very code that stands in a library's file, or in ours, with its module's own names.

A file's name says little, for whoever compiles text can give it any. So code is compared with what stands in the file,
and the names that it finds with those of its module. Nothing of a learner's runs while that is done: no text of a class
of its own is looked at, no method of it called.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from _imp import get_frozen_object
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

PATHS = sorted({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}, key=len)[::-1]
OURS = str(Path(__file__).parents[1]) + os.sep
OF_THE_LAB = "<cell of the lab "  # begins the name of the file that a cell which asks is compiled as
LIBRARIES = (*PATHS, OURS, "<frozen ", OF_THE_LAB)
_SEPARATOR = os.sep
Codes = Mapping[tuple[str, int], list[CodeType]]


class Whose(NamedTuple):
    """`genuine(frame)`, `ours(frame)`: whether it runs a library's very code, or ours; `learn(code, names)` of the lab.

    A module that came later than this counts as a library's, not as ours: who loaded it may have had it changed.
    """

    genuine: Callable[[FrameType], bool]
    ours: Callable[[FrameType], bool]
    learn: Callable[[CodeType, dict[str, Any]], None]


def whose(copied: Iterable[CodeType], read: Mapping[str, Codes]) -> Whose:
    """What is known from here on. `copied` is code of the lab that comes by value; `read` has files read before."""
    lab: dict[int, tuple[CodeType, dict]] = {}  # by identity: a copy of it is somebody else's; and its names
    alike, files = by_place(copied), dict(read)
    right: dict[int, CodeType] = {}  # which stands in its file
    homes = {vars(one).get("__file__"): vars(one) for one in list(sys.modules.values()) if isinstance(one, ModuleType)}
    homes[__file__] = globals()

    def known(code: CodeType) -> bool:
        file = file_of(code)
        if file.startswith(OF_THE_LAB):
            return lab.get(id(code), (None,))[0] is code or code in alike.get(_place(code), ())
        if right.get(id(code)) is code:
            return True
        if not file.startswith(LIBRARIES):
            return False
        if file not in files:
            files[file] = codes_of(file)
        if code not in files[file].get(_place(code), ()):
            return False
        right[id(code)] = code
        return True

    def genuine(frame: FrameType) -> bool:
        code, names = frame.f_code, frame.f_globals
        if not known(code):
            return False
        if code.co_filename.startswith(OF_THE_LAB):
            return id(code) not in lab or names is lab[id(code)][1]  # on a rank it has come with names of its own
        if code.co_filename in homes:
            return names is homes[code.co_filename]
        name = names.get("__name__")
        module = sys.modules.get(name) if type(name) is str else None
        return isinstance(module, ModuleType) and vars(module) is names

    def ours(frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        return genuine(frame) and (file.startswith(OF_THE_LAB) or (file.startswith(OURS) and file in homes))

    def learn(code: CodeType, names: dict[str, Any]) -> None:
        lab.update({id(one): (one, names) for one in _within(code)})

    return Whose(genuine, ours, learn)


def file_of(code: CodeType) -> str:
    """Its file; '' where it or a name is a text of a class of somebody's own, whose methods would run here."""
    plain = all(type(one) is str for one in (code.co_filename, code.co_name, *code.co_names))
    return code.co_filename if plain else ""


def place_of(frame: FrameType) -> tuple[str, str]:
    """The file of its function, without the folder of all libraries, and its name: ("enum.py", "_create_")."""
    file = file_of(frame.f_code).replace(_SEPARATOR, "/")
    folder = next((path + "/" for path in PATHS if file.startswith(path + "/")), "")
    return file.removeprefix(folder), frame.f_code.co_name


def codes_of(file: str) -> Codes:
    """The code that stands in a library's file, by name and first line; none where it cannot be read."""
    try:
        if file.startswith("<frozen "):
            code = get_frozen_object(file.removeprefix("<frozen ").removesuffix(">"))
        else:
            with open(file, "rb") as opened:
                code = compile(opened.read(), file, "exec", dont_inherit=True)
    except (OSError, ImportError, SyntaxError, ValueError):
        return {}
    return by_place([code])


def by_place(codes: Iterable[CodeType]) -> Codes:
    """These, and those of all functions that are written in them, by name and first line."""
    found: dict[tuple[str, int], list[CodeType]] = {}
    for code in codes:
        for one in _within(code):
            found.setdefault(_place(one), []).append(one)
    return found


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_name, code.co_firstlineno


def _within(code: CodeType) -> Iterator[CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _within(value)
