"""`workbook number` and `workbook tensor`: a number, or a whole tensor, in every floating-point format."""

from __future__ import annotations

import re

from ..lesson.calculators.numbers import NUMBER
from ..lesson.calculators.tensor_numbers import TENSOR
from .flags import Commands, add_question


def add(commands: Commands) -> None:
    number = add_question(commands, NUMBER)
    number._negative_number_matcher = re.compile(r"-[\d.in]")  # argparse takes -1e-8 and -inf for flags otherwise
    add_question(commands, TENSOR)
