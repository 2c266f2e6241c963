"""Who does the marking: local benches side by side, or the engines of an ipyparallel cluster.

Both take submissions in any order and hand back each one's Marked as soon as it is done.
"""

from __future__ import annotations

import atexit
import queue
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.catalog.errors import WorkbookError
from helpers.course.grade.bench import Bench, SandboxError
from helpers.course.grade.intake import Submission
from helpers.course.grade.marking import Marked, failed, mark
from helpers.course.grade.paper import Paper
from helpers.course.sandbox.levels import Level

if TYPE_CHECKING:
    from ipyparallel import AsyncResult

Work = list[tuple[Submission, str]]  # a submission and its slug


def local(work: Work, paper: Paper, level: Level, jobs: int, strict: bool) -> Iterator[Marked]:
    """Mark `work` at `jobs` benches, each with processes of its own. Closing the iterator ends them all."""
    waiting, done = queue.SimpleQueue(), queue.SimpleQueue()
    for one in work:
        waiting.put(one)
    stop = threading.Event()

    def desk() -> None:
        try:
            with Bench(level, paper.modules, paper.more) as bench:
                while not stop.is_set():
                    done.put(_patiently(bench, paper, *waiting.get_nowait(), strict))
        except queue.Empty:
            pass
        except BaseException as error:  # a fault of ours: the batch must hear of it, not wait
            done.put(error)

    threads = [threading.Thread(target=desk, daemon=True) for _ in range(min(jobs, len(work)))]
    for thread in threads:
        thread.start()
    try:
        for _ in work:
            found = done.get()
            if isinstance(found, BaseException):
                raise found
            yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def cluster(work: Work, paper: Paper, level: Level, profile: str, strict: bool) -> Iterator[Marked]:
    """Mark `work` on the engines of the running ipyparallel cluster `profile`, load-balanced.

    Each engine needs this package and a sandbox of its own at `level`'s strength, found anew where it runs.
    WorkbookError when no engine answers.
    """
    import ipyparallel

    try:
        client = ipyparallel.Client(profile=profile, timeout=30)
        client.wait_for_engines(1, timeout=30)
    except (OSError, TimeoutError, ipyparallel.error.IPythonError) as error:
        raise WorkbookError(
            f"no engine answers in the cluster profile {profile!r} ({str(error).splitlines()[0]})",
            "a running ipyparallel cluster",
            f"start one: ipcluster start --profile={profile} -n 4",
        ) from None
    view = client.load_balanced_view()
    view.retries = 1  # an engine may be lost
    trusted = level.name == "limits"
    tasks = [view.apply_async(_on_engine, *_packed(one), slug, paper, trusted, strict) for one, slug in work]
    try:
        for task, (submission, slug) in zip(tasks, work, strict=True):
            yield _answer(task, paper, submission, slug)
    finally:
        for task in tasks:
            if not task.done():
                task.abort()
        client.close()


def _answer(task: AsyncResult, paper: Paper, submission: Submission, slug: str) -> Marked:
    """What an engine found, or the row that says that it was lost: the others go on."""
    try:
        return task.get()
    except Exception as error:
        return failed(paper, submission, slug, error)


def _patiently(bench: Bench, paper: Paper, submission: Submission, slug: str, strict: bool) -> Marked:
    """`mark`, tried twice for any fault of ours, as a process killed for lack of memory. A row comes out either way."""
    try:
        return mark(bench, paper, submission, slug, strict)
    except Exception as error:
        print(f"once more, {slug}: {type(error).__name__}: {error}", file=sys.stderr)
        bench.restart()
    try:
        return mark(bench, paper, submission, slug, strict)
    except Exception as error:  # ours, and no reason to leave the rest of the class without grades
        if not isinstance(error, SandboxError):
            traceback.print_exc()
        bench.restart()
        return failed(paper, submission, slug, error)


def _packed(submission: Submission) -> tuple[Submission, bytes | None]:
    """A submission that can travel: an engine may not see our files."""
    return replace(submission, path=None), submission.path.read_bytes() if submission.path else None


def _on_engine(
    submission: Submission, data: bytes | None, slug: str, paper: Paper, trusted: bool, strict: bool
) -> Marked:
    """In an engine: the bench of the lab before is still warm."""
    bench = _bench_here(paper.modules, paper.more, trusted)
    with tempfile.TemporaryDirectory() as folder:
        if data is not None:
            path = Path(folder) / "submission.ipynb"
            path.write_bytes(data)
            submission = replace(submission, path=path)
        return _patiently(bench, paper, submission, slug, strict)


_benches: dict[tuple, Bench] = {}


def _bench_here(modules: tuple[str, ...], more: tuple[str, ...], trusted: bool) -> Bench:
    from helpers.course.sandbox import levels

    if (modules, more, trusted) not in _benches:
        bench = Bench(levels.best(trusted), modules, more).__enter__()
        atexit.register(bench.__exit__)
        _benches[modules, more, trusted] = bench
    return _benches[modules, more, trusted]
