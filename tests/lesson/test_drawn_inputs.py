"""Seeded inputs: each check has its own, the same everywhere, and other ones under another seed."""

import subprocess
import sys

from helpers.lesson import draw


def numbers(name, count=8):
    random = draw(name)
    return [random.randrange(10**6) for _ in range(count)]


def test_the_same_name_draws_the_same_in_any_order():
    first = numbers("lab-02/a")
    numbers("lab-02/b")
    assert numbers("lab-02/a") == first
    assert numbers("lab-02/b") != first


def test_the_seed_of_the_grader_changes_them_and_zero_is_the_default(monkeypatch):
    monkeypatch.delenv("WORKBOOK_SEED", raising=False)
    plain = numbers("lab-02/a")
    monkeypatch.setenv("WORKBOOK_SEED", "0")
    assert numbers("lab-02/a") == plain
    monkeypatch.setenv("WORKBOOK_SEED", "1")
    assert numbers("lab-02/a") != plain


def test_another_process_draws_the_same(monkeypatch):
    """A seed that went through hash() would differ: string hashes are salted per process."""
    monkeypatch.setenv("WORKBOOK_SEED", "17")
    code = "from helpers.lesson import draw; print(draw('lab-02/a').randrange(10**6))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == numbers("lab-02/a", 1)[0]
