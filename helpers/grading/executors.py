"""Who does the marking: local workers side by side, or the engines of an ipyparallel cluster.

Both take submissions in any order and yield each one's Marked as soon as it is done.
"""

from __future__ import annotations

import atexit
import queue
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import cache
from pathlib import Path

from ..catalog.errors import WorkbookError
from .intake.submissions import LearnerNotebook
from .judging.marking import Marked, failed, mark
from .judging.reference import Reference
from .sandbox import levels
from .sandbox.worker import SandboxError, Worker

Work = list[tuple[LearnerNotebook, str]]  # a submission and its slug
MarkedOnes = Generator[Marked, None, None]


def local(
    work: Work,
    reference: Reference,
    level: levels.SandboxLevel,
    jobs: int,
    strict: bool,
    started: Callable[[LearnerNotebook], None] = lambda notebook: None,
) -> MarkedOnes:
    """Mark `work` by `jobs` workers, each with processes of its own. Closing the iterator ends them all.

    `started` hears of each notebook that a worker begins with.
    """
    waiting: queue.SimpleQueue[tuple[LearnerNotebook, str]] = queue.SimpleQueue()
    done: queue.SimpleQueue[Marked | BaseException] = queue.SimpleQueue()
    for item in work:
        waiting.put(item)
    stop = threading.Event()

    def run_worker() -> None:
        try:
            with Worker(level, reference.modules, reference.more) as worker:
                while not stop.is_set():
                    submission, slug = waiting.get_nowait()
                    started(submission)
                    done.put(_patiently(worker, reference, submission, slug, strict))
        except queue.Empty:
            pass
        except BaseException as error:  # a fault of ours: the batch must hear of it, not wait
            done.put(error)

    threads = [threading.Thread(target=run_worker, daemon=True) for _ in range(min(jobs, len(work)))]
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


def cluster(work: Work, reference: Reference, level: levels.SandboxLevel, profile: str, strict: bool) -> MarkedOnes:
    """Mark `work` on the engines of the running ipyparallel cluster `profile`, load-balanced.

    Each engine needs this package and a sandbox of its own at `level`'s strength, found anew where it runs.
    WorkbookError when no engine answers.
    """
    import ipyparallel

    try:
        client = ipyparallel.Client(profile=profile, timeout=30)
        client.wait_for_engines(1, timeout=30)
    except (OSError, TimeoutError, ipyparallel.error.IPythonError) as error:
        what = f"no engine answers in the cluster profile {profile!r} ({str(error).splitlines()[0]})"
        do = f"start one: ipcluster start --profile={profile} -n 4"
        raise WorkbookError(what, "a running ipyparallel cluster", do) from None
    view = client.load_balanced_view()
    view.retries = 1  # an engine may be lost
    trusted = not level.is_sandbox
    tasks = [view.apply_async(_on_engine, *_packed(one), slug, reference, trusted, strict) for one, slug in work]
    try:
        for task, (submission, slug) in zip(tasks, work, strict=True):
            try:
                marked = task.get()
            except Exception as error:  # the engine was lost: the others go on
                marked = failed(reference, submission, slug, error)
            yield marked
    finally:
        for task in tasks:
            if not task.done():
                task.abort()
        client.close()


def _patiently(worker: Worker, reference: Reference, submission: LearnerNotebook, slug: str, strict: bool) -> Marked:
    """`mark`, tried twice for any fault of ours, as a process killed for lack of memory. A row comes out either way."""
    try:
        return mark(worker, reference, submission, slug, strict)
    except Exception as error:
        print(f"once more, {slug}: {type(error).__name__}: {error}", file=sys.stderr)
        worker.restart()
    try:
        return mark(worker, reference, submission, slug, strict)
    except Exception as error:  # ours, and no reason to leave the rest of the class without grades
        if not isinstance(error, SandboxError):
            traceback.print_exc()
        worker.restart()
        return failed(reference, submission, slug, error)


def _packed(submission: LearnerNotebook) -> tuple[LearnerNotebook, bytes | None]:
    """A submission that can travel: an engine may not see our files."""
    return replace(submission, path=None), submission.path.read_bytes() if submission.path else None


def _on_engine(
    submission: LearnerNotebook, data: bytes | None, slug: str, reference: Reference, trusted: bool, strict: bool
) -> Marked:
    """In an engine: the worker of the lab before is still warm."""
    worker = _worker_here(reference.modules, reference.more, trusted)
    with tempfile.TemporaryDirectory() as folder:
        if data is not None:
            path = Path(folder) / "submission.ipynb"
            path.write_bytes(data)
            submission = replace(submission, path=path)
        return _patiently(worker, reference, submission, slug, strict)


@cache
def _worker_here(modules: tuple[str, ...], more: tuple[str, ...], trusted: bool) -> Worker:
    worker = Worker(levels.best(trusted), modules, more).__enter__()
    atexit.register(worker.__exit__)
    return worker
