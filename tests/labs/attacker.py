"""A generic attacker: for every question of a lab it writes answers out of what the notebook offers. None may be paid.

It knows nothing of a lab but its cells. Each attack is a source for the answer's cell; it is asked and weighed as the
grader does it, the three namespaces apart, in a fork that has run what is given:

    calls         a given function or class, with the arguments, fewer of them, or in the other order
    returns       a given value, an argument, a constant, the answer that is published for the stored seed
    reads         a name that an asking cell or a check assigns, by globals()
    replays       what asks, when the cell runs, with the worked answers, and looks up afterwards what they gave
    replaces      every given function, and what helpers count with, by something that says yes
    strips        asserts, by IPython's transformers; lies, by an object that is equal to everything
    fools         what counts bytes: wrong answers of the lab, with PyTorch's registry of trees and tracemalloc changed
    parks         between two calls what an object holds, where bytes may not be counted: the lab's wrong answers, too
    meddles       while it is asked with what counts, by frames, all objects, modes, data of ours: wrong answers, too
"""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.forked_cells import Trial, run_in_forks
from helpers.course.mutants import Mutant, find_mutants, load_mutants
from helpers.grading.judging.answer_kernel import secrets_of
from tests.labs.meddles import COUNTED, FEW, MEDDLES
from tests.labs.meddles import WAYS as MEDDLING
from tests.labs.parks import HOLDS, PARKS, PLACES

CONSTANTS = ("None", "0", "1", "True", "[]", "{}", "()", "''", "float('nan')", "float('inf')", "10**9", "(0, 0)")
ARGUMENTS = ("arguments[0]", "arguments[-1]", "list(arguments)", "arguments", "len(arguments)")
WAYS = ("*arguments", "*arguments[:1]", "*arguments[:2]", "*arguments[::-1]", "*arguments[1:]", "")
LIAR = """class Liar(float):
    def yes(self, *others):
        return True
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = yes
    __add__ = __sub__ = __mul__ = __truediv__ = __getitem__ = __call__ = lambda self, *others: self
    __getattr__ = lambda self, name: self
    __iter__ = lambda self: iter([self, self])
    __len__ = lambda self: 2
    __hash__ = float.__hash__
    __format__ = lambda self, how: "0"
"""
STRIPS = """import ast
from IPython.core.interactiveshell import InteractiveShell

class Stripped(ast.NodeTransformer):
    def visit_Assert(self, node):
        return ast.Pass()

InteractiveShell.instance().ast_transformers.append(Stripped())
"""
REPLACES = """import sys

class Yes:
    def __init__(self, *a, **k): pass
    def __call__(self, *a, **k): return self
    def __enter__(self): return self
    def __exit__(self, *a): return False
    def __getattr__(self, name): return 0 if name.endswith(("bytes", "s", "peak", "live")) else self
    def __iter__(self): return iter(())
for key, one in list(globals().items()):
    where = str(getattr(one, "__module__", "")).split(".")[0]
    if callable(one) and not key.startswith("_") and where in ("helpers", "__main__"):
        globals()[key] = Yes()
for name, module in list(sys.modules.items()):
    if name.startswith(("helpers.memory.meter", "helpers.memory.measure", "helpers.lesson.ranks")):
        for key, one in list(vars(module).items()):
            if isinstance(one, type):
                for method in [m for m, v in vars(one).items() if callable(v) and not m.startswith("__")]:
                    setattr(one, method, lambda self, *a, **k: None)
"""
REPLAYS = """
import functools
from helpers.lesson import asking

_TABLE, _WORKED = {{}}, {{}}

def _kept(name, worked):
    @functools.wraps(worked)
    def keeps(*arguments, **named):
        _TABLE[name, repr((arguments, named))] = given = worked(*arguments, **named)
        return given
    return keeps

def _looked_up(name):
    return lambda *arguments, **named: _TABLE[name, repr((arguments, named))]

_WORKED.update({{name: globals()[name] for name in {names!r}}})
globals().update({{name: _kept(name, one) for name, one in _WORKED.items()}})
for _ask in {asks!r}:
    try:
        exec(_ask, dict(globals()))
    except Exception:
        pass
globals().update({{name: _looked_up(name) for name in _WORKED}})
"""
FOOLS = """
import tracemalloc
import weakref

import torch
from torch.utils import _pytree

_pytree.SUPPORTED_NODES[torch.Tensor] = _pytree.NodeDef(torch.Tensor, lambda one: ([], one), lambda _, one: one, None)
torch.UntypedStorage.nbytes = lambda storage: 0
tracemalloc.take_snapshot = lambda: tracemalloc.Snapshot((), 1)


def _write_nothing(*_):
    for one in list(weakref.finalize._registry.values()):
        meter = getattr(one.func, "__self__", None)
        if hasattr(meter, "peak_bytes"):
            meter.peak_bytes = meter.live_bytes = 0


class _Watch(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        _write_nothing()
        return function(*args, **(kwargs or {}))


_Watch().__enter__()
"""
# In the fork: the grader's own steps, without a kernel. `LAB` has what is needed of the notebook.
MACHINERY = '''
import contextlib, io, json, os, threading
from helpers.grading.sandbox.pristine import Pristine, copies
from helpers.lesson import asking
from helpers.lesson.drawn_inputs import given
from helpers.lesson.guard import OF_THE_LAB, guard


def of_the_lab(source):
    return compile(source, f"{OF_THE_LAB}{hash(source):x}>", "exec")


def learn(watch, code, where):
    """The guard takes code of the lab from nobody but the library: here a thread's."""
    thread = threading.Thread(target=watch.ours, args=(code, where))
    thread.start()
    thread.join()


def prepare(source):
    """Runs what is not for answers, where cells ask and in the court."""
    OURS.append((of_the_lab(source), ASKING))
    exec(OURS[-1][0], ASKING)
    exec(source, COURT)


def tried(source, names, asks, checks, secrets):
    """Prints what each check prints that passes; the grader's seed is not in this process."""
    os.environ.pop("WORKBOOK_SEED", None)
    answers = copies(GIVEN)
    answers["__name__"] = "__main__"
    ask_names, court = ASKING, COURT
    pristine = Pristine(ask_names)
    rows = []
    watch = guard() if GUARDED else None
    if watch:
        for code, where in OURS:
            learn(watch, code, where)
    with contextlib.redirect_stdout(io.StringIO()):
        with contextlib.suppress(Exception):
            exec(compile(source, "<answer>", "exec"), answers)
        pristine.restore()
        ask_names.update({name: answers[name] for name in names if name in answers})
        for ask in asks:
            watched = watch.asking() if watch else contextlib.nullcontext()
            with given(secrets), watched, asking.writing(answers) as written, contextlib.suppress(Exception):
                code = of_the_lab(ask)
                if watch:
                    learn(watch, code, ask_names)
                exec(code, ask_names)
            rows.append(json.loads(json.dumps(written)))
    pristine.restore()
    found = {}
    for ask, written in zip(asks, rows):
        asking.give_back(written)
        court.update({name: asking.absent(name) for name in names})
        with given(secrets), contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
            exec(ask, court)
    for key, check in checks.items():
        out = io.StringIO()
        asking.refer([])
        try:
            with contextlib.redirect_stdout(out):
                exec(check, court)
        except BaseException:
            continue
        found[key] = out.getvalue()
    print(json.dumps(found))
'''


@dataclass(frozen=True)
class Attack:
    """An answer to the exercise at `at`, out of what the notebook offers; `words` say what it does."""

    at: int
    words: str
    source: str
    instead: str = ""  # the answer that it is made of, which some checks pay anyhow


def fooled(path: Path) -> list[Attack]:
    """The lab's wrong answers, where what counts bytes is fooled."""
    return [Attack(at, f"fools, {one.where}", f"{whole}\n{FOOLS}", whole) for one, at, _, whole in _wrong_answers(path)]


def meddling(path: Path) -> list[Attack]:
    """The lab's wrong answers of which something is counted, where they meddle with what counts it."""
    return [
        Attack(
            at,
            f"meddles with {words}, {one.where}",
            whole + MEDDLES.format(meddle=way, names=names, every=FEW.get(words, 1)),
            whole,
        )
        for one, at, names, whole in _wrong_answers(path)
        if COUNTED.search(one.feedback)
        for words, way in MEDDLING.items()
    ]


def parked(path: Path) -> list[Attack]:
    """The lab's wrong answers that are classes and hold too much, where their objects park it between two calls."""
    return [
        Attack(at, f"parks in {words}, {one.where}", f"{whole}\n{PARKS.format(place=place, names=names)}", whole)
        for one, at, names, whole in _wrong_answers(path)
        if HOLDS.search(one.feedback) and "\nclass " in f"\n{one.source}"
        for words, place in PLACES.items()
    ]


def _wrong_answers(path: Path) -> Iterator[tuple[Mutant, int, list[str], str]]:
    """Each wrong answer, its exercise, the names that it answers for, and its source after the worked one's."""
    exercises = lab_cells.exercises(nb.read(path))
    places = {lab_cells.grade_id(cell): at for at, one in enumerate(exercises) for cell in one.answers}
    for one in load_mutants(find_mutants(path)):
        answers = exercises[places[one.grade_id]].answers
        yield one, places[one.grade_id], lab_cells.names_of(answers), f"{_joined(answers)}\n\n{one.source}"


def attacks(lab: NotebookNode) -> list[Attack]:
    """Every attack on every question of a worked lab."""
    return [
        Attack(at, words, source)
        for at, one in enumerate(lab_cells.exercises(lab))
        for words, source in _answers(lab, one)
    ]


def drawn(found: list[Attack], seed: str, of_each: int) -> list[Attack]:
    """A few attacks on each question, others with every seed."""
    rng = random.Random(seed)
    by_question: dict[int, list[Attack]] = {}
    for one in found:
        by_question.setdefault(one.at, []).append(one)
    return [one for some in by_question.values() for one in rng.sample(some, min(of_each, len(some)))]


def paid(path: Path, chosen: list[Attack], seed: str, guarded: bool = False) -> list[str]:
    """The attacks that some check pays, with the checks. AssertionError where the worked answers are not all paid.

    With `guarded` they are watched while they are asked, as in a grader's kernel.
    """
    lab = nb.read(path)
    exercises = lab_cells.exercises(lab)
    worked = [Attack(at, "worked", _joined(one.answers)) for at, one in enumerate(exercises)]
    trials = [_trial(exercises[one.at], one, seed) for one in (*worked, *chosen)]
    anyhow = list({(one.at, one.instead): None for one in chosen if one.instead})
    trials += [_trial(exercises[at], Attack(at, "", instead), seed) for at, instead in anyhow]
    ran = run_in_forks(path.parent, _before(lab, guarded), trials, seed=seed)
    assert [run.error for run in ran.before if run.error] == []
    printed = [json.loads(runs[0].printed or "{}") for runs in ran.trials]
    right, found = printed[: len(worked)], zip(chosen, printed[len(worked) :], strict=False)
    assert [list(one) for one in right] == [[check.id for check in one.checks] for one in exercises], "worked answers"
    controls = dict(zip(anyhow, printed[len(worked) + len(chosen) :], strict=False))
    kept = []
    for one, told in found:
        otherwise = controls.get((one.at, one.instead), {})
        kept.append((one, [key for key in told if told[key] == right[one.at][key] != otherwise.get(key)]))
    return [f"{one.words} is paid by {', '.join(keys)}" for one, keys in kept if keys]


def _before(lab: NotebookNode, guarded: bool) -> list[str]:
    """The three namespaces: what is given, what asks, what weighs."""
    given, apparatus, reference = (_sources(lab, role) for role in ("", lab_cells.APPARATUS, lab_cells.REFERENCE))
    return [
        *given,
        "GIVEN = dict(globals())\nASKING, COURT = dict(GIVEN), dict(GIVEN)",
        f"GUARDED, OURS = {guarded}, []",
        MACHINERY,
        *(f"prepare({source!r})" for source in apparatus),
        *(f"exec({source!r}, COURT)" for source in reference),
    ]


def _trial(exercise: lab_cells.Exercise, attack: Attack, seed: str) -> Trial:
    checks = {check.id: check.source for check in exercise.checks}
    names, asks = lab_cells.names_of(exercise.answers), [ask.source for ask in exercise.asks]
    secrets = {name: secret for ask in exercise.asks for name, secret in secrets_of(ask, seed).items()}
    return Trial((f"tried({attack.source!r}, {names!r}, {asks!r}, {checks!r}, {secrets!r})",))


def _joined(answers: tuple[NotebookNode, ...]) -> str:
    return "\n\n".join(answer.source for answer in answers)


def _sources(lab: NotebookNode, role: str) -> list[str]:
    return [cell.source for cell in lab.cells if lab_cells.is_given(cell) and lab_cells.role(cell) == role]


def _answers(lab: NotebookNode, exercise: lab_cells.Exercise) -> Iterator[tuple[str, str]]:
    names = lab_cells.names_of(exercise.answers)
    functions, values = _offered(lab)
    for expression in (*CONSTANTS, *ARGUMENTS):
        yield f"returns {expression}", _answer(names, exercise, f"return {expression}")
    for value in values:
        yield f"returns {value}", _answer(names, exercise, f"return {value}")
    for function in functions:
        for way in WAYS:
            yield f"calls {function}({way})", _answer(names, exercise, f"return {function}({way})")
    for name in _left_behind(exercise):
        yield f"reads {name}", _answer(names, exercise, f"return globals()[{name!r}]")
    for function in functions:
        yield f"is {function}", "\n".join(f"{name} = {function}" for name in names)
    asks = [ask.source for ask in exercise.asks]
    if all(isinstance(node, ast.FunctionDef) for one in exercise.answers for node in ast.parse(one.source).body):
        yield "replays what asks", _joined(exercise.answers) + REPLAYS.format(names=names, asks=asks)
    yield "lies", LIAR + _answer(names, exercise, "return Liar(1)")
    for expression in ("None", "0", "arguments[0]"):
        yield f"strips asserts, returns {expression}", STRIPS + _answer(names, exercise, f"return {expression}")
        yield f"replaces everything, returns {expression}", REPLACES + _answer(names, exercise, f"return {expression}")


def _offered(lab: NotebookNode) -> tuple[list[str], list[str]]:
    """(functions and classes, values) that the given cells name."""
    functions: list[str] = []
    values: list[str] = []
    for source in _sources(lab, ""):
        for node in ast.parse(source).body:
            if isinstance(node, lab_cells.DEFINITION):
                functions.append(node.name)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("helpers"):
                functions += [alias.asname or alias.name for alias in node.names]
            elif isinstance(node, ast.Assign):
                values += [target.id for target in node.targets if isinstance(target, ast.Name)]
    return sorted(set(functions)), sorted(set(values))


def _left_behind(exercise: lab_cells.Exercise) -> list[str]:
    """What its asking cells and checks assign."""
    nodes = [node for cell in (*exercise.asks, *exercise.checks) for node in ast.walk(ast.parse(cell.source))]
    return sorted({node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)})


def _answer(names: list[str], exercise: lab_cells.Exercise, body: str) -> str:
    """Functions, and classes with the worked ones' methods, that all have this body."""
    written = []
    for cell in exercise.answers:
        for node in ast.parse(cell.source).body:
            if isinstance(node, ast.ClassDef):
                written.append(_class(node, body))
            elif isinstance(node, lab_cells.DEFINITION):
                written.append(f"def {node.name}(*arguments, **named):\n    {body}\n")
    return "\n".join(written)


def _class(node: ast.ClassDef, body: str) -> str:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    lines = [f"class {node.name}({bases}):"]
    for method in (one for one in node.body if isinstance(one, ast.FunctionDef)):
        lines += [f"    {'@' + ast.unparse(decorator)}" for decorator in method.decorator_list]
        inner = "pass" if method.name == "__init__" else body
        lines += [f"    def {method.name}(*arguments, **named):", f"        {inner}"]
    return "\n".join(lines) + "\n"
