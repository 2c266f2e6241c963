"""What the face offers is what it says, in whatever order it is asked for; the examples in docstrings hold."""

import doctest
import subprocess
import sys
from importlib import import_module

import pytest

NAMES = ["attention", "tiled", "naive", "merge", "TiledAttention", "Causal"]


@pytest.mark.parametrize("name", ["masks", "online", "counts"])
def test_examples(name):
    assert doctest.testmod(import_module(f"helpers.techniques.attention.{name}")).failed == 0


def test_no_module_hides_a_function():
    """A module that is imported becomes an attribute of its package: a function of its name would be gone."""
    asked = "; ".join(f"assert callable(attention.{name}), {name!r}" for name in NAMES)
    subprocess.run([sys.executable, "-c", f"from helpers.techniques import attention; {asked}"], check=True)


def test_counting_needs_no_torch():
    code = "import sys; from helpers.techniques.attention import Causal, counts; counts.tiled(counts.Call(512))"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch' not in sys.modules"], check=True)
