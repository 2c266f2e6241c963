"""No circle of imports, and what runs in a browser runs on the standard library alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.house import imports, tree

# What each may not load. `lesson` and `course` load their heavy tools when used, so that the CLI stays quick.
LIGHT = (
    "helpers",
    "helpers.catalog",
    "helpers.memory",
    "helpers.memory.budget",
    "helpers.watch",
    "helpers.lesson",
    "helpers.course",
    "helpers.grading",
    "helpers.cli",
)
HEAVY = {"torch", "transformers", "matplotlib", "accelerate", "bitsandbytes", "IPython"}
ASIDE = {
    "bitsandbytes",
    "deepspeed",
    "helpers.lesson.calculators",
    "helpers.memory.plan",
    "helpers.watch",
    "matplotlib",
    "peft",
}
TRACE = """
import sys
from helpers.cli import main

assert main("trace train --model tiny-llama --sequence 8 --json".split()) == 0
"""
ALONE = """
import sys

class OnlyTheStandardLibrary:
    def find_spec(self, name, path=None, target=None):
        first = name.partition(".")[0]
        if first != "helpers" and first not in sys.stdlib_module_names:
            raise ImportError(f"{name} is not in the standard library")

sys.meta_path.insert(0, OnlyTheStandardLibrary())
"""
BROWSER = """
from helpers.catalog import TrainSetup, device
from helpers.memory import activations, budget, rank_weights, weights, work, zero
from helpers.memory.allocator import MIB, alloc, free, replay
from helpers.memory.fit import changes
from helpers.memory.oom import explain
from helpers.lesson import calculators

print(budget.train(TrainSetup("llama-2-7b", precision="bf16")).peak_bytes)
print(replay([alloc("a", 3 * MIB), free("a")]).peak_reserved_bytes)
print(len(list(changes(TrainSetup("llama-3.2-1b", micro_batch=16), device("t4").capacity_bytes))))
print(explain("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.").reason)
answers = [name for name in dir(calculators) if name.endswith("_answer")]
assert len(answers) >= 9, answers
print(calculators.training_answer(TrainSetup("llama-2-7b", precision="bf16"), "h100").title)
print(calculators.quantization_answer("llama-3-8b", "nf4", gpu="rtx-4090").title)
"""


def sources() -> dict[Path, str]:
    return {path: tree.text_of(path) for path in tree.files() if path.suffix == ".py" and path.parts[0] == "helpers"}


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=tree.ROOT, capture_output=True, text=True, check=False)


def test_nothing_imports_itself_through_others() -> None:
    found = imports.circles(imports.graph(sources()))
    assert not found, imports.told(found)


def test_a_circle_is_found() -> None:
    planted = {
        Path("helpers/a.py"): "from .b import x\n",
        Path("helpers/b.py"): "def f():\n    from . import c\n",
        Path("helpers/c.py"): "from helpers.a import y\n",
        Path("helpers/d.py"): "from .a import z\n",
    }
    assert imports.circles(imports.graph(planted)) == [["helpers.a", "helpers.b", "helpers.c"]]


def test_every_import_leads_to_a_module() -> None:
    """Neither ruff nor mypy says so, for imports of what is not installed are no errors to them."""
    assert imports.nowhere(sources()) == []


def test_an_import_of_a_module_that_is_gone_is_found() -> None:
    planted = {
        Path("helpers/a/__init__.py"): "from .b import x\nfrom .gone import y\nimport torch\n",
        Path("helpers/a/b.py"): "from . import c\n",
    }
    assert imports.nowhere(planted) == ["helpers/a/__init__.py: helpers.a.gone.y"]


def test_importing_a_room_loads_nothing_heavy() -> None:
    """In one interpreter, one after the other, so that a red one is named by the first that is heavy."""
    code = "import importlib, sys\n" + "".join(
        f"importlib.import_module({name!r}); print({name!r}, *({HEAVY!r} & set(sys.modules)))\n" for name in LIGHT
    )
    done = python(code)
    assert done.stdout.split("\n")[:-1] == list(LIGHT), done.stdout + done.stderr


def test_a_trace_loads_the_flags_of_no_other_command_and_no_library_that_it_does_not_run() -> None:
    """Transformers and PyTorch bring what they bring: two of its three seconds, and nothing to choose from."""
    done = python(TRACE + f"print('beside:', *({ASIDE!r} & set(sys.modules)))")
    assert done.stdout.endswith("beside:\n"), done.stdout + done.stderr


def test_what_a_browser_runs_needs_the_standard_library_alone() -> None:
    done = python(ALONE + BROWSER)
    assert done.returncode == 0, done.stderr[-2000:]


def test_another_library_would_be_noticed() -> None:
    assert "is not in the standard library" in python(ALONE + "import numpy").stderr
