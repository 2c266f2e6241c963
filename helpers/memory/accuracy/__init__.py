"""Predictions beside what GPUs measured: cited figures, how each was made, and the errors. Torch only to rebuild.

    from helpers.memory import accuracy
    rows = list(accuracy.rows("op"))             # 74 peaks of single operators, rebuilt and traced
    print(accuracy.table(rows))

`cases` holds the cited figures; `ops`, `lora`, `serving`, `generation` and `megatron` rebuild what was measured, and
`table` sets both side by side; `other_estimators` has what well-known ones answer, `user_cases` reads runs that you
measured, `own_runs` rebuilds them, `published` has histories of allocators. Those figures come from other people's
GPUs; none was fitted to. `recordings` reads what `workbook record` measured, and `recorded` predicts it.
"""

from .cases import KINDS, AccuracyRow, Case, cases
from .other_estimators import EstimatorAnswer, answers
from .table import as_json, report, rows, table
