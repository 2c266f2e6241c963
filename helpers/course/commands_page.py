"""The end of docs/commands.md: what each question of a calculator can be told, from the question's own declaration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ..lesson.calculators.from_address import OFFERED
from ..lesson.calculators.offload_serving import OFFLOAD_SERVE
from ..lesson.calculators.offload_training import OFFLOAD_TRAIN
from ..lesson.calculators.preference import DPO, GRPO
from ..lesson.calculators.serving_memory import SERVE
from ..questions.parameter import Parameter
from ..questions.parameters import ADAPTED, GPU, MODEL, RESERVE, SERVED, SPLIT, TRAINED
from ..questions.question import Question

PAGE = Path("docs", "commands.md")
BEGINS = "## Every question and what it can be told\n"
_OTHERS = [question for name, question in OFFERED.items() if name != "offload"]  # which is two commands
QUESTIONS = (*_OTHERS, SERVE, GRPO, DPO, OFFLOAD_SERVE, OFFLOAD_TRAIN)
TOLD = {
    "Model and card": (MODEL, GPU, RESERVE),
    "A training run": TRAINED,
    "Adapters": ADAPTED,
    "Several GPUs": SPLIT,
    "A service": SERVED,
}
MOST_LETTERS = 160  # of a list of names; --help has all of it


def page(root: Path) -> str:
    """The page as it is, with its end written anew."""
    before, begins, _ = (root / PAGE).read_text(encoding="utf-8").partition(BEGINS)
    return f"{before.rstrip()}\n\n{begins or BEGINS}\n{options()}"


def options() -> str:
    """What several commands are told, then a heading for each command, in the order of their names."""
    about = "`workbook topics` writes this part of the page; `--help` has the whole of each list of names.\n"
    told = [f"### {title}\n\n{_lines(parameters)}" for title, parameters in TOLD.items()]
    ordered = sorted(QUESTIONS, key=_command)
    return "\n".join([about, *told, *(f"### {_command(one)}\n\n{flags_of(one)}" for one in ordered)])


def flags_of(question: Question) -> str:
    """A list in Markdown: what several commands are told by its title, then what this one alone is told."""
    names = {one.option for one in question.parameters}
    told = {title: {one.option for one in several} for title, several in TOLD.items()}
    shared = [title for title, options in told.items() if options <= names]
    known = set().union(*(told[title] for title in shared))
    first = f"- all of *{'*, *'.join(shared)}*\n" if shared else ""
    return first + _lines(one for one in question.parameters if one.option not in known)


def _lines(parameters: Iterable[Parameter]) -> str:
    return "".join(f"- `{one.option}` {text}\n" for one in parameters for text in _words(one))


def _command(question: Question) -> str:
    return " ".join(("workbook", *question.family, question.name))


def _words(one: Parameter) -> Iterator[str]:
    if not one.words:
        return
    words = one.words if len(one.words) <= MOST_LETTERS else f"{one.words[:MOST_LETTERS].rpartition(',')[0]}, …"
    plain = one.default in (None, "") or isinstance(one.default, bool) or "default" in words
    default = ",".join(one.default) if isinstance(one.default, tuple) else one.default
    yield words if plain else f"{words} (default {default})"
