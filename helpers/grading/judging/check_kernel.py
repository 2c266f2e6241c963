"""What was answered, weighed: the checks run on the recorded answers, in a kernel without anything of the learner's.

Cell by cell its notebook is the worked lab: what is given, the asking cells (which draw the same inputs, and get the
recorded answers), then the checks, under nbval against the outputs of the worked answers.
"""

from __future__ import annotations

import copy
import re
from dataclasses import replace

from nbformat import NotebookNode, v4

from ...course import lab_cells
from ...lesson.asking import NO_ANSWER, Row
from ..sandbox.nbval_run import UNFINISHED, CellResult, CellResults
from .answer_kernel import Run, secrets_of, together

MOST_ROWS = 2000  # of one asking cell
_LACKS = re.compile(f"{NO_ANSWER}|^NameError: ")  # said by a check whose asking cell was cut short
References = dict[str, list[Row]]  # by check cell


def weigh(
    run: Run, lab: NotebookNode, found: CellResults, *, seed: str, wall_s: float, references: References | None = None
) -> CellResults:
    """`found`, with how each check of `lab` went on what its asking cells brought.

    A check of which nothing was asked, since the kernel had ended or the time was over, went as its asking cell did.
    Where an exercise has two asking cells and one brought nothing, checks of the other's answers may still pass.
    """
    asks = {ask.id for exercise in lab_cells.exercises(lab) for ask in exercise.asks if ask.id in found}
    rows = {key: rows_of(found[key]) for key in asks if found[key].told}
    weighed: CellResults = {}
    if rows:
        weighing = notebook_of(lab, rows, references or {}, seed)
        checks = sum(lab_cells.is_check(cell) for cell in weighing.cells)
        weighed = together(run, weighing, wall_s=wall_s, runs=checks + 1)
    words: CellResults = {}
    for exercise in lab_cells.exercises(lab):
        asked = [found.get(ask.id, UNFINISHED) for ask in exercise.asks]
        words |= {check.id: _word(asked, weighed.get(check.id)) for check in exercise.checks}
    return found | words


def rows_of(asked: CellResult) -> list[Row]:
    """What an asking cell wrote down."""
    rows = _told(asked).get("rows")
    return [row for row in rows[:MOST_ROWS] if _is_row(row)] if isinstance(rows, list) else []


def replaced_in(asked: CellResult) -> list[str]:
    """The given names that answers had replaced before the asking cell ran."""
    names = _told(asked).get("replaced")
    return [str(name)[:80] for name in names[:20]] if isinstance(names, list) else []


def reached_in(asked: CellResult) -> list[str]:
    """What answers reached for while they were asked, a sentence each."""
    sentences = _told(asked).get("reached")
    return [str(one)[:200] for one in sentences[:20]] if isinstance(sentences, list) else []


def spoken_for(lab: NotebookNode, found: CellResults) -> bool:
    """True where something else than the kernel told what answers gave: asking cells tell it once, others never."""
    asks = {ask.id for exercise in lab_cells.exercises(lab) for ask in exercise.asks}
    return any(len(result.told) > (key in asks) for key, result in found.items())


def notebook_of(
    lab: NotebookNode, rows: dict[str, list[Row]], references: References, seed: str, publish: bool = False
) -> NotebookNode:
    """The worked lab without answers, its asking cells on `rows`; with `publish` checks show their references.

    An exercise of which no asking cell brought anything is left out.
    """
    weighing = copy.deepcopy(lab)
    weighing.cells = [cell for cell in weighing.cells if _is_ground(cell)]
    for exercise in lab_cells.exercises(lab):
        if any(ask.id in rows for ask in exercise.asks):
            stand_ins = [f"{name} = asking.absent({name!r})" for name in lab_cells.names_of(exercise.answers)]
            for ask in exercise.asks:
                lines = [*stand_ins, f"asking.give_back({rows.get(ask.id, [])!r})"]
                lines += ["from helpers.lesson.drawn_inputs import give", f"give({secrets_of(ask, seed)!r})"]
                weighing.cells += [_code("\n".join(lines), f"before-{ask.id}"), _quiet(ask)]
            for check in exercise.checks:
                weighing.cells.append(_code(f"asking.refer({references.get(check.id, [])!r})", f"before-{check.id}"))
                weighing.cells.append(copy.deepcopy(check))
                if publish:
                    weighing.cells.append(_code("asking.publish_references()", f"after-{check.id}"))
    return weighing


def _told(asked: CellResult) -> dict:
    """What the kernel told of an asking cell: once. Whatever was told twice, an answer has told, perhaps last."""
    only = asked.told[0] if len(asked.told) == 1 else None
    return only if isinstance(only, dict) else {}


def _is_ground(cell: NotebookNode) -> bool:
    return lab_cells.is_given(cell) and lab_cells.role(cell) != lab_cells.DEMONSTRATION


def _quiet(ask: NotebookNode) -> NotebookNode:
    cell = copy.deepcopy(ask)
    cell.outputs, cell.execution_count = [], None
    return cell


def _code(lines: str, key: str) -> NotebookNode:
    return v4.new_code_cell(f"from helpers.lesson import asking\n{lines}", id=key)


def _is_row(row: object) -> bool:
    return isinstance(row, dict) and all(isinstance(part, str) for pair in row.items() for part in pair)


def _word(asked: list[CellResult], weighed: CellResult | None) -> CellResult:
    """How a check went: as its kernel says, and where what it lacks was not brought, for the reason why it was not."""
    failed = next((one for one in asked if not one.passed), None)
    if weighed is None:
        return replace(failed or UNFINISHED, outputs=())
    if failed is None or weighed.passed:
        return weighed
    if any(one.passed for one in asked) and not _LACKS.search(weighed.message):
        return weighed  # for an answer that did come
    return replace(weighed, message=failed.message)
