"""Rules that a stored notebook keeps, so that nbval compares something true on every machine.

`lint` applies the table RULES to notebooks/ and solutions/ (labs/ are generated). A *compared* cell is a code
cell without the tag `nbval-ignore-output`: nbval compares its output.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from ..catalog.errors import WorkbookError
from . import address, guesses, lab_cells, lab_rules, references, spine
from . import notebook as nb
from .doctor import needs
from .lab_cells import DEFINITION

MOST_LINES = 40
HEADER = {"one promise": "**The promise:**", "a table of time and needs": "\n| time |"}
UNSTABLE = {
    "an address": r"0x[0-9a-fA-F]{6,}",
    "a path of one machine": r"(?<![\w./:])/(tmp|home|root|work|Users|content|usr)/",
    "an Out[] number": r"\bOut\[\d*\]",
    "a timing": r"CPU times:|Wall time:|± .* per loop",
    "a progress bar": r"\d+%\|",
    "an unrounded float": r"\d\.\d{10,}",
}
UNSTABLE_CALL = r"(?m)\b(clear_output|display_id|interact|interact_manual|Output)\b\s*[(=]|^\s*%%?time(it)?\b"
RUBRIC = r"\d+(?:\.\d+)? points?: \S.*"
MOST_RUBRIC = 4
RUBRIC_WANTED = "metadata.workbook.rubric is 1 to 4 texts like '1 point: the last page counts', for all its points"
NOTHING = r"(?i)\b((nothing|no \w+) has been|nobody has) recorded\b"
VERDICT = r"(?i)\W*(true|false|ok|okay|pass|passed|correct|right|done|none|all checks passed)?\W*"
SILENT = DEFINITION | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Finding:
    """One broken rule: where, which, and what to do about it."""

    path: Path
    cell: str
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}, cell {self.cell}: {self.rule}: {self.message}"


@dataclass(frozen=True)
class LintRule:
    """`broken(cell)`, asked where the rule `applies`, is what breaks it (a text joins the message)."""

    name: str
    applies: Callable[[NotebookNode], bool]
    broken: Callable[[NotebookNode], object]
    message: str


def lint(paths: Iterable[Path]) -> list[Finding]:
    """Every broken rule in the notebooks at `paths`, in order. WorkbookError for one that cannot be read."""
    return [finding for path in paths for finding in findings(nb.read(path), path)]


def findings(notebook: NotebookNode, path: Path) -> list[Finding]:
    """Every broken rule in one notebook; what it is, a chapter, a companion, a lab, its folder says."""
    found = [Finding(path, "-", name, message) for name, message in _whole(notebook, path)]
    found += [Finding(path, *one) for one in _of_questions(notebook)]
    if (nb.root_of(path) / nb.CHAPTERS).is_dir():
        found += [Finding(path, cell, "dead-reference", what) for cell, what in references.dead(notebook.cells, path)]
    for cell in notebook.cells:
        for rule in RULES:
            if rule.applies(cell) and (detail := rule.broken(cell)):
                message = f"{rule.message}: {detail}" if isinstance(detail, str) else rule.message
                found.append(Finding(path, cell.id, rule.name, message))
    return found


def _whole(notebook: NotebookNode, path: Path) -> Iterator[tuple[str, str]]:
    """The rules about a notebook as a whole, as (name, message)."""
    head = notebook.cells[0].source if notebook.cells and _is_markdown(notebook.cells[0]) else ""
    if not head.startswith("# "):
        yield "title", "the first cell is not markdown that starts with '# ' and the title"
    lacking = [name for name, mark in HEADER.items() if mark not in head]
    if nb.is_chapter(path) and lacking:
        yield "chapter-header", f"the first cell lacks {' and '.join(lacking)}"
    if set(notebook.metadata) - nb.KEPT_METADATA:
        yield ("notebook-metadata", "more than the build stores: run workbook build; own data: metadata.workbook")
    if (root := nb.root_of(path)).joinpath("pyproject.toml").exists():
        told = address.disagreements(notebook, path.relative_to(root).as_posix(), address.read_address(root))
        yield from (("published", message) for message in told)
    if nb.is_chapter(path) or needs.states_needs(notebook.metadata):
        yield from (("needs", message) for message in _needs(notebook))
    if nb.in_book(path):
        yield from guesses.broken((cell.id, nb.statements(cell)) for cell in notebook.cells if _is_code(cell))
    if nb.is_chapter(path):
        yield from (("leads-on", message) for message in references.onward(notebook.cells, path))
        yield from (("spine", message) for message in spine.broken(path.name[:2], notebook.cells))
    elif nb.in_book(path):
        yield from (("linked", message) for message in references.linked(notebook.cells, path))
    try:
        lab_cells.require_ids(notebook, path.name)
        lab_cells.exercises(notebook)
    except WorkbookError as error:
        yield "exercises", f"{error.what}; expected: {error.expected}"


def _of_questions(notebook: NotebookNode) -> Iterator[tuple[str, str, str]]:
    with contextlib.suppress(WorkbookError, SyntaxError):  # which other rules report
        yield from lab_rules.broken(notebook)


def _needs(notebook: NotebookNode) -> Iterator[str]:
    """What is wrong with what the notebook says that it needs; its own imports must be among the packages."""
    try:
        stated = needs.from_metadata(notebook.metadata)
    except WorkbookError as error:
        yield f"{error.what}; expected: {error.expected}"
        return
    known = {*stated.packages, "helpers", *sys.stdlib_module_names}
    if missing := sorted(_imported(notebook) - known):
        yield f"packages lacks {', '.join(missing)}, which a cell imports"


def _imported(notebook: NotebookNode) -> set[str]:
    """The first names of what the code cells import."""
    nodes = [node for cell in notebook.cells if _is_code(cell) for top in nb.statements(cell) for node in ast.walk(top)]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in plain | named}


def _is_code(cell: NotebookNode) -> bool:
    return cell.cell_type == "code"


def _is_markdown(cell: NotebookNode) -> bool:
    return cell.cell_type == "markdown"


def _is_compared(cell: NotebookNode) -> bool:
    return _is_code(cell) and nb.IGNORE_TAG not in nb.tags(cell)


def _raised(cell: NotebookNode) -> bool:
    return any(output.output_type == "error" for output in cell.outputs)


def _may_raise(cell: NotebookNode) -> bool:
    return bool(nb.tags(cell) & nb.RAISES_TAGS)


def _unstable(cell: NotebookNode) -> str:
    """Which unstable things stand in what nbval compares: streams, every text kind, an error's words."""
    parts = [output.get("text", "") + output.get("evalue", "") for output in cell.outputs]
    for output in cell.outputs:
        parts += [str(v) for k, v in output.get("data", {}).items() if k not in ("image/png", "image/jpeg")]
    return " and ".join(name for name, pattern in UNSTABLE.items() if re.search(pattern, "\n".join(parts)))


def _shown(cell: NotebookNode) -> str:
    """The text of what the cell stored, Markdown too."""
    plain = [
        str(output.get("data", {}).get(kind, "")) for output in cell.outputs for kind in ("text/plain", "text/markdown")
    ]
    return "\n".join([*(output.get("text", "") for output in cell.outputs), *plain])


def _silent(cell: NotebookNode) -> bool:
    return not cell.outputs and any(not isinstance(node, SILENT) for node in nb.statements(cell))


def _calls(node: ast.AST, *names: str) -> bool:
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    return ast.unparse(node.value.func) in names


def _ends_bare(cell: NotebookNode) -> bool:
    return any(isinstance(last, ast.Expr) and not _calls(last, "print", "check") for last in nb.statements(cell)[-1:])


def _asserts_nothing(cell: NotebookNode) -> bool:
    nodes = [node for statement in nb.statements(cell) for node in ast.walk(statement)]
    return not any((isinstance(node, ast.Assert) and node.msg) or _calls(node, "check") for node in nodes)


def _only_verdicts(cell: NotebookNode) -> bool:
    return all(re.fullmatch(VERDICT, line) for line in nb.stream(cell.outputs, "stdout").splitlines())


def _definitions(cell: NotebookNode) -> int:
    return sum(isinstance(node, DEFINITION) for node in nb.statements(cell))


def _not_schema_3(cell: NotebookNode) -> bool:
    found = cell.metadata["nbgrader"]
    return found.get("schema_version") != 3 or not set(found) <= lab_cells.SCHEMA_KEYS


def _unlocked(cell: NotebookNode) -> bool:
    return cell.metadata["nbgrader"].get("locked") is not True or not lab_cells.points(cell) > 0


def _rubric_off(cell: NotebookNode) -> str:
    """How the rubric is off: it has one to four texts, each '1 point: what for', that add up to the cell's points."""
    lines = lab_cells.rubric(cell)
    bad = [line for line in lines if not re.fullmatch(RUBRIC, str(line))]
    if bad:
        return repr(bad[0])
    if len(lines) > MOST_RUBRIC:
        return f"{len(lines)} texts"
    total = sum(float(str(line).partition(" ")[0]) for line in lines)
    return "" if total == lab_cells.points(cell) else f"{total:g} points of {lab_cells.points(cell):g}"


def _reads_as_list(cell: NotebookNode) -> str:
    """A sentence that begins with a number and a full stop, which Markdown shows as an item of a list."""
    numbers = [int(number) for number in re.findall(r"(?m)^ {0,3}(\d+)[.)][ \t]", cell.source)]
    return next((f"{n}." for n in numbers if n > 1 and n - 1 not in numbers), "")


def _formula_of_prices(cell: NotebookNode) -> object:
    """A price whose `$` is not escaped: Jupyter shows what stands between two of them as a formula."""
    return re.search(r"(?<!\\)\$\d", re.sub(r"`[^`]*`", "", cell.source))


def _wordless(cell: NotebookNode) -> bool:
    """Whether a stored picture lacks alternative text; `helpers.lesson.drawing` and calculators write it."""
    shown = [output for output in cell.outputs if "image/png" in output.get("data", {})]
    return any(not output.metadata.get("image/png", {}).get("alt") for output in shown)


def _has(pattern: str) -> Callable[[NotebookNode], object]:
    return lambda cell: re.search(pattern, cell.source, re.MULTILINE)


RULES = (
    LintRule("counted", _is_code, lambda c: not c.execution_count, "never run, so nbval compares nothing: build it"),
    LintRule("not-empty", _is_code, lambda c: not c.source.strip(), "an empty code cell: delete it"),
    LintRule("short", _is_code, lambda c: len(c.source.splitlines()) > MOST_LINES, f"over {MOST_LINES} lines"),
    LintRule("no-star-import", _is_code, _has(r"^\s*from .* import \*"), "import names, not *"),
    LintRule("not-skipped", _is_code, lambda c: "nbval-skip" in nb.tags(c), "tagged nbval-skip: never tested"),
    LintRule("tags-not-marks", _is_code, _has(r"^\s*#+ *NBVAL_"), "use cell tags, not NBVAL comments"),
    LintRule("no-error", _is_code, lambda c: _raised(c) and not _may_raise(c), "a stored error in an untagged cell"),
    LintRule("raises", _is_code, lambda c: _may_raise(c) and not _raised(c), "tagged as raising, yet raised nothing"),
    LintRule(
        "no-empty-recording", _is_code, lambda c: re.search(NOTHING, _shown(c)), "stores that nothing was recorded"
    ),
    LintRule("no-failed-try", _is_code, lambda c: re.search(r"[✗○]", _shown(c)), "stores a ✗ or a ○: build it again"),
    LintRule("no-stderr", _is_code, lambda c: nb.stream(c.outputs, "stderr") != "", "a stored warning (stderr)"),
    LintRule("no-semicolon", _is_code, _has(r";\s*\Z"), "a trailing ';' hides the output, but not from nbval"),
    LintRule("shows", _is_compared, _silent, f"shows nothing to compare: print the fact, or tag it {nb.IGNORE_TAG}"),
    LintRule("stable-output", _is_compared, _unstable, "the output differs between runs, it holds"),
    LintRule("stable-calls", _is_compared, _has(UNSTABLE_CALL), f"does not survive nbval: tag it {nb.IGNORE_TAG}"),
    LintRule("check-locked", lab_cells.is_check, _unlocked, "a check cell is locked and has points"),
    LintRule("check-compared", lab_cells.is_check, lambda c: not _is_compared(c), "a check's output must be compared"),
    LintRule(
        "check-prints", lab_cells.is_check, _only_verdicts, "print the values: 'ok' compares equal for any answer"
    ),
    LintRule("check-ends", lab_cells.is_check, _ends_bare, "ends in a bare expression, which nbgrader would score"),
    LintRule("check-asserts", lab_cells.is_check, _asserts_nothing, "no assert with a message that helps the learner"),
    LintRule("check-rubric", lab_cells.is_check, _rubric_off, RUBRIC_WANTED),
    LintRule(
        "answer-single", lab_cells.is_answer, lambda c: _definitions(c) != 1, "an answer is one function or class"
    ),
    LintRule("schema", lambda c: "nbgrader" in c.metadata, _not_schema_3, "nbgrader metadata is not schema 3"),
    LintRule(
        "metadata", lambda c: True, lambda c: set(c.metadata) - nb.KEPT_CELL_METADATA, "metadata that build removes"
    ),
    LintRule("no-false-list", _is_markdown, _reads_as_list, "a line that Markdown takes for an item of a list"),
    LintRule(
        "no-false-formula", _is_markdown, _formula_of_prices, r"write \$ for a price: two $ begin and end a formula"
    ),
    LintRule("known-policy", _is_markdown, references.unknown_policy, "a policy that the catalogue does not know"),
    LintRule("picture-words", _is_code, _wordless, "a stored picture without words for a screen reader: build it"),
    LintRule("alt-text", _is_markdown, _has(r"!\[\s*\]\(|<img(?![^>]*\balt=)"), "a picture without words for it"),
)


def main() -> int:
    """Print every broken rule of the notebooks below the current folder; 0 when there is none."""
    found = lint(nb.find_all(Path.cwd(), [*nb.BOOK, "solutions"]))
    print(*found, sep="\n", end="\n" * bool(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
