"""What lab 08 says in words is what its code does; which parts of a question a half-right answer is paid for."""

from __future__ import annotations

import re

import pytest

from helpers.course import lab_cells
from helpers.course.mutants import find_mutants, load_mutants
from tests.labs.common import checks_passed, lab_path, printed

LAB = lab_path("08")
MUTANTS = load_mutants(find_mutants(LAB))


FIGURES = {
    "break-even-prefill": {"30 ": "30 prompts", "60 ": "60 prompts", "257 ": "257 prompts"},
    "break-even-decode": {
        "119,616": "119,616 sequences",
        "7 tokens no batch": "7 tokens, PCIe 5.0, 9.894e+14 FLOP/s: no",
    },
    "streamer-copies": {"fetches 14 copies": "8 layers: 14 copies up"},
    "streamer-seconds": {"26 ms": "8 layers, even: 26,000 µs", "24.": "the device computes 24,000"},
    "streamer-right": {"takes 48": "8 layers: one thing after the other takes 48,000"},
    "streamer-micro": {"fetch 38": "8 layers, 3 micro-batches: 38 copies up"},
    "loader-loads": {
        "63 times": "a rush: 63 loads",
        "172 s": "172 s;",
        "19 times": "; 19 by the rule",
        "121 s": "121 s\n",
    },
    "spill-forward": {
        "262,144 bytes": "262,144 bytes on the device",
        "786,432": "786,432 on the host",
        "Twelve": ": 12 leave",
    },
    "spill-back": {"786,432 come back": "786,432 bytes come back"},
}  # of a check: what its target says, and what the check prints


@pytest.mark.parametrize(("check", "figures"), FIGURES.items())
def test_the_figures_of_a_target_are_printed_by_its_check(lab, check, figures):
    exercise = next(one for one in lab_cells.exercises(lab) for cell in one.checks if lab_cells.grade_id(cell) == check)
    cell = next(cell for cell in exercise.checks if lab_cells.grade_id(cell) == check)
    at = next(number for number, one in enumerate(lab.cells) if one.id == exercise.answers[0].id)
    text = next(one.source for one in lab.cells[at::-1] if one.source.startswith("## "))
    target = text[re.search(r"\*\*Target", text).start() :]
    wrong = {say: shown for say, shown in figures.items() if say not in target or shown not in printed(lab, cell.id)}
    assert wrong == {}


# What a half-right answer is paid for: by a sentence in its docstring, the checks that it passes.
HALF_RIGHT = {
    "Divides floats, and rounds": {"break-even-prefill", "break-even-decode"},
    "Forgets that the caches come over": {"break-even-prefill"},
    "Forgets attention": {"break-even-decode"},
    "Waits for every copy": {"streamer-copies"},
    "Fetches every layer in every turn": {"streamer-right"},
    "A copy waits for the layer just before": {"streamer-copies"},
    "fetches again at the bottom": {"streamer-right", "streamer-copies", "streamer-seconds"},
    "Forgets which gradients of the micro-batch": {"streamer-right", "streamer-copies", "streamer-seconds"},
    "Three buffers": set(),
    "In the order of arrival": {"loader-evictions"},
    "Good in the queue that never changes": {"loader-evictions"},
    "a request for another one starves": {"loader-budget", "loader-evictions", "loader-loads"},
    "Evicts the model that was used last": {"loader-budget", "loader-patience", "loader-loads"},
    "Evicts what is running": set(),
    "Lets one request run": {"loader-budget", "loader-evictions", "loader-patience"},
    "the chapter's pool knows nobody": set(),
    "Keeps the oldest instead": set(),
    "everything leaves, and no budget": set(),
    "Brings a storage back for each": {"spill-forward", "spill-back", "spill-again"},
    "What came back stays until": {"spill-forward", "spill-back", "spill-views"},
    "Says that what came back lies on the host": {"spill-forward", "spill-views"},
    "never begins anew": {"spill-forward", "spill-back", "spill-views"},
    "Has matrices travel": {"spill-forward", "spill-back", "spill-again"},
    "the next batch has less": {"spill-forward", "spill-back"},
    "Forgets where in its storage": {"spill-forward", "spill-back", "spill-again"},
}


@pytest.mark.slow
def test_a_half_right_answer_is_paid_for_its_half():
    assert checks_passed(LAB, HALF_RIGHT) == HALF_RIGHT
