"""The header of a GGUF file: its metadata, and the type and shape of every tensor. The data are never read.

The format is that of `docs/gguf.md` in ggml, versions 2 and 3, little-endian; block sizes are those of
`ggml/src/ggml-common.h`. What a file claims is held against its length before anything is made of it, so that a hostile
one costs no memory. Only the standard library.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import WorkbookError

if TYPE_CHECKING:
    import mmap

MAGIC, VERSIONS = b"GGUF", (2, 3)
MOST_VALUES = 2**48  # of a tensor: more than any model
MOST_DIMENSIONS, MOST_NESTED = 4, 4
MOST_KEPT = 4096  # entries of an array that is kept: one a layer; tokens are passed over
MOST_NAME, MOST_TEXT = 2**12, 2**16
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)

Value = int | float | bool | str | tuple[int | float | bool, ...]


@dataclass(frozen=True)
class GgmlType:
    """A type of tensors: `block_values` lie in a block of `block_bytes`."""

    name: str
    block_values: int
    block_bytes: int


_PLAIN = {0: ("f32", 4), 1: ("f16", 2), 30: ("bf16", 2), 28: ("f64", 8), 24: ("i8", 1), 25: ("i16", 2), 26: ("i32", 4)}
_OF_32 = {2: ("q4_0", 18), 3: ("q4_1", 20), 6: ("q5_0", 22), 7: ("q5_1", 24), 8: ("q8_0", 34), 20: ("iq4_nl", 18)}
_OF_32 |= {39: ("mxfp4", 17)}
_OF_256 = {10: ("q2_k", 84), 11: ("q3_k", 110), 12: ("q4_k", 144), 13: ("q5_k", 176), 14: ("q6_k", 210)}
_OF_256 |= {16: ("iq2_xxs", 66), 17: ("iq2_xs", 74), 22: ("iq2_s", 82), 18: ("iq3_xxs", 98), 21: ("iq3_s", 110)}
_OF_256 |= {19: ("iq1_s", 50), 29: ("iq1_m", 56), 23: ("iq4_xs", 136), 34: ("tq1_0", 54), 35: ("tq2_0", 66)}
_OTHERS = {27: GgmlType("i64", 1, 8), 40: GgmlType("nvfp4", 64, 36), 41: GgmlType("q1_0", 128, 18)}
GGML_TYPES: Mapping[int, GgmlType] = {
    **{number: GgmlType(name, 1, size) for number, (name, size) in _PLAIN.items()},
    **{number: GgmlType(name, 32, size) for number, (name, size) in _OF_32.items()},
    **{number: GgmlType(name, 256, size) for number, (name, size) in _OF_256.items()},
    **_OTHERS,
}
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as a file holds it: its type, its shape as PyTorch would have it, and its bytes."""

    name: str
    type: str
    shape: tuple[int, ...]
    size_bytes: int

    @property
    def values(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Header:
    """What a file, or all parts of a split one, say of themselves."""

    metadata: Mapping[str, Value]
    tensors: tuple[StoredTensor, ...]


def read_header(path: Path) -> Header:
    """The header of the file at `path`, with those of all its parts; WorkbookError for what is no such file.

    A file that was cut off behind its header is as good as a whole one.
    """
    metadata: dict[str, Value] = {}
    tensors: dict[str, StoredTensor] = {}
    for part in _parts(path):
        told, found = _HeaderReader.of(part)
        metadata = {**told, **metadata}
        for tensor in found:
            if tensor.name in tensors:
                raise _broken(part, f"two tensors are called {tensor.name!r:.80}")
            tensors[tensor.name] = tensor
    if not tensors:
        raise _broken(path, "it holds no tensors")
    return Header(metadata, tuple(tensors.values()))


def _parts(path: Path) -> list[Path]:
    """The file alone, or every part of the split one that it belongs to, the first with the metadata first."""
    split = _SPLIT.fullmatch(path.name)
    if not split:
        return [path]
    count = int(split[3])
    if not 1 <= int(split[2]) <= count:
        raise _broken(path, f"it is part {int(split[2])} of {count}")
    parts = [path.with_name(f"{split[1]}-{number:05d}-of-{split[3]}.gguf") for number in range(1, count + 1)]
    missing = next((part for part in parts if not part.is_file()), None)
    if missing is not None:
        what, expected = f"{path.name!r} is one of {count} parts, and {missing.name!r} is not there", "all of them"
        raise WorkbookError(what, expected, "download the others beside it; the first few MB of each will do")
    return parts


def _broken(path: Path, problem: str) -> WorkbookError:
    return WorkbookError(f"{path.name!r} cannot be read as GGUF: {problem}", "a GGUF file", "download the file again")


@dataclass
class _HeaderReader:
    """A place in a mapped file; every read is checked against its end first."""

    path: Path
    data: mmap.mmap
    at: int = 0

    @classmethod
    def of(cls, path: Path) -> tuple[dict[str, Value], list[StoredTensor]]:
        import mmap  # here, for the catalogue is read in browsers, too

        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return cls(path, data).header()
        except (OSError, ValueError) as problem:  # ValueError: an empty file cannot be mapped
            if isinstance(problem, WorkbookError):
                raise
            raise _broken(path, str(problem)) from None

    def header(self) -> tuple[dict[str, Value], list[StoredTensor]]:
        if self.data[:4] != MAGIC:
            raise _broken(self.path, "it does not begin with the letters GGUF")
        self.at = 4
        version = self.number("I")
        if version not in VERSIONS:
            told = "it is big-endian" if version and version & 0xFFFF == 0 else f"its version is {version}"
            expected = f"version {' or '.join(map(str, VERSIONS))}, little-endian"
            raise WorkbookError(f"{self.path.name!r}: {told}", expected, "convert the model again with llama.cpp")
        tensors, entries = self.number("Q"), self.number("Q")
        self.require(entries, 8 + 4 + 1)
        read = [self.entry() for _ in range(entries)]
        metadata = {key: value for key, value in read if value is not None}
        self.require(tensors, 8 + 4 + 4 + 8)
        return metadata, [self.tensor() for _ in range(tensors)]

    def entry(self) -> tuple[str, Value | None]:
        return self.name(), self.value(self.number("I"))

    def value(self, kind: int, nested: int = 0) -> Value | None:
        """A value of the metadata; None for one that is passed over: a long text, or an array of many or of texts."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _TEXT:
            return self.text()
        if kind != _ARRAY or nested == MOST_NESTED:
            raise _broken(self.path, f"a value of the unknown type {kind} at byte {self.at:,}")
        of, count = self.number("I"), self.number("Q")
        if of in _SCALARS:
            return self.numbers(_SCALARS[of], count)
        self.require(count, 8 if of == _TEXT else 12)
        if of == _TEXT:
            self.pass_over_texts(count)
        else:
            for _ in range(count):
                self.value(of, nested + 1)
        return None

    def pass_over_texts(self, count: int) -> None:
        """A vocabulary has hundreds of thousands, so this loop is kept bare."""
        data, at, end, length = self.data, self.at, len(self.data) - 8, struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at > end:
                break
            at += 8 + length(data, at)[0]
        else:
            self.skip(at - self.at)
            return
        raise _broken(self.path, f"its header goes on behind its end, in {count:,} texts at byte {self.at:,}")

    def tensor(self) -> StoredTensor:
        name, dimensions = self.name(), self.number("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise _broken(self.path, f"{name!r:.80} has {dimensions:,} dimensions")
        sizes = tuple(self.number("Q") for _ in range(dimensions))
        kind, _ = self.number("I"), self.number("Q")
        stored = GGML_TYPES.get(kind)
        if stored is None:
            what = f"{self.path.name!r}: {name!r:.80} is of ggml's type {kind}, which is not known here"
            raise WorkbookError(what, ", ".join(one.name for one in GGML_TYPES.values()), "use a file of these types")
        values = prod(sizes)
        if not 0 < values <= MOST_VALUES or sizes[0] % stored.block_values:
            raise _broken(self.path, f"{name!r:.80} has {sizes} values in blocks of {stored.block_values}")
        return StoredTensor(name, stored.name, sizes[::-1], values // stored.block_values * stored.block_bytes)

    def name(self) -> str:
        """Of an entry or a tensor."""
        start = self.at
        text = self.text()
        if text is None or self.at - start > MOST_NAME:
            raise _broken(self.path, f"a name of {self.at - start - 8:,} bytes at byte {start:,}")
        return text

    def text(self) -> str | None:
        """None for one above MOST_TEXT, which is passed over."""
        length = self.number("Q")
        self.skip(length)
        return self.data[self.at - length : self.at].decode("utf-8", "replace") if length <= MOST_TEXT else None

    def number(self, code: str):
        size = struct.calcsize(f"<{code}")
        self.skip(size)
        return struct.unpack_from(f"<{code}", self.data, self.at - size)[0]

    def numbers(self, code: str, count: int) -> tuple | None:
        size = struct.calcsize(f"<{code}")
        self.require(count, size)
        self.skip(count * size)
        if count > MOST_KEPT:
            return None
        return struct.unpack_from(f"<{count}{code}", self.data, self.at - count * size)

    def skip(self, size: int) -> None:
        self.require(1, size)
        self.at += size

    def require(self, count: int, size: int) -> None:
        if count * size > len(self.data) - self.at:
            raise _broken(self.path, f"its header goes on behind its end: {count * size:,} bytes at byte {self.at:,}")


def of_types(tensors: tuple[StoredTensor, ...]) -> Iterator[tuple[str, int]]:
    """The types of some tensors and how many bytes are in each, the largest first."""
    sums: dict[str, int] = {}
    for tensor in tensors:
        sums[tensor.type] = sums.get(tensor.type, 0) + tensor.size_bytes
    yield from sorted(sums.items(), key=lambda one: -one[1])
