"""The Triton kernel: in the interpreter equal to the tiled forward, and compiled for a GPU without one."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.techniques import attention
from tests.house.tree import ROOT
from tests.versions import is_before

MISSING = find_spec("triton") is None
needs_triton = pytest.mark.needs("triton", "pip install -r requirements-triton.txt")
# Triton 3.6's interpreter makes numbers of arrays of one element, which NumPy no longer does
numbers_of_arrays = pytest.mark.skipif(
    is_before("triton", "3.7") and not is_before("numpy", "2.4"), reason="Triton 3.6 interprets with NumPy below 2.4"
)
Z = torch.zeros(1, 2, 20, 16)


def run(what, **environment):
    """What one part of in_triton.py prints; its traceback is the failure's message."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    own = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.techniques.attention.in_triton", what]
    environment = {**own, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@needs_triton
@numbers_of_arrays
@pytest.mark.parametrize("environment", [{}, {"TRITON_INTERPRET": "1"}])
def test_interpreted_as_tiled(environment):
    run("interpreted", **environment)


@needs_triton
def test_compiles_for_a_gpu_that_is_not_here():
    """A100, BF16, head_dim 64: queries, and two stages of keys and values, 8 KiB each."""
    assert int(run("compiled")) == 5 * 64 * 64 * 2


@pytest.mark.skipif(not MISSING, reason="Triton is installed")
def test_without_triton():
    with pytest.raises(WorkbookError, match="triton cannot be imported"):
        attention.triton_tiled(Z, Z, Z)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"tile": 48}, "powers of 2"),
        ({"tile": (8, 64)}, "powers of 2"),
        ({"mask": attention.BlockSparse(64, [[1]])}, "Full, Causal or Window"),
    ],
)
def test_what_the_kernel_does_not_take(options, expected):
    with pytest.raises(WorkbookError, match=expected):
        attention.triton_tiled(Z, Z, Z, **options)
    with pytest.raises(WorkbookError, match="in 32 or 16 bits"):
        attention.triton_tiled(Z.double(), Z.double(), Z.double())
