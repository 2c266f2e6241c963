"""A place on each rank for what the next call needs."""

from __future__ import annotations

from ...catalog.errors import WorkbookError


class SavedActivations(dict[str, object]):
    """A dict of this process. It is never sent: wherever it arrives it is the one that lives there."""

    def __missing__(self, name: str) -> object:
        held = ", ".join(map(repr, self)) or "nothing"
        raise WorkbookError(
            f"this rank keeps nothing under {name!r}",
            f"a name that an earlier call kept; here it holds {held}",
            "run the cell that builds it: ranks that were started anew have lost what the old ones kept",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _here, ()


kept = SavedActivations()


def _here() -> SavedActivations:
    return kept
