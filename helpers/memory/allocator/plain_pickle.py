"""Pickles of plain data from anybody, read without running them and without taking more than their size explains.

Python's own unpickler runs what a pickle names, and a few bytes make it take gigabytes: its memo is an array, and
"keep this as number 2^28" makes that array. So the bytes are looked through first, opcode by opcode, without
executing them: 0.2 s for a million opcodes, and a snapshot of 58 MB has fifteen million.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from typing import BinaryIO

MOST_BYTES = 1 << 30
BYTES_PER_CONTAINER, FREE_CONTAINERS = 4, 1000  # `}` is one byte of a file and 64 in memory; a real dict has keys
_CODES = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
_ARGUMENT_BYTES = {ord(opcode.code): opcode.arg.n if opcode.arg else 0 for opcode in pickletools.opcodes}
_PLAIN = """PROTO FRAME MARK POP_MARK MEMOIZE APPEND APPENDS SETITEM SETITEMS NONE NEWTRUE NEWFALSE
            BININT BININT1 BININT2 BINFLOAT BINGET LONG_BINGET BINPUT"""
# How long an opcode of plain data is, with its argument; 0 for those that `_special` looks at, and for all others.
_LENGTHS = [0] * 256
for _name in _PLAIN.split():
    _LENGTHS[_CODES[_name]] = 1 + _ARGUMENT_BYTES[_CODES[_name]]
_TEXTS = {_CODES["SHORT_BINUNICODE"]: 1, _CODES["BINUNICODE"]: 4, _CODES["BINUNICODE8"]: 8}  # bytes of the length
_CONTAINERS = {_CODES["EMPTY_DICT"], _CODES["EMPTY_LIST"], _CODES["TUPLE2"]}
_SMALL = {_CODES["BININT1"], _CODES["BININT2"]}
_ENDS = {_CODES["STOP"], _CODES["GLOBAL"], _CODES["STACK_GLOBAL"]}  # at a name the loading ends, by `find_class`
_TUPLE2, _LONG1, _LONG_BINPUT = (_CODES[name] for name in ("TUPLE2", "LONG1", "LONG_BINPUT"))


class _NamesNothing(pickle.Unpickler):
    """What a pickle names is a function to call, or a class to make: it could run code."""

    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"it names {module[:40]}.{name[:40]}, and a snapshot names nothing")


def load(file: BinaryIO) -> object:
    """Dicts, lists, text, numbers and pairs of small numbers, from a binary file; no code is run.

    Memory is at most some 25 times the file's bytes, as for an honest one. pickle.UnpicklingError, or what the
    unpickler raises on broken bytes, for everything else: names, other types, an index or a length that the file is
    too short for, a file above MOST_BYTES.
    """
    data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise pickle.UnpicklingError(f"it is larger than {MOST_BYTES >> 20} MiB")
    _look_through(data)
    return _NamesNothing(io.BytesIO(data)).load()


def _look_through(data: bytes) -> None:
    """UnpicklingError at the first opcode that plain data does not need."""
    lengths, before, last, at, containers = _LENGTHS, -1, -1, 0, 0
    while at < len(data):
        opcode = data[at]
        length = lengths[opcode]
        if not length:
            if opcode in _ENDS:
                return
            if opcode in _CONTAINERS:
                containers += 1
                if containers > FREE_CONTAINERS + at // BYTES_PER_CONTAINER:
                    raise pickle.UnpicklingError("it is little but empty lists and dicts")
                if opcode == _TUPLE2 and not (before >= 0 and data[before] in _SMALL and data[last] in _SMALL):
                    raise pickle.UnpicklingError("it holds a tuple of something else than two small numbers")
                length = 1
            else:
                length = _special(data, at, opcode)
        before, last, at = last, at, at + length
    raise pickle.UnpicklingError("it was cut off")


def _special(data: bytes, at: int, opcode: int) -> int:
    """The length of an opcode whose argument matters: texts, long integers, and the memo's index."""
    if opcode in _TEXTS:
        width = _TEXTS[opcode]
        return 1 + width + int.from_bytes(data[at + 1 : at + 1 + width], "little")
    # Both dicts and tuples hash numbers without a secret: wider ones could all be made to collide, for hours.
    if opcode == _LONG1 and data[at + 1 : at + 2] <= b"\x08":
        return 2 + int.from_bytes(data[at + 1 : at + 2], "little")
    if opcode == _LONG_BINPUT:
        if int.from_bytes(data[at + 1 : at + 5], "little") > at:
            raise pickle.UnpicklingError("it counts more objects than it has bytes")
        return 5
    names = [name for name, code in _CODES.items() if code == opcode]
    raise pickle.UnpicklingError(f"it holds {names[0] if names else hex(opcode)}, which plain data does not need")
