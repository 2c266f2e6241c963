"""The room's sign: light imports, examples that run."""

import doctest
import importlib
import subprocess
import sys

import pytest

HEAVY = "import sys, helpers.catalog; print(*{'torch', 'transformers', 'matplotlib', 'numpy'} & set(sys.modules))"
MODULES = (
    "devices",
    "errors",
    "floats",
    "formats",
    "hardware",
    "layers",
    "models",
    "optimizers",
    "recipes",
    "serve_setup",
    "setup_fields",
    "shape",
    "train_setup",
)


def test_importing_the_catalogue_pulls_in_nothing_heavy():
    # A model with a closed form is sized without torch, too.
    use = HEAVY.replace("print", "helpers.catalog.TrainSetup('deepseek-v3'); print")
    for script in (HEAVY, use):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    assert doctest.testmod(importlib.import_module(f"helpers.catalog.{name}")).failed == 0
