"""Ranks as a notebook has them: functions and classes of cells, the interrupt button, a cluster's profile."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import nbclient
import nbformat
import pytest
import torch.distributed as dist
from jupyter_client.manager import start_new_kernel

from helpers.lesson.ranks import RankError, Ranks
from tests.lesson.ranks import calls

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CELLS = [
    "import os, torch, torch.distributed as dist\nfrom helpers.lesson.ranks import Ranks, kept\n\n"
    "ranks = Ranks(2)\nranks",
    "class Counter:\n    n = 0\n    def add(self, by):\n        self.n += by\n        return self\n\nSCALE = 10\n\n"
    "def scaled(x):\n    return x * SCALE\n\ndef build():\n    kept['counter'] = Counter()\n\nranks.run(build)",
    "def step(x):\n    t = torch.ones(2) * scaled(x)\n    dist.all_reduce(t)\n"
    "    return t.tolist(), kept['counter'].add(dist.get_rank())\n\nanswers = ranks.run(step, 2)\n"
    "print([t for t, _ in answers], [c.n for _, c in answers], isinstance(answers[1][1], Counter))",
    "SCALE = 100\nranks.run(step, 2)[0][0]",
    "def dies():\n    if dist.get_rank() == 1:\n        os._exit(3)\n    dist.barrier()\n\nranks.run(dies)",
    "ranks.run(build)\nranks.run(step, 1)[0][0]",
    "ranks.view.activate()",
    "%%px --no-stream\nprint(kept) if 'kept' in globals() else print(1 + 1)",
    "ranks.stop()\nranks",
]
SHOWN = [
    "<2 ranks on gloo, ready>",
    "[None, None]",
    "[[40.0, 40.0], [40.0, 40.0]] [0, 1] True\n",
    "[400.0, 400.0]",
    "rank 1 ended its process with exit code 3\n  last seen at: cell line 3, in dies: os._exit(3)\n"
    "  expected: dies to return on all 2 ranks\n"
    "  do: run the cell again: 2 new ranks start by themselves; what was kept is lost",
    "[200.0, 200.0]",
    "",
    "[stdout:0] \n2\n[stdout:1] \n2\n",
    "<2 ranks, stopped>",
]


def shown(cell: nbformat.NotebookNode) -> str:
    parts = [out.get("evalue") or out.get("text") or out.get("data", {}).get("text/plain") for out in cell.outputs]
    return "".join(parts)


def test_in_a_notebook_with_functions_and_classes_of_its_cells():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    nbclient.NotebookClient(notebook, allow_errors=True, timeout=60, resources={"metadata": {"path": ROOT}}).execute()
    assert [shown(cell) for cell in notebook.cells] == SHOWN
    outputs = [out for cell in notebook.cells for out in cell.outputs]
    assert [out.name for out in outputs if out.output_type == "stream" and out.name == "stderr"] == []
    assert [out.traceback for out in outputs if out.output_type == "error"] == [[f"RankError: {SHOWN[4]}"]]


def test_the_interrupt_button():
    manager, client = start_new_kernel(cwd=str(ROOT))
    printed = []

    def run(code: str) -> dict:
        return client.execute_interactive(
            code, timeout=60, output_hook=lambda message: printed.append(message["content"].get("text"))
        )["content"]

    try:
        run("from helpers.lesson.ranks import Ranks\nfrom tests.lesson.ranks import calls\nranks = Ranks(2)")
        run("print(*calls.everything_of(ranks))")
        before = next(filter(None, printed)).split()
        threading.Timer(1, manager.interrupt_kernel).start()
        assert run("ranks.run(calls.one_sleeps, 50)")["ename"] == "KeyboardInterrupt"
        assert calls.left_of(*before) == []
        printed.clear()
        run("print(ranks.run(calls.recall, 'x') if False else [len(ranks.run(calls.greet)), ranks])")
        assert list(filter(None, printed)) == ["[2, <2 ranks on gloo, ready>]\n"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_profile_of_the_users(tmp_path, monkeypatch):
    """Engines that only a profile knows how to start, here with its own nannies, watched by the controller alone."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    create = ["IPython", "profile", "create", "--parallel", "--profile=nodes"]
    subprocess.run([sys.executable, "-m", *create], check=True, capture_output=True)
    with Ranks(2, profile="nodes") as ranks:
        assert ranks.run(calls.total, 1)[0].tolist() == [3, 3]
        before = calls.everything_of(ranks)
        with pytest.raises(RankError, match="rank 1 is gone: its process or its machine no longer answers") as told:
            ranks.run(calls.one_ends_itself, 7, timeout_s=20)
        assert told.value.what.endswith("in one_ends_itself: os._exit(code)")
        assert calls.left_of(*before) == []
        assert ranks.run(dist.get_rank) == [0, 1]
        before = calls.everything_of(ranks)
    assert calls.left_of(*before) == []
