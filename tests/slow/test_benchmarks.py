"""Benchmarks: printed with `-s`, in absolute numbers and as ratios. Machines differ, so no second is asserted."""

import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from statistics import median

import pytest

from helpers.lesson.calculators import training_memory

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


def told(capsys, line):
    """Past pytest's capture: a benchmark that nobody can read measures nothing."""
    with capsys.disabled():
        print(f"\n  {line}")


def test_redraw_of_the_calculator(capsys):
    calculator, seconds = training_memory(), []
    for model, micro_batch, sequence in product(("llama-2-7b", "llama-2-70b", "gpt2"), (1, 8, 64), (256, 1024, 131072)):
        values = {**calculator.start, "model": model, "micro_batch": micro_batch, "sequence": sequence}
        start = time.perf_counter()
        html = calculator.render(values)
        seconds.append(time.perf_counter() - start)
        assert html
    told(capsys, f"calculator redraw: median {median(seconds) * 1e3:.1f} ms, worst {max(seconds) * 1e3:.1f} ms "
                 f"of {len(seconds)}; the goal is a median under 50 ms")  # fmt: skip


def interpreter_seconds(code):
    """The quickest of seven fresh interpreters that run `code`."""
    runs = []
    for _ in range(7):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        runs.append(time.perf_counter() - start)
    return min(runs)


@pytest.mark.parametrize("module", ["helpers", "helpers.memory.budget", "helpers.lesson.calculators", "helpers.cli"])
def test_import_beside_a_bare_interpreter(module, capsys):
    bare, loaded = interpreter_seconds("pass"), interpreter_seconds(f"import {module}")
    ratio = loaded / bare
    told(capsys, f"import {module}: {loaded * 1e3:.0f} ms, {ratio:.1f} × a bare interpreter ({bare * 1e3:.0f} ms)")
    assert ratio < 20  # torch alone is beyond this
