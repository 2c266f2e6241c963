"""Predictions beside what GPUs measured: cited figures, how each was made, and the errors. Torch only to rebuild.

    from helpers.memory import accuracy
    rows = list(accuracy.rows("op"))             # 63 peaks of single operators, rebuilt and traced
    print(accuracy.table(rows))

`cases` holds the cited figures, `ops`, `lora` and `serving` rebuild what was measured, `table` sets both side by side;
`others` has what well-known estimators answer. Those figures come from other people's GPUs; none was fitted to.
`recordings` reads what `workbook record` measured, `recorded` predicts it.
"""

from .cases import KINDS, Case, cases
from .other_estimators import Answer, answers
from .report import report
from .table import Row, as_json, rows, table

__all__ = ["KINDS", "Answer", "Case", "Row", "answers", "as_json", "cases", "report", "rows", "table"]
