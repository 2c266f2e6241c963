"""Benchmarks: printed with `-s`, in absolute numbers and as ratios. Machines differ, so no second is asserted."""

import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from statistics import median

import pytest

from helpers.lesson.calculators import numbers, roofline, tensor_numbers, training_memory
from helpers.lesson.calculators.operators import OPERATORS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.all, pytest.mark.alone]


def told(capsys, line):
    """Past pytest's capture: a benchmark that nobody can read measures nothing."""
    with capsys.disabled():
        print(f"\n  {line}")


REDRAWS = [
    (
        training_memory,
        {"model": ("llama-2-7b", "llama-2-70b", "gpt2"), "micro_batch": (1, 8, 64), "sequence": (256, 1024, 131072)},
    ),
    (roofline, {"op": tuple(OPERATORS), "gpu": ("h100-80gb", "t4-16gb"), "tokens": (1, 1024, 65536)}),
    (numbers, {"value": ("0.1", "-1e-40", "1/3"), "format": ("fp32", "fp16", "nvfp4")}),
    (tensor_numbers, {"tensor": ("weights", "activation gradients"), "scale": (-16, 0, 16, 40)}),
]


@pytest.mark.parametrize(("make", "choices"), REDRAWS, ids=lambda value: getattr(value, "__name__", ""))
def test_redraw_of_a_calculator(make, choices, capsys):
    calculator, seconds = make(), []
    for values in product(*choices.values()):
        chosen = {**calculator.start, **dict(zip(choices, values, strict=True))}
        start = time.perf_counter()
        html = calculator.render(chosen)
        seconds.append(time.perf_counter() - start)
        assert html
    told(
        capsys,
        f"redraw of {make.__name__}: median {median(seconds) * 1e3:.1f} ms, worst {max(seconds) * 1e3:.1f} ms "
        f"of {len(seconds)}; the goal is a median under 50 ms",
    )


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
