"""The worked lab is not run again where nothing changed, and is where anything did."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from nbformat import v4

from helpers.course import notebook as nb
from helpers.grading import stored_reference
from helpers.grading.judging.reference import Reference
from helpers.grading.stored_reference import fingerprint, load_or_prepare
from tests.course.example_lab import example_lab, save

LAB = example_lab()
LAB.cells[3].outputs = [v4.new_output("stream", name="stdout", text="é\n")]
REFERRED = {"check-twice": [{"answer": "[1, 2.5]"}]}
REFERENCE = Reference("05_numbers", "Numbers", "3", LAB, None, 10.0, 120.5, "digest", ("math", "os"), (), REFERRED)


class Run:
    """Makes the reference, and counts how often."""

    def __init__(self, reference: Reference = REFERENCE) -> None:
        self.reference, self.times = reference, 0

    def __call__(self) -> Reference:
        self.times += 1
        return self.reference


def test_it_is_run_once_and_comes_back_as_it_was(tmp_path):
    run, path = Run(), tmp_path / "reference.json"
    assert load_or_prepare(path, "a", run) is REFERENCE
    again = load_or_prepare(path, "a", run)
    assert run.times == 1
    assert again == REFERENCE
    assert nb.text(again.notebook) == nb.text(LAB)
    assert again.notebook.cells[1].source  # a notebook, not only a dict
    assert load_or_prepare(path, "b", run) is REFERENCE
    assert run.times == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"fingerprint": "a"}', "cut", "changed", "gone", "another"])
def test_a_damaged_store_is_made_anew(tmp_path, damage):
    path, run = tmp_path / "reference.json", Run()
    load_or_prepare(path, "a", run)
    stored = path.read_text()
    told = json.loads(stored)
    told["reference"].pop("wall_s")
    another = {**told, "sha256": stored_reference._sha256(told["reference"])}  # of another version, and whole
    damages = {"cut": stored[: len(stored) // 2], "changed": stored.replace("return 2 * x", "return 3 * x")}
    damages["another"] = json.dumps(another)
    if damage == "gone":
        path.unlink()
    else:
        path.write_text(damages.get(damage, damage))
    assert load_or_prepare(path, "a", run) == REFERENCE
    assert run.times == 2
    assert load_or_prepare(path, "a", run) == REFERENCE
    assert run.times == 2, "the new one was stored"


def test_private_checks_are_never_stored(tmp_path):
    path, run = tmp_path / "reference.json", Run(replace(REFERENCE, private=example_lab()))
    load_or_prepare(path, "a", Run())
    load_or_prepare(path, "b", run)
    load_or_prepare(path, "b", run)
    assert run.times == 2
    assert not path.exists()


def test_the_fingerprint_changes_with_what_could_change_an_output(tmp_path, monkeypatch):
    path = save(example_lab(), tmp_path / "05_numbers.ipynb")
    first = fingerprint(path, "3", 10.0)
    assert fingerprint(path, "3", 10.0) == first
    assert fingerprint(path, "4", 10.0) != first
    with monkeypatch.context() as other:
        other.setattr(stored_reference.platform, "node", lambda: "another machine")
        assert fingerprint(path, "3", 10.0) != first
    package = tmp_path / "package"
    (package / "__pycache__").mkdir(parents=True)
    (package / "one.py").write_text("x = 1")
    monkeypatch.setattr(stored_reference, "PACKAGE", package)
    of_package = fingerprint(path, "3", 10.0)
    (package / "__pycache__" / "one.pyc").write_text("compiled")
    assert fingerprint(path, "3", 10.0) == of_package
    (package / "one.py").write_text("x = 2")
    assert fingerprint(path, "3", 10.0) != of_package
    other_lab = example_lab()
    other_lab.cells[3].source += "\n"
    save(other_lab, path)
    assert fingerprint(path, "3", 10.0) not in (first, of_package)
