"""Workers side by side: one learner's bad luck is no other's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from helpers.grading import executors
from helpers.grading.sandbox.worker import SandboxError


class NoWorker:
    """In place of a worker and its processes."""

    restarts = 0

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> NoWorker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def restart(self) -> None:
        NoWorker.restarts += 1


@pytest.fixture
def class_of_three(monkeypatch):
    """Mark ada, bob and cleo with `mark`; what came of each, in any order."""

    def graded(mark) -> set[str]:
        monkeypatch.setattr(executors, "Worker", NoWorker)
        monkeypatch.setattr(executors, "mark", mark)
        monkeypatch.setattr(
            executors,
            "failed",
            lambda reference, submission, slug, error: f"{slug} failed: {str(error).splitlines()[0]}",
        )
        NoWorker.restarts = 0
        work = [(None, slug) for slug in ("ada", "bob", "cleo")]
        return set(executors.local(work, SimpleNamespace(modules=(), more=()), None, jobs=2, strict=False))

    return graded


@pytest.mark.parametrize("error", [SandboxError, SystemError])
def test_a_fault_of_ours_is_tried_again_and_costs_nobody_else(class_of_three, capsys, error) -> None:
    def mark(worker, reference, submission, slug, strict) -> str:
        if slug == "bob":
            raise error("out of luck")
        return slug

    assert class_of_three(mark) == {"ada", "bob failed: out of luck", "cleo"}
    assert NoWorker.restarts == 2
    said = capsys.readouterr().err
    assert f"once more, bob: {error.__name__}: out of luck" in said
    assert ("Traceback" in said) == (error is SystemError), "a fault of our code says where"


def test_the_second_try_counts(class_of_three) -> None:
    tried = []

    def mark(worker, reference, submission, slug, strict) -> str:
        tried.append(slug)
        if slug == "bob" and tried.count("bob") == 1:
            raise SystemError("out of luck")
        return slug

    assert class_of_three(mark) == {"ada", "bob", "cleo"}
