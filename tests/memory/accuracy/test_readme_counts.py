"""README's table of published measurements: as many as there are, and the errors that are computed in seconds."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from helpers.memory.accuracy import Case, cases
from helpers.memory.accuracy.cases import HISTORY
from helpers.memory.accuracy.published import names
from helpers.memory.accuracy.table import rows_of

README = (Path(__file__).resolve().parents[3] / "README.md").read_text(encoding="utf-8")
TABLE = README.partition("| measured on real GPUs, by others |")[2].partition("\n\n")[0]
ROWS = [[cell.strip() for cell in line.strip("| ").split("|")] for line in TABLE.splitlines()[2:]]
KIND = {  # of a row, by what it begins with
    "operators": "op",
    "LoRA": "lora",
    "a QLoRA": "qlora",
    "a transformer's step": HISTORY,
    "Qwen2.5": "generation",
    "weights, KV": "serving",
    "launches of vLLM": "engine",
    "Megatron-LM": "megatron",
    "the same, DeepSeek": "megatron",
    "torchtitan": "torchtitan",
}


def kind_of(row: str) -> str:
    return next(kind for words, kind in KIND.items() if row.startswith(words))


def answered(case: Case) -> bool:
    """Of services some have no answer; of all other kinds every test of theirs wants one."""
    return case.kind != "serving" or any(row.predicted is not None for row in rows_of(case))


def test_the_sentence_and_the_rows_count_what_is_rebuilt():
    there = Counter(case.kind for case in filter(answered, cases())) + Counter({HISTORY: len(names())})
    told: Counter[str] = Counter()
    for row, count, _ in ROWS:
        if count:
            told[kind_of(row)] += int(count)
    assert told == there
    (total,) = re.findall(r"rebuilds (\d+) published GPU measurements", README)
    assert int(total) == sum(there.values())


@pytest.mark.parametrize(
    ("begins", "of"),
    [
        ("weights, KV", lambda case: case.kind == "serving"),
        ("launches of vLLM", lambda case: case.kind == "engine"),
        ("Megatron-LM", lambda case: case.kind == "megatron" and case.name.startswith("Llama")),
        ("the same, DeepSeek", lambda case: case.kind == "megatron" and case.name.startswith("DeepSeek")),
    ],
)
def test_the_worst_error_is_the_one_that_is_printed(begins, of):
    found = (
        row for case in filter(of, cases()) for row in rows_of(case) if case.kind != "engine" or row.quantity == "pool"
    )
    errors = [abs(row.error) for row in found if row.error is not None]
    (row,) = (row for row in ROWS if row[0].startswith(begins))
    digits = len(row[2].rstrip(" %").partition(".")[2])
    assert row[2] == f"{max(errors):.{digits}%}".replace("%", " %")
    assert len(errors) == int(row[1])
