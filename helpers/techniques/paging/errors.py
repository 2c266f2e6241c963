"""What paging refuses, and how it says so."""

from __future__ import annotations

from collections.abc import Container

from ...catalog.errors import WorkbookError


class OutOfBlocksError(WorkbookError):
    """More blocks were wanted than there are; nothing was changed. Preempt someone, or wait."""

    def __init__(self, what: str, needed: int, available: int, where: str = "device") -> None:
        self.needed, self.available = needed, available
        super().__init__(
            f"{what}: {needed} blocks needed, {available} available on the {where}",
            f"at most {available} blocks",
            "release, preempt or wait for a sequence",
        )


def positive(name: str, value: object, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise WorkbookError(f"{name} is {value!r}", f"a whole number from {least} up", f"pass {name}={max(least, 1)}")
    return value


def known(sequence: object, among: Container) -> None:
    if sequence not in among:
        raise WorkbookError(
            f"sequence {sequence!r} holds nothing here",
            "one that was appended to, and not released",
            "append first; release once",
        )


def new_sequence(sequence: object, among: Container) -> None:
    if sequence in among:
        raise WorkbookError(f"sequence {sequence!r} exists already", "a new name", "release it first")
