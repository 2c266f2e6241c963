"""What several commands share: the parser and its errors, and what is declared of questions put onto it."""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from ..catalog.devices import Device, device
from ..catalog.errors import WorkbookError, require_name
from ..catalog.serve_setup import ServeSetup
from ..memory.breakdown import format_bytes
from ..questions.parameter import Parameter, either
from ..questions.parameters import GPU, RESERVE
from ..questions.setups import reserve_bytes

if TYPE_CHECKING:
    from ..lesson.calculators.answers import CalculatorAnswer
    from ..questions.question import Question

LINE = 62  # letters beside a command's name, in a terminal of 80
Commands = argparse._SubParsersAction


class HelpFormatter(argparse.HelpFormatter):
    """Says every option's default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        return with_default(action)


def with_default(action: argparse.Action) -> str:
    """The option's help, with its default where the text has no word of it."""
    text, default = action.help or "", action.default
    if "default" in text or isinstance(default, bool) or default in (None, "", [], argparse.SUPPRESS):
        return text
    told = f"{default:g}" if isinstance(default, float) else default
    return f"{text} (default {','.join(told) if isinstance(told, tuple) else told})"


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations, with errors told as what, expected, do; of commands and none named, its help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **options)

    def add_subparsers(self, **options: Any) -> Commands:
        self.set_defaults(run=self._show_help)
        return super().add_subparsers(metavar="COMMAND", **options)

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """As argparse's; but here already, where the command is known, nothing may be left over."""
        words = sys.argv[1:] if args is None else list(args)
        if self._subparsers is None:  # a slip in --model is told before "--model is required"
            self._require_flags(itertools.takewhile(lambda word: word != "--", words))
        found, left = super().parse_known_args(words, namespace)
        self._require_flags(left)
        if left:
            self.error(f"unrecognized arguments: {' '.join(left)}")
        return found, left

    def error(self, message: str) -> NoReturn:
        raise WorkbookError(message, self.format_usage().strip(), f"run `{self.prog} --help`")

    def _require_flags(self, words: Iterable[str]) -> None:
        known = [flag for flag in self._option_string_actions if flag.startswith("--")]
        for word in words:
            if word.startswith("--") and " " not in word:
                require_name("flag", word.partition("=")[0], known)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None:
            require_name("/".join(action.option_strings) or "command", value, list(action.choices))

    def _show_help(self, _: argparse.Namespace) -> int:
        self.print_help()
        return 0


def in_groups(parser: Parser, commands: Commands, groups: Mapping[str, Iterable[str]]) -> None:
    """List the parser's `commands`, all of which are in `groups`, under these titles in its help."""
    lines = {command.dest: command for command in commands._choices_actions}
    for title, names in groups.items():
        parser.add_argument_group(title)._group_actions.extend(lines.pop(name) for name in names)
    parser._positionals._group_actions.clear()


def add_command(
    commands: Commands, name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """A command that `text` describes; `run(arguments)` gives its exit code. A list shows a line: up to the colon."""
    line = text if len(text) <= LINE else text.partition(":")[0]
    command = commands.add_parser(name, help=line, description=text)
    command.set_defaults(run=run)
    return command


def add_question(
    commands: Commands, question: Question, run: Callable[[argparse.Namespace], int] | None = None
) -> argparse.ArgumentParser:
    """The command of a question, with its parameters as flags; it prints the answer where `run` does nothing else."""

    def answer(arguments: argparse.Namespace) -> int:
        return print_answer(question.ask(said_of(arguments, question.parameters)), arguments)

    command = add_command(commands, question.name, question.words, run or answer)
    add_parameters(command, question.parameters)
    command.add_argument("--json", action="store_true", help=f"print JSON{question.units and f', in {question.units}'}")
    return command


def add_parameters(parser: argparse._ActionsContainer, parameters: Iterable[Parameter]) -> None:
    groups: dict[str, argparse._ActionsContainer] = {"": parser}
    for one in parameters:
        if one.words:
            if one.group not in groups:
                groups[one.group] = parser.add_argument_group(one.group)
            _add_parameter(groups[one.group], one)


def _add_parameter(parser: argparse._ActionsContainer, one: Parameter) -> None:
    options: dict[str, Any] = {"help": one.words, "default": one.default}
    if one.type is bool:
        options["action"] = "store_true"
    elif one.type is either:
        options["action"] = argparse.BooleanOptionalAction
    else:
        options |= {"type": one.type, "metavar": one.metavar, "choices": one.choices}
    if one.by_position:
        parser.add_argument(one.name, **options)
    else:
        parser.add_argument(one.option, *one.also, dest=one.name, required=one.required, **options)


def said_of(arguments: argparse.Namespace, parameters: Iterable[Parameter]) -> dict[str, Any]:
    """What the flags of these parameters say."""
    return {one.name: getattr(arguments, one.name) for one in parameters if one.words}


def card_and_json(parser: argparse.ArgumentParser, units: str = "bytes") -> None:
    """For a command that is no question of a calculator."""
    add_parameters(parser, (GPU, RESERVE))
    parser.add_argument("--json", action="store_true", help=f"print JSON, in {units}")


def ollama(text: str, setup: ServeSetup) -> tuple[str, ...]:
    """What to say under a model of Ollama's spelling, whose files are quantized by default.

    4.85 bits a weight are what llama.cpp's Q4_K_M takes of Llama-3.1-8B: 4.58 GiB.
    """
    if not re.fullmatch(r"[\w.-]+:[\w.-]+", text) or setup.model.stored:
        return ()
    size = format_bytes(setup.model.parameters * 485 // 800)
    return (f"Ollama's own {text} is Q4_K_M, about {size} of weights: name its GGUF file to count that.",)


def reserve_bytes_of(arguments: argparse.Namespace) -> int | None:
    """What --reserve says; None where the card, the engine and the ranks do (`memory.fit.reserves`)."""
    return reserve_bytes(arguments.reserve, getattr(arguments, "gpu", None))


def print_answer(answer: CalculatorAnswer, arguments: argparse.Namespace) -> int:
    print(json.dumps(answer.figures) if arguments.json else answer)
    return 0


def with_notes(code: int, notes: Iterable[str]) -> int:
    """`code`, with what is to be said under an answer."""
    for note in notes:
        print(note)
    return code


def device_of(arguments: argparse.Namespace) -> Device | None:
    return None if arguments.gpu is None else device(arguments.gpu)
