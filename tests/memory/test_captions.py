"""A caption is never a key: with every caption rewritten in a copy of the code, no number and no reason changes."""

import ast
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .oom.oom_messages import REAL

HELPERS = Path(__file__).parents[2] / "helpers"
# Where captions are made: tables by name, the values of an enumeration, the arguments of a call.
CAPTIONS = {
    "breakdown.py": {"CAPTIONS"},
    "fit/ladders.py": {"Rung"},
    "fit/replicas.py": {"FORMATS", "COUNTS"},
    "allocator/outcome.py": {"OutcomeKind"},
    "oom/frames.py": {"RequestPlace", "TEXTS"},
    "oom/cures.py": {"Change"},
}
NUMBERS = """
import json, sys
from dataclasses import replace
from helpers.catalog import ServeSetup, Split, TrainSetup
from helpers.memory.allocator import MIB, alloc, empty_cache, free, replay
from helpers.memory import budget
from helpers.memory.fit import changes, ladder
from helpers.memory.oom import explain

llama = dict(model="llama-2-7b", precision="bf16", optimizer="adamw-fused")
setups = [
    TrainSetup(**{**llama, **case})
    for case in [
        {}, {"attention": "eager"}, {"precision": "autocast-bf16"}, {"precision": "fp32", "attention": "eager"},
        {"checkpointing": "full"}, {"checkpointing": "selective"}, {"checkpointing": "every:4"},
        {"checkpointing": "module:attention"}, {"split": Split(8, 1)}, {"split": Split(8, 2)}, {"micro_batches": 8},
        {"split": Split(8, 3)},
        {"precision": "autocast-bf16", "attention": "eager", "split": Split(4, 3)},
        {"model": "gemma-2-9b", "attention": "eager"}, {"model": "gpt2", "sequence": 512, "precision": "autocast-bf16"},
        {"model": "qwen3-0.6b", "attention": "eager", "checkpointing": "nested:4"},
    ]
]
shared = replace(setups[0], split=Split(fsdp=8))
fits = [*changes(TrainSetup("llama-3.2-1b", micro_batch=8), 20 * 2**30), *ladder(TrainSetup("llama-2-7b"), 40 * 2**30)]
fits += changes(ServeSetup("llama-3-8b", users=64, context=8192), 24 * 2**30)
requests = [alloc("a", 40 * MIB), free("a"), alloc("b", 3 * MIB), empty_cache(), alloc("c", 60 * MIB)]
ran = replay(requests, None, 64 * MIB)
explained = [explain(text) for text in json.load(sys.stdin)]
print(json.dumps({
    "moments": [[(str(m.at), m.layer, dict(m.parts)) for m in budget.train(s).moments] for s in setups],
    "sharded": [(str(m.at), m.layer, dict(m.parts)) for m in budget.train(shared).moments],
    "saved": [(budget.train(s).saved_bytes, budget.train(s).flops.recomputed) for s in setups],
    "fits": [(fit.peak_bytes, fit.figures["fields"], fit.device) for fit in fits],
    "replay": (ran.reserved, ran.allocated, [outcome.kind.name for outcome in ran.outcomes], ran.oom.reason.name),
    "explained": [(e.reason.name, e.place.name, e.room_bytes, len(e.changes), len(e.why.notes)) for e in explained],
}, default=repr))
rungs = [fit.change for fit in ladder(TrainSetup("llama-2-7b"), 40 * 2**30)]
print(json.dumps([moment.name for s in setups for moment in budget.train(s).moments] + rungs))
"""


def rewritten(source: str, names: set[str]) -> str:
    """`source` with the captions of these tables, enumerations and calls rewritten; each must be found."""
    module, found, count = ast.parse(source), set(), itertools.count()
    for node in ast.walk(module):
        name, parts = _captions_of(node)
        if name in names:
            found.add(name)
            for text in (text for part in parts for text in ast.walk(part) if isinstance(text, ast.Constant)):
                if isinstance(text.value, str) and text.value:  # "" stays: it says that there is no caption
                    text.value = " ".join([f"Zz{next(count)}", *re.findall(r"\{[^}]*\}", text.value)])
    assert found == names, names - found
    return ast.unparse(module)


def _captions_of(node: ast.AST) -> tuple[str, list[ast.expr] | list[ast.stmt]]:
    match node:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(values=values)):
            return name, values
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict(values=values)):
            return name, values
        case ast.ClassDef(name=name, body=body):
            return name, [statement for statement in body if isinstance(statement, ast.Assign)]
        case ast.Call(func=ast.Name(id=name), args=args):
            return name, [part for part in args if not isinstance(part, ast.Dict)]
    return "", []


def copied(to: Path, captions: dict[str, set[str]], planted: tuple[str, str, str] | None = None) -> Path:
    (to / "helpers").mkdir(parents=True)
    for part in ("__init__.py", "catalog", "memory"):
        source = HELPERS / part
        (shutil.copytree if source.is_dir() else shutil.copy)(source, to / "helpers" / part)
    if planted:
        path, old, new = planted
        text = (to / "helpers/memory" / path).read_text()
        assert old in text
        (to / "helpers/memory" / path).write_text(text.replace(old, new))
    for path, names in captions.items():
        file = to / "helpers/memory" / path
        file.write_text(rewritten(file.read_text(), names))
    return to


def asked(root: Path) -> tuple[dict, list[str]]:
    """The numbers that the code under `root` gives, and its captions."""
    texts = json.dumps([text for text, _, _ in REAL.values()])
    ran = subprocess.run(
        [sys.executable, "-c", NUMBERS],
        cwd=root,
        env={"PYTHONPATH": str(root)},
        input=texts,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    numbers, names = map(json.loads, ran.stdout.splitlines())
    return numbers, names


def test_other_captions_and_the_same_numbers(tmp_path):
    numbers, names = asked(HELPERS.parent)
    others, renamed = asked(copied(tmp_path, CAPTIONS))
    assert others == numbers
    assert not set(names) & set(renamed)


PLANTED = [
    ("step/ranks/sharded.py", "at is not Point.OPTIMIZER", "'optimizer' not in Moment(at, Breakdown()).name"),
    ("fit/ladders.py", "ONE not in rungs", "'micro-batch' not in _names(rungs)"),
]


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted[0])
def test_a_caller_of_text_would_be_found(tmp_path, planted):
    numbers, _ = asked(copied(tmp_path / "as_is", {}, planted))
    others, _ = asked(copied(tmp_path / "renamed", CAPTIONS, planted))
    assert others != numbers
