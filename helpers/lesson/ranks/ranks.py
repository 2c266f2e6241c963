"""Ranks: a function in, its results by rank out."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...catalog.errors import WorkbookError, require_number, require_whole
from .errors import Raised, Returned, rank_error
from .group import Group

MOST_ON_ONE_MACHINE = 16
BACKENDS = ("gloo", "nccl")


class Ranks:
    """`count` processes with torch.distributed between them, kept from one call to the next.

    NCCL with a GPU for each where there are that many, else gloo on the CPU; `backend` decides it otherwise. `profile`
    is an IPython profile whose configuration starts the engines, over several machines if it says so. `timeout_s` holds
    for each call that names none. Without `start` the first call starts them. Raises WorkbookError.

        with Ranks(2) as ranks:
            ranks.run(dist.get_rank)        # [0, 1]
    """

    def __init__(
        self,
        count: int,
        *,
        backend: str | None = None,
        profile: str | None = None,
        timeout_s: float = 60,
        start: bool = True,
    ) -> None:
        _require_valid(count, backend, profile, timeout_s)
        self.count, self.timeout_s = count, timeout_s
        self._backend, self._profile = backend, profile
        self._group: Group | None = None
        self.printed: tuple[str, ...] = ("",) * count
        if start:
            self.restart()

    def run(self, function: Callable, *args: Any, timeout_s: float | None = None, **kwargs: Any) -> list[Any]:
        """`function(*args, **kwargs)` on every rank, called together; the results by rank, tensors as tensors.

        It may use anything that its cell may, and `helpers.lesson.ranks.kept` for what a later call needs. What it
        prints is in `printed` afterwards, by rank. New ranks are started where there are none. Raises RankError where
        it does not return on every rank within `timeout_s`, and WorkbookError for what cannot be sent.
        """
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        _require_valid(self.count, self._backend, self._profile, timeout_s)
        name, serialized = serialize_call(function, args, kwargs)
        group = self._group or self.restart()
        try:
            outcomes = group.call(serialized, timeout_s)
        except BaseException:  # the interrupt button: the ranks may be waiting in a collective for ever
            self.stop()
            raise
        self.printed = tuple(ended.printed if isinstance(ended, Returned | Raised) else "" for ended in outcomes)
        if error := rank_error(outcomes, name, timeout_s):
            if not error.alive:
                self.stop()
            raise error
        return [ended.value for ended in outcomes if isinstance(ended, Returned)]

    def restart(self) -> Group:
        """New ranks in place of those that are there, which lose what they keep."""
        self.stop()
        self._group = Group(self.count, self._backend, self._profile)
        return self._group

    def stop(self) -> None:
        """End all processes; nothing happens where there are none. It is also done at exit."""
        group, self._group = self._group, None
        if group is not None:
            group.close()

    @property
    def view(self) -> Any:
        """ipyparallel's DirectView of the ranks; `ranks.view.activate()` makes `%%px --no-stream` run on them.

        Streaming, ipyparallel 9.2 shows fast answers one over the other.
        """
        return (self._group or self.restart()).view

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def __reduce__(self) -> Any:
        raise TypeError("the ranks themselves: a function that is sent runs on a rank and cannot call them")

    def __repr__(self) -> str:
        many = "1 rank" if self.count == 1 else f"{self.count} ranks"
        return f"<{many} on {self._group.backend}, ready>" if self._group else f"<{many}, stopped>"


def serialize_call(function: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[str, bytes]:
    """The function's name, and the call as bytes, with all that the function uses.

    WorkbookError for what is no function, and for what cannot be sent.
    """
    if not callable(function):
        do = "ranks.run(step, x), not ranks.run(step(x))"
        raise WorkbookError(f"{function!r} is not a function", "something to call on every rank", do)
    name = getattr(function, "__name__", type(function).__name__)
    try:
        return name, _pickled((function, args, kwargs))
    except Exception as error:
        what, do = f"{name} cannot be sent to the ranks: {error}", "make inside the function what cannot travel"
        raise WorkbookError(what, "functions, numbers, tensors, modules", do) from None


def _pickled(call: tuple) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            """Modules of a type of their own go by name.

            cloudpickle sends a submodule where a function uses its name as any word. torch.distributed.config is such
            a module, and cannot be pickled.
            """
            if isinstance(thing, ModuleType) and type(thing) is not ModuleType:
                return importlib.import_module, (thing.__name__,)
            return super().reducer_override(thing)

    buffer = io.BytesIO()
    Pickler(buffer).dump(call)
    return buffer.getvalue()


def _require_valid(count: int, backend: str | None, profile: str | None, timeout_s: float) -> None:
    require_whole("count", count, unit="ranks", do="Ranks(4)")
    if count > MOST_ON_ONE_MACHINE and profile is None:
        most = f"at most {MOST_ON_ONE_MACHINE}: each is a process that holds torch, about 300 MB"
        do = "trace more without running them, or pass a cluster's profile="
        raise WorkbookError(f"{count} ranks on one machine", most, do)
    if backend not in (None, *BACKENDS):
        raise WorkbookError(f"backend {backend!r}", " or ".join(BACKENDS), "leave it out to take what fits")
    require_number("timeout_s", timeout_s, below=float("inf"), expected="seconds, above 0", do="timeout_s=60")
