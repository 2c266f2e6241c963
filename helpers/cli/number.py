"""`workbook number` and `workbook tensor`: a number, or a whole tensor, in every floating-point format."""

from __future__ import annotations

import argparse
import json
import re

from ..catalog.floats import OVERFLOWS
from ..lesson import calculators
from ..lesson.calculators.histograms import stored_histograms
from ..lesson.calculators.stored import FORMATS, PLAIN
from .flags import Commands, add_command, whole


def add(commands: Commands) -> None:
    number = add_command(commands, "number", "a number in every format: its bits, what is stored, how far off", _number)
    number.add_argument("value", metavar="VALUE", help="0.1, 1e-8, 65504, 2**-24, 1/3, inf, nan")
    number._negative_number_matcher = re.compile(r"-[\d.in]")  # argparse takes -1e-8 and -inf for flags otherwise
    number.add_argument("--format", default="fp16", help=f"the one that is explained: {', '.join(FORMATS)}")
    number.add_argument("--overflow", default="ieee", help=f"what becomes of too large ones: {', '.join(OVERFLOWS)}")
    text = "the largest value of the number's block, as a multiple of the number"
    number.add_argument("--block-largest", type=whole, default=1, metavar="N", help=text)
    names = ", ".join(stored_histograms())
    tensor = add_command(commands, "tensor", "a tensor in every format: what becomes 0, what is too large", _tensor)
    tensor.add_argument("tensor", metavar="TENSOR", help=f"of the small model: {names}")
    tensor.add_argument("--format", default="fp16", help=f"the one that is explained: {', '.join(PLAIN)}")
    tensor.add_argument("--scale", type=whole, default=0, help="power of two that it is multiplied by")
    for parser in (number, tensor):
        parser.add_argument("--json", action="store_true", help="print JSON")


def _number(arguments: argparse.Namespace) -> int:
    chosen = (arguments.value, arguments.format, arguments.overflow, arguments.block_largest)
    return _print(calculators.number_answer(*chosen), arguments.json)


def _tensor(arguments: argparse.Namespace) -> int:
    return _print(calculators.tensor_answer(arguments.tensor, arguments.format, arguments.scale), arguments.json)


def _print(answer: calculators.CalculatorAnswer, as_json: bool) -> int:
    print(json.dumps(answer.figures) if as_json else answer)
    return 0
