"""Mutations of the code whose answers matter, and the test by which each dies. Cuts of code and of tests go by them.

    python -m tests.house.kills find 300    # draws so many, runs tests against each, keeps what killed it in kills.json
    python -m tests.house.kills check       # all that are kept, once more: prints what survives, and what is gone

A mutation is a place (file, scope, line, column) and what stands there instead. It is gone where its line is: somebody
has replaced that code. Mutations run in copies of the tree, two at a time, against fast tests: first the one that
killed it before, then files named after its module, then their neighbours.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tests.house import tree

KEPT = Path(__file__).with_name("kills.json")
ROOMS = (
    *(
        "helpers/memory/step",
        "helpers/memory/serve",
        "helpers/memory/allocator",
        "helpers/memory/trace",
        "helpers/techniques/paging",
    ),
    *("helpers/techniques/scheduling", "helpers/grading/judging", "helpers/lesson"),
)
DRAWING = Path("helpers/lesson/drawing")  # where a pixel more is nobody's error
SWAPS: dict[type, tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: (" in ", " not in "),
    ast.NotIn: (" not in ", " in "),
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.And: (" and ", " or "),
    ast.Or: (" or ", " and "),
}
PASSED_OVER = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.arg)
NEIGHBOURS, LIMIT_S, WORKERS = 14, 300, 2
GREEN = (0, 5)  # 5: a file of slow tests only
KILLER = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - |$)", re.MULTILINE)


@dataclass(frozen=True)
class Mutation:
    """`old` at `column` of the `nth` line that reads `line` in `scope` of `file` becomes `new`."""

    file: str
    scope: str
    line: str
    nth: int
    column: int
    old: str
    new: str
    killed_by: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.file}, {self.scope or 'the module'}: {self.line!r}, {self.old!r} → {self.new!r}"


@dataclass(frozen=True)
class Edit:
    scope: str
    row: int
    column: int
    old: str
    new: str


def mutated(file: str, source: str) -> dict[Mutation, str]:
    """Every mutation of a module, with the source that it makes."""
    lines = source.splitlines(keepends=True)
    rows: dict[tuple[str, str], list[int]] = {}
    found: dict[Mutation, str] = {}
    for edit in sorted(_edits(ast.parse(source), lines, ""), key=lambda one: (one.row, one.column)):
        line, text = lines[edit.row], lines[edit.row].strip()
        same = rows.setdefault((edit.scope, text), [])
        if edit.row not in same:
            same.append(edit.row)
        column = edit.column - (len(line) - len(line.lstrip()))
        mutation = Mutation(file, edit.scope, text, same.index(edit.row), column, edit.old, edit.new)
        changed = line[: edit.column] + edit.new + line[edit.column + len(edit.old) :]
        found[mutation] = "".join([*lines[: edit.row], changed, *lines[edit.row + 1 :]])
    return found


def _edits(node: ast.AST, lines: list[str], scope: str) -> Iterator[Edit]:
    """What may be changed below `node`, each on one line."""

    def between(left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Edit]:
        old, new = SWAPS.get(type(operator), ("", ""))
        row, start, stop = left.end_lineno - 1, left.end_col_offset, right.col_offset
        if old and row == right.lineno - 1 and lines[row].isascii() and lines[row][start:stop].count(old) == 1:
            yield Edit(scope, row, lines[row].index(old, start), old, new)

    def instead(part: ast.expr, new: Callable[[str], str]) -> Iterator[Edit]:
        row, start, stop = part.lineno - 1, part.col_offset, part.end_col_offset
        if row == part.end_lineno - 1 and lines[row].isascii():
            old = lines[row][start:stop]
            yield Edit(scope, row, start, old, new(old))

    match node:
        case (
            ast.Compare(left=left, ops=[operator], comparators=[right]) | ast.BinOp(left=left, op=operator, right=right)
        ):
            yield from between(left, right, operator)
        case ast.BoolOp(op=operator, values=[left, right, *_]):
            yield from between(left, right, operator)
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield from instead(node, lambda old: f"({old} + 1)")
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from instead(test, lambda old: f"(not ({old}))")
        case ast.Call(func=ast.Name(id="max" | "min") as function):
            yield from instead(function, {"max": "min", "min": "max"}.__getitem__)
        case ast.Expr(value=ast.Call() as call):
            yield from instead(call, lambda old: "None")
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, PASSED_OVER):
                own = getattr(child, "name", "") if isinstance(child, ast.FunctionDef | ast.ClassDef) else ""
                yield from _edits(child, lines, ".".join(filter(None, (scope, own))))


def every() -> list[list[Mutation]]:
    """All mutations, by room."""
    modules = [path for path in tree.files() if path.suffix == ".py" and DRAWING not in path.parents]
    inside = [[path for path in modules if Path(room) in path.parents] for room in ROOMS]
    return [[one for path in paths for one in mutated(str(path), tree.text_of(path))] for paths in inside]


def test_files(file: str) -> list[str]:
    """Those that may kill a mutation of `file`, the likeliest first: its name's, its folder's, those that import it."""
    path, tests = Path(file), [one for one in tree.files() if one.name.startswith("test_") and one.suffix == ".py"]
    module, folders = ".".join(path.with_suffix("").parts), {one.parent for one in tests}
    folder = next(one for one in Path("tests", *path.parts[1:]).parents if one in folders or one == Path())
    named = [one for one in tests if one.stem in (f"test_{path.stem}", f"test_{path.parent.name}")]
    words = re.compile(rf"\b{re.escape(module)}\b|\bimport\b.*\b{re.escape(path.stem)}\b")
    beside = sorted((one for one in tests if one.parent == folder), key=lambda one: not words.search(tree.text_of(one)))
    others = [one for one in tests if words.search(tree.text_of(one))]
    return list(dict.fromkeys(map(str, [*named, *beside, *others])))[:NEIGHBOURS]


class Copies:
    """Copies of the tree in which a file may be changed, and tests run."""

    def __init__(self, count: int, folder: Path) -> None:
        self.free: queue.Queue[Path] = queue.Queue()
        self._clean: dict[str, bool] = {}  # whether a test or a file of them is green without any mutation
        self._times = itertools.count(10**9)  # each write a new one: what Python compiled goes by whole seconds
        for number in range(count):
            for path in tree.files():
                target = folder / str(number) / path
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(tree.ROOT / path, target)
            self.free.put(folder / str(number))

    def red(self, file: str, source: str, tests: Iterable[str]) -> str:
        """The first test that fails with `source` in `file`, of those that are green without; "" where none does."""
        root = self.free.get()
        before = (root / file).read_text()
        try:
            for one in tests:
                self._write(root / file, source)
                killer = _first_failure(root, one)
                self._write(root / file, before)
                if killer and self._is_green(root, one):
                    return killer
            return ""
        finally:
            self._write(root / file, before)
            self.free.put(root)

    def _is_green(self, root: Path, test: str) -> bool:
        if test not in self._clean:
            self._clean[test] = not _first_failure(root, test)
        return self._clean[test]

    def _write(self, path: Path, text: str) -> None:
        path.write_text(text)
        os.utime(path, (when := next(self._times), when))


def _first_failure(root: Path, test: str) -> str:
    """Its name; a run that takes too long has failed by the name that it was started with."""
    words = ["-x", "-q", "-m", "not slow and not all and not alone"]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *words, test]
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return test
    if done.returncode in GREEN or "ERROR: not found" in done.stderr:
        return ""
    found = KILLER.search(done.stdout)
    return found[1] if found else test


def tried(chosen: Iterable[Mutation]) -> Iterator[Mutation | None]:
    """Each with what kills it now, as they come; None for one that is gone."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        copies = Copies(WORKERS, Path(folder))

        def one(mutation: Mutation) -> Mutation | None:
            path = tree.ROOT / mutation.file
            source = mutated(mutation.file, path.read_text()).get(mutation) if path.exists() else None
            if source is None:
                return None
            first = [mutation.killed_by] if mutation.killed_by else []
            return replace(mutation, killed_by=copies.red(mutation.file, source, [*first, *test_files(mutation.file)]))

        yield from pool.map(one, chosen)


def kept() -> list[Mutation]:
    return [Mutation(**row) for row in json.loads(KEPT.read_text())] if KEPT.exists() else []


def find(count: int, seed: int) -> None:
    """Draw as many of each room, and keep each as soon as it is known what kills it."""
    rng, known = random.Random(seed), kept()
    drawn = [one for found in every() for one in rng.sample(found, min(count // len(ROOMS), len(found)))]
    rng.shuffle(drawn)
    for mutation in tried(one for one in drawn if one not in set(known)):
        assert mutation
        known.append(mutation)
        print(f"{mutation}: {mutation.killed_by or 'SURVIVES'}", flush=True)
        rows = sorted(known, key=lambda one: (one.file, one.scope, one.line, one.nth, one.column, one.new))
        KEPT.write_text(json.dumps([asdict(one) for one in rows], indent=0, ensure_ascii=False) + "\n")


def check() -> int:
    """Print every mutation that died once and survives now, and how many are gone."""
    before = [one for one in kept() if one.killed_by]
    now = list(tried(before))
    survivors = [one for one in now if one and not one.killed_by]
    print(*survivors, sep="\n")
    print(f"{len(before)} mutations that died: {len(survivors)} survive, {now.count(None)} are gone")
    return bool(survivors)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("find", "check"))
    parser.add_argument("count", type=int, nargs="?", default=300)
    parser.add_argument("--seed", type=int, default=44)
    options = parser.parse_args()
    if options.what == "check":
        return check()
    find(options.count, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
